//! Credentials for OCI registries: files of other tools, tokens and their renewal, and the hosts
//! that receive them.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use tload::{Checkpoint, Location};
use tload_testbed::{FaultyServer, Guard, Registry, require};

use crate::fixtures::{assert_all, even, folder, in_file_order, load};
use crate::hosts::outcome;
use crate::listener::Listener;
use crate::sites;

const MODEL: &str = "org/model";
const RAW: &str = "application/vnd.cncf.model.weight.v1.raw";
const PATH: &str = "org.cncf.model.filepath";

/// Pushes a file, and returns it.
fn push(registry: &Registry) -> Vec<u8> {
    let file = even("t", 1, 4, 100_000);
    let annotations = json!({PATH: "model.safetensors"});
    let layer = registry.layer(MODEL, RAW, &annotations, &file);
    let pushed = registry.push(MODEL, "v1", &[layer.expect("the blob is stored")]);
    pushed.expect("the push succeeds");
    file
}

fn url(address: &str) -> String {
    format!("oci://{address}/{MODEL}:v1")
}

/// Writes a file as `docker login` does.
fn write_login(folder: &Path, address: &str, user: &str, password: &str) {
    let auth = BASE64_STANDARD.encode(format!("{user}:{password}"));
    let config = json!({"auths": {address: {"auth": auth}}});
    std::fs::write(folder.join("config.json"), config.to_string()).expect("a temporary folder");
}

#[test]
fn password_comes_from_file_of_other_tools() {
    let Some(registry) = require(Registry::start_with(Guard::Password)) else {
        return;
    };
    push(&registry);
    let (address, home) = (registry.address(), folder());
    let path = home.path().to_str().expect("UTF-8");
    let variables = [("DOCKER_CONFIG", path)];
    let load = |options: &str| outcome(&url(address), options, &variables);
    for options in ["", "environment=false"] {
        let outcome = load(options);
        assert!(outcome.starts_with("PermissionDenied"), "{outcome}");
        assert!(outcome.contains("none were found"), "{outcome}");
        assert!(outcome.contains("anonymous"), "{outcome}");
    }
    write_login(home.path(), address, registry.user(), registry.password());
    let loaded = load("");
    assert!(loaded.starts_with("loaded"), "{loaded}");
    for options in ["anonymous=true", "environment=false"] {
        let outcome = load(options);
        assert!(outcome.contains("none were found"), "{outcome}");
    }
    write_login(home.path(), address, registry.user(), "hunter2");
    let outcome = load("");
    assert!(outcome.starts_with("PermissionDenied"), "{outcome}");
    let file = format!("file {path}/config.json");
    assert!(
        outcome.contains(&file) && !outcome.contains("hunter2"),
        "{outcome}"
    );
}

/// Writes a file that names a credential helper for all registries.
fn write_helper(folder: &Path, name: &str) {
    let config = json!({"credsStore": name}).to_string();
    std::fs::write(folder.join("config.json"), config).expect("a temporary folder");
}

/// Writes a credential helper of this name, a shell script without programs in its `PATH`.
fn write_program(folder: &Path, name: &str, script: &str) {
    let path = folder.join(format!("docker-credential-{name}"));
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a temporary folder");
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("its mode");
}

#[test]
fn failing_helper_does_not_keep_from_public_artifacts() {
    let service = Listener::start(|_| json_reply(r#"{"token": "t"}"#));
    let realm = service.url();
    let Some(public) = require(Registry::start()) else {
        return;
    };
    let Some(asking) = require(Registry::start_with(Guard::Token(&realm))) else {
        return;
    };
    let home = folder();
    let path = home.path().to_str().expect("UTF-8");
    write_program(home.path(), "failing", "exit 1");
    for name in ["failing", "absent"] {
        write_helper(home.path(), name);
        for registry in [&public, &asking] {
            push(registry);
            let variables = [("DOCKER_CONFIG", path), ("PATH", path)];
            let outcome = outcome(&url(registry.address()), "", &variables);
            assert!(outcome.starts_with("loaded"), "{name}: {outcome}");
        }
    }
    for request in service.received() {
        assert_eq!(header(&request, "authorization"), None, "{request}");
    }
}

#[test]
fn failing_helper_is_named_if_anonymous_access_is_denied() {
    let denied = |more: &str| {
        format!("HTTP/1.1 401 Unauthorized\r\n{more}content-length: 0\r\nconnection: close\r\n\r\n")
    };
    let home = folder();
    let path = home.path().to_str().expect("UTF-8");
    write_program(home.path(), "failing", "exit 1");
    for (scheme, service_denies) in [("Bearer", false), ("Bearer", true), ("Basic", true)] {
        let service = Listener::start(move |_| {
            if service_denies {
                denied("")
            } else {
                json_reply(r#"{"token": "t"}"#)
            }
        });
        let challenge = format!("www-authenticate: {scheme} realm=\"{}\"\r\n", service.url());
        let registry = Listener::start(move |_| denied(&challenge));
        for (name, words) in [
            ("failing", "-failing failed"),
            ("absent", "-absent is not in PATH"),
        ] {
            write_helper(home.path(), name);
            let variables = [("DOCKER_CONFIG", path), ("PATH", path)];
            let outcome = outcome(&url(&registry.address.to_string()), "", &variables);
            assert!(outcome.starts_with("PermissionDenied"), "{outcome}");
            assert!(outcome.contains(words), "{scheme} {name}: {outcome}");
        }
    }
}

/// The credentials of a helper expire during the load.
#[test]
fn helper_is_asked_again_when_its_credentials_expire() {
    let header_text = format!(
        "{:<120}",
        r#"{"t":{"dtype":"U8","shape":[100],"data_offsets":[0,100]}}"#
    );
    let length = u64::try_from(header_text.len())
        .expect("a length")
        .to_le_bytes();
    let length = std::str::from_utf8(&length).expect("ASCII");
    let file = format!("{length}{header_text}{}", "0123456789".repeat(10));
    // Each password is good for two requests.
    let used = AtomicUsize::new(0);
    let registry = Listener::start(move |head| {
        let number = 1 + used.load(Ordering::SeqCst) / 2;
        let pair = BASE64_STANDARD.encode(format!("user:hunter2-{number}"));
        if header(head, "authorization") != Some(&*format!("Basic {pair}")) {
            return "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Basic realm=\"r\"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned();
        }
        used.fetch_add(1, Ordering::SeqCst);
        blob_reply(head, "model.safetensors", &file)
    });
    let home = folder();
    let path = home.path().to_str().expect("UTF-8");
    let script = r#"read -r server
read -r n < "$0.count"
n=$((n+1))
echo "$n" > "$0.count"
echo "{\"Username\": \"user\", \"Secret\": \"hunter2-$n\"}""#;
    write_program(home.path(), "counting", script);
    let count = home.path().join("docker-credential-counting.count");
    std::fs::write(&count, "0\n").expect("a temporary folder");
    write_helper(home.path(), "counting");
    let variables = [("DOCKER_CONFIG", path), ("PATH", path)];
    let outcome = outcome(&url(&registry.address.to_string()), "", &variables);
    assert!(outcome.starts_with("loaded 100 bytes"), "{outcome}");
    let count = std::fs::read_to_string(&count).expect("a count");
    assert!(count.trim() != "0" && count.trim() != "1", "{count}");
}

/// Answers with these bytes as JSON.
fn json_reply(body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

/// Returns the value of a header of a request.
fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = head.lines().filter_map(|line| line.split_once(": "));
    let found = pairs.find(|(found, _)| found.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value)
}

#[test]
fn token_service_gets_password_and_no_other_header() {
    let service =
        Listener::start(|_| json_reply(r#"{"token": "hunter2token", "expires_in": 300}"#));
    let realm = format!("{}/token?account=a", service.url());
    let Some(registry) = require(Registry::start_with(Guard::Token(&realm))) else {
        return;
    };
    push(&registry);
    let home = folder();
    write_login(home.path(), registry.address(), "user", "hunter2password");
    let variables = [("DOCKER_CONFIG", home.path().to_str().expect("UTF-8"))];
    let loaded = outcome(
        &url(registry.address()),
        "header.x-team=hunter2team",
        &variables,
    );
    assert!(loaded.starts_with("loaded"), "{loaded}");
    let asked = service.received();
    let [asked] = &*asked else {
        panic!("one token serves all requests: {asked:?}");
    };
    let target = asked.split(' ').nth(1).expect("a target");
    assert_eq!(
        target,
        "/token?account=a&service=tload&scope=repository%3Aorg%2Fmodel%3Apull"
    );
    let pair = BASE64_STANDARD.encode("user:hunter2password");
    assert_eq!(
        header(asked, "authorization"),
        Some(&*format!("Basic {pair}"))
    );
    assert_eq!(header(asked, "x-team"), None, "{asked}");
}

/// Answers requests for an artifact of one file.
fn blob_reply(head: &str, name: &str, file: &str) -> String {
    if head.starts_with("GET /v2/org/model/manifests/v1 ") {
        let layer = json!({
            "mediaType": RAW, "size": file.len(), "digest": format!("sha256:{}", "0".repeat(64)),
            "annotations": {PATH: name},
        });
        let kind = "application/vnd.oci.image.manifest.v1+json";
        return json_reply(&json!({"mediaType": kind, "layers": [layer]}).to_string());
    }
    let range = header(head, "range").and_then(|range| range.strip_prefix("bytes="));
    let (start, end) = range
        .and_then(|range| range.split_once('-'))
        .expect("a range");
    let [start, end] = [start, end].map(|at| at.parse::<usize>().expect("a number"));
    let (body, len) = (&file[start..=end], file.len());
    format!(
        "HTTP/1.1 206 Partial Content\r\ncontent-range: bytes {start}-{end}/{len}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[test]
fn refused_token_is_renewed_once() {
    let issued = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&issued);
    let service = Listener::start(move |_| {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        json_reply(&json!({"access_token": format!("hunter2-{number}")}).to_string())
    });
    let realm = service.url();
    // Each token is good for two requests.
    let used = AtomicUsize::new(0);
    let file = "0123456789".repeat(20);
    let registry = Listener::start(move |head| {
        let number = 1 + used.load(Ordering::SeqCst) / 2;
        if header(head, "authorization") != Some(&*format!("Bearer hunter2-{number}")) {
            return format!(
                "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Bearer realm=\"{realm}\"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
        }
        used.fetch_add(1, Ordering::SeqCst);
        blob_reply(head, "file", &file)
    });
    let location = Location::parse(&format!("{}/file", url(&registry.address.to_string())));
    let options = sites::options(&[("retries", "0")]);
    let source =
        tload::internal::storage::ObjectSource::at(&location.expect("a location"), &options);
    let source = source.expect("opens");
    for start in [0, 50, 100, 150] {
        let bytes = tload::internal::storage::Source::fetch(&source, start, 50).expect("reads");
        assert_eq!(bytes, "0123456789".repeat(5).as_bytes());
    }
    let tokens = issued.load(Ordering::SeqCst);
    assert!((2..=4).contains(&tokens), "{tokens} tokens");
}

#[test]
fn redirect_gets_no_credentials() {
    let elsewhere = FaultyServer::start();
    let Some(registry) = require(Registry::start_with(Guard::Elsewhere(&elsewhere.url()))) else {
        return;
    };
    let file = push(&registry);
    let digest = registry.put_blob(MODEL, &file).expect("stored again");
    let digits = digest.strip_prefix("sha256:").expect("its algorithm");
    let path = format!(
        "docker/registry/v2/blobs/sha256/{}/{digits}/data",
        &digits[..2]
    );
    elsewhere.put(&path, &*file);
    let location = Location::parse(&url(registry.address())).expect("a location");
    for pairs in [
        [
            ("header.authorization", "Bearer hunter2"),
            ("header.x-team", "hunter2"),
        ],
        [("token", "hunter2"), ("header.x-team", "hunter2")],
    ] {
        elsewhere.forget_requests();
        let checkpoint = Checkpoint::open_with(&location, sites::options(&pairs)).expect("opens");
        assert_all(
            &load(&checkpoint, in_file_order()).expect("loads").0,
            &[&file],
        );
        let requests = elsewhere.requests();
        assert!(requests.len() >= 2, "{requests:?}");
        for request in requests {
            let shown = format!(
                "{:?} {:?}",
                request.headers.keys(),
                request.headers.values()
            );
            assert!(
                !shown.contains("hunter2") && !shown.contains("authorization"),
                "{shown}"
            );
        }
    }
}

#[test]
fn token_service_of_another_network_is_refused() {
    let registry = Listener::start(|_| {
        "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Bearer realm=\"http://169.254.169.254/token\"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned()
    });
    let location = Location::parse(&url(&registry.address.to_string())).expect("a location");
    let error = Checkpoint::open_with(&location, sites::options(&[("retries", "0")]));
    let error = error.expect_err("refused");
    assert_eq!(
        error.kind(),
        tload::ErrorKind::PermissionDenied,
        "{error:?}"
    );
    assert!(error.message().contains("169.254.169.254"), "{error}");
}

/// A registry and its token service that repeat every secret in their errors.
#[test]
fn echoed_secrets_are_not_shown() {
    let echo = |head: &str, status: &str, more: &str| {
        let sent = header(head, "authorization").unwrap_or("nothing");
        let secret = sent.rsplit(' ').next().unwrap_or_default();
        let decoded = BASE64_STANDARD.decode(secret).unwrap_or_default();
        let message = format!("{sent} {secret} {}", String::from_utf8_lossy(&decoded));
        let body = json!({"errors": [{"code": "DENIED", "message": message}]}).to_string();
        let length = body.len();
        format!(
            "HTTP/1.1 {status}\r\n{more}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
        )
    };
    for service_refuses in [false, true] {
        let service = Listener::start(move |head| {
            if service_refuses {
                return echo(head, "403 Forbidden", "");
            }
            json_reply(r#"{"token": "hunter2token"}"#)
        });
        let realm = service.url();
        let registry = Listener::start(move |head| {
            let challenge = format!("www-authenticate: Bearer realm=\"{realm}\"\r\n");
            match header(head, "authorization") {
                None => echo(head, "401 Unauthorized", &challenge),
                Some(_) => echo(head, "403 Forbidden", ""),
            }
        });
        let (address, home) = (registry.address.to_string(), folder());
        write_login(home.path(), &address, "user", "hunter2password");
        let variables = [("DOCKER_CONFIG", home.path().to_str().expect("UTF-8"))];
        let outcome = outcome(&url(&address), "", &variables);
        assert!(outcome.starts_with("PermissionDenied"), "{outcome}");
        assert!(
            outcome.contains("***") && !outcome.contains("hunter2"),
            "{outcome}"
        );
        let refusing = if service_refuses {
            service.address
        } else {
            registry.address
        };
        assert!(outcome.contains(&refusing.to_string()), "{outcome}");
        assert_eq!(service.received().len(), 1);
    }
}

#[test]
fn challenge_of_redirect_target_is_not_answered() {
    let service = Listener::start(|_| json_reply(r#"{"token": "t"}"#));
    let realm = service.url();
    let elsewhere = Listener::start(move |_| {
        format!(
            "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Bearer realm=\"{realm}\"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        )
    });
    let target = elsewhere.url();
    let registry = Listener::start(move |_| {
        format!(
            "HTTP/1.1 307 Temporary Redirect\r\nlocation: {target}/x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        )
    });
    let (address, home) = (registry.address.to_string(), folder());
    write_login(home.path(), &address, "user", "hunter2password");
    let variables = [("DOCKER_CONFIG", home.path().to_str().expect("UTF-8"))];
    let outcome = outcome(&url(&address), "", &variables);
    assert!(outcome.starts_with("PermissionDenied"), "{outcome}");
    assert_eq!(elsewhere.received().len(), 1);
    assert_eq!(service.received(), [""; 0]);
}
