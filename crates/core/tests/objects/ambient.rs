//! Opens locations of every client in a process whose environment the test chooses.

use std::io::Write;

use tload::{Checkpoint, Location, Result, StoreOptions};

use crate::alone::{self, variable};
use crate::fixtures::folder;

const CHILD: &str = "ambient::opens_case_locations";

/// Clients of all kinds, and the location and options by which each sends its first request to
/// `URL`. The last two ask for credentials first.
const CLIENTS: [(&str, &str); 7] = [
    (
        "s3",
        "s3://models/m.safetensors endpoint=URL access_key_id=AKIA secret_access_key=s",
    ),
    ("gcs", "gs://models/m.safetensors endpoint=URL token=t"),
    (
        "azure",
        "az://models/m.safetensors endpoint=URL account=account account_key=a2V5",
    ),
    ("web", "URL/m.safetensors"),
    ("hub", "hf://org/name/m.safetensors endpoint=URL"),
    (
        "registry",
        "oci://registry.invalid/models/llama:v1 endpoint=URL anonymous=true",
    ),
    // With `AWS_ENDPOINT_URL_STS`: the bucket is never asked.
    (
        "sts",
        "s3://models/m.safetensors endpoint=http://127.0.0.1:1",
    ),
];

/// Runs in the process of a case. Without a case it does nothing.
#[test]
fn opens_case_locations() {
    for line in variable("CASE_LOCATIONS").unwrap_or_default().lines() {
        let outcome = match open(line) {
            Ok(()) => "opened".to_owned(),
            Err(error) => {
                let hint = error.hint().unwrap_or_default();
                format!("{:?} {} {hint}", error.kind(), error.chain())
            }
        };
        let outcome = outcome.replace('\n', " ");
        writeln!(std::io::stdout(), "OUTCOME {outcome}").expect("the parent reads the pipe");
    }
}

fn open(line: &str) -> Result<()> {
    let mut words = line.split_whitespace();
    let location = Location::parse(words.next().unwrap_or_default())?;
    let pairs: Result<Vec<_>> = words.map(StoreOptions::parse).collect();
    let mut store = StoreOptions::from_pairs(pairs?)?;
    store.set("retries", "0")?;
    Checkpoint::open_with(&location, &store).map(drop)
}

/// Opens locations, each with its options after spaces, in a process with these variables, and
/// returns the outcomes.
pub(crate) fn outcomes(variables: &[(&str, &str)], locations: &[String]) -> Vec<String> {
    let home = folder();
    let path = |name: &str| home.path().join(name).to_str().expect("UTF-8").to_owned();
    let (home, config, credentials, token) =
        (path(""), path("config"), path("credentials"), path("token"));
    std::fs::write(&token, "hunter2").expect("a file");
    let lines = locations.join("\n");
    let mut all = vec![
        ("HOME", &*home),
        ("AWS_CONFIG_FILE", &config),
        ("AWS_SHARED_CREDENTIALS_FILE", &credentials),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/x"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", &token),
        ("CASE_LOCATIONS", &lines),
    ];
    all.extend(variables);
    let output = alone::run(CHILD, &all);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let outcomes: Vec<_> = text
        .lines()
        .filter_map(|line| Some(line.split_once("OUTCOME ")?.1.to_owned()))
        .collect();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(outcomes.len(), locations.len(), "{text}\n{errors}");
    outcomes
}

/// Opens a location of each client in a process with these variables, with `url` as the address of
/// its server, and returns the clients with their outcomes.
pub(crate) fn clients(variables: &[(&str, &str)], url: &str) -> Vec<(&'static str, String)> {
    let lines = CLIENTS.map(|(_, line)| line.replace("URL", url));
    let sts = [("AWS_ENDPOINT_URL_STS", url)];
    let outcomes = outcomes(&[&sts[..], variables].concat(), &lines);
    let names = CLIENTS.map(|(name, _)| name);
    names.into_iter().zip(outcomes).collect()
}
