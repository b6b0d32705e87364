//! Reads the environment variables of object stores. No other module reads them.
//!
//! Cloud tools are configured through these variables, and users expect that a configuration for
//! `aws s3 cp` works here. They are read once, when a store is opened, into a map; everything
//! derived from them is pure. There are two exceptions: the AWS SDK (`aws.rs`) reads its own
//! variables and files, and `object_store` reads `HOME` and `AZURITE_BLOB_STORAGE_URL`.

use std::collections::BTreeMap;

use crate::options::Protocol;
use crate::options::store_options::StoreOptions;

/// Variables as they were when a store was opened. Empty ones do not count: `X= tload …` means "not
/// X".
#[derive(Default)]
pub(in crate::storage) struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// Reads the environment of the process.
    pub(in crate::storage) fn of_process() -> Self {
        Self::of(std::env::vars_os().filter_map(|(name, value)| {
            // Values that are not UTF-8 cannot be sent to a store.
            Some((name.into_string().ok()?, value.into_string().ok()?))
        }))
    }

    /// Reads the environment of the process, unless the options forbid it.
    pub(in crate::storage) fn unless_forbidden(options: &StoreOptions) -> Self {
        if options.flag("environment").unwrap_or(true) {
            Self::of_process()
        } else {
            Self::default()
        }
    }

    pub(in crate::storage) fn of(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let variables = variables
            .into_iter()
            .filter(|(_, value)| !value.trim().is_empty())
            .collect();
        Self { variables }
    }

    /// Returns the value of a variable.
    pub(in crate::storage) fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// Returns whether a variable is true by the rules of the tools of model hubs.
    pub(in crate::storage) fn is_set(&self, name: &str) -> bool {
        let yes = ["1", "ON", "YES", "TRUE"];
        self.get(name)
            .is_some_and(|text| yes.iter().any(|yes| text.eq_ignore_ascii_case(yes)))
    }

    /// Returns the value of the first of these variables that is set.
    pub(in crate::storage) fn first(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.get(name))
    }

    /// Returns whether endpoints that variables and profiles of AWS configure must be ignored;
    /// `None` leaves that to the profile.
    pub(in crate::storage) fn ignores_endpoints(&self) -> Option<bool> {
        let text = self.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")?;
        Some(text.eq_ignore_ascii_case("true"))
    }

    /// Returns names in lower case and values for the builder of `object_store`: those that its own
    /// `from_env` would take, and those that it misses. If `credentials` is false, settings of
    /// credentials are left out, because explicit credentials must not be mixed with others.
    pub(in crate::storage) fn settings(
        &self,
        protocol: Protocol,
        credentials: bool,
    ) -> Vec<(String, String)> {
        let prefix = match protocol {
            Protocol::S3 => "AWS_",
            Protocol::Gcs => "GOOGLE_",
            Protocol::Azure => "AZURE_",
            Protocol::Http | Protocol::Hub | Protocol::Custom => return Vec::new(),
        };
        let mut settings: Vec<(String, String)> = Vec::new();
        // Additions come first: a variable that `object_store` also knows overrides them.
        match protocol {
            Protocol::Gcs => self.google_gaps(&mut settings),
            Protocol::Azure => self.azure_gaps(&mut settings),
            Protocol::S3 | Protocol::Http | Protocol::Hub | Protocol::Custom => {}
        }
        for (name, value) in &self.variables {
            if name.starts_with(prefix) {
                settings.push((name.to_ascii_lowercase(), value.clone()));
            }
        }
        settings.retain(|(name, _)| credentials || !is_credential_key(protocol, name));
        settings
    }

    fn google_gaps(&self, settings: &mut Vec<(String, String)>) {
        if let Some(path) = self.get("SERVICE_ACCOUNT") {
            settings.push(("google_service_account".to_owned(), path.to_owned()));
        }
        // Google's client libraries use this for host and port of an emulator, which needs no
        // credentials.
        if let Some(host) = self.get("STORAGE_EMULATOR_HOST") {
            let scheme = if host.contains("://") { "" } else { "http://" };
            let url = format!("{scheme}{}", host.trim_end_matches('/'));
            settings.push(("google_base_url".to_owned(), url));
            settings.push(("google_skip_signature".to_owned(), "true".to_owned()));
        }
    }

    fn azure_gaps(&self, settings: &mut Vec<(String, String)>) {
        let mut set = |name: &str, value: &str| settings.push((name.to_owned(), value.to_owned()));
        if let Some(connection) = self.get("AZURE_STORAGE_CONNECTION_STRING") {
            for (name, value) in connection_settings(connection) {
                set(name, &value);
            }
        }
        for (variable, name) in [
            // Names that the `az` command uses.
            ("AZURE_STORAGE_ACCOUNT", "azure_storage_account_name"),
            ("AZURE_STORAGE_KEY", "azure_storage_account_key"),
            // Names in App Service and Container Apps.
            ("IDENTITY_ENDPOINT", "azure_msi_endpoint"),
        ] {
            if let Some(value) = self.get(variable) {
                set(name, value);
            }
        }
    }
}

/// Returns whether a setting of `object_store` is a credential or the origin of one.
pub(in crate::storage) fn is_credential_key(protocol: Protocol, setting: &str) -> bool {
    let settings: &[&str] = match protocol {
        Protocol::S3 => &AWS_CREDENTIAL_KEYS,
        Protocol::Gcs => &GOOGLE_CREDENTIAL_KEYS,
        Protocol::Azure => &AZURE_CREDENTIAL_KEYS,
        Protocol::Http | Protocol::Hub | Protocol::Custom => &[],
    };
    settings.contains(&setting)
}

/// Settings that are credentials or the origin of one, in lower case.
const AWS_CREDENTIAL_KEYS: [&str; 12] = [
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "aws_token",
    "aws_skip_signature",
    "aws_web_identity_token_file",
    "aws_role_arn",
    "aws_role_session_name",
    "aws_container_credentials_relative_uri",
    "aws_container_credentials_full_uri",
    "aws_container_authorization_token_file",
    "aws_profile",
];
const GOOGLE_CREDENTIAL_KEYS: [&str; 6] = [
    "google_service_account",
    "google_service_account_path",
    "google_service_account_key",
    "google_application_credentials",
    "google_bearer_token",
    "google_skip_signature",
];
const AZURE_CREDENTIAL_KEYS: [&str; 24] = [
    "azure_storage_account_key",
    "azure_storage_access_key",
    "azure_storage_master_key",
    "azure_storage_client_id",
    "azure_client_id",
    "azure_storage_client_secret",
    "azure_client_secret",
    "azure_storage_sas_key",
    "azure_storage_sas_token",
    "azure_storage_token",
    "azure_msi_endpoint",
    "azure_identity_endpoint",
    "azure_object_id",
    "azure_msi_resource_id",
    "azure_federated_token_file",
    "azure_use_azure_cli",
    "azure_skip_signature",
    "azure_credential_type",
    "azure_fabric_token_service_url",
    "azure_fabric_workload_host",
    "azure_fabric_session_token",
    "azure_fabric_cluster_identifier",
    "azure_storage_tenant_id",
    "azure_tenant_id",
];

/// Parses a connection string of the Azure portal (`AccountName=…;AccountKey=…;EndpointSuffix=…`).
fn connection_settings(text: &str) -> Vec<(&'static str, String)> {
    let pairs: BTreeMap<String, &str> = text
        .split(';')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim()))
        .collect();
    let mut settings = Vec::new();
    for (name, setting) in [
        ("accountname", "azure_storage_account_name"),
        ("accountkey", "azure_storage_account_key"),
        ("sharedaccesssignature", "azure_storage_sas_key"),
        ("blobendpoint", "azure_storage_endpoint"),
        ("usedevelopmentstorage", "azure_storage_use_emulator"),
    ] {
        if let Some(value) = pairs.get(name) {
            settings.push((setting, (*value).to_owned()));
        }
    }
    if let (None, Some(account), Some(suffix)) = (
        pairs.get("blobendpoint"),
        pairs.get("accountname"),
        pairs.get("endpointsuffix"),
    ) {
        let protocol = pairs.get("defaultendpointsprotocol").unwrap_or(&"https");
        let endpoint = format!("{protocol}://{account}.blob.{suffix}");
        settings.push(("azure_storage_endpoint", endpoint));
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        Environment::of(
            variables
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        )
    }

    /// Returns the value that a builder ends up with: later settings replace earlier ones.
    fn last<'a>(settings: &'a [(String, String)], name: &str) -> Option<&'a str> {
        let found = settings.iter().rev().find(|(setting, _)| setting == name);
        found.map(|(_, value)| value.as_str())
    }

    #[test]
    fn explicit_credentials_exclude_ambient_ones() {
        let environment = environment(&[
            ("AWS_ACCESS_KEY_ID", "AKIA"),
            ("AWS_SESSION_TOKEN", "token"),
            ("AWS_ENDPOINT_URL_S3", "http://s3"),
            ("AWS_REGION", ""),
            ("HOME", "/root"),
        ]);
        let with = environment.settings(Protocol::S3, true);
        let without = environment.settings(Protocol::S3, false);
        assert_eq!(last(&with, "aws_access_key_id"), Some("AKIA"));
        assert_eq!(
            without,
            [("aws_endpoint_url_s3".to_owned(), "http://s3".to_owned())]
        );
        assert!(environment.settings(Protocol::Http, true).is_empty());
    }

    #[test]
    fn emulators_of_google_need_no_credentials() {
        for (host, url) in [
            ("localhost:4443", "http://localhost:4443"),
            ("https://host:4443/", "https://host:4443"),
        ] {
            let settings =
                environment(&[("STORAGE_EMULATOR_HOST", host)]).settings(Protocol::Gcs, true);
            assert_eq!(last(&settings, "google_base_url"), Some(url));
            assert_eq!(last(&settings, "google_skip_signature"), Some("true"));
        }
    }

    #[test]
    fn names_of_the_az_command_and_connection_strings() {
        let environment = environment(&[
            (
                "AZURE_STORAGE_CONNECTION_STRING",
                "DefaultEndpointsProtocol=https;AccountName=one;AccountKey=a2V5==;EndpointSuffix=core.windows.net",
            ),
            ("AZURE_STORAGE_ACCOUNT", "two"),
        ]);
        let settings = environment.settings(Protocol::Azure, true);
        assert_eq!(last(&settings, "azure_storage_account_name"), Some("two"));
        assert_eq!(last(&settings, "azure_storage_account_key"), Some("a2V5=="));
        assert_eq!(
            last(&settings, "azure_storage_endpoint"),
            Some("https://one.blob.core.windows.net")
        );
        let without = environment.settings(Protocol::Azure, false);
        assert_eq!(last(&without, "azure_storage_account_key"), None);
        assert_eq!(last(&without, "azure_storage_account_name"), Some("two"));
    }
}
