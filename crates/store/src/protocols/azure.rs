//! Opens Azure Blob Storage: account, endpoint and credentials of a container. Called by
//! [`crate::Store::open`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};

use crate::builder::{OpenStore, Opening, StoreProtocol, is_plain, no_retries};
use crate::credentials::origin::{ANONYMOUS, Credentials};
use crate::environment::{Environment, Variables};
use crate::error::{Error, Result};
use crate::explain::context::Hints;
use crate::http::client::Extras;
use crate::http::pages::Format;
use crate::http::signing::Signer;
use crate::http::trust::OF_REQUESTS;
use crate::options::location::{Protocol, RemoteUrl};

/// Azure Blob Storage.
pub(crate) static PROTOCOL: StoreProtocol = StoreProtocol {
    protocol: Protocol::Azure,
    open,
    files,
    variables: Some(&VARIABLES),
    hints: Hints {
        permissions: Some(["Storage Blob Data Reader"; 2]),
        ..Hints::NONE
    },
    bundles: OF_REQUESTS,
};

pub(crate) static VARIABLES: Variables = Variables {
    prefix: "AZURE_",
    credentials: &CREDENTIALS,
    additions,
};

/// Settings of `object_store` that are credentials or the origin of one.
const CREDENTIALS: [&str; 24] = [
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

const EXPLICIT: [&str; 4] = ["account_key", "sas", "token", "client_secret"];

/// Origin of credentials that a token in a file is exchanged for.
const WORKLOAD: &str = "workload identity";

fn open(opening: &Opening) -> Result<OpenStore> {
    let (builder, source) = builder(opening)?;
    if source == WORKLOAD
        && let Some(path) = builder.get_config_value(&AzureConfigKey::FederatedTokenFile)
        && let Err(error) = std::fs::read_to_string(&path)
    {
        return Err(opening.unusable_file(None, &path, &error.to_string()));
    }
    let value = |key| builder.get_config_value(&key).unwrap_or_default();
    let (account, endpoint) = (
        value(AzureConfigKey::AccountName),
        value(AzureConfigKey::Endpoint),
    );
    let is_keyed = has_key(&builder);
    if is_keyed {
        require_signable(opening)?;
    }
    let builder = builder.with_http_connector(opening.connector.clone());
    let build = |builder: MicrosoftAzureBuilder| {
        let store = builder.build();
        store.map_err(|error| opening.refused(&error))
    };
    let (store, credentials) = if is_fixed(&builder) {
        (build(builder)?, Credentials::known(source))
    } else {
        let provider = Arc::clone(build(builder.clone())?.credentials());
        let (cache, credentials) = Credentials::renewed(provider, source);
        (build(builder.with_credentials(cache))?, credentials)
    };
    let signer = is_keyed.then(|| Signer::Azure {
        credentials: Arc::clone(store.credentials()),
        account: if account.is_empty() {
            EMULATED.to_owned()
        } else {
            account.clone()
        },
    });
    Ok(OpenStore {
        signer,
        // The account comes first because a query of the endpoint is cut off.
        origin: format!("{account} {endpoint}"),
        ..OpenStore::of_objects(store, Some(Format::Blobs), credentials)
    })
}

/// Account of the emulators.
const EMULATED: &str = "devstoreaccount1";

/// Returns whether requests may be signed with the key of an account.
fn has_key(builder: &MicrosoftAzureBuilder) -> bool {
    let value = |key| builder.get_config_value(&key);
    value(AzureConfigKey::AccessKey).is_some()
        || value(AzureConfigKey::UseEmulator).as_deref() == Some("true")
}

/// Requires that `object_store` can sign the headers of options: it panics on other characters.
fn require_signable(opening: &Opening) -> Result<()> {
    let mut headers = opening.options.headers();
    let Some((name, _)) = headers.find(|(_, value)| !value.is_ascii()) else {
        return Ok(());
    };
    let message = format!("store option header.{name} holds a character beyond ASCII");
    Err(Error::invalid_request(message)
        .with_location(opening.url.shown())
        .with_hint("a request that is signed with the key of an account cannot carry it"))
}

/// Returns whether requests carry no credentials, or always the same.
fn is_fixed(builder: &MicrosoftAzureBuilder) -> bool {
    let value = |key| builder.get_config_value(&key);
    let is_set = |key| value(key).as_deref() == Some("true");
    let keys = [
        AzureConfigKey::Token,
        AzureConfigKey::AccessKey,
        AzureConfigKey::SasKey,
    ];
    is_set(AzureConfigKey::SkipSignature)
        || is_set(AzureConfigKey::UseEmulator)
        || keys.into_iter().any(|key| value(key).is_some())
}

/// Returns no files, except for credentials that the Azure command line keeps in its own.
fn files(opening: &Opening) -> Option<Vec<PathBuf>> {
    let settings = opening.settings::<AzureConfigKey>(false).ok()?;
    let is_of_command = |(key, _): &(AzureConfigKey, String)| *key == AzureConfigKey::UseAzureCli;
    (!settings.iter().any(is_of_command)).then(Vec::new)
}

/// Returns settings from variables that `object_store` does not know.
fn additions(environment: &Environment) -> Vec<(String, String)> {
    let mut settings = Vec::new();
    let mut set = |name: &str, value: &str| settings.push((name.to_owned(), value.to_owned()));
    if let Some(connection) = environment.get("AZURE_STORAGE_CONNECTION_STRING") {
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
        if let Some(value) = environment.get(variable) {
            set(name, value);
        }
    }
    settings
}

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

/// Suffixes of the hosts of blob storage: those of the public cloud, China, the US government,
/// Germany, accounts with a DNS zone, and Fabric. `blob.` or `dfs.` precedes each.
const CLOUDS: [&str; 6] = [
    "core.windows.net",
    "core.chinacloudapi.cn",
    "core.usgovcloudapi.net",
    "core.cloudapi.de",
    ZONES,
    FABRIC,
];
const ZONES: &str = "storage.azure.net";
const FABRIC: &str = "fabric.microsoft.com";

/// Container, account and endpoint, as far as the URL names them.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    container: String,
    account: Option<String>,
    endpoint: Option<String>,
    /// True if the endpoint is not one of Azure's: anyone may run the server.
    is_foreign: bool,
}

/// Parses `az://container`, and Hadoop's `abfss://container@account.dfs.core.windows.net`.
///
/// # Errors
///
/// [`crate::error::ErrorKind::InvalidRequest`] for an invalid account or host.
fn place(url: &RemoteUrl) -> Result<Place> {
    let Some((container, host)) = url.authority.split_once('@') else {
        return Ok(Place {
            container: url.authority.clone(),
            account: None,
            endpoint: None,
            is_foreign: false,
        });
    };
    let place = |account: &str, endpoint: Option<String>, is_foreign: bool| Place {
        container: container.to_owned(),
        account: Some(account.to_owned()),
        endpoint,
        is_foreign,
    };
    if is_account(host) {
        return Ok(place(host, None, false));
    }
    let host = host.to_ascii_lowercase();
    if let Some((account, host)) = blob_host(&host) {
        return Ok(place(account, Some(format!("https://{host}")), false));
    }
    // The check is stricter than the rules of URLs: `#` and `?`, for example, would end the host
    // early.
    let (name, port) = host.split_once(':').unwrap_or((&host, "443"));
    let is_host = name.contains('.')
        && name.split('.').all(is_label)
        && port.parse::<u16>().is_ok_and(|port| port > 0);
    let account = name.split('.').next().unwrap_or(name);
    if !is_host {
        return Err(Error::invalid_request(
            "the text after @ in the URL is neither a storage account nor a host",
        )
        .with_location(url.shown())
        .with_hint("write abfss://container@account.dfs.core.windows.net/path"));
    }
    Ok(place(account, Some(format!("https://{host}")), true))
}

/// Returns the account of a host of blob storage, and its host for blobs. Directories are served at
/// `dfs`, and blobs, as used here, at `blob`. `None` for hosts that are not Azure's.
fn blob_host(host: &str) -> Option<(&str, String)> {
    let cloud = CLOUDS.iter().find(|cloud| host.ends_with(**cloud))?;
    let front = host.strip_suffix(cloud)?.strip_suffix('.')?;
    let (name, service) = front.rsplit_once('.')?;
    let (first, zone) = name
        .split_once('.')
        .map_or((name, None), |(first, zone)| (first, Some(zone)));
    let is_zone = |zone: &str| {
        let digits = zone.strip_prefix('z').unwrap_or_default();
        digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    // The host of a readable replica is the account's name with a suffix.
    let account = first.strip_suffix("-secondary").unwrap_or(first);
    let is_named = match *cloud {
        // Hosts of Fabric begin with `onelake`, optionally after a region, or with the name of a
        // workspace.
        FABRIC => is_label(first) && zone.is_none_or(is_zone),
        ZONES => is_account(account) && zone.is_some_and(is_zone),
        _ => is_account(account) && zone.is_none(),
    };
    (is_named && matches!(service, "blob" | "dfs"))
        .then(|| (account, format!("{name}.blob.{cloud}")))
}

/// Returns whether a storage account can have this name.
fn is_account(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (3..=24).contains(&name.len()) && name.bytes().all(allowed)
}

/// Returns whether a text is a valid label of a host name.
fn is_label(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(allowed)
}

/// Refuses a host that only the URL names, unless it is Azure's. A URL may come from anywhere, and
/// with the environment's credentials its host could do anything that this user can.
fn require_trusted(
    place: &Place,
    opening: &Opening,
    configured: Option<&str>,
    is_given: bool,
) -> Result<()> {
    let origin = |text: &str| Some(url::Url::parse(text).ok()?.origin());
    let foreign = place.endpoint.as_deref().filter(|_| place.is_foreign);
    let Some(endpoint) = foreign else {
        return Ok(());
    };
    let is_configured = configured.is_some_and(|text| origin(text) == origin(endpoint));
    if is_given || is_configured || opening.options.get("endpoint").is_some() {
        return Ok(());
    }
    let host = endpoint.trim_start_matches("https://");
    Err(Error::invalid_request(format!("{host} is not an Azure host, and the credentials in the environment are for Azure"),
    )
    .with_location(opening.url.shown())
    .with_hint(format!(
        "if this host may receive them, set endpoint={endpoint}; or pass credentials as options, or \
         anonymous=true"
    )))
}

fn builder(opening: &Opening) -> Result<(MicrosoftAzureBuilder, String)> {
    let options = opening.options;
    let explicit = opening.is_explicit(&EXPLICIT);
    let place = place(opening.url)?;
    let mut builder = MicrosoftAzureBuilder::new();
    let mut client_settings = Vec::new();
    for (key, value) in opening.settings::<AzureConfigKey>(explicit)? {
        if let AzureConfigKey::Client(key) = key {
            client_settings.push((key, value));
        } else {
            builder = builder.with_config(key, value);
        }
    }
    let configured = builder.get_config_value(&AzureConfigKey::Endpoint);
    for (value, key) in [
        (place.account.as_deref(), AzureConfigKey::AccountName),
        (place.endpoint.as_deref(), AzureConfigKey::Endpoint),
        (options.get("account"), AzureConfigKey::AccountName),
        (options.get("endpoint"), AzureConfigKey::Endpoint),
        (options.get("account_key"), AzureConfigKey::AccessKey),
        (options.get("sas"), AzureConfigKey::SasKey),
        (options.get("token"), AzureConfigKey::Token),
        (options.get("tenant_id"), AzureConfigKey::AuthorityId),
        (options.get("client_id"), AzureConfigKey::ClientId),
        (options.get("client_secret"), AzureConfigKey::ClientSecret),
    ] {
        if let Some(value) = value {
            builder = builder.with_config(key, value);
        }
    }
    if let Some(anonymous) = options.flag("anonymous") {
        builder = builder.with_skip_signature(anonymous);
    }
    let value = |key| builder.get_config_value(&key);
    let has = |key| value(key).is_some();
    let is_anonymous = value(AzureConfigKey::SkipSignature).as_deref() == Some("true");
    // For an identity of this machine or user, `ClientId` alone only selects which one.
    let application = has(AzureConfigKey::ClientId) && has(AzureConfigKey::AuthorityId);
    let is_secret = has(AzureConfigKey::Token)
        || has(AzureConfigKey::AccessKey)
        || has(AzureConfigKey::SasKey)
        || application && has(AzureConfigKey::ClientSecret);
    let is_given = is_anonymous || explicit && is_secret;
    require_trusted(&place, opening, configured.as_deref(), is_given)?;
    let emulated = value(AzureConfigKey::UseEmulator).as_deref() == Some("true");
    if value(AzureConfigKey::AccountName).is_none() && !emulated {
        return Err(Error::invalid_request("the storage account is unknown")
            .with_location(opening.url.shown())
            .with_hint(
                "set account, or write abfss://container@account.dfs.core.windows.net/path",
            ));
    }
    let source = source(&builder, opening, emulated);
    if source.is_none() {
        opening.needs_credentials()?;
    }
    let source = source.unwrap_or_else(|| "managed identity".to_owned());
    let extras = Extras {
        settings: client_settings,
        allow_http: emulated || is_plain(value(AzureConfigKey::Endpoint).as_deref()),
        ..Extras::default()
    };
    let client = opening.client(extras)?;
    let builder = builder
        .with_client_options(client)
        .with_retry(no_retries())
        .with_container_name(place.container);
    Ok((builder, source))
}

/// Returns the origin of the credentials. Follows the order in which the builder chooses.
fn source(builder: &MicrosoftAzureBuilder, opening: &Opening, emulated: bool) -> Option<String> {
    let value = |key| builder.get_config_value(&key);
    let has = |key| value(key).is_some();
    if value(AzureConfigKey::SkipSignature).as_deref() == Some("true") {
        return Some(ANONYMOUS.to_owned());
    }
    if let Some(name) = opening.passed_credential() {
        return Some(format!("option {name}"));
    }
    let named = |what: &str, option: &'static str| {
        let place = match opening.first_option(&[option]) {
            Some(option) => format!("option {option}"),
            None => "environment".to_owned(),
        };
        Some(format!("{what} ({place})"))
    };
    if has(AzureConfigKey::Token) {
        return named("bearer token", "token");
    }
    if has(AzureConfigKey::AccessKey) {
        return named("Azure account key", "account_key");
    }
    let application = has(AzureConfigKey::ClientId) && has(AzureConfigKey::AuthorityId);
    if application && has(AzureConfigKey::FederatedTokenFile) {
        return Some(WORKLOAD.to_owned());
    }
    if application && has(AzureConfigKey::ClientSecret) {
        return named("Azure client secret", "client_secret");
    }
    if has(AzureConfigKey::SasKey) {
        return named("shared access signature", "sas");
    }
    if value(AzureConfigKey::UseAzureCli).as_deref() == Some("true") {
        return Some("Azure command line".to_owned());
    }
    emulated.then(|| "the emulator's own key".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::options::{Location, StoreOptions};

    #[test]
    fn unusable_token_file_is_named_with_what_names_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let binary = folder.path().join("binary").display().to_string();
        std::fs::write(&binary, [0xff, 0xfe]).expect("a file");
        for (path, found) in [("/nope/token", "No such file"), (&*binary, "UTF-8")] {
            let variables = [
                ("AZURE_CLIENT_ID", "c"),
                ("AZURE_TENANT_ID", "t"),
                ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
                ("AZURE_FEDERATED_TOKEN_FILE", path),
            ];
            let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let location = Location::parse("az://c/k").expect("a location");
            let (options, environment) = (StoreOptions::default(), Environment::new(variables));
            let url = location.remote().expect("a URL");
            let opening = Opening::without_secrets(&PROTOCOL, url, &options, &environment);
            let error = open(&opening).err().expect("an error");
            let chain = error.chain();
            for wanted in ["that AZURE_FEDERATED_TOKEN_FILE names", path, found] {
                assert!(chain.contains(wanted), "{wanted}: {chain}");
            }
        }
    }

    fn built(
        url: &str,
        options: &[(&str, &str)],
        variables: &[(&str, &str)],
    ) -> Result<(MicrosoftAzureBuilder, String)> {
        let location = Location::parse(url)?;
        let options = StoreOptions::from_pairs(options.iter().copied())?;
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let environment = Environment::new(variables);
        let url = location.remote().expect("a URL");
        let opening = Opening::without_secrets(&PROTOCOL, url, &options, &environment);
        builder(&opening)
    }

    #[test]
    fn urls_name_container_account_and_endpoint() {
        for (url, container, account, endpoint) in [
            ("az://c/k", "c", None, None),
            ("abfs://c/k", "c", None, None),
            (
                "abfss://c@acc.dfs.core.windows.net/k",
                "c",
                Some("acc"),
                Some("https://acc.blob.core.windows.net"),
            ),
            (
                "abfss://c@acc.dfs.core.chinacloudapi.cn/k",
                "c",
                Some("acc"),
                Some("https://acc.blob.core.chinacloudapi.cn"),
            ),
            (
                "abfss://c@onelake.dfs.fabric.microsoft.com/k",
                "c",
                Some("onelake"),
                Some("https://onelake.blob.fabric.microsoft.com"),
            ),
        ] {
            let location = Location::parse(url).expect(url);
            let found = place(location.remote().expect("a URL")).expect(url);
            let wanted = Place {
                container: container.to_owned(),
                account: account.map(str::to_owned),
                endpoint: endpoint.map(str::to_owned),
                is_foreign: false,
            };
            assert_eq!(found, wanted, "{url}");
        }
    }

    #[test]
    fn text_neither_account_nor_host_is_rejected() {
        for authority in [
            "2130706433:8080#",
            "2130706433:8080",
            "ab",
            "Account",
            "host.example?",
            "host.example#.blob.core.windows.net",
            "host.example\\.blob.core.windows.net",
            "acc.example:0",
            "acc.example:",
            "..blob.core.windows.net",
            "%65vil.example",
        ] {
            let url = format!("abfss://c@{authority}/k");
            let location = Location::parse(&url).expect("a location");
            let error = place(location.remote().expect("a URL")).expect_err(authority);
            assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{authority}");
        }
    }

    #[test]
    fn identity_option_does_not_trust_foreign_host() {
        for option in [
            ("anonymous", "false"),
            ("azure_client_id", "hunter2"),
            ("azure_use_azure_cli", "true"),
            ("client_secret", "hunter2"),
        ] {
            let built = built("abfss://c@acc.example/k", &[option], &[]);
            let error = built.expect_err("credentials of the machine would go there");
            assert!(error.hint().is_some_and(|hint| hint.contains("endpoint=")));
        }
    }

    #[test]
    fn host_named_only_by_url_gets_no_environment_credentials() {
        let token = ("AZURE_STORAGE_TOKEN", "hunter2");
        let elsewhere = ("AZURE_STORAGE_ENDPOINT", "https://other.example");
        let there = ("AZURE_STORAGE_ENDPOINT", "https://acc.example/");
        let (named, given) = (("endpoint", "https://acc.example"), ("sas", "sig=hunter2"));
        for (host, variables, options, allowed) in [
            ("acc.example", vec![token], vec![], false),
            ("acc.example:8443", vec![token], vec![], false),
            ("acc.example", vec![], vec![], false),
            ("acc.example", vec![token, elsewhere], vec![], false),
            ("acc.example", vec![token, there], vec![], true),
            ("acc.example", vec![token], vec![named], true),
            ("acc.example", vec![token], vec![given], true),
            (
                "acc.example",
                vec![token],
                vec![("anonymous", "true")],
                true,
            ),
            (
                "acc.blob.core.windows.net.example",
                vec![token],
                vec![],
                false,
            ),
            ("blob.core.windows.net", vec![token], vec![], false),
            (
                "evil.example.blob.core.windows.net",
                vec![token],
                vec![],
                false,
            ),
            ("evilcore.windows.net", vec![token], vec![], false),
            ("acc.file.core.windows.net", vec![token], vec![], false),
            ("acc.z5.blob.storage.azure.net", vec![token], vec![], false),
            ("acc.blob.core.windows.net", vec![token], vec![], true),
            (
                "acc-secondary.blob.core.windows.net",
                vec![token],
                vec![],
                true,
            ),
            ("acc.dfs.core.usgovcloudapi.net", vec![token], vec![], true),
            ("acc.dfs.core.cloudapi.de", vec![token], vec![], true),
            ("acc.z05.blob.storage.azure.net", vec![token], vec![], true),
            (
                "westus-onelake.dfs.fabric.microsoft.com",
                vec![token],
                vec![],
                true,
            ),
        ] {
            let url = format!("abfss://c@{host}/k");
            match built(&url, &options, &variables) {
                Ok(_) => assert!(allowed, "{host} {options:?}"),
                Err(error) => {
                    assert!(!allowed, "{host} {options:?}: {error}");
                    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
                    assert!(error.hint().is_some_and(|hint| hint.contains("endpoint=")));
                }
            }
        }
    }

    #[test]
    fn replicas_are_signed_for_with_the_name_of_the_account() {
        let url = "abfss://c@acc-secondary.blob.core.windows.net/k";
        let (builder, _) = built(url, &[("anonymous", "true")], &[]).expect("a builder");
        let value = |key| builder.get_config_value(&key);
        assert_eq!(value(AzureConfigKey::AccountName).as_deref(), Some("acc"));
        assert_eq!(
            value(AzureConfigKey::Endpoint).as_deref(),
            Some("https://acc-secondary.blob.core.windows.net")
        );
    }

    #[test]
    fn explicit_credentials_are_not_mixed_with_those_of_the_environment() {
        let ambient = [
            ("AZURE_STORAGE_ACCOUNT", "acc"),
            ("AZURE_STORAGE_KEY", "a2V5"),
        ];
        let (builder, credential_source) =
            built("az://c/k", &[("sas", "?sig=hunter2")], &ambient).expect("a builder");
        assert_eq!(credential_source, "shared access signature (option sas)");
        assert_eq!(builder.get_config_value(&AzureConfigKey::AccessKey), None);
        let account = builder.get_config_value(&AzureConfigKey::AccountName);
        assert_eq!(account.as_deref(), Some("acc"));
        for options in [&[][..], &[("anonymous", "false")]] {
            let (_, credential_source) = built("az://c/k", options, &ambient).expect("a builder");
            assert_eq!(credential_source, "Azure account key (environment)");
        }
    }

    #[test]
    fn accounts_and_emulators() {
        let error = built("az://c/k", &[], &[]).expect_err("no account");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        let (_, credential_source) =
            built("az://c/k", &[], &[("AZURE_STORAGE_USE_EMULATOR", "true")]).expect("a builder");
        assert_eq!(credential_source, "the emulator's own key");
        let lone = [("account", "acc"), ("environment", "false")];
        let error = built("az://c/k", &lone, &[]).expect_err("no credentials");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    }
}
