//! Certificates that variables and profiles name, for each client; where curl knows the variable,
//! with curl as the oracle.

use std::process::Command;

use tload_testbed::{Nginx, require};

use crate::alone::variable;
use crate::ambient::clients;
use crate::fixtures::folder;

/// Clients that do not trust the server.
fn untrusting(variables: &[(&str, &str)], url: &str) -> Vec<&'static str> {
    let outcomes = clients(variables, url).into_iter();
    let is_untrusted = |(_, outcome): &(_, String)| {
        outcome.contains("is not trusted") || outcome.contains("UnknownIssuer")
    };
    outcomes
        .filter(is_untrusted)
        .map(|(client, _)| client)
        .collect()
}

fn is_trusted_by_curl(variables: &[(&str, &str)], url: &str) -> bool {
    let mut curl = Command::new("curl");
    curl.env_clear()
        .env("PATH", variable("PATH").unwrap_or_default())
        .envs(variables.iter().copied())
        .args(["--silent", "--noproxy", "*", "--max-time", "60", url]);
    curl.output().is_ok_and(|output| output.status.success())
}

const ALL: [&str; 7] = ["s3", "gcs", "azure", "web", "hub", "registry", "sts"];
const NOT_AWS: [&str; 5] = ["gcs", "azure", "web", "hub", "registry"];

#[test]
fn bundles_are_those_of_the_stores_own_tools() {
    let Some(nginx) = require(Nginx::start()) else {
        return;
    };
    let (url, home) = (nginx.tls_url(), folder());
    let bundle = nginx.ca_file().to_str().expect("UTF-8");
    // A certificate, but not the server's.
    let other = home.path().join("other.pem");
    let made = Command::new("openssl")
        .args([
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x",
        ])
        .args(["-days", "30", "-keyout", "/dev/null", "-out"])
        .arg(&other)
        .output();
    let other = other.to_str().expect("UTF-8");
    if require(made.map_err(|error| format!("openssl: {error}"))).is_none() {
        return;
    }
    let config = home.path().join("config");
    let text = format!("[default]\nca_bundle = {other}\n[profile lab]\nca_bundle = {bundle}\n");
    std::fs::write(&config, text).expect("a file");
    let config = ("AWS_CONFIG_FILE", config.to_str().expect("UTF-8"));
    let lab = ("AWS_PROFILE", "lab");
    for (variables, untrusting_clients) in [
        (&[][..], &ALL[..]),
        (&[("REQUESTS_CA_BUNDLE", bundle)], &[]),
        (&[("CURL_CA_BUNDLE", bundle)], &[]),
        (&[("SSL_CERT_FILE", bundle)], &[]),
        (&[("AWS_CA_BUNDLE", bundle)], &NOT_AWS),
        (&[config, lab], &NOT_AWS),
        (&[config], &ALL),
        // In the order of the tools.
        (
            &[("AWS_CA_BUNDLE", other), ("REQUESTS_CA_BUNDLE", bundle)],
            &["s3", "sts"],
        ),
        (&[config, ("REQUESTS_CA_BUNDLE", bundle)], &["s3", "sts"]),
        (&[config, lab, ("AWS_CA_BUNDLE", other)], &ALL),
        (&[config, lab, ("REQUESTS_CA_BUNDLE", other)], &NOT_AWS),
        (
            &[("REQUESTS_CA_BUNDLE", bundle), ("CURL_CA_BUNDLE", other)],
            &["web", "registry"],
        ),
        (
            &[("REQUESTS_CA_BUNDLE", other), ("CURL_CA_BUNDLE", bundle)],
            &["s3", "gcs", "azure", "hub", "sts"],
        ),
    ] {
        let found = untrusting(variables, &url);
        assert_eq!(found, untrusting_clients, "{variables:?}");
    }
    for (name, trusted) in [
        ("CURL_CA_BUNDLE", true),
        ("SSL_CERT_FILE", true),
        ("X", false),
    ] {
        let is_trusted = is_trusted_by_curl(&[(name, bundle)], &url);
        assert_eq!(is_trusted, trusted, "curl: {name}");
    }
}

#[test]
fn directory_of_certificates_is_trusted() {
    let Some(nginx) = require(Nginx::start()) else {
        return;
    };
    let home = folder();
    std::fs::copy(nginx.ca_file(), home.path().join("0a1b2c3d.0")).expect("a copy");
    std::os::unix::fs::symlink("/nowhere", home.path().join("0a1b2c3d.1")).expect("a link");
    let path = home.path().to_str().expect("UTF-8");
    let variables = [("REQUESTS_CA_BUNDLE", path)];
    assert_eq!(untrusting(&variables, &nginx.tls_url()), [""; 0]);
}

#[test]
fn unreadable_bundle_is_named_with_its_variable() {
    let home = folder();
    let empty = home.path().join("empty.pem");
    std::fs::write(&empty, "").expect("a file");
    let empty = empty.to_str().expect("UTF-8");
    for (variable, path, says) in [
        (
            "REQUESTS_CA_BUNDLE",
            "/none.pem",
            "cannot read the certificates of REQUESTS_CA_BUNDLE",
        ),
        (
            "CURL_CA_BUNDLE",
            empty,
            "CURL_CA_BUNDLE names no certificate",
        ),
    ] {
        for (client, outcome) in clients(&[(variable, path)], "https://127.0.0.1:1") {
            assert!(outcome.contains(says), "{client}: {outcome}");
            assert!(outcome.contains(path), "{client}: {outcome}");
        }
    }
}
