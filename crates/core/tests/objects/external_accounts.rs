//! Google's external accounts: tokens of another provider are exchanged at a token service.
//!
//! The environment names the file, so each case is a process of its own.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};
use tempfile::TempDir;
use tload_testbed::{FaultyServer, ForwardProxy, TokenService};

use crate::alone;
use crate::fixtures::{even, folder};

/// Loads `CASE_LOCATION` with `CASE_OPTIONS`.
const CHILD: &str = "credentials::loads_case_location";

const LOADED: &str = "loaded 4000000 bytes, 0 retries";

/// A bucket, the token services, and a directory for files.
struct Case {
    server: FaultyServer,
    service: TokenService,
    home: TempDir,
}

impl Case {
    fn new() -> Self {
        let server = FaultyServer::start();
        server.put("models/m.safetensors", even("t", 1, 4, 1_000_000));
        Self {
            server,
            service: TokenService::start(),
            home: folder(),
        }
    }

    fn path(&self, name: &str) -> String {
        let path = self.home.path().join(name);
        path.to_str().expect("UTF-8").to_owned()
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).expect("a temporary folder");
        path
    }

    /// Loads with the credentials in `file`, and returns the outcome.
    fn run(&self, file: &Value, variables: &[(&str, &str)]) -> String {
        let path = self.write("credentials.json", &file.to_string());
        let home = self.path("");
        let options = format!(
            "endpoint={} header.x-goog-team=hunter2team",
            self.server.url()
        );
        let mut all = vec![
            ("HOME", &*home),
            ("GOOGLE_APPLICATION_CREDENTIALS", &path),
            ("CASE_LOCATION", "gs://models/m.safetensors"),
            ("CASE_OPTIONS", &options),
        ];
        all.extend(variables);
        let output = alone::run(CHILD, &all);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (_, outcome) = text.split_once("OUTCOME ").expect("an outcome");
        let outcome = outcome.lines().next().unwrap_or_default().to_owned();
        assert!(!outcome.contains("hunter2"), "{outcome}");
        assert!(!outcome.contains("subject-"), "{outcome}");
        outcome
    }

    /// Returns the different tokens that the bucket received.
    fn tokens(&self) -> Vec<String> {
        let requests = self.server.requests();
        let mut tokens: Vec<_> = requests
            .iter()
            .filter_map(|request| request.headers.get("authorization").cloned())
            .collect();
        tokens.dedup();
        tokens
    }

    /// Returns the paths of the requests to the token services.
    fn asked(&self) -> Vec<String> {
        let requests = self.service.requests();
        for request in &requests {
            assert!(
                !request.headers.contains_key("x-goog-team"),
                "headers of options are for the store: {request:?}"
            );
        }
        requests.into_iter().map(|request| request.path).collect()
    }
}

#[test]
fn subject_tokens_come_from_files_urls_and_programs() {
    let case = Case::new();
    let text = case.write("subject", "subject-0\n");
    let json = case.write("subject.json", r#"{"value": "subject-0"}"#);
    let program = case.write(
        "program",
        "#!/bin/sh\n\
         case \"$GOOGLE_EXTERNAL_ACCOUNT_AUDIENCE$GOOGLE_EXTERNAL_ACCOUNT_TOKEN_TYPE$1\" in\n\
         *providers/q*jwtword) ;; *) exit 1 ;; esac\n\
         echo '{\"version\": 1, \"success\": true, \"id_token\": \"subject-0\"}'\n",
    );
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&program, mode).expect("its owner may");
    let format = json!({"type": "json", "subject_token_field_name": "value"});
    let allowed = ("GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES", "1");
    for (source, before) in [
        (json!({ "file": text }), None),
        (json!({ "file": json, "format": format }), None),
        (
            json!({ "url": case.service.url("/subject") }),
            Some("/subject"),
        ),
        (
            json!({
                "url": case.service.url("/subject.json"),
                "headers": {"x-provider": "hunter2header"},
                "format": format,
            }),
            Some("/subject.json"),
        ),
        (
            json!({"executable": {"command": format!("{program} word")}}),
            None,
        ),
    ] {
        for impersonates in [false, true] {
            case.server.forget_requests();
            let file = case.service.file(&source, impersonates);
            let outcome = case.run(&file, &[allowed]);
            assert_eq!(outcome, LOADED, "{source}");
            let kind = if impersonates { "account" } else { "federated" };
            let tokens = case.tokens();
            let [token] = &tokens[..] else {
                panic!("one token for all requests: {tokens:?}");
            };
            assert!(
                token.starts_with(&format!("Bearer hunter2{kind}-")),
                "{token}"
            );
            let mut asked = before.map(str::to_owned).into_iter().collect::<Vec<_>>();
            asked.push("/v1/token".to_owned());
            if impersonates {
                let path = "/v1/projects/-/serviceAccounts/reader@project.iam.gserviceaccount.com:generateAccessToken";
                asked.push(path.to_owned());
            }
            assert_eq!(case.asked(), asked, "{source}");
        }
    }
}

/// Kubernetes replaces the file of a token now and then.
#[test]
fn tokens_are_renewed_with_the_subject_token_of_then() {
    let case = Case::new();
    let path = case.write("subject", "subject-0");
    // Too short a life for any request, so each one asks for another token.
    case.service.set_lifetime(0);
    let file = case.service.file(&json!({ "file": path }), false);
    assert_eq!(case.run(&file, &[]), LOADED);
    assert!(case.asked().len() > 1);
    assert!(case.tokens().len() > 1);
    // Another process, another token.
    case.service.accept("subject-1");
    let outcome = case.run(&file, &[]);
    assert!(outcome.starts_with("PermissionDenied"), "{outcome}");
    assert!(outcome.contains("invalid_grant"), "{outcome}");
    case.write("subject", "subject-1");
    assert_eq!(case.run(&file, &[]), LOADED);
}

#[test]
fn busy_token_service_is_asked_again() {
    let case = Case::new();
    let path = case.write("subject", "subject-0");
    case.service.fail(&[503, 500]);
    let file = case.service.file(&json!({ "file": path }), false);
    let outcome = case.run(&file, &[]);
    assert!(outcome.starts_with("loaded 4000000 bytes"), "{outcome}");
    assert_eq!(case.asked(), ["/v1/token"; 3]);
}

#[test]
fn unusable_accounts_are_explained_and_nothing_is_sent() {
    let case = Case::new();
    let source = json!({ "file": case.write("subject", "subject-0") });
    let good = case.service.file(&source, true);
    let with = |name: &str, value: Value| {
        let mut file = good.clone();
        file[name] = value;
        file
    };
    for (file, kind, says) in [
        (
            with("audience", Value::Null),
            "InvalidRequest",
            "has no audience",
        ),
        (
            with("token_url", "https://evil.example/v1/token".into()),
            "InvalidRequest",
            "token_url is at evil.example",
        ),
        (
            with("token_url", "http://sts.googleapis.com/v1/token".into()),
            "InvalidRequest",
            "not an https:// URL",
        ),
        (
            with(
                "service_account_impersonation_url",
                "https://evil.example/".into(),
            ),
            "InvalidRequest",
            "evil.example",
        ),
        (
            with("credential_source", json!({"environment_id": "aws1"})),
            "Unsupported",
            "from AWS",
        ),
        (
            with(
                "credential_source",
                json!({"executable": {"command": "/bin/false"}}),
            ),
            "InvalidRequest",
            "GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES=1",
        ),
        (
            with("credential_source", json!({"file": "/nonexistent/token"})),
            "PermissionDenied",
            "cannot read the token in /nonexistent/token",
        ),
        (
            with(
                "credential_source",
                json!({"url": case.service.url("/nothing")}),
            ),
            "PermissionDenied",
            "cannot get credentials from 127.0.0.1",
        ),
    ] {
        let outcome = case.run(&file, &[]);
        assert!(outcome.starts_with(kind), "{says}: {outcome}");
        assert!(outcome.contains(says), "{says}: {outcome}");
        assert_eq!(case.tokens(), [""; 0]);
        let asked = case.asked();
        assert!(
            !asked.contains(&"/v1/token".to_owned()),
            "{says}: {asked:?}"
        );
    }
}

/// Services without TLS are those of this machine.
#[test]
fn services_without_tls_are_not_asked_through_proxy() {
    let case = Case::new();
    let proxy = ForwardProxy::start();
    let source = json!({ "url": case.service.url("/subject") });
    let file = case.service.file(&source, true);
    let outcome = case.run(&file, &[("http_proxy", &proxy.address())]);
    assert_eq!(outcome, LOADED);
    let service = case.service.url("");
    let service = service.trim_start_matches("http://");
    let asked = proxy.asked();
    assert!(!asked.is_empty(), "the store is asked through it");
    assert!(!asked.iter().any(|it| it == service), "{asked:?}");
    assert_eq!(case.asked().len(), 3);
}
