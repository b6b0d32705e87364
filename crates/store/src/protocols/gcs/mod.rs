//! Opens Google Cloud Storage: endpoint and credentials of a bucket. Called by
//! [`crate::Store::open`].

mod external_account;
mod subject_token;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{ClientOptions, StaticCredentialProvider};

use self::external_account::{ExternalAccount, type_of};
use crate::builder::{OpenStore, Opening, StoreProtocol, is_plain, no_retries};
use crate::credentials::cache::CredentialCache;
use crate::credentials::origin::{ANONYMOUS, Credentials};
use crate::environment::{Environment, Variables};
use crate::error::{Error, ErrorKind, Result};
use crate::errors::classification::texts;
use crate::explain::context::Hints;
use crate::http::client::Extras;
use crate::http::pages::Format;
use crate::http::trust::OF_REQUESTS;
use crate::options::location::Protocol;

/// Google Cloud Storage.
pub(crate) static PROTOCOL: StoreProtocol = StoreProtocol {
    protocol: Protocol::Gcs,
    open,
    files,
    variables: Some(&VARIABLES),
    hints: Hints {
        permissions: Some(["storage.objects.list", "storage.objects.get"]),
        ..Hints::NONE
    },
    bundles: OF_REQUESTS,
};

pub(crate) static VARIABLES: Variables = Variables {
    prefix: "GOOGLE_",
    credentials: &CREDENTIALS,
    additions,
};

/// Settings of `object_store` that are credentials or the origin of one.
const CREDENTIALS: [&str; 6] = [
    "google_service_account",
    "google_service_account_path",
    "google_service_account_key",
    "google_application_credentials",
    "google_bearer_token",
    "google_skip_signature",
];

const EXPLICIT: [&str; 2] = ["token", "service_account"];

/// File that the tools of Google write.
const WRITTEN: &str = "~/.config/gcloud/application_default_credentials.json";

fn open(opening: &Opening) -> Result<OpenStore> {
    let Built {
        builder,
        source,
        client,
        external,
    } = builder(opening)?;
    let origin = builder.get_config_value(&GoogleConfigKey::BaseUrl);
    let has_token = builder
        .get_config_value(&GoogleConfigKey::BearerToken)
        .is_some();
    let builder = builder.with_http_connector(opening.connector.clone());
    let build = |builder: GoogleCloudStorageBuilder| {
        let store = builder.build();
        store.map_err(|error| {
            unsupported(&error, opening)
                .or_else(|| unusable_file(&error, opening))
                .unwrap_or_else(|| opening.refused(&error))
        })
    };
    let (store, credentials) = if let Some(external) = external {
        let federated = external
            .connect(opening, &client)
            .map_err(|error| opening.refused(&error))?;
        let cache = Arc::new(CredentialCache::new(federated));
        let builder = builder.with_credentials(Arc::clone(&cache) as _);
        let at_first = source;
        (build(builder)?, Credentials::Renewed { at_first, cache })
    } else if has_token || source == ANONYMOUS {
        (build(builder)?, Credentials::known(source))
    } else {
        let provider = Arc::clone(build(builder.clone())?.credentials());
        let (cache, credentials) = Credentials::renewed(provider, source);
        (build(builder.with_credentials(cache))?, credentials)
    };
    Ok(OpenStore {
        origin: origin.unwrap_or_default(),
        ..OpenStore::of_objects(store, Some(Format::Objects), credentials)
    })
}

/// Returns the error for a file with credentials of a type that `object_store` cannot use, such as
/// `impersonated_service_account`.
fn unsupported(error: &object_store::Error, opening: &Opening) -> Option<Error> {
    let texts = texts(error);
    let mut types = texts.iter().filter_map(|text| {
        let (_, rest) = text.split_once("unknown variant `")?;
        Some(rest.split_once('`')?.0)
    });
    let name = types.next()?;
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    let name = Some(name).filter(|name| name.bytes().all(is_plain))?;
    let message = format!("Google credentials of type {name} are not supported");
    Some(
        Error::new(ErrorKind::Unsupported, message)
            .with_location(opening.url.shown())
            .with_hint(
                "use the key of a service account, an external account, those of `gcloud auth \
                 application-default login`, or the metadata service; or pass a token as option token",
            ),
    )
}

/// Returns the error for a file with credentials that cannot be read or decoded.
fn unusable_file(error: &object_store::Error, opening: &Opening) -> Option<Error> {
    let texts = texts(error);
    let begins = |wanted: &str| texts.iter().any(|text| text.contains(wanted));
    let is_missing = begins("Unable to open service account file");
    if !is_missing && !begins("Unable to decode service account file") {
        return None;
    }
    let explicit = opening.is_explicit(&EXPLICIT);
    let settings = opening.settings::<GoogleConfigKey>(explicit).ok()?;
    let path = match (opening.options.get("service_account"), named(&settings)) {
        (Some(path), _) => path,
        (None, Some((GoogleConfigKey::ServiceAccountKey, _))) => return None,
        (None, Some((_, path))) => path,
        (None, None) => WRITTEN,
    };
    // Other texts may quote the file.
    let is_safe = |text: &&String| is_missing || text.starts_with("missing field");
    let found = texts.last().filter(is_safe);
    let found = found.map_or("it is not the JSON that Google's tools write", |it| it);
    Some(opening.unusable_file(Some("service_account"), path, found))
}

/// Returns settings from variables that `object_store` does not know.
fn additions(environment: &Environment) -> Vec<(String, String)> {
    let mut settings = Vec::new();
    // Google's client libraries use this for host and port of an emulator, which needs no
    // credentials.
    if let Some(host) = environment.get("STORAGE_EMULATOR_HOST") {
        let scheme = if host.contains("://") { "" } else { "http://" };
        let url = format!("{scheme}{}", host.trim_end_matches('/'));
        settings.push(("google_base_url".to_owned(), url));
        settings.push(("google_skip_signature".to_owned(), "true".to_owned()));
    }
    settings
}

/// Returns the files of credentials: those that options and variables name, and the one that the
/// tools of Google write.
fn files(opening: &Opening) -> Option<Vec<PathBuf>> {
    let settings = opening.settings::<GoogleConfigKey>(false).ok()?;
    let named = settings.into_iter().filter(|(key, _)| {
        matches!(
            key,
            GoogleConfigKey::ServiceAccount | GoogleConfigKey::ApplicationCredentials
        )
    });
    let option = opening.options.get("service_account").map(str::to_owned);
    let named = named.map(|(_, path)| path).chain(option).map(PathBuf::from);
    Some(
        named
            .chain(Environment::from_process().expanded(WRITTEN))
            .collect(),
    )
}

/// Builder of a store without credentials of an external account, which `object_store` cannot use.
struct Built {
    builder: GoogleCloudStorageBuilder,
    /// Origin of the credentials.
    source: String,
    client: ClientOptions,
    external: Option<ExternalAccount>,
}

/// Settings that hold or name a file with credentials, in the order in which `object_store` looks
/// for them.
const FILES: [GoogleConfigKey; 3] = [
    GoogleConfigKey::ServiceAccount,
    GoogleConfigKey::ServiceAccountKey,
    GoogleConfigKey::ApplicationCredentials,
];

/// Returns the setting that holds or names the credentials.
fn named(settings: &[(GoogleConfigKey, String)]) -> Option<&(GoogleConfigKey, String)> {
    let last = |wanted: &GoogleConfigKey| settings.iter().rev().find(|(key, _)| key == wanted);
    FILES.iter().find_map(last)
}

/// Returns the external account, if the credentials name one. Credentials that cannot be read are
/// left to `object_store`.
fn external_account(
    settings: &[(GoogleConfigKey, String)],
    opening: &Opening,
) -> Result<Option<ExternalAccount>> {
    let (text, path) = match named(settings) {
        Some((GoogleConfigKey::ServiceAccountKey, text)) => {
            (text.clone(), PathBuf::from("service_account_key"))
        }
        Some((_, path)) => match std::fs::read_to_string(path) {
            Ok(text) => (text, PathBuf::from(path)),
            Err(_) => return Ok(None),
        },
        None if opening.may_read_environment() => {
            let path = Environment::from_process().expanded(WRITTEN);
            let text = path
                .as_ref()
                .and_then(|path| std::fs::read_to_string(path).ok());
            match path.zip(text) {
                Some((path, text)) => (text, path),
                None => return Ok(None),
            }
        }
        None => return Ok(None),
    };
    let is_external = type_of(&text).as_deref() == Some("external_account");
    is_external
        .then(|| ExternalAccount::parse(&text, Path::new(&path), opening))
        .transpose()
}

fn builder(opening: &Opening) -> Result<Built> {
    let options = opening.options;
    let explicit = opening.is_explicit(&EXPLICIT);
    let mut builder = GoogleCloudStorageBuilder::new();
    let mut client_settings = Vec::new();
    let mut settings = opening.settings::<GoogleConfigKey>(explicit)?;
    let given = options.get("service_account");
    settings.extend(given.map(|path| (GoogleConfigKey::ServiceAccount, path.to_owned())));
    let needs_file = !settings.iter().any(|(key, value)| {
        *key == GoogleConfigKey::BearerToken
            || *key == GoogleConfigKey::SkipSignature && value == "true"
    });
    let is_other = options.get("token").is_some() || options.flag("anonymous") == Some(true);
    let external = if needs_file && !is_other {
        external_account(&settings, opening)?
    } else {
        None
    };
    for (key, value) in settings {
        if let GoogleConfigKey::Client(key) = key {
            client_settings.push((key, value));
        } else if external.is_none() || !FILES.contains(&key) {
            builder = builder.with_config(key, value);
        }
    }
    for (option, key) in [
        ("endpoint", GoogleConfigKey::BaseUrl),
        ("token", GoogleConfigKey::BearerToken),
    ] {
        if let Some(value) = options.get(option) {
            builder = builder.with_config(key, value);
        }
    }
    if let Some(anonymous) = options.flag("anonymous") {
        builder = builder.with_skip_signature(anonymous);
    }
    let source = match &external {
        Some(external) => Some(external.source().to_owned()),
        None => source(&builder, opening),
    };
    match &source {
        Some(source) if source == ANONYMOUS => {
            // Without this, the builder would read the user's credentials, and fail on kinds that
            // it cannot use.
            let no_credential = GcpCredential {
                bearer: String::new(),
            };
            builder =
                builder.with_credentials(Arc::new(StaticCredentialProvider::new(no_credential)));
        }
        Some(_) => {}
        None => opening.needs_credentials()?,
    }
    let endpoint = builder.get_config_value(&GoogleConfigKey::BaseUrl);
    let extras = Extras {
        settings: client_settings,
        allow_http: is_plain(endpoint.as_deref()),
        ..Extras::default()
    };
    let client = opening.client(extras)?;
    builder = builder
        .with_client_options(client.clone())
        .with_retry(no_retries())
        .with_bucket_name(opening.url.host());
    let ambient = || "application default credentials or instance metadata".to_owned();
    Ok(Built {
        builder,
        source: source.unwrap_or_else(ambient),
        client,
        external,
    })
}

fn source(builder: &GoogleCloudStorageBuilder, opening: &Opening) -> Option<String> {
    let has = |key| builder.get_config_value(&key).is_some();
    let skips = builder.get_config_value(&GoogleConfigKey::SkipSignature);
    if skips.as_deref() == Some("true") {
        return Some(ANONYMOUS.to_owned());
    }
    let option = opening
        .first_option(&["token", "service_account"])
        .or_else(|| opening.passed_credential());
    if let Some(option) = option {
        return Some(format!("option {option}"));
    }
    let source = if has(GoogleConfigKey::BearerToken) {
        "bearer token of the environment"
    } else if has(GoogleConfigKey::ServiceAccount) || has(GoogleConfigKey::ServiceAccountKey) {
        "GCS service account of the environment"
    } else if has(GoogleConfigKey::ApplicationCredentials) {
        "file of GOOGLE_APPLICATION_CREDENTIALS"
    } else {
        return None;
    };
    Some(source.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Location, StoreOptions};

    fn built(
        options: &[(&str, &str)],
        variables: &[(&str, &str)],
    ) -> Result<(GoogleCloudStorageBuilder, String)> {
        let location = Location::parse("gs://b/k")?;
        let options = StoreOptions::from_pairs(options.iter().copied())?;
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let environment = Environment::new(variables);
        let url = location.remote().expect("a URL");
        let opening = Opening::without_secrets(&PROTOCOL, url, &options, &environment);
        let built = builder(&opening)?;
        Ok((built.builder, built.source))
    }

    #[test]
    fn credentials_source_is_named() {
        let ambient = [("GOOGLE_SERVICE_ACCOUNT_KEY", "{}")];
        for (options, variables, wanted) in [
            (vec![("token", "hunter2")], &ambient[..], "option token"),
            (
                vec![("service_account", "/key.json")],
                &ambient,
                "option service_account",
            ),
            (vec![("anonymous", "true")], &ambient, "anonymous"),
            (
                vec![("anonymous", "false")],
                &ambient,
                "GCS service account of the environment",
            ),
            (vec![], &ambient, "GCS service account of the environment"),
            // Manifests of Kubernetes use this name for accounts of another kind.
            (
                vec![],
                &[("SERVICE_ACCOUNT", "my-sa")],
                "application default credentials or instance metadata",
            ),
            (
                vec![],
                &[("STORAGE_EMULATOR_HOST", "localhost:4443")],
                "anonymous",
            ),
            (
                vec![],
                &[("GOOGLE_APPLICATION_CREDENTIALS", "/adc.json")],
                "file of GOOGLE_APPLICATION_CREDENTIALS",
            ),
            (
                vec![],
                &[],
                "application default credentials or instance metadata",
            ),
        ] {
            let (builder, credential_source) = built(&options, variables).expect(wanted);
            assert_eq!(credential_source, wanted);
            let key = builder.get_config_value(&GoogleConfigKey::ServiceAccountKey);
            let is_ambient = credential_source.ends_with("of the environment");
            assert_eq!(key.is_some(), is_ambient);
        }
        let error = built(&[("environment", "false")], &[]).expect_err("an error");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    }

    #[test]
    fn credentials_of_other_types_are_unsupported() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("key.json");
        std::fs::write(
            &file,
            r#"{"type": "gdch_service_account", "audience": "hunter2"}"#,
        )
        .expect("a file");
        let variables = [(
            "GOOGLE_APPLICATION_CREDENTIALS",
            file.to_str().expect("UTF-8"),
        )];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let location = Location::parse("gs://b/k").expect("a location");
        let (options, environment) = (StoreOptions::default(), Environment::new(variables));
        let url = location.remote().expect("a URL");
        let opening = Opening::without_secrets(&PROTOCOL, url, &options, &environment);
        let error = open(&opening).err().expect("an error");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("gdch_service_account"), "{error}");
        assert!(!error.chain().contains("hunter2"), "{}", error.chain());
    }

    #[test]
    fn unusable_files_are_named_with_what_names_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name).display().to_string();
        for (name, contents) in [
            ("text", "hunter2"),
            ("quoted", "\"hunter2\""),
            ("half", "{}"),
        ] {
            std::fs::write(at(name), contents).expect("a file");
        }
        let not_json = "not the JSON that Google's tools write";
        for (name, found) in [
            ("missing", "No such file or directory"),
            (".", "not the JSON"),
            ("text", not_json),
            ("quoted", not_json),
            ("half", "missing field"),
        ] {
            for origin in [
                "option service_account",
                "option google_service_account_path",
                "GOOGLE_APPLICATION_CREDENTIALS",
                "GOOGLE_SERVICE_ACCOUNT",
            ] {
                let path = at(name);
                let option = origin.strip_prefix("option ").map(|name| (name, &*path));
                let variable = option.is_none().then(|| (origin.to_owned(), path.clone()));
                let location = Location::parse("gs://b/k").expect("a location");
                let options = StoreOptions::from_pairs(option).expect("options");
                let environment = Environment::new(variable);
                let url = location.remote().expect("a URL");
                let opening = Opening::without_secrets(&PROTOCOL, url, &options, &environment);
                let error = open(&opening).err().expect("an error");
                let case = format!("{name} {origin}: {}", error.chain());
                assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{case}");
                assert!(error.chain().contains(&path), "{case}");
                assert!(
                    error.message().contains(&format!("that {origin} names")),
                    "{case}"
                );
                // The cause of a directory depends on how it is read.
                assert!(name == "." || error.message().contains(found), "{case}");
                assert!(!error.chain().contains("hunter2"), "{case}");
            }
        }
        // The key itself is not shown.
        let key = r#"{"private_key": "hunter2"}"#;
        let location = Location::parse("gs://b/k").expect("a location");
        let options = StoreOptions::from_pairs([("service_account", key)]).expect("options");
        let environment = Environment::new([]);
        let url = location.remote().expect("a URL");
        let opening = Opening::without_secrets(&PROTOCOL, url, &options, &environment);
        let error = open(&opening).err().expect("an error");
        assert!(!error.chain().contains("hunter2"), "{}", error.chain());
        assert!(
            error
                .hint()
                .is_some_and(|hint| hint.contains("not its contents")),
            "{error}"
        );
    }

    #[test]
    fn endpoints() {
        let emulator = [("STORAGE_EMULATOR_HOST", "localhost:4443")];
        for (options, wanted) in [
            (vec![], "http://localhost:4443"),
            (vec![("endpoint", "http://host")], "http://host"),
        ] {
            let (builder, _) = built(&options, &emulator).expect(wanted);
            let endpoint = builder.get_config_value(&GoogleConfigKey::BaseUrl);
            assert_eq!(endpoint.as_deref(), Some(wanted));
        }
    }
}
