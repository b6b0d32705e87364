//! Azure Blob Storage: account, endpoint and credentials of a container. Called by [`super::Store::open`].

use std::sync::Arc;

use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};

use super::client::{Extras, client_options};
use super::credentials::Credentials;
use super::opening::{Opened, Opening, is_plain, no_retries};
use crate::error::{Error, ErrorKind, Result};
use crate::source::location::RemoteUrl;

const EXPLICIT: [&str; 5] = ["account_key", "sas", "token", "client_secret", "anonymous"];

pub(super) fn open(opening: &Opening) -> Result<Opened> {
    let (builder, source) = builder(opening)?;
    let skips = builder.get_config_value(&AzureConfigKey::SkipSignature);
    let store = builder
        .with_http_connector(opening.connector.clone())
        .build();
    Ok(Opened {
        store: Arc::new(store.map_err(|error| opening.refused(&error))?),
        credentials: Credentials::known(source),
        anonymous: skips.as_deref() == Some("true"),
        region: None,
        sessions: 0,
        signer: None,
    })
}

/// What the URL says.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    container: String,
    account: Option<String>,
    endpoint: Option<String>,
}

/// `az://container`, and `abfss://container@account.dfs.core.windows.net` of Hadoop.
fn place(url: &RemoteUrl) -> Place {
    let Some((container, host)) = url.authority.split_once('@') else {
        return Place {
            container: url.authority.clone(),
            account: None,
            endpoint: None,
        };
    };
    let (account, domain) = host.split_once('.').unwrap_or((host, ""));
    // The interface for folders is at dfs, that for blobs, which is spoken here, at blob.
    let endpoint = match domain.strip_prefix("dfs.") {
        Some(rest) => Some(format!("https://{account}.blob.{rest}")),
        None if domain.is_empty() => None,
        None => Some(format!("https://{host}")),
    };
    Place {
        container: container.to_owned(),
        account: Some(account.to_owned()),
        endpoint,
    }
}

fn builder(opening: &Opening) -> Result<(MicrosoftAzureBuilder, String)> {
    let options = opening.options;
    let explicit = opening.first_option(&EXPLICIT).is_some() || opening.passed_on_who().is_some();
    let place = place(opening.url);
    let mut builder = MicrosoftAzureBuilder::new();
    let mut client_settings = Vec::new();
    for (key, value) in opening.settings::<AzureConfigKey>(explicit)? {
        if let AzureConfigKey::Client(key) = key {
            client_settings.push((key, value));
        } else {
            builder = builder.with_config(key, value);
        }
    }
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
    let emulated = value(AzureConfigKey::UseEmulator).as_deref() == Some("true");
    if value(AzureConfigKey::AccountName).is_none() && !emulated {
        return Err(Error::new(
            ErrorKind::InvalidRequest,
            "the storage account is not known",
        )
        .with_location(opening.url.shown())
        .with_hint("set account, or write abfss://container@account.dfs.core.windows.net/path"));
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
    let client = client_options(options, opening.environment, extras)?;
    let builder = builder
        .with_client_options(client)
        .with_retry(no_retries())
        .with_container_name(place.container);
    Ok((builder, source))
}

/// In the order in which the builder chooses.
fn source(builder: &MicrosoftAzureBuilder, opening: &Opening, emulated: bool) -> Option<String> {
    let value = |key| builder.get_config_value(&key);
    let has = |key| value(key).is_some();
    if value(AzureConfigKey::SkipSignature).as_deref() == Some("true") {
        return Some("anonymous".to_owned());
    }
    if let Some(name) = opening.passed_on_who() {
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
        return Some("workload identity".to_owned());
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
    use super::super::environment::Environment;
    use super::super::exchange::Connector;
    use super::*;
    use crate::source::{Location, StoreOptions};

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
        let environment = Environment::of(variables);
        let opening = Opening {
            url: location.remote().expect("a URL"),
            options: &options,
            environment: &environment,
            connector: Connector::default(),
        };
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
            let found = place(location.remote().expect("a URL"));
            let wanted = Place {
                container: container.to_owned(),
                account: account.map(str::to_owned),
                endpoint: endpoint.map(str::to_owned),
            };
            assert_eq!(found, wanted, "{url}");
        }
    }

    #[test]
    fn explicit_credentials_are_not_mixed_with_those_of_the_environment() {
        let ambient = [
            ("AZURE_STORAGE_ACCOUNT", "acc"),
            ("AZURE_STORAGE_KEY", "a2V5"),
        ];
        let (builder, who) =
            built("az://c/k", &[("sas", "?sig=hunter2")], &ambient).expect("a builder");
        assert_eq!(who, "shared access signature (option sas)");
        assert_eq!(builder.get_config_value(&AzureConfigKey::AccessKey), None);
        let account = builder.get_config_value(&AzureConfigKey::AccountName);
        assert_eq!(account.as_deref(), Some("acc"));
        let (_, who) = built("az://c/k", &[], &ambient).expect("a builder");
        assert_eq!(who, "Azure account key (environment)");
    }

    #[test]
    fn accounts_and_emulators() {
        let error = built("az://c/k", &[], &[]).expect_err("no account");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        let (_, who) =
            built("az://c/k", &[], &[("AZURE_STORAGE_USE_EMULATOR", "true")]).expect("a builder");
        assert_eq!(who, "the emulator's own key");
        let lone = [("account", "acc"), ("environment", "false")];
        let error = built("az://c/k", &lone, &[]).expect_err("no credentials");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    }
}
