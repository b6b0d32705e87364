//! Keys that hold secrets, which have no place in the file, and the variables for them.

use tload::Error;

/// Variables of the stores for each secret key. `TLOAD_STORE` takes all of them.
pub(crate) const VARIABLES: [(&str, &str); 8] = [
    ("access_key_id", "AWS_ACCESS_KEY_ID"),
    ("secret_access_key", "AWS_SECRET_ACCESS_KEY"),
    ("session_token", "AWS_SESSION_TOKEN"),
    ("account_key", "AZURE_STORAGE_ACCOUNT_KEY"),
    ("sas", "AZURE_STORAGE_SAS_KEY"),
    ("token", "HF_TOKEN for the Hugging Face Hub"),
    ("client_secret", "AZURE_CLIENT_SECRET"),
    ("mirror_token", ""),
];

/// Variable that holds options of stores, one per line.
pub(crate) const STORE: &str = "TLOAD_STORE";

/// Beginnings of keys whose values may be secrets: headers, and settings of the crate
/// `object_store`, whose names tload does not know.
const OPEN: [&str; 4] = ["header", "aws_", "google_", "azure_"];

/// Returns whether a key that is in no table may hold a secret.
pub(crate) fn may_be_secret(key: &str) -> bool {
    OPEN.iter().any(|start| key.starts_with(start))
}

/// Returns the error for a key that holds a secret.
pub(crate) fn in_file(key: &str) -> Error {
    let own = VARIABLES.iter().find(|(name, _)| *name == key);
    let own = own.map_or("", |(_, variable)| variable);
    let or = if own.is_empty() { "" } else { ", or " };
    let is_header = matches!(key, "header" | "headers");
    let name = if is_header { "header.NAME" } else { key };
    Error::invalid_request("secrets are not read from the configuration file")
        .with_hint(format!("set {own}{or}{STORE} to {name}=…"))
}

/// Returns the error for a value with a secret in it: a URL with a password, for example.
pub(crate) fn in_value(variable: &str) -> Error {
    Error::invalid_request(
        "the URL has a user, a password or a query: secrets are not read from the configuration file",
    )
    .with_hint(format!("set {variable} instead"))
}
