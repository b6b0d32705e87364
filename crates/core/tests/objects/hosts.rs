//! Credentials and the hosts that receive them: the rows of the table in
//! `docs/reference/security.md`, checked by what servers receive.
//!
//! The environment holds credentials for every store; each case is a process of its own.

use tload_testbed::{FaultyServer, Hub};

use crate::alone;
use crate::fixtures::{even, folder};
use crate::listener::Listener;

/// Loads `CASE_LOCATION` with `CASE_OPTIONS`.
const CHILD: &str = "credentials::loads_case_location";

/// Part of every secret.
const MARK: &str = "hunter2";

/// Credentials for every store.
const AMBIENT: [(&str, &str); 9] = [
    ("AWS_ACCESS_KEY_ID", "AKIAhunter2"),
    ("AWS_SECRET_ACCESS_KEY", "hunter2secret"),
    ("AWS_SESSION_TOKEN", "hunter2session"),
    ("AWS_EC2_METADATA_DISABLED", "true"),
    ("AZURE_STORAGE_TOKEN", "hunter2azure"),
    ("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=hunter2sas"),
    ("GOOGLE_BEARER_TOKEN", "hunter2google"),
    ("HF_TOKEN", "hf_hunter2"),
    ("HF_HUB_CACHE", "/nonexistent"),
];

/// Loads a location in a process with these variables and all credentials, and returns the outcome.
pub(crate) fn outcome(location: &str, options: &str, variables: &[(&str, &str)]) -> String {
    let home = folder();
    let home = home.path().to_str().expect("UTF-8");
    let options = format!("retries=0 read_timeout=5 {options}");
    let mut all = AMBIENT.to_vec();
    all.extend([
        ("HOME", home),
        ("CASE_LOCATION", location),
        ("CASE_OPTIONS", &options),
    ]);
    all.extend(variables);
    let output = alone::run(CHILD, &all);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (_, outcome) = text.split_once("OUTCOME ").expect("an outcome");
    outcome.to_owned()
}

fn silent() -> Listener {
    Listener::start(|_| String::new())
}

fn served() -> FaultyServer {
    let server = FaultyServer::start();
    for path in ["models/m.safetensors", "account/models/m.safetensors"] {
        server.put(path, even("t", 1, 2, 5000));
    }
    server
}

/// Returns the values of a header in all requests.
fn sent(server: &FaultyServer, name: &str) -> Vec<String> {
    let requests = server.requests();
    let values = requests
        .iter()
        .filter_map(|request| request.headers.get(name));
    values.cloned().collect()
}

#[test]
fn azure_credentials_skip_hosts_named_only_by_url() {
    let listener = silent();
    let port = listener.address.port();
    for location in [
        format!("abfss://c@2130706433:{port}#/m.safetensors"),
        format!("abfss://c@127.0.0.1:{port}/m.safetensors"),
        format!("abfss://c@127.0.0.1:{port}#.blob.core.windows.net/m.safetensors"),
        format!("abfs://c@127.0.0.1:{port}?x/m.safetensors"),
    ] {
        let elsewhere = ("AZURE_STORAGE_ENDPOINT", "https://account.example");
        for variables in [&[][..], &[elsewhere], &[("AZURE_STORAGE_TOKEN", "")]] {
            let outcome = outcome(&location, "", variables);
            assert!(
                outcome.starts_with("InvalidRequest"),
                "{location}: {outcome}"
            );
            assert_eq!(listener.received(), [""; 0], "{location}");
        }
    }
}

#[test]
fn azure_credentials_go_to_configured_endpoint() {
    let server = served();
    let endpoint = format!("{}/account", server.url());
    let option = format!("endpoint={endpoint} account=account");
    let variables = [
        ("AZURE_STORAGE_ENDPOINT", &*endpoint),
        ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
    ];
    for (location, options, variables) in [
        ("az://models/m.safetensors", &*option, &[][..]),
        // The option is required: the URL alone would not be trusted.
        ("abfss://models@account.example/m.safetensors", &option, &[]),
        ("az://models/m.safetensors", "", &variables),
    ] {
        server.forget_requests();
        let outcome = outcome(location, options, variables);
        assert!(outcome.starts_with("loaded"), "{location}: {outcome}");
        let tokens = sent(&server, "authorization");
        assert!(!tokens.is_empty() && tokens.iter().all(|token| token == "Bearer hunter2azure"));
    }
}

#[test]
fn azure_connection_string_key_goes_to_its_endpoint() {
    let server = served();
    let connection = format!(
        "AccountName=account;AccountKey=aHVudGVyMg==;BlobEndpoint={}/account",
        server.url()
    );
    let variables = [
        ("AZURE_STORAGE_CONNECTION_STRING", &*connection),
        ("AZURE_STORAGE_TOKEN", ""),
        ("AZURE_STORAGE_SAS_TOKEN", ""),
    ];
    let outcome = outcome("az://models/m.safetensors", "", &variables);
    assert!(outcome.starts_with("loaded"), "{outcome}");
    let signed = sent(&server, "authorization");
    let is_shared_key = |value: &String| value.starts_with("SharedKey account:");
    assert!(!signed.is_empty() && signed.iter().all(is_shared_key));
}

#[test]
fn aws_credentials_go_to_configured_endpoint() {
    let server = served();
    let option = format!("endpoint={}", server.url());
    let variable = ("AWS_ENDPOINT_URL_S3", &*server.url());
    for (options, variables) in [(&*option, &[][..]), ("", &[variable])] {
        server.forget_requests();
        let outcome = outcome("s3://models/m.safetensors", options, variables);
        assert!(outcome.starts_with("loaded"), "{outcome}");
        let tokens = sent(&server, "x-amz-security-token");
        assert!(!tokens.is_empty() && tokens.iter().all(|token| token == "hunter2session"));
    }
}

#[test]
fn aws_credentials_skip_hosts_named_by_bucket() {
    let listener = silent();
    let port = listener.address.port();
    let is_virtual = ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true");
    let endpoint = ("AWS_ENDPOINT_URL_S3", "http://s3.invalid");
    for (bucket, options, variables) in [
        (
            format!("127.0.0.1:{port}#"),
            "",
            &[is_virtual, endpoint][..],
        ),
        (
            format!("127.0.0.1:{port}?"),
            "addressing=virtual",
            &[endpoint],
        ),
        (
            format!("127.0.0.1:{port}\\"),
            "addressing=virtual",
            &[endpoint],
        ),
        (format!("127.0.0.1:{port}#--use1-az4--x-s3"), "", &[]),
    ] {
        let location = format!("s3://{bucket}/m.safetensors");
        let outcome = outcome(&location, options, variables);
        assert!(
            outcome.starts_with("InvalidRequest"),
            "{location}: {outcome}"
        );
        assert_eq!(listener.received(), [""; 0], "{location}");
    }
}

#[test]
fn google_credentials_go_to_endpoint_for_any_bucket() {
    let (server, listener) = (served(), silent());
    let endpoint = format!("endpoint={}", server.url());
    let outcome_of =
        |bucket: &str| outcome(&format!("gs://{bucket}/m.safetensors"), &endpoint, &[]);
    assert!(outcome_of("models").starts_with("loaded"));
    let tokens = sent(&server, "authorization");
    assert!(!tokens.is_empty() && tokens.iter().all(|token| token == "Bearer hunter2google"));
    let odd = format!("127.0.0.1:{}#", listener.address.port());
    assert!(!outcome_of(&odd).starts_with("loaded"));
    assert_eq!(listener.received(), [""; 0]);
}

/// A key file names the host of its requests, and the environment names the file.
#[test]
fn google_key_file_requests_go_to_its_base_url() {
    let server = served();
    let folder = folder();
    let path = folder.path().join("key.json");
    let key = format!(
        r#"{{"private_key": "", "private_key_id": "", "client_email": "",
             "gcs_base_url": "{}", "disable_oauth": true}}"#,
        server.url()
    );
    std::fs::write(&path, key).expect("a temporary folder");
    let path = path.to_str().expect("UTF-8");
    let variables = [
        ("GOOGLE_BEARER_TOKEN", ""),
        ("GOOGLE_SERVICE_ACCOUNT", path),
    ];
    let location = "gs://models/m.safetensors";
    let outcome = outcome(location, "google_allow_http=true", &variables);
    assert!(outcome.starts_with("loaded"), "{outcome}");
    let requests = server.requests();
    assert!(!requests.is_empty());
    for request in requests {
        let values: Vec<_> = request.headers.values().collect();
        assert!(!format!("{values:?}").contains(MARK), "{request:?}");
    }
}

#[test]
fn hub_token_goes_to_endpoint_and_not_to_redirects() {
    let hub = Hub::start();
    hub.commit(
        "org/model",
        "main",
        &[("model.safetensors", &even("t", 1, 2, 5000))],
    );
    let option = format!("endpoint={}", hub.url());
    for (options, variables) in [
        ("", &[("HF_ENDPOINT", &*hub.url())][..]),
        (&option, &[("HF_ENDPOINT", "http://127.0.0.1:1")]),
    ] {
        let outcome = outcome("hf://org/model", options, variables);
        assert!(outcome.starts_with("loaded"), "{outcome}");
    }
    assert!(hub.requests().iter().all(|request| request.with_token));
    let requests = hub.files().requests();
    assert!(!requests.is_empty());
    for request in requests {
        let headers = format!(
            "{:?} {:?}",
            request.headers.keys(),
            request.headers.values()
        );
        assert!(
            !headers.contains(MARK) && !headers.contains("authorization"),
            "{request:?}"
        );
    }
}

#[test]
fn web_servers_get_no_environment_credentials() {
    let server = served();
    for location in [
        format!("{}/models/m.safetensors", server.url()),
        format!(
            "{}/models/m.safetensors",
            server.url().replace("127.0.0.1", "localhost")
        ),
    ] {
        let hub = server.url();
        let variables = [("HF_ENDPOINT", &*hub), ("AWS_ENDPOINT_URL_S3", &hub)];
        let outcome = outcome(&location, "", &variables);
        assert!(outcome.starts_with("loaded"), "{outcome}");
    }
    for request in server.requests() {
        let values: Vec<_> = request.headers.values().collect();
        assert!(
            !format!("{values:?}{:?}", request.query).contains(MARK),
            "{request:?}"
        );
        assert!(
            !request.headers.contains_key("authorization"),
            "{request:?}"
        );
    }
}

#[test]
fn proxy_password_goes_to_proxy_only() {
    let server = served();
    let proxy = Listener::start(|_| "HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n".to_owned());
    let option = format!("proxy=http://user:hunter2proxy@{}", proxy.address);
    outcome("http://host.invalid/models/m.safetensors", &option, &[]);
    let heads = proxy.received();
    assert!(!heads.is_empty());
    for head in heads {
        let lower = head.to_ascii_lowercase();
        // `user:hunter2proxy`
        assert!(
            lower.contains("proxy-authorization: basic dxnlcjpodw50zxiychjvehk="),
            "{lower}"
        );
        assert!(!head.contains(MARK), "{head}");
    }
    let location = format!("{}/models/m.safetensors", server.url());
    let excluded = ("NO_PROXY", "127.0.0.1");
    assert!(outcome(&location, &option, &[excluded]).starts_with("loaded"));
    assert!(sent(&server, "proxy-authorization").is_empty());
}

/// Google's metadata service, in place of which a proxy could give any token.
#[test]
fn metadata_requests_bypass_proxy_of_variables() {
    let refusal = || Listener::start(|_| "HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n".to_owned());
    let token = r#"{"access_token": "token", "expires_in": 3600}"#;
    let (proxy, store) = (refusal(), refusal());
    let service = Listener::start(move |_| {
        let len = token.len();
        format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{token}")
    });
    let host = service.address.to_string();
    let options = format!("endpoint=http://localhost:{}", store.address.port());
    let variables = [
        ("GOOGLE_BEARER_TOKEN", ""),
        ("GCE_METADATA_HOST", &*host),
        ("GCE_METADATA_IP", &host),
        ("HTTP_PROXY", &proxy.url()),
    ];
    outcome("gs://models/m.safetensors", &options, &variables);
    assert!(!service.received().is_empty());
    let heads = proxy.received();
    let is_for_store = |head: &String| head.contains("//localhost:");
    assert!(
        !heads.is_empty() && heads.iter().all(is_for_store),
        "{heads:?}"
    );
    assert_eq!(store.received(), [""; 0]);
}

#[test]
fn option_headers_go_to_store_not_to_credential_services() {
    let google: fn(&str) -> Vec<(&str, &str)> = |host| {
        vec![
            ("GOOGLE_BEARER_TOKEN", ""),
            ("GCE_METADATA_HOST", host),
            ("GCE_METADATA_ROOT", host),
            ("GCE_METADATA_IP", host),
        ]
    };
    let aws: fn(&str) -> Vec<(&str, &str)> = |url| {
        vec![
            ("AWS_ACCESS_KEY_ID", ""),
            ("AWS_SECRET_ACCESS_KEY", ""),
            ("AWS_SESSION_TOKEN", ""),
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", url),
        ]
    };
    let azure: fn(&str) -> Vec<(&str, &str)> = |url| {
        vec![
            ("AZURE_STORAGE_TOKEN", ""),
            ("AZURE_STORAGE_SAS_TOKEN", ""),
            ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
            ("IDENTITY_ENDPOINT", url),
            ("IDENTITY_HEADER", "x"),
        ]
    };
    for (scheme, variables) in [("gs", google), ("s3", aws), ("az", azure)] {
        let (server, service) = (served(), silent());
        let options = format!("header.x-team=hunter2header endpoint={}", server.url());
        let address = match scheme {
            "gs" => service.address.to_string(),
            _ => service.url(),
        };
        let location = format!("{scheme}://models/m.safetensors");
        outcome(&location, &options, &variables(&address));
        let heads = service.received();
        assert!(!heads.is_empty(), "{scheme}: no credentials were requested");
        for head in heads {
            assert!(!head.contains(MARK) && !head.contains("x-team"), "{head}");
        }
    }
}
