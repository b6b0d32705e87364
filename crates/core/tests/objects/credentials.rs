//! Credentials from the environment, from profiles and from endpoints, and their renewal during a
//! load.
//!
//! The AWS SDK reads the environment of its process, so each case is a process of its own:
//! `loads_case_location` loads the location that its environment names and prints the outcome.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use tload::{Checkpoint, LoadOptions, Location, Report, Result, StoreOptions};
use tload_testbed::{Fault, FaultyServer, Issue, Nginx, Rule, require};

use crate::alone::{command, variable};
use crate::fixtures::{even, folder, load, options};
use crate::listener::Listener;

const PATIENCE: Duration = Duration::from_secs(60);
const CHILD: &str = "credentials::loads_case_location";

/// Runs in the process of a case. Without a case it does nothing.
#[test]
fn loads_case_location() {
    let Some(location) = variable("CASE_LOCATION") else {
        return;
    };
    let outcome = match try_load(&location) {
        Ok(report) => format!(
            "loaded {} bytes, {} retries",
            report.tensor_bytes, report.retries
        ),
        Err(error) => format!("{:?} {:?} {}", error.kind(), error.request(), error.chain()),
    };
    writeln!(std::io::stdout(), "OUTCOME {outcome}").expect("the parent reads the pipe");
}

fn try_load(location: &str) -> Result<Report> {
    let pairs = variable("CASE_OPTIONS").unwrap_or_default();
    let pairs: Result<Vec<_>> = pairs.split_whitespace().map(StoreOptions::parse).collect();
    let store = StoreOptions::from_pairs(pairs?)?;
    let checkpoint = Checkpoint::open_with(&Location::parse(location)?, &store)?;
    let serial =
        options(|it: &mut LoadOptions| (it.depth, it.extent_bytes) = (Some(2), Some(1 << 18)));
    load(&checkpoint, serial).map(|(_, report)| report)
}

/// A server with a file, and a home without configuration.
struct Case {
    server: FaultyServer,
    home: TempDir,
    variables: Vec<(&'static str, String)>,
}

impl Case {
    fn new() -> Self {
        let server = FaultyServer::start();
        server.put("models/m.safetensors", even("t", 1, 4, 1_000_000));
        let home = folder();
        let path = |name: &str| home.path().join(name).to_str().expect("UTF-8").to_owned();
        let variables = vec![
            ("HOME", path("")),
            ("AWS_CONFIG_FILE", path("config")),
            ("AWS_SHARED_CREDENTIALS_FILE", path("credentials")),
            ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
            ("AWS_ENDPOINT_URL_S3", server.url()),
            ("CASE_LOCATION", "s3://models/m.safetensors".to_owned()),
        ];
        Self {
            server,
            home,
            variables,
        }
    }

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.home.path().join(name);
        std::fs::write(&path, text).expect("a temporary folder");
        path
    }

    /// Runs the case and `meanwhile`, and returns the outcome.
    fn run_while(&self, meanwhile: impl FnOnce()) -> String {
        let variables: Vec<_> = self
            .variables
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let child = command(CHILD, &variables)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the test binary runs");
        meanwhile();
        outcome(&child.wait_with_output().expect("the process ends"))
    }

    fn run(&self) -> String {
        self.run_while(|| {})
    }

    /// Returns the access keys of all requests for objects in their order, without repetitions.
    fn keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        for request in self.server.requests() {
            let signed = request.headers.get("authorization");
            let key = signed.and_then(|value| value.split_once("Credential=")?.1.split_once('/'));
            if let Some((key, _)) = key
                && keys.last().is_none_or(|last| last != key)
            {
                keys.push(key.to_owned());
            }
        }
        keys
    }

    /// Waits until reads are in flight, then accepts only `key`.
    fn replace_key(&self, key: &str) {
        assert!(
            self.server.wait_for_in_flight(2, PATIENCE),
            "{:?}",
            self.server.counts()
        );
        self.server
            .require_access_key_or(Some(key), 400, "ExpiredToken");
        self.server.clear_faults();
    }
}

fn outcome(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let outcome = text
        .split_once("OUTCOME ")
        .map(|(_, outcome)| outcome.trim().to_owned());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(outcome.is_some(), "{text}\n{errors}");
    outcome.expect("asserted above")
}

const LOADED: &str = "loaded 4000000 bytes, 0 retries";

fn hour(key: &str) -> Issue {
    Issue::keys(key, Duration::from_secs(3600))
}

#[test]
fn environment_keys_are_used_unless_options_set() {
    let case = Case::new()
        .with("AWS_ACCESS_KEY_ID", "AKIAENV")
        .with("AWS_SECRET_ACCESS_KEY", "secret");
    case.server.require_access_key(Some("AKIAENV/"));
    assert!(case.run().starts_with(LOADED), "{}", case.run());
    // Options win over the environment.
    let case = case.with(
        "CASE_OPTIONS",
        "access_key_id=AKIAOPT secret_access_key=other",
    );
    case.server.require_access_key(Some("AKIAOPT/"));
    assert!(case.run().starts_with(LOADED), "{}", case.run());
}

#[test]
fn profile_keys_and_region_are_used() {
    let case = Case::new().with("CASE_OPTIONS", "profile=dev");
    case.write(
        "credentials",
        "[dev]\naws_access_key_id = AKIADEV\naws_secret_access_key = s\n",
    );
    case.write("config", "[profile dev]\nregion = eu-west-3\n");
    assert!(case.run().starts_with(LOADED), "{}", case.run());
    assert_eq!(case.keys(), ["AKIADEV"]);
    let signed = case.server.requests().last().expect("some").headers["authorization"].clone();
    assert!(
        signed.contains("/eu-west-3/s3/"),
        "the region of the profile"
    );
}

/// The profile belongs to a store other than AWS: its keys must not go to AWS.
#[test]
fn profile_keys_go_to_profile_endpoint() {
    let unset = |options: &str| {
        Case::new()
            .with("AWS_ENDPOINT_URL_S3", "")
            .with("CASE_OPTIONS", options)
    };
    let keys = "[dev]\naws_access_key_id = AKIADEV\naws_secret_access_key = s\n";
    let plain = |url: &str| format!("[profile dev]\nendpoint_url = {url}\n");
    let of_service = |url: &str| {
        format!(
            "[profile dev]\nservices = own\nendpoint_url = http://127.0.0.1:1\n\
             [services own]\ns3 =\n  endpoint_url = {url}\n"
        )
    };
    let by_name = ("profile=dev", "");
    let ambient = ("", "dev");
    for (options, profile) in [by_name, ambient] {
        for config in [&plain as &dyn Fn(&str) -> String, &of_service] {
            let case = unset(options).with("AWS_PROFILE", profile);
            case.write("credentials", keys);
            case.write("config", &config(&case.server.url()));
            assert!(case.run().starts_with(LOADED), "{}", case.run());
            assert_eq!(case.keys(), ["AKIADEV"]);
        }
    }
    // A variable wins over the profile, as in AWS's own tools.
    let case = Case::new().with("CASE_OPTIONS", "profile=dev");
    case.write("credentials", keys);
    case.write("config", &plain("http://127.0.0.1:1"));
    assert!(case.run().starts_with(LOADED), "{}", case.run());
}

/// Keys of the environment must not go to AWS when the file that names their endpoint is broken.
#[test]
fn unreadable_profiles_are_an_error() {
    let case = Case::new()
        .with("AWS_ENDPOINT_URL_S3", "")
        .with("AWS_ACCESS_KEY_ID", "AKIAENV")
        .with("AWS_SECRET_ACCESS_KEY", "secret");
    case.write("config", "[default\nendpoint_url = http://127.0.0.1:1\n");
    let outcome = case.run();
    assert!(outcome.starts_with("InvalidRequest"), "{outcome}");
    assert!(outcome.contains("AWS configuration files"), "{outcome}");
    assert!(case.server.requests().is_empty());
}

/// The setting applies to endpoints of variables and of profiles, wherever it is.
#[test]
fn configured_endpoints_can_be_ignored() {
    let ignoring = "ignore_configured_endpoint_urls = True\n";
    for (variable, profile) in [("true", ""), ("", ignoring)] {
        for endpoint in [
            "AWS_ENDPOINT_URL_S3",
            "AWS_ENDPOINT_URL",
            "AWS_ENDPOINT_OF_NONE",
        ] {
            let proxy =
                Listener::start(|_| "HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n".to_owned());
            let case = Case::new();
            let url = case.server.url();
            let case = case
                .with("AWS_ENDPOINT_URL_S3", "")
                .with(endpoint, &*url)
                .with("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", variable)
                .with(
                    "CASE_OPTIONS",
                    format!("profile=dev retries=0 proxy={}", proxy.url()),
                );
            let keys = "[dev]\naws_access_key_id = AKIADEV\naws_secret_access_key = s\n";
            case.write("credentials", keys);
            case.write(
                "config",
                &format!("[profile dev]\nendpoint_url = {url}\n{profile}"),
            );
            case.run();
            assert!(
                case.server.requests().is_empty(),
                "{endpoint}, {variable:?}, {profile:?}"
            );
            let heads = proxy.received();
            let is_of_aws = |head: &String| head.contains("models.s3.us-east-1.amazonaws.com:443");
            assert!(
                !heads.is_empty() && heads.iter().all(is_of_aws),
                "{heads:?}"
            );
        }
    }
}

/// Bytes must not come from an endpoint without validated cryptography if the profile requires one.
#[test]
fn profile_selects_variants_of_endpoints() {
    for ignored in ["", "true"] {
        let proxy = Listener::start(|_| "HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n".to_owned());
        let options = format!("profile=dev retries=0 proxy={}", proxy.url());
        let case = Case::new()
            .with("AWS_ENDPOINT_URL_S3", "")
            .with("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", ignored)
            .with("CASE_OPTIONS", options);
        let keys = "[dev]\naws_access_key_id = AKIADEV\naws_secret_access_key = s\n";
        case.write("credentials", keys);
        let variants = "use_fips_endpoint = true\nuse_dualstack_endpoint = true\n";
        case.write("config", &format!("[profile dev]\n{variants}"));
        case.run();
        let host = "models.s3-fips.dualstack.us-east-1.amazonaws.com:443";
        let heads = proxy.received();
        let is_of_variant = |head: &String| head.contains(host);
        assert!(
            !heads.is_empty() && heads.iter().all(is_of_variant),
            "{ignored:?}: {heads:?}"
        );
    }
}

/// The variable overrides the profile, and an option overrides both.
#[test]
fn ignored_endpoints_can_be_restored() {
    let keys = "[dev]\naws_access_key_id = AKIADEV\naws_secret_access_key = s\n";
    let config = "[profile dev]\nignore_configured_endpoint_urls = true\n";
    let by_variable = Case::new()
        .with("CASE_OPTIONS", "profile=dev")
        .with("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "false");
    by_variable.write("credentials", keys);
    by_variable.write("config", config);
    assert!(
        by_variable.run().starts_with(LOADED),
        "{}",
        by_variable.run()
    );
    for ignored in ["", "true"] {
        let case = Case::new().with("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1");
        let options = format!("profile=dev endpoint={}", case.server.url());
        let case = case
            .with("CASE_OPTIONS", options)
            .with("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", ignored);
        case.write("credentials", keys);
        case.write("config", config);
        assert!(case.run().starts_with(LOADED), "{}", case.run());
    }
}

#[test]
fn credential_process_keys_are_used() {
    let case = Case::new().with("AWS_PROFILE", "tool");
    let answer = r#"{"Version": 1, "AccessKeyId": "AKIATOOL", "SecretAccessKey": "s"}"#;
    let answer = case.write("answer.json", answer);
    let config = format!(
        "[profile tool]\ncredential_process = cat {}\n",
        answer.display()
    );
    case.write("config", &config);
    assert!(case.run().starts_with(LOADED), "{}", case.run());
    assert_eq!(case.keys(), ["AKIATOOL"]);
}

/// Both with other profiles and without any configuration.
#[test]
fn missing_profile_is_rejected_without_request() {
    for config in ["", "[profile dev]\nregion = eu-west-3\n"] {
        let case = Case::new().with("CASE_OPTIONS", "profile=missing");
        if !config.is_empty() {
            case.write("config", config);
        }
        let outcome = case.run();
        assert!(
            outcome.starts_with("InvalidRequest"),
            "{config:?}: {outcome}"
        );
        assert!(
            outcome.contains("profile missing") && outcome.contains("hint:"),
            "{outcome}"
        );
        assert!(case.server.requests().is_empty());
    }
}

#[test]
fn missing_credentials_are_rejected_without_request() {
    let case = Case::new();
    let outcome = case.run();
    assert!(outcome.starts_with("PermissionDenied"), "{outcome}");
    assert!(
        outcome.contains("no credentials were found") && outcome.contains("anonymous=true"),
        "{outcome}"
    );
    assert!(outcome.contains("s3://models/m.safetensors"), "{outcome}");
    assert!(case.server.requests().is_empty());
    let case = case.with(
        "CASE_OPTIONS",
        "environment=false endpoint=http://127.0.0.1:1",
    );
    let outcome = case.run();
    assert!(outcome.starts_with("PermissionDenied"), "{outcome}");
    assert!(
        outcome.contains("environment=false") && outcome.contains("hint:"),
        "{outcome}"
    );
}

#[test]
fn anonymous_requests_carry_no_credentials() {
    let case = Case::new()
        .with("CASE_OPTIONS", "anonymous=true")
        .with("AWS_ACCESS_KEY_ID", "AKIAENV")
        .with("AWS_SECRET_ACCESS_KEY", "secret");
    assert!(case.run().starts_with(LOADED), "{}", case.run());
    for request in case.server.requests() {
        assert!(
            !request.headers.contains_key("authorization"),
            "{request:?}"
        );
    }
}

/// The credentials expire while requests are in flight: all requests continue with new ones,
/// fetched once.
#[test]
fn expired_credentials_are_renewed_during_load() {
    let case = Case::new();
    let url = case.server.credentials_url();
    let case = case.with("AWS_CONTAINER_CREDENTIALS_FULL_URI", url);
    case.server
        .issue_credentials([hour("AKIAONE"), hour("AKIATWO")]);
    case.server.require_access_key(Some("AKIAONE"));
    // Two requests in flight stall; the requests after them are refused.
    case.server
        .fault(Rule::times(2, Fault::StallHeaders).from_byte(1));
    let outcome = case.run_while(|| case.replace_key("AKIATWO"));
    assert!(outcome.starts_with("loaded 4000000 bytes"), "{outcome}");
    assert!(!outcome.ends_with(" 0 retries"), "{outcome}");
    let asked = case.server.requests();
    let fetched = asked
        .iter()
        .filter(|request| request.path == "credentials")
        .count();
    assert_eq!(fetched, 2, "{asked:?}");
    assert_eq!(case.keys().last().map(String::as_str), Some("AKIATWO"));
}

/// The new credentials are refused as well, or cannot be fetched.
#[test]
fn failed_credential_renewal_fails_load() {
    for (issue, says) in [
        (hour("AKIATHREE"), "ExpiredToken"),
        (Issue::Failure(403), "container"),
    ] {
        let case = Case::new();
        let url = case.server.credentials_url();
        let case = case.with("AWS_CONTAINER_CREDENTIALS_FULL_URI", url);
        case.server.issue_credentials([hour("AKIAONE"), issue]);
        case.server.require_access_key(Some("AKIAONE"));
        case.server
            .fault(Rule::times(2, Fault::StallHeaders).from_byte(1));
        let outcome = case.run_while(|| case.replace_key("AKIATWO"));
        assert!(outcome.starts_with("PermissionDenied"), "{outcome}");
        assert!(
            outcome.contains(says) && outcome.contains("hint:"),
            "{outcome}"
        );
        assert!(outcome.contains("container"), "{outcome}");
        for secret in ["secret-of-", "token-of-"] {
            assert!(!outcome.contains(secret), "{outcome}");
        }
    }
}

/// Runs a case with a role of a web identity.
fn with_role(variables: &[(&'static str, &str)], options: &str) -> String {
    let mut case = Case::new()
        .with("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/x")
        .with("CASE_OPTIONS", format!("retries=0 {options}"));
    let token = case.write("token", "hunter2");
    case = case.with(
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        token.to_str().expect("UTF-8"),
    );
    for (name, value) in variables {
        case = case.with(name, *value);
    }
    case.run()
}

/// Proxy and certificates are those of the store.
#[test]
fn role_is_assumed_with_options_of_store() {
    let proxy = Listener::start(|_| "HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n".to_owned());
    let outcome = with_role(&[], &format!("proxy={}", proxy.url()));
    assert!(outcome.contains("web identity"), "{outcome}");
    let heads = proxy.received();
    let is_of_sts = |head: &String| head.starts_with("CONNECT sts.us-east-1.amazonaws.com:443");
    assert!(
        !heads.is_empty() && heads.iter().all(is_of_sts),
        "{heads:?}"
    );

    let Some(nginx) = require(Nginx::start()) else {
        return;
    };
    let url = nginx.tls_url();
    let endpoint = ("AWS_ENDPOINT_URL_STS", &*url);
    let untrusted = with_role(&[endpoint], "");
    assert!(untrusted.contains("certificate"), "{untrusted}");
    let bundle = nginx.ca_file().to_str().expect("UTF-8").to_owned();
    let trusting = with_role(&[endpoint, ("AWS_CA_BUNDLE", &bundle)], "");
    assert!(
        trusting.contains("unhandled error") || !trusting.contains("certificate"),
        "{trusting}"
    );
}

/// Returns the hosts that a case asks for credentials, in vain.
fn hosts_asked(case: Case, variables: &[(&'static str, String)]) -> Vec<String> {
    let proxy = Listener::start(|_| "HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n".to_owned());
    let mut case = case
        .with("CASE_OPTIONS", "retries=0")
        .with("all_proxy", proxy.url())
        .with("AWS_REGION", "us-east-1");
    for (name, value) in variables {
        case = case.with(name, value);
    }
    let outcome = case.run();
    assert!(outcome.contains("cannot get credentials from"), "{outcome}");
    assert!(!outcome.contains("hunter2"), "{outcome}");
    let host = |head: &String| {
        let target = head.split(' ').nth(1)?;
        let authority = target.strip_prefix("http://").unwrap_or(target);
        Some(authority.split([':', '/']).next()?.to_owned())
    };
    let mut hosts: Vec<_> = proxy.received().iter().filter_map(host).collect();
    hosts.dedup();
    hosts
}

/// The region of the session and variants of endpoints select the hosts of IAM Identity Center, and
/// variables others. A token that has expired is renewed first, at another host.
#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn identity_center_is_asked_at_its_endpoint() {
    /// SHA-1 of the start URL, and of the session's name.
    const NAMES: [&str; 2] = [
        "0c54b6c27e90660baa89eaad85ac1d5dae26cb7d",
        "3953f9ddf975ab5097ee468d99555c5b441169bf",
    ];
    let role = "sso_account_id = 123456789012\nsso_role_name = x\n";
    let start = "sso_start_url = https://d-1.awsapps.com/start\n";
    let asked = |region: &str, is_valid: bool, is_session: bool, set: &[(&'static str, &str)]| {
        let case = Case::new();
        let place = format!("{start}sso_region = {region}\n");
        let config = if is_session {
            format!("[default]\n{role}sso_session = lab\n[sso-session lab]\n{place}")
        } else {
            format!("[default]\n{role}{place}")
        };
        let profile = set.iter().filter(|(name, _)| name.is_empty());
        let profile: String = profile.flat_map(|(_, line)| [line, "\n"]).collect();
        let config = config.replacen("[default]\n", &format!("[default]\n{profile}"), 1);
        case.write("config", &config);
        let folder = case.home.path().join(".aws/sso/cache");
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let year = if is_valid { 2199 } else { 2020 };
        let token = json!({
            "accessToken": "hunter2",
            "expiresAt": format!("{year}-01-01T00:00:00Z"),
            "clientId": "id",
            "clientSecret": "hunter2",
            "refreshToken": "hunter2",
            "registrationExpiresAt": "2199-01-01T00:00:00Z",
            "region": region,
            "startUrl": "https://d-1.awsapps.com/start",
        });
        let name = NAMES[usize::from(is_session)];
        let written = std::fs::write(folder.join(format!("{name}.json")), token.to_string());
        written.expect("a temporary folder");
        let set = set.iter().filter(|(name, _)| !name.is_empty());
        let set: Vec<_> = set
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect();
        hosts_asked(case, &set)
    };
    let fips = ("AWS_USE_FIPS_ENDPOINT", "true");
    let dual_stack = ("AWS_USE_DUALSTACK_ENDPOINT", "true");
    let fips_of_profile = ("", "use_fips_endpoint = true");
    let portal = ("AWS_ENDPOINT_URL_SSO", "http://portal.invalid");
    let tokens = ("AWS_ENDPOINT_URL_SSO_OIDC", "http://oidc.invalid");
    for is_session in [false, true] {
        for (region, set, wanted) in [
            ("eu-west-1", &[][..], "portal.sso.eu-west-1.amazonaws.com"),
            ("cn-north-1", &[], "portal.sso.cn-north-1.amazonaws.com.cn"),
            (
                "eu-west-1",
                &[fips],
                "portal.sso-fips.eu-west-1.amazonaws.com",
            ),
            (
                "eu-west-1",
                &[fips_of_profile],
                "portal.sso-fips.eu-west-1.amazonaws.com",
            ),
            (
                "us-gov-west-1",
                &[fips],
                "portal.sso.us-gov-west-1.amazonaws.com",
            ),
            ("eu-west-1", &[dual_stack], "portal.sso.eu-west-1.api.aws"),
            (
                "eu-west-1",
                &[fips, dual_stack],
                "portal.sso-fips.eu-west-1.api.aws",
            ),
            ("eu-west-1", &[portal], "portal.invalid"),
        ] {
            let found = asked(region, true, is_session, set);
            assert_eq!(found, [wanted], "{region} {set:?} {is_session}");
        }
    }
    for (region, set, wanted) in [
        ("eu-west-1", &[][..], "oidc.eu-west-1.amazonaws.com"),
        ("eu-west-1", &[fips], "oidc-fips.eu-west-1.amazonaws.com"),
        ("eu-west-1", &[dual_stack], "oidc.eu-west-1.api.aws"),
        ("eu-west-1", &[tokens, portal], "oidc.invalid"),
    ] {
        let found = asked(region, false, true, set);
        assert_eq!(
            found.first().map(String::as_str),
            Some(wanted),
            "{region} {set:?}"
        );
    }
}

/// Variants of AWS's endpoints count for STS, too, whether variables or the profile select them.
#[test]
fn variants_of_endpoints_count_for_sts() {
    let asked = |variables: &[(&'static str, &str)], config: &str| {
        let case = Case::new();
        case.write("config", config);
        let token = case.write("token", "hunter2");
        let token = token.to_str().expect("UTF-8");
        let variables: Vec<_> = (variables.iter())
            .map(|(name, value)| (*name, value.replace("TOKEN", token)))
            .collect();
        hosts_asked(case, &variables)
    };
    let identity = [
        ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/x"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "TOKEN"),
    ];
    let fips = ("AWS_USE_FIPS_ENDPOINT", "true");
    let dual_stack = ("AWS_USE_DUALSTACK_ENDPOINT", "true");
    let role = "[default]\nrole_arn = arn:aws:iam::123456789012:role/x\nsource_profile = keys\nuse_fips_endpoint = true\n\
                [profile keys]\naws_access_key_id = AKIA\naws_secret_access_key = s\n";
    for (variables, config, wanted) in [
        (&[][..], "", "sts.us-east-1.amazonaws.com"),
        (&[fips], "", "sts-fips.us-east-1.amazonaws.com"),
        (&[dual_stack], "", "sts.us-east-1.api.aws"),
        (&[fips, dual_stack], "", "sts-fips.us-east-1.api.aws"),
        (
            &[],
            "[default]\nuse_fips_endpoint = true\n",
            "sts-fips.us-east-1.amazonaws.com",
        ),
    ] {
        let variables = [&identity, variables].concat();
        assert_eq!(
            asked(&variables, config),
            [wanted],
            "{variables:?} {config}"
        );
    }
    assert_eq!(asked(&[], role), ["sts-fips.us-east-1.amazonaws.com"]);
    let off = [("AWS_USE_FIPS_ENDPOINT", "false")];
    assert_eq!(asked(&off, role), ["sts.us-east-1.amazonaws.com"]);
}

/// The SDK's own chain would take other credentials than those of the profile.
#[test]
fn profile_of_an_option_is_used_alone_with_variants_of_endpoints() {
    let case = || Case::new().with("AWS_USE_FIPS_ENDPOINT", "true");
    let keys = "[profile lab]\naws_access_key_id = AKIALAB\naws_secret_access_key = s\n[profile empty]\nregion = eu-west-1\n";
    let lab = case().with("CASE_OPTIONS", "profile=lab");
    lab.write("config", keys);
    let outcome = lab.run();
    assert!(outcome.starts_with(LOADED), "{outcome}");
    assert_eq!(lab.keys(), ["AKIALAB"]);
    let empty = case()
        .with("CASE_OPTIONS", "profile=empty")
        .with("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/x")
        .with("AWS_WEB_IDENTITY_TOKEN_FILE", "/nonexistent");
    empty.write("config", keys);
    let outcome = empty.run();
    assert!(outcome.contains("there is no profile empty"), "{outcome}");
    let ambient = case()
        .with("CASE_OPTIONS", "profile=lab")
        .with("AWS_ACCESS_KEY_ID", "AKIAENV")
        .with("AWS_SECRET_ACCESS_KEY", "s");
    ambient.write("config", keys);
    let outcome = ambient.run();
    assert!(outcome.starts_with("Unsupported"), "{outcome}");
    assert!(
        outcome.contains("unset AWS_ACCESS_KEY_ID")
            || outcome.contains("while AWS_ACCESS_KEY_ID is set"),
        "{outcome}"
    );
    assert_eq!(ambient.keys(), [""; 0]);
}

/// The SDK itself gives up after three attempts.
#[test]
fn credential_service_that_recovers_is_asked_again() {
    let case = Case::new();
    let url = case.server.credentials_url();
    let case = case.with("AWS_CONTAINER_CREDENTIALS_FULL_URI", url);
    let failures = (0..4).map(|_| Issue::Failure(503));
    case.server
        .issue_credentials(failures.chain([hour("AKIAONE")]));
    let outcome = case.run();
    assert!(outcome.starts_with("loaded 4000000 bytes"), "{outcome}");
    assert_eq!(case.keys(), ["AKIAONE"]);
}

/// Keys that the store rejects are refused once, with their origin.
#[test]
fn rejected_keys_name_their_origin() {
    let case = Case::new()
        .with("AWS_ACCESS_KEY_ID", "AKIAENV")
        .with("AWS_SECRET_ACCESS_KEY", "secret");
    case.server
        .require_access_key_or(Some("AKIAOTHER"), 403, "InvalidAccessKeyId");
    let outcome = case.run();
    assert!(outcome.starts_with("PermissionDenied"), "{outcome}");
    assert!(outcome.contains("code InvalidAccessKeyId"), "{outcome}");
    assert!(outcome.contains("credentials: environment"), "{outcome}");
    assert_eq!(case.server.requests().len(), 1);
}
