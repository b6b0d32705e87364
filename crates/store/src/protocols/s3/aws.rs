//! Finds credentials and region as the AWS command line does: environment, profiles, web identity,
//! containers, instances.
//!
//! Beside `aws_http.rs` the only module that names types of the AWS SDK. The SDK reads its own
//! variables and files each time credentials are needed, so the next attempt after an
//! `aws sso login` works. Used by `mod.rs`.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use aws_config::ecs::EcsCredentialsProvider;
use aws_config::environment::EnvironmentVariableCredentialsProvider;
use aws_config::imds::client::error::ImdsError;
use aws_config::imds::credentials::ImdsCredentialsProvider;
use aws_config::meta::region::ProvideRegion;
use aws_config::profile::{
    ProfileFileCredentialsProvider, ProfileFileLoadError, ProfileFileRegionProvider, load,
};
use aws_config::provider_config::ProviderConfig;
use aws_config::web_identity_token::WebIdentityTokenCredentialsProvider;
use aws_config::{BehaviorVersion, Region};
use aws_credential_types::Credentials;
use aws_credential_types::provider::ProvideCredentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_runtime::env_config::EnvConfigValue;
use aws_runtime::env_config::file::EnvConfigFiles;
use aws_runtime::env_config::section::EnvConfigSections;
use aws_runtime::retries::classifiers::THROTTLING_ERRORS;
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_types::os_shim_internal::{Env, Fs};
use object_store::aws::AwsCredential;

use super::aws_http::SdkHttp;
use super::endpoint::{OfProfile, Variants};
use crate::credentials::cache::{Load, Loaded};
use crate::environment::Environment;
use crate::error::{Error, ErrorKind, Result};
use crate::errors::classification::{
    Cause, Classification, find, no_credentials, texts, transient_of,
};
use crate::http::trust::Bundle;
use crate::options::require_clean;
use crate::sync::retry::Transient;
use crate::sync::threads::Builder;

/// Name of the last source.
const INSTANCE: &str = "instance metadata";

/// Credential sources in order. If a profile is requested by name, only that.
pub(crate) struct Chain {
    /// Profile that was requested by name.
    profile: Option<String>,
    /// Value of `AWS_PROFILE`, for display.
    ambient_profile: Option<String>,
    /// Region for requests to STS.
    region: String,
    http: SdkHttp,
    /// True if there were credentials before.
    has_loaded: AtomicBool,
}

impl Chain {
    pub(crate) fn new(
        profile: Option<String>,
        ambient_profile: Option<String>,
        region: String,
        http: SdkHttp,
    ) -> Self {
        Self {
            profile,
            ambient_profile,
            region,
            http,
            has_loaded: AtomicBool::new(false),
        }
    }

    /// Returns the sources with their common names. They cache what they read, so they are created
    /// for each lookup.
    async fn sources(&self) -> Result<Vec<Source>, Classification> {
        let region = Region::new(self.region.clone());
        if let Some(profiles) = profiles(self.profile.as_deref()).await.ok()
            && variants(&profiles).are_any()
        {
            return self.sources_of_variants(region, &profiles).await;
        }
        let config = ProviderConfig::without_region()
            .with_region(Some(region))
            .with_http_client(self.http.clone());
        let profiles = ProfileFileCredentialsProvider::builder().configure(&config);
        if let Some(profile) = &self.profile {
            let profiles = profiles.profile_name(profile);
            let provider: Box<dyn ProvideCredentials> = Box::new(profiles.build());
            return Ok(vec![(format!("profile {profile}"), provider)]);
        }
        let profile = self.ambient_profile.as_deref().unwrap_or("default");
        let environment = EnvironmentVariableCredentialsProvider::new();
        let identity = WebIdentityTokenCredentialsProvider::builder().configure(&config);
        let container = EcsCredentialsProvider::builder().configure(&config);
        let instance = ImdsCredentialsProvider::builder().configure(&config);
        Ok(vec![
            ("environment".to_owned(), Box::new(environment)),
            (format!("profile {profile}"), Box::new(profiles.build())),
            ("web identity".to_owned(), Box::new(identity.build())),
            ("container".to_owned(), Box::new(container.build())),
            (INSTANCE.to_owned(), Box::new(instance.build())),
        ])
    }

    /// Returns the sources where variants of AWS's endpoints are configured: they count for STS and
    /// SSO, too. The SDK tells them to its own chain only, and not to single providers.
    async fn sources_of_variants(
        &self,
        region: Region,
        profiles: &EnvConfigSections,
    ) -> Result<Vec<Source>, Classification> {
        let mut loader = aws_config::defaults(BehaviorVersion::latest())
            .region(region)
            .http_client(self.http.clone());
        let mut source = "the AWS configuration".to_owned();
        if let Some(profile) = &self.profile {
            require_alone(profile, profiles)?;
            source = format!("profile {profile}");
            loader = loader.profile_name(profile);
        }
        let provider = loader
            .load()
            .await
            .credentials_provider()
            .map(|it| (source, Box::new(it) as Box<dyn ProvideCredentials>));
        Ok(provider.into_iter().collect())
    }
}

/// Source of credentials, and its name.
type Source = (String, Box<dyn ProvideCredentials>);

/// Settings by which a profile has credentials.
const PROFILE_CREDENTIALS: [&str; 8] = [
    "aws_access_key_id",
    "aws_secret_access_key",
    "credential_process",
    "login_session",
    "role_arn",
    "sso_account_id",
    "sso_session",
    "sso_start_url",
];

/// Requires that the SDK's own chain takes the credentials of a profile that was requested by name:
/// keys in variables come before it there, and other sources after one without credentials.
fn require_alone(profile: &str, profiles: &EnvConfigSections) -> Result<(), Classification> {
    let found = profiles.get_profile(profile);
    let has = |name: &&str| found.is_some_and(|found| found.get(name).is_some());
    if !PROFILE_CREDENTIALS.iter().any(has) {
        return Err(no_profile(&format!("profile {profile}"), None));
    }
    let variables = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
    let env = Env::real();
    match variables.iter().find(|name| env.get(name).is_ok()) {
        Some(variable) => Err(Classification::new(
            ErrorKind::Unsupported,
            format!(
                "profile {profile} cannot be used with FIPS or dual-stack endpoints while {variable} is set"
            ),
        )
        .hint(format!("unset {variable}, or leave out the option profile"))),
        None => Ok(()),
    }
}

/// Returns the variants that variables select, else those of the profile.
fn variants(profiles: &EnvConfigSections) -> Variants {
    let env = Env::real();
    let is_true = |variable, key| {
        let setting = EnvConfigValue::new().env(variable).profile(key);
        let value = setting.load(&env, Some(profiles));
        value.is_some_and(|(value, _)| value.eq_ignore_ascii_case("true"))
    };
    Variants {
        is_fips: is_true("AWS_USE_FIPS_ENDPOINT", "use_fips_endpoint"),
        is_dual_stack: is_true("AWS_USE_DUALSTACK_ENDPOINT", "use_dualstack_endpoint"),
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chain")
            .field("profile", &self.profile)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Load for Chain {
    type Credential = AwsCredential;

    async fn load(&self) -> object_store::Result<Loaded<AwsCredential>> {
        let found = self.search().await;
        if found.is_ok() {
            self.has_loaded.store(true, Ordering::Relaxed);
        }
        found.map_err(|classification| classification.of_credentials().into())
    }
}

impl Chain {
    async fn search(&self) -> Result<Loaded<AwsCredential>, Classification> {
        let mut looked_at = Vec::new();
        for (source, provider) in self.sources().await? {
            match provider.provide_credentials().await {
                Ok(credentials) => return loaded(&credentials, source),
                // The next source may have credentials; every other error ends the search, as in
                // the SDK's own chain.
                Err(CredentialsError::CredentialsNotLoaded(_)) => looked_at.push(source),
                Err(error) if source == INSTANCE => {
                    // Outside of AWS, another service may answer at the address of the metadata
                    // service.
                    looked_at.push(source);
                    return Err(Classification {
                        transient: transient(&error),
                        ..nothing(&looked_at, Some(&error))
                    });
                }
                Err(error) => return Err(failure(&error, &source)),
            }
        }
        // If credentials were loaded before, their service exists and is now unreachable.
        let had_some = self.has_loaded.load(Ordering::Relaxed);
        Err(match &self.profile {
            Some(_) => no_profile(&looked_at.concat(), None),
            None => Classification {
                transient: had_some.then_some(Transient::Unreachable),
                ..nothing(&looked_at, None)
            },
        })
    }
}

/// Returns the error for a missing profile that was requested by name. If no file has any profile
/// at all, the SDK reports nothing.
fn no_profile(source: &str, cause: Option<Cause>) -> Classification {
    Classification::new(
        ErrorKind::InvalidRequest,
        format!("there is no {source} in the AWS configuration files"),
    )
    .hint("run `aws configure list-profiles` to list the existing ones")
    .cause(cause)
}

/// Checks that headers can hold the credentials, since `object_store` panics on others.
fn loaded(found: &Credentials, source: String) -> Result<Loaded<AwsCredential>, Classification> {
    let token = found.session_token();
    for value in [found.access_key_id(), token.unwrap_or_default()] {
        let checked = require_clean(format!("a key or token of {source}"), value);
        checked.map_err(|it| Classification::new(it.kind(), it.message().to_owned()))?;
    }
    Ok(Loaded {
        credential: Arc::new(AwsCredential {
            key_id: found.access_key_id().to_owned(),
            secret_key: found.secret_access_key().to_owned(),
            token: token.map(str::to_owned),
        }),
        expires: found.expiry(),
        source,
    })
}

fn nothing(looked_at: &[String], error: Option<&CredentialsError>) -> Classification {
    no_credentials(&looked_at.join(", ")).cause(error.and_then(innermost).map(Cause::Words))
}

fn innermost(error: &CredentialsError) -> Option<String> {
    let texts = texts(error);
    // Cut the output of the process off: it may contain secrets.
    let text = texts.last()?.split("Stderr").next()?;
    Some(text.trim_end_matches([' ', '.', ',', ':']).to_owned())
}

/// Codes of services that failed for an internal reason.
const BROKEN: [&str; 8] = [
    "IdpCommunicationErrorException",
    "InternalError",
    "InternalFailure",
    "InternalServerException",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "ServiceUnavailableException",
];

/// Returns how a service of credentials failed if it was unreachable, busy or broken. The SDK has
/// made some attempts already, within about two seconds.
fn transient(error: &CredentialsError) -> Option<Transient> {
    if let CredentialsError::ProviderTimedOut(_) = error {
        return Some(Transient::Stalled);
    }
    let texts = texts(error);
    if let Some(failure) = find::<ConnectorError>(error) {
        let is_untrusted = texts.iter().any(|text| text.contains("certificate"));
        return (!is_untrusted && !failure.is_user()).then_some(Transient::Unreachable);
    }
    if let Some(ImdsError::ErrorResponse(answer)) = find::<ImdsError>(error) {
        return transient_of(answer.response().status().as_u16());
    }
    texts.iter().find_map(|text| of_text(text))
}

/// Classifies a response of which the SDK's public types keep no more than a text.
fn of_text(text: &str) -> Option<Transient> {
    if let Some(status) = text.strip_prefix("Non-success status from HTTP credential provider: ") {
        // The text has the form `StatusCode(503)`.
        let digits = status.trim_matches(|letter: char| !letter.is_ascii_digit());
        return transient_of(digits.parse().ok()?);
    }
    match text {
        "request has timed out" => return Some(Transient::Stalled),
        // An error without a code comes from a gateway, not from the service.
        "unhandled error" => return Some(Transient::Broken),
        _ => {}
    }
    let code = text
        .strip_prefix("unhandled error (")
        .unwrap_or(text)
        .split([':', ' ', ')'])
        .next()?;
    if THROTTLING_ERRORS.contains(&code) {
        return Some(Transient::Busy);
    }
    BROKEN.contains(&code).then_some(Transient::Broken)
}

fn failure(error: &CredentialsError, source: &str) -> Classification {
    let texts = texts(error).join("\n").to_ascii_lowercase();
    let says = |words: &str| texts.contains(words);
    let text = innermost(error);
    let cause = text.clone().map(Cause::Words);
    if says("was not defined") {
        let own = source.strip_prefix("profile ").unwrap_or(source);
        let named = |text: String| text.contains(&format!("`{own}`"));
        if text.is_none_or(named) {
            return no_profile(source, cause);
        }
        return Classification::new(
            ErrorKind::InvalidRequest,
            format!("{source} refers to another profile, which does not exist"),
        )
        .hint("see source_profile in the AWS configuration files")
        .cause(cause);
    }
    if let Some(transient) = transient(error) {
        let kind = match transient {
            Transient::Stalled => ErrorKind::TimedOut,
            Transient::Unreachable | Transient::Busy | Transient::Broken => ErrorKind::Remote,
        };
        return Classification::new(kind, format!("cannot get credentials from {source}"))
            .hint("check the network between this machine and the service, or try again later")
            .transient(transient)
            .cause(cause);
    }
    let hint = match source.strip_prefix("profile ") {
        Some(profile) if says("sso") => format!("run `aws sso login --profile {profile}`"),
        None if says("sso") => "run `aws sso login`".to_owned(),
        None if source == "web identity" => {
            let file = Env::real().get("AWS_WEB_IDENTITY_TOKEN_FILE");
            let file = file.unwrap_or_default();
            format!("check AWS_ROLE_ARN, and {file:?}, which AWS_WEB_IDENTITY_TOKEN_FILE names")
        }
        _ => format!("check {source}: it is the first source that offers credentials"),
    };
    Classification::new(
        ErrorKind::PermissionDenied,
        format!("cannot get credentials from {source}"),
    )
    .hint(hint)
    .cause(cause)
}

/// Returns the region of a profile; without a name, of the one that `AWS_PROFILE` names.
///
/// # Errors
///
/// [`ErrorKind::OutOfMemory`] if no thread can be started.
pub(crate) fn region_of_profile(profile: Option<&str>) -> Result<Option<String>> {
    let mut builder = ProfileFileRegionProvider::builder();
    if let Some(profile) = profile {
        builder = builder.profile_name(profile);
    }
    let provider = builder.build();
    let region = run_lookup(async { provider.region().await })?;
    Ok(region.map(|region| region.as_ref().to_owned()))
}

/// Returns what a profile configures about the endpoint of S3: that of its `services` section, else
/// its `endpoint_url`; whether it ignores configured endpoints, which then include its own; and
/// variants of AWS's endpoints. No environment variable is read for them.
///
/// Rules of precedence: <https://docs.aws.amazon.com/sdkref/latest/guide/feature-ss-endpoints.html>
///
/// # Errors
///
/// [`ErrorKind::InvalidRequest`] for files that cannot be read, since credentials must not go to
/// AWS instead; [`ErrorKind::OutOfMemory`] if no thread can be started.
pub(crate) fn endpoint_of_profile(profile: Option<&str>) -> Result<OfProfile> {
    let profiles = run_lookup(profiles(profile))?.map_err(|error| {
        let cause = texts(&error).last().cloned().unwrap_or_default();
        Error::invalid_request(format!("cannot read the AWS configuration files: {cause}"))
            .with_hint("correct the file, or set environment=false to leave these files alone")
    })?;
    let env = Env::real();
    let value = |key| {
        let setting = EnvConfigValue::new().profile(key).service_id("s3");
        setting.load(&env, Some(&profiles)).map(|(value, _)| value)
    };
    let is_true = |key| value(key).is_some_and(|value| value.eq_ignore_ascii_case("true"));
    Ok(OfProfile {
        endpoint: value("endpoint_url").map(Cow::into_owned),
        ignores_endpoints: is_true("ignore_configured_endpoint_urls"),
        variants: Variants {
            is_fips: is_true("use_fips_endpoint"),
            is_dual_stack: is_true("use_dualstack_endpoint"),
        },
    })
}

/// Returns the bundle of certificates that a profile names. Files that cannot be read name none.
pub(crate) fn bundle_of_profile(profile: Option<&str>) -> Option<Bundle> {
    let profiles = match run_lookup(profiles(profile)) {
        Ok(Ok(profiles)) => profiles,
        Ok(Err(error)) => {
            tracing::debug!(error = %texts(&error).join(": "), "no profile names certificates");
            return None;
        }
        Err(error) => {
            tracing::debug!(%error, "no profile names certificates");
            return None;
        }
    };
    let setting = EnvConfigValue::new().profile("ca_bundle");
    let env = Env::real();
    let (path, _) = setting.load(&env, Some(&profiles))?;
    let path = Environment::from_process().expanded(path.trim())?;
    let name = profiles.selected_profile();
    (!path.as_os_str().is_empty())
        .then(|| Bundle::new(path, format!("ca_bundle of the profile {name}")))
}

/// Reads the files of the AWS configuration, and selects a profile; without a name, the one that
/// `AWS_PROFILE` names.
async fn profiles(profile: Option<&str>) -> Result<EnvConfigSections, ProfileFileLoadError> {
    let (fs, env, files) = (Fs::real(), Env::real(), EnvConfigFiles::default());
    let profile = profile.map(|profile| profile.to_owned().into());
    load(&fs, &env, &files, profile).await
}

/// Runs a lookup of the SDK, which has no other interface than async, on a separate thread: the
/// caller may be inside a runtime. It reads two files.
fn run_lookup<T: Send>(lookup: impl Future<Output = T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let read = || {
            let runtime = tokio::runtime::Builder::new_current_thread().build()?;
            Ok(runtime.block_on(lookup))
        };
        let named = Builder::new().name("tload-profile".to_owned());
        let thread = named
            .spawn_scoped(scope, read)
            .map_err(Error::cannot_start_thread)?;
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            .map_err(Error::cannot_start_thread)
    })
}

#[cfg(test)]
mod tests {
    use object_store::ClientOptions;

    use super::*;
    use crate::http::connector::Connector;

    #[test]
    fn missing_profile_is_invalid_request() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let name = "tload-no-such-profile".to_owned();
        let http = SdkHttp::new(Connector::default(), ClientOptions::new());
        let chain = Chain::new(Some(name), None, "us-east-1".to_owned(), http);
        let loaded = runtime.expect("a runtime").block_on(chain.search());
        let failure = loaded.err().expect("no such profile");
        assert!(
            failure.message.contains("tload-no-such-profile"),
            "{failure:?}"
        );
        let region = region_of_profile(Some("tload-no-such-profile"));
        assert_eq!(region.expect("a thread"), None);
    }

    #[test]
    fn failures_of_services_are_transient() {
        let connect = |text: &str| {
            let refused = ConnectorError::io(text.into());
            CredentialsError::provider_error(refused)
        };
        let status = |code| {
            let text =
                format!("Non-success status from HTTP credential provider: StatusCode({code})");
            CredentialsError::provider_error(text)
        };
        let second = std::time::Duration::from_secs(1);
        for (error, kind, wanted) in [
            (
                connect("connection refused"),
                ErrorKind::Remote,
                Some(Transient::Unreachable),
            ),
            (
                connect("invalid peer certificate"),
                ErrorKind::PermissionDenied,
                None,
            ),
            (
                CredentialsError::provider_timed_out(second),
                ErrorKind::TimedOut,
                Some(Transient::Stalled),
            ),
            (status(503), ErrorKind::Remote, Some(Transient::Busy)),
            (status(500), ErrorKind::Remote, Some(Transient::Broken)),
            (status(403), ErrorKind::PermissionDenied, None),
            (
                CredentialsError::provider_error("unhandled error (Throttling)"),
                ErrorKind::Remote,
                Some(Transient::Busy),
            ),
            (
                CredentialsError::provider_error("unhandled error (AccessDenied)"),
                ErrorKind::PermissionDenied,
                None,
            ),
            (
                CredentialsError::provider_error("unhandled error"),
                ErrorKind::Remote,
                Some(Transient::Broken),
            ),
            (
                CredentialsError::provider_error(
                    "IdpCommunicationErrorException [IDPCommunicationErrorException]: no",
                ),
                ErrorKind::Remote,
                Some(Transient::Broken),
            ),
            (
                CredentialsError::provider_error("ExpiredTokenException: old"),
                ErrorKind::PermissionDenied,
                None,
            ),
            (
                CredentialsError::invalid_configuration("no"),
                ErrorKind::PermissionDenied,
                None,
            ),
        ] {
            let failure = failure(&error, "web identity");
            assert_eq!(
                (failure.kind, failure.transient),
                (kind, wanted),
                "{error:?}"
            );
            assert!(failure.message.ends_with("web identity"));
        }
    }

    #[test]
    fn failures_name_the_source() {
        let error = CredentialsError::provider_error("the SSO session has expired");
        let failure = failure(&error, "profile dev");
        assert_eq!(
            failure.hint.as_deref(),
            Some("run `aws sso login --profile dev`")
        );
        assert!(failure.message.contains("profile dev"));
        let unread = CredentialsError::provider_error("no such file");
        let hint = super::failure(&unread, "web identity").hint;
        assert!(hint.is_some_and(|it| it.contains("AWS_WEB_IDENTITY_TOKEN_FILE")));
        let looked_at = ["environment".to_owned(), INSTANCE.to_owned()];
        let failure = nothing(&looked_at, Some(&error));
        assert!(failure.message.ends_with("environment, instance metadata"));
        let cause = Cause::Words("the SSO session has expired".to_owned());
        assert_eq!(failure.cause, Some(cause));
    }
}
