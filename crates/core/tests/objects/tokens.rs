//! Tokens of Google and Azure: from a metadata service that fails, and refused by the store.
//!
//! `object_store` reads the address of Google's service from the environment of its process, so
//! each case is a process of its own.

use std::sync::atomic::{AtomicUsize, Ordering};

use tload_testbed::{Fault, FaultyServer, Rule};

use crate::alone;
use crate::fixtures::{even, folder};
use crate::listener::Listener;

/// Loads `CASE_LOCATION` with `CASE_OPTIONS`.
const CHILD: &str = "credentials::loads_case_location";

fn served() -> FaultyServer {
    let server = FaultyServer::start();
    for path in ["models/m.safetensors", "account/models/m.safetensors"] {
        server.put(path, even("t", 1, 4, 1_000_000));
    }
    server
}

/// Starts a metadata service that answers requests with these statuses, and repeats the last one.
/// Its tokens are numbered and have expired on arrival, so that `object_store` asks for another one
/// each time.
fn service(statuses: &'static [u16]) -> Listener {
    let asked = AtomicUsize::new(0);
    Listener::start(move |_| {
        let number = asked.fetch_add(1, Ordering::Relaxed);
        let status = statuses[number.min(statuses.len() - 1)];
        let body =
            format!(r#"{{"access_token": "token-{number}", "expires_in": 0, "expires_on": "0"}}"#);
        let len = body.len();
        format!("HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n{body}")
    })
}

/// Loads the file with tokens of Google's service, or of Azure's, and returns the outcome.
fn outcome(scheme: &str, server: &FaultyServer, service: &Listener, options: &str) -> String {
    let home = folder();
    let home = home.path().to_str().expect("UTF-8");
    let (host, url) = (service.address.to_string(), service.url());
    let endpoint = match scheme {
        "gs" => server.url(),
        _ => format!("{}/account", server.url()),
    };
    let output = alone::run(
        CHILD,
        &[
            ("HOME", home),
            ("GCE_METADATA_HOST", &host),
            ("GCE_METADATA_IP", &host),
            ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
            ("IDENTITY_ENDPOINT", &url),
            ("IDENTITY_HEADER", "x"),
            ("CASE_LOCATION", &format!("{scheme}://models/m.safetensors")),
            ("CASE_OPTIONS", &format!("endpoint={endpoint} {options}")),
        ],
    );
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (_, outcome) = text.split_once("OUTCOME ").expect("an outcome");
    outcome.to_owned()
}

/// Returns the tokens of all requests in their order, without repetitions.
fn tokens(server: &FaultyServer) -> Vec<String> {
    let requests = server.requests();
    let mut tokens: Vec<String> = requests
        .iter()
        .filter_map(|request| request.headers.get("authorization").cloned())
        .collect();
    tokens.dedup();
    tokens
}

const LOADED: &str = "loaded 4000000 bytes, 0 retries";

#[test]
fn token_outlasts_failures_of_metadata_service() {
    for scheme in ["gs", "az"] {
        let (server, service) = (served(), service(&[200, 500]));
        let outcome = outcome(scheme, &server, &service, "retries=0");
        assert!(outcome.starts_with(LOADED), "{scheme}: {outcome}");
        assert_eq!(tokens(&server), ["Bearer token-0"], "{scheme}");
    }
}

#[test]
fn metadata_service_that_starts_late_is_asked_again() {
    for statuses in [&[500, 500, 200][..], &[404, 404, 200]] {
        let (server, service) = (served(), service(statuses));
        let outcome = outcome("gs", &server, &service, "");
        assert!(outcome.starts_with(LOADED), "{statuses:?}: {outcome}");
    }
    let (server, service) = (served(), service(&[404]));
    let outcome = outcome("gs", &server, &service, "");
    assert!(outcome.starts_with("PermissionDenied"), "{outcome}");
    assert!(outcome.contains("no credentials were found"), "{outcome}");
}

#[test]
fn refused_token_is_replaced_once() {
    for scheme in ["gs", "az"] {
        let (server, service) = (served(), service(&[200]));
        let refusal = || Fault::Status(401, String::new());
        server.fault(Rule::times(1, refusal()));
        let loaded = outcome(scheme, &server, &service, "");
        assert!(loaded.starts_with("loaded"), "{scheme}: {loaded}");
        assert_eq!(tokens(&server), ["Bearer token-0", "Bearer token-1"]);
        server.forget_requests();
        server.fault(Rule::always(refusal()));
        let refused = outcome(scheme, &server, &service, "");
        assert!(refused.starts_with("PermissionDenied"), "{refused}");
        assert_eq!(server.requests().len(), 2, "{scheme}");
    }
}
