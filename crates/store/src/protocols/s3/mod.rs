//! Opens S3 and compatible stores: endpoint, addressing, region and credentials of a bucket. Knows
//! their variables, and their errors about regions. Used by
//! [`crate::Store`] through [`PROTOCOL`], as the other protocols are.

mod access_point;
#[cfg(feature = "aws-config")]
mod aws;
#[cfg(feature = "aws-config")]
mod aws_http;
mod endpoint;

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

use self::access_point::AccessPoint;
use self::endpoint::{
    OfProfile, Variants, endpoint, require_scheme, require_url, with_access_point, with_address,
};
use crate::builder::{OpenStore, Opening, StoreProtocol, is_plain, no_retries};
#[cfg(feature = "aws-config")]
use crate::credentials::origin::needs_no_files;
use crate::credentials::origin::{ANONYMOUS, Credentials, files_of_aws};
use crate::environment::{Environment, Variables};
use crate::error::{Error, ErrorKind, Result};
use crate::explain::context::Hints;
use crate::explain::failure::Failure;
use crate::explain::rules::{CODES, Rules, STATUSES, rules};
use crate::http::client::Extras;
use crate::http::pages::Format;
use crate::http::signing::Signer;
use crate::http::trust::{Bundle, OF_REQUESTS};
use crate::options::StoreOptions;
use crate::options::location::Protocol;

/// Default region, the same as that of AWS's own tools.
const DEFAULT_REGION: &str = "us-east-1";

/// Amazon S3 and compatible stores.
pub(crate) static PROTOCOL: StoreProtocol = StoreProtocol {
    protocol: Protocol::S3,
    open,
    files: files_of_aws,
    variables: Some(&VARIABLES),
    hints: Hints {
        rules: &[CODES, ELSEWHERE, STATUSES],
        permissions: Some(["s3:ListBucket", "s3:GetObject"]),
        unreachable: None,
        lists: true,
    },
    bundles: OF_REQUESTS,
};

pub(crate) static VARIABLES: Variables = Variables {
    prefix: "AWS_",
    credentials: &CREDENTIALS,
    additions: |_| Vec::new(),
};

/// Settings of `object_store` that are credentials or the origin of one.
const CREDENTIALS: [&str; 12] = [
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

const EXPLICIT: [&str; 4] = [
    "access_key_id",
    "secret_access_key",
    "session_token",
    "profile",
];

fn open(opening: &Opening) -> Result<OpenStore> {
    let (builder, credential_source) = builder(opening)?;
    let value = |key| builder.get_config_value(&key);
    let region = value(AmazonS3ConfigKey::Region);
    let origin = endpoint(&builder).unwrap_or_default();
    let sessions = usize::from(value(AmazonS3ConfigKey::S3Express).as_deref() == Some("true"));
    let (builder, credentials) = match credential_source {
        CredentialSource::Known(source) => (builder, Credentials::known(source)),
        #[cfg(feature = "aws-config")]
        CredentialSource::Chain(chain) => {
            let cache = Arc::new(crate::credentials::cache::CredentialCache::new(chain));
            let builder = builder.with_credentials(Arc::clone(&cache) as _);
            let at_first = "the AWS configuration, not yet looked up".to_owned();
            (builder, Credentials::Renewed { at_first, cache })
        }
    };
    let store = builder
        .with_http_connector(opening.connector.clone())
        .build()
        .map_err(|error| opening.refused(&error))?;
    // Sessions (S3 Express) are signed with separate credentials, which `object_store` does not
    // expose.
    let signer = region
        .clone()
        .filter(|_| sessions == 0)
        .map(|region| Signer::Aws {
            credentials: Arc::clone(store.credentials()),
            region,
        });
    Ok(OpenStore {
        origin,
        region,
        sessions,
        signer,
        ..OpenStore::of_objects(store, Some(Format::Objects), credentials)
    })
}

/// Returns whether endpoints that variables and profiles of AWS configure must be ignored; `None`
/// leaves that to the profile.
fn ignores_endpoints(environment: &Environment) -> Option<bool> {
    let text = environment.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")?;
    Some(text.eq_ignore_ascii_case("true"))
}

/// Rules for responses that say that the bucket is in another region.
const ELSEWHERE: Rules = rules! { |f|
    // A 403 means another region only if the redirect was followed, which drops the signature.
    names_other_region(f) && (is_elsewhere(f) || matches!(f.status(), 400 | 403)) => InvalidRequest:
        "the bucket is in region {region}, but the request went to {signed region|another one}",
        "set region={region}";
    is_elsewhere(f) => InvalidRequest: "the bucket is in another region or at another endpoint",
        "set region or endpoint to the bucket's own";
};

fn names_other_region(failure: &Failure) -> bool {
    let named = failure.captured.region.as_deref();
    named.is_some() && named != failure.asked.region
}

fn is_elsewhere(failure: &Failure) -> bool {
    matches!(failure.status(), 301 | 302 | 307 | 308)
        || failure.has_code(&[
            "AuthorizationHeaderMalformed",
            "IllegalLocationConstraintException",
            "PermanentRedirect",
        ])
}

/// Origin of the credentials.
enum CredentialSource {
    /// The builder already has them.
    Known(String),
    /// The AWS SDK looks them up.
    #[cfg(feature = "aws-config")]
    Chain(aws::Chain),
}

fn builder(opening: &Opening) -> Result<(AmazonS3Builder, CredentialSource)> {
    let access_point = AccessPoint::of(opening.url)?;
    let explicit = opening.is_explicit(&EXPLICIT);
    let mut builder = AmazonS3Builder::new();
    let mut client_settings = Vec::new();
    let passed = opening.passed_settings()?;
    let ambient = opening.ambient_settings(explicit);
    let configured = ConfiguredEndpoint::new(opening, &passed, &ambient)?;
    let ambient = ambient
        .into_iter()
        .filter(|(key, _)| !configured.hides(*key));
    require_scheme(
        opening.environment,
        configured.is_given || configured.is_ignored,
    )?;
    for (key, value) in ambient.chain(passed) {
        if let AmazonS3ConfigKey::Client(key) = key {
            client_settings.push((key, value));
        } else {
            builder = builder.with_config(key, value);
        }
    }
    builder = with_options(builder, opening.options);
    builder = match &access_point {
        Some(access_point) => builder.with_region(&access_point.region),
        None => with_region(builder, opening)?,
    };
    if let Some(endpoint) = configured
        .of_profile
        .filter(|_| endpoint(&builder).is_none())
    {
        builder = builder.with_endpoint(endpoint);
    }
    let bucket = access_point
        .as_ref()
        .map_or(opening.url.host(), |access_point| &access_point.label);
    builder = match access_point {
        Some(_) => with_access_point(builder, opening, bucket, configured.variants)?,
        None => with_address(builder, opening, configured.variants)?,
    };
    require_label(&builder, opening, bucket)?;
    let endpoint = endpoint(&builder);
    require_url(endpoint.as_deref())?;
    let extras = Extras {
        settings: client_settings,
        allow_http: is_plain(endpoint.as_deref()),
        bundle: bundle(opening),
        ..Extras::default()
    };
    let client = opening.client(extras)?;
    builder = builder
        .with_client_options(client)
        .with_retry(no_retries())
        .with_bucket_name(bucket);
    let credential_source = credential_source(&builder, opening)?;
    Ok((builder, credential_source))
}

/// Sets what options of the store give.
fn with_options(mut builder: AmazonS3Builder, options: &StoreOptions) -> AmazonS3Builder {
    for (option, key) in [
        ("access_key_id", AmazonS3ConfigKey::AccessKeyId),
        ("secret_access_key", AmazonS3ConfigKey::SecretAccessKey),
        ("session_token", AmazonS3ConfigKey::Token),
        ("region", AmazonS3ConfigKey::Region),
        ("endpoint", AmazonS3ConfigKey::Endpoint),
        // This key takes precedence in the builder of `object_store`.
        ("endpoint", AmazonS3ConfigKey::S3Endpoint),
    ] {
        if let Some(value) = options.get(option) {
            builder = builder.with_config(key, value);
        }
    }
    if let Some(anonymous) = options.flag("anonymous") {
        builder = builder.with_skip_signature(anonymous);
    }
    if let Some(pays) = options.flag("request_payer") {
        builder = builder.with_request_payer(pays);
    }
    builder
}

/// Endpoints that variables and a profile configure, and which of them count.
struct ConfiguredEndpoint {
    /// True if an option gives the endpoint.
    is_given: bool,
    /// True if no variable counts, nor the profile.
    is_ignored: bool,
    of_profile: Option<String>,
    /// Variants of AWS's own endpoints.
    variants: Variants,
}

impl ConfiguredEndpoint {
    /// Reads the profile unless an option or a variable makes it irrelevant. `passed` are the
    /// options that have names of `object_store`, `ambient` the variables.
    fn new(
        opening: &Opening,
        passed: &[(AmazonS3ConfigKey, String)],
        ambient: &[(AmazonS3ConfigKey, String)],
    ) -> Result<Self> {
        let has_endpoint = |settings: &[(AmazonS3ConfigKey, String)]| {
            settings.iter().any(|(key, _)| is_endpoint(*key))
        };
        let is_given = has_endpoint(passed) || opening.options.get("endpoint").is_some();
        let has_variable = has_endpoint(ambient);
        let is_ignored = ignores_endpoints(opening.environment);
        let mut configured = Self {
            is_given,
            is_ignored: is_ignored == Some(true),
            of_profile: None,
            variants: Variants::default(),
        };
        if is_given || (has_variable && is_ignored == Some(false)) {
            return Ok(configured);
        }
        let profile = match profile_endpoint(opening) {
            // A machine without a usable home directory is configured by variables alone.
            Err(error) if has_variable || configured.is_ignored => {
                tracing::debug!(%error, "the endpoint comes from variables");
                OfProfile::default()
            }
            profile => profile?,
        };
        // The variable overrides the profile, also if it is false.
        configured.is_ignored = is_ignored.unwrap_or(profile.ignores_endpoints);
        configured.of_profile = profile.endpoint.filter(|_| !configured.is_ignored);
        configured.variants = profile.variants.or_of_variables(opening.environment);
        Ok(configured)
    }

    /// Returns whether this setting of the environment is an endpoint that does not count.
    fn hides(&self, key: AmazonS3ConfigKey) -> bool {
        (self.is_given && is_endpoint(key))
            || (self.is_ignored && (is_endpoint(key) || key == AmazonS3ConfigKey::StsEndpoint))
    }
}

/// Returns whether this setting is an endpoint of S3.
fn is_endpoint(key: AmazonS3ConfigKey) -> bool {
    matches!(
        key,
        AmazonS3ConfigKey::Endpoint | AmazonS3ConfigKey::S3Endpoint
    )
}

/// Takes the region from the profile if neither options nor variables give it.
fn with_region(builder: AmazonS3Builder, opening: &Opening) -> Result<AmazonS3Builder> {
    if builder
        .get_config_value(&AmazonS3ConfigKey::Region)
        .is_some()
    {
        return Ok(builder);
    }
    let region = profile_region(opening)?;
    Ok(builder.with_region(region.unwrap_or_else(|| DEFAULT_REGION.to_owned())))
}

#[cfg(feature = "aws-config")]
fn profile_region(opening: &Opening) -> Result<Option<String>> {
    if !may_read_profile(opening) {
        return Ok(None);
    }
    aws::region_of_profile(opening.options.get("profile"))
}

/// Returns the settings of endpoints in the profile.
#[cfg(feature = "aws-config")]
fn profile_endpoint(opening: &Opening) -> Result<OfProfile> {
    if !may_read_profile(opening) {
        return Ok(OfProfile::default());
    }
    aws::endpoint_of_profile(opening.options.get("profile"))
}

/// Returns the bundle of certificates that AWS's variable names, else that of the profile.
fn bundle(opening: &Opening) -> Option<Bundle> {
    Bundle::of_variables(opening.environment, &["AWS_CA_BUNDLE"])
        .or_else(|| profile_bundle(opening))
}

#[cfg(feature = "aws-config")]
fn profile_bundle(opening: &Opening) -> Option<Bundle> {
    let is_needed = may_read_profile(opening) && !needs_no_files(opening);
    let is_given = opening.options.get("ca_file").is_some();
    (is_needed && !is_given)
        .then(|| aws::bundle_of_profile(opening.options.get("profile")))
        .flatten()
}

#[cfg(not(feature = "aws-config"))]
fn profile_bundle(_: &Opening) -> Option<Bundle> {
    None
}

/// Returns whether files of the AWS configuration may be read: one that options name may always be.
#[cfg(feature = "aws-config")]
fn may_read_profile(opening: &Opening) -> bool {
    opening.may_read_environment() || opening.options.get("profile").is_some()
}

#[cfg(not(feature = "aws-config"))]
#[expect(
    clippy::unnecessary_wraps,
    reason = "builds with the SDK read files here"
)]
fn profile_region(_: &Opening) -> Result<Option<String>> {
    Ok(None)
}

#[cfg(not(feature = "aws-config"))]
#[expect(
    clippy::unnecessary_wraps,
    reason = "builds with the SDK read files here"
)]
fn profile_endpoint(_: &Opening) -> Result<OfProfile> {
    Ok(OfProfile::default())
}

/// Refuses a bucket whose name cannot be part of a URL, or would end the host name. In
/// `https://evil.example#.host`, the host is `evil.example`, which would receive the session token.
fn require_label(builder: &AmazonS3Builder, opening: &Opening, bucket: &str) -> Result<()> {
    let refused = |reason: &str, hint: &str| {
        Err(Error::new(ErrorKind::InvalidRequest, reason.to_owned())
            .with_location(opening.url.shown())
            .with_hint(hint))
    };
    // No store allows these characters in a name, and `object_store` panics on them.
    let impossible = |letter: char| {
        letter.is_whitespace() || letter.is_control() || r#"<>"{}|\^`"#.contains(letter)
    };
    if let Some(letter) = bucket.chars().find(|it| impossible(*it)) {
        return refused(
            &format!("{letter:?} cannot be in the name of a bucket"),
            "check the bucket's name; s3://BUCKET/PREFIX is the form of a location",
        );
    }
    let is_set = |key| builder.get_config_value(&key).as_deref() == Some("true");
    let is_in_host = is_set(AmazonS3ConfigKey::VirtualHostedStyleRequest)
        || is_set(AmazonS3ConfigKey::S3Express);
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if !is_in_host || bucket.bytes().all(allowed) {
        return Ok(());
    }
    refused(
        "the bucket's name cannot be part of a host name",
        "check the bucket's name, or set addressing=path",
    )
}

fn credential_source(builder: &AmazonS3Builder, opening: &Opening) -> Result<CredentialSource> {
    let value = |key| builder.get_config_value(&key);
    if value(AmazonS3ConfigKey::SkipSignature).as_deref() == Some("true") {
        return Ok(CredentialSource::Known(ANONYMOUS.to_owned()));
    }
    let keys = [
        ("access_key_id", AmazonS3ConfigKey::AccessKeyId),
        ("secret_access_key", AmazonS3ConfigKey::SecretAccessKey),
    ];
    let missing = |name: &str| {
        Error::new(
            ErrorKind::InvalidRequest,
            format!("incomplete credentials: {name} is missing"),
        )
        .with_location(opening.url.shown())
        .with_hint(format!("set {name} too"))
    };
    let [has_id, has_secret] = keys.map(|(_, key)| value(key).is_some());
    let given = opening.first_option(&["access_key_id", "secret_access_key", "session_token"]);
    if given.is_some() || opening.options.get("profile").is_none() {
        match (has_id, has_secret) {
            (true, true) if given.is_some() => {
                return Ok(CredentialSource::Known("option access_key_id".to_owned()));
            }
            (true, true) if opening.passed_credential().is_some() => {
                return Ok(CredentialSource::Known(
                    "option aws_access_key_id".to_owned(),
                ));
            }
            (true, true) => return Ok(CredentialSource::Known("environment".to_owned())),
            (true, false) => return Err(missing("secret_access_key")),
            (false, true) => return Err(missing("access_key_id")),
            (false, false) if given.is_some() => return Err(missing("access_key_id")),
            (false, false) => {}
        }
    }
    if let Some(name) = opening.passed_credential() {
        return Ok(CredentialSource::Known(format!("option {name}")));
    }
    if opening.options.get("profile").is_none() {
        opening.needs_credentials()?;
    }
    found(builder, opening)
}

#[cfg(feature = "aws-config")]
fn found(builder: &AmazonS3Builder, opening: &Opening) -> Result<CredentialSource> {
    let client = opening.client(Extras {
        bundle: bundle(opening),
        ..Extras::default()
    })?;
    let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
    Ok(CredentialSource::Chain(aws::Chain::new(
        opening.options.get("profile").map(str::to_owned),
        opening.environment.get("AWS_PROFILE").map(str::to_owned),
        region.unwrap_or_else(|| DEFAULT_REGION.to_owned()),
        aws_http::SdkHttp::new(opening.connector.clone(), client),
    )))
}

/// Follows the order of `object_store`'s own search.
#[cfg(not(feature = "aws-config"))]
fn found(builder: &AmazonS3Builder, opening: &Opening) -> Result<CredentialSource> {
    if opening.options.get("profile").is_some() {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "this build cannot read profiles of the AWS configuration files",
        )
        .with_location(opening.url.shown())
        .with_hint("build with the feature aws-config, or pass credentials"));
    }
    let has = |key| builder.get_config_value(&key).is_some();
    let source = if has(AmazonS3ConfigKey::WebIdentityTokenFile) && has(AmazonS3ConfigKey::RoleArn)
    {
        "web identity"
    } else if has(AmazonS3ConfigKey::ContainerCredentialsRelativeUri)
        || has(AmazonS3ConfigKey::ContainerCredentialsFullUri)
    {
        "container"
    } else {
        "instance metadata"
    };
    Ok(CredentialSource::Known(source.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Location;

    fn built(
        url: &str,
        options: &[(&str, &str)],
        variables: &[(&str, &str)],
    ) -> Result<(AmazonS3Builder, String)> {
        let location = Location::parse(url)?;
        let options = StoreOptions::from_pairs(options.iter().copied())?;
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let environment = Environment::new(variables);
        let url = location.remote().expect("a URL");
        let opening = Opening::without_secrets(&PROTOCOL, url, &options, &environment);
        let (builder, credential_source) = builder(&opening)?;
        let shown = |credential_source| match credential_source {
            CredentialSource::Known(source) => source,
            #[cfg(feature = "aws-config")]
            CredentialSource::Chain(chain) => format!("{chain:?}"),
        };
        Ok((builder, shown(credential_source)))
    }

    const KEYS: [(&str, &str); 3] = [
        ("access_key_id", "AKIA"),
        ("secret_access_key", "hunter2"),
        ("environment", "false"),
    ];
    const AMBIENT: [(&str, &str); 5] = [
        ("AWS_ACCESS_KEY_ID", "ASIA"),
        ("AWS_SECRET_ACCESS_KEY", "other"),
        ("AWS_SESSION_TOKEN", "token"),
        ("AWS_REGION", "eu-west-1"),
        ("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9000"),
    ];

    #[test]
    fn options_win_over_the_environment() {
        let mut options = KEYS.to_vec();
        options.extend([("region", "eu-west-2"), ("endpoint", "https://minio")]);
        let (builder, credential_source) =
            built("s3://b/k", &options, &AMBIENT).expect("a builder");
        let value = |key| builder.get_config_value(&key);
        assert_eq!(credential_source, "option access_key_id");
        assert_eq!(
            value(AmazonS3ConfigKey::AccessKeyId).as_deref(),
            Some("AKIA")
        );
        assert_eq!(value(AmazonS3ConfigKey::Token), None);
        assert_eq!(
            value(AmazonS3ConfigKey::Region).as_deref(),
            Some("eu-west-2")
        );
        assert_eq!(endpoint(&builder).as_deref(), Some("https://minio"));
    }

    #[test]
    fn s3_builds_from_environment_alone() {
        let (builder, credential_source) = built("s3://b/k", &[], &AMBIENT).expect("a builder");
        let value = |key| builder.get_config_value(&key);
        assert_eq!(credential_source, "environment");
        assert_eq!(value(AmazonS3ConfigKey::Token).as_deref(), Some("token"));
        assert_eq!(
            value(AmazonS3ConfigKey::Region).as_deref(),
            Some("eu-west-1")
        );
        assert_eq!(endpoint(&builder).as_deref(), Some("http://127.0.0.1:9000"));
    }

    #[test]
    fn configured_endpoints_are_hidden_by_variable_and_options() {
        let sts = ("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:9001");
        let ignore = ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true");
        let ignored = [AMBIENT[0], AMBIENT[1], AMBIENT[4], sts, ignore];
        let (builder, _) = built("s3://b/k", &[], &ignored).expect("a builder");
        assert_eq!(endpoint(&builder), None);
        let value = |key| builder.get_config_value(&key);
        assert_eq!(value(AmazonS3ConfigKey::StsEndpoint), None);
        // Options win, also over the variable that `object_store` prefers.
        for option in ["endpoint", "aws_endpoint", "aws_endpoint_url"] {
            for variables in [&AMBIENT[..], &ignored] {
                let (builder, _) =
                    built("s3://b/k", &[(option, "https://minio")], variables).expect("a builder");
                assert_eq!(
                    endpoint(&builder).as_deref(),
                    Some("https://minio"),
                    "{option}"
                );
            }
        }
    }

    #[test]
    fn credentials_source_is_named() {
        for (options, wanted) in [
            (vec![("anonymous", "true")], "anonymous"),
            (vec![("aws_skip_signature", "true")], "anonymous"),
            (
                vec![("aws_access_key_id", "a"), ("aws_secret_access_key", "b")],
                "option aws_access_key_id",
            ),
            (
                vec![("aws_container_credentials_relative_uri", "/x")],
                "option aws_container_credentials_relative_uri",
            ),
        ] {
            let (_, credential_source) = built("s3://b/k", &options, &AMBIENT).expect("a builder");
            assert_eq!(credential_source, wanted);
        }
    }

    #[test]
    fn variable_with_endpoint_without_scheme_is_named() {
        for name in endpoint::ENDPOINTS {
            let variables = [(name, "me:hunter2@localhost:9000")];
            let error = built("s3://b/k", &[], &variables).expect_err(name);
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
            assert!(error.message().contains(name), "{error}");
            assert!(!error.chain().contains("hunter2"), "{}", error.chain());
            let given = [("endpoint", "http://minio:9000")];
            built("s3://b/k", &given, &variables).expect("the option counts");
        }
    }

    #[test]
    fn bucket_unsafe_in_host_name_is_rejected() {
        let is_virtual = [("addressing", "virtual"), ("endpoint", "http://minio:9000")];
        let variable = ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true");
        // This machine's own profiles may name an endpoint.
        let ignore = ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true");
        let without_profiles = [AMBIENT[0], AMBIENT[1], AMBIENT[3], ignore];
        for (url, options, variables) in [
            ("s3://evil.example#/k", &is_virtual[..], &AMBIENT[..]),
            ("s3://evil.example?/k", &is_virtual, &AMBIENT),
            ("s3://evil.example:80\\/k", &is_virtual, &AMBIENT),
            (
                "s3://evil.example:80#/k",
                &[],
                &[AMBIENT[0], AMBIENT[1], AMBIENT[4], variable],
            ),
            (
                "s3://evil.example#--usw2-az1--x-s3/k",
                &[],
                &without_profiles,
            ),
            (
                "s3://evil.example#--usw2-az1--x-s3/k",
                &[("express", "true")],
                &AMBIENT,
            ),
        ] {
            let error = built(url, options, variables).err();
            let error = error.unwrap_or_else(|| panic!("{url} {options:?} was taken"));
            assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{url}: {error}");
        }
        built("s3://b_C.d/k", &is_virtual, &AMBIENT).expect("a name of a host");
        for url in ["s3://<your-bucket>/k", "s3://a b/k", "s3://b\t/k"] {
            let error = built(url, &[("endpoint", "http://minio:9000")], &AMBIENT);
            let error = error.err().unwrap_or_else(|| panic!("{url} was taken"));
            assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{url}: {error}");
            let message = error.message();
            assert!(
                message.ends_with("cannot be in the name of a bucket"),
                "{message}"
            );
        }
    }

    #[test]
    fn bucket_placement_follows_addressing() {
        let minio = ("endpoint", "http://minio:9000");
        let is_virtual = ("addressing", "virtual");
        for (url, options, endpoint_wanted, virtual_wanted) in [
            ("s3://b/k", vec![], None, "true"),
            ("s3://b.c/k", vec![], None, "false"),
            ("s3://b_C/k", vec![], None, "false"),
            ("s3://b/k", vec![("addressing", "path")], None, "false"),
            ("s3://b/k", vec![minio], Some("http://minio:9000"), "false"),
            (
                "s3://b/k",
                vec![minio, is_virtual],
                Some("http://b.minio:9000"),
                "true",
            ),
            (
                "s3://b/k",
                vec![("region", "cn-north-1")],
                Some("https://b.s3.cn-north-1.amazonaws.com.cn"),
                "true",
            ),
            (
                "s3://b/k",
                vec![("region", "eusc-de-east-1"), ("addressing", "path")],
                Some("https://s3.eusc-de-east-1.amazonaws.eu"),
                "false",
            ),
            (
                "s3://b/k",
                vec![("region", "us-isob-east-1")],
                Some("https://b.s3.us-isob-east-1.sc2s.sgov.gov"),
                "true",
            ),
            (
                "s3://b/k",
                vec![("region", "us-iso-east-1")],
                Some("https://b.s3.us-iso-east-1.c2s.ic.gov"),
                "true",
            ),
            ("s3://b/k", vec![("region", "us-gov-west-1")], None, "true"),
        ] {
            let mut all = KEYS.to_vec();
            all.extend(&options);
            let (builder, _) = built(url, &all, &[]).expect(url);
            assert_eq!(
                endpoint(&builder).as_deref(),
                endpoint_wanted,
                "{url} {options:?}"
            );
            let found = builder.get_config_value(&AmazonS3ConfigKey::VirtualHostedStyleRequest);
            assert_eq!(found.as_deref(), Some(virtual_wanted), "{url} {options:?}");
        }
    }

    #[test]
    fn access_points_have_hosts_and_regions_of_their_own() {
        let url = "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/ap/k";
        let fips = ("AWS_USE_FIPS_ENDPOINT", "true");
        let dual_stack = ("AWS_USE_DUALSTACK_ENDPOINT", "true");
        // This machine's own profiles may name an endpoint.
        let ignore = ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true");
        for (options, variables, wanted) in [
            (
                vec![("region", "us-east-1")],
                vec![ignore],
                "https://ap-123456789012.s3-accesspoint.eu-west-1.amazonaws.com",
            ),
            (
                vec![],
                vec![ignore, fips, dual_stack],
                "https://ap-123456789012.s3-accesspoint-fips.dualstack.eu-west-1.amazonaws.com",
            ),
            (
                vec![("endpoint", "http://minio.example:9000")],
                vec![ignore],
                "http://ap-123456789012.minio.example:9000",
            ),
        ] {
            let mut all: Vec<_> = KEYS
                .into_iter()
                .filter(|(key, _)| *key != "environment")
                .collect();
            all.extend(options);
            let (builder, _) = built(url, &all, &variables).expect("a builder");
            assert_eq!(endpoint(&builder).as_deref(), Some(wanted));
            let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
            assert_eq!(region.as_deref(), Some("eu-west-1"));
        }
        let china = "s3://arn:aws-cn:s3:cn-north-1:123456789012:accesspoint/ap/k";
        let (builder, _) = built(china, &KEYS, &[]).expect("a builder");
        let host = endpoint(&builder).expect("an endpoint");
        assert!(host.ends_with(".cn-north-1.amazonaws.com.cn"), "{host}");
        let by_path = [KEYS[0], KEYS[1], KEYS[2], ("addressing", "path")];
        let error = built(url, &by_path, &[]).expect_err("no such form");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        let at_address = [
            KEYS[0],
            KEYS[1],
            KEYS[2],
            ("endpoint", "http://127.0.0.1:9000"),
        ];
        let error = built(url, &at_address, &[]).expect_err("no host name");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        let (builder, _) = built("s3://ap-o0o0o0o0-s3alias/k", &KEYS, &[]).expect("a bucket");
        let found = builder.get_config_value(&AmazonS3ConfigKey::VirtualHostedStyleRequest);
        assert_eq!(found.as_deref(), Some("true"));
    }

    #[test]
    fn bucket_is_added_to_host_names_without_it() {
        let addressing = ("addressing", "virtual");
        let setting = ("aws_virtual_hosted_style_request", "true");
        for (way, given, wanted) in [
            (
                addressing,
                "https://s3.example.com",
                "https://b.s3.example.com",
            ),
            (
                addressing,
                "https://b.s3.example.com:81",
                "https://b.s3.example.com:81",
            ),
            (
                addressing,
                "https://b.s3-eu.example.com/",
                "https://b.s3-eu.example.com/",
            ),
            (
                addressing,
                "https://b.oss-cn-x.aliyuncs.com",
                "https://b.oss-cn-x.aliyuncs.com",
            ),
            (
                addressing,
                "https://b.nyc3.digitaloceanspaces.com",
                "https://b.nyc3.digitaloceanspaces.com",
            ),
            // The server is called like the bucket.
            (
                addressing,
                "https://b.example.com",
                "https://b.b.example.com",
            ),
            (
                addressing,
                "https://b.digitaloceanspaces.com",
                "https://b.b.digitaloceanspaces.com",
            ),
            // This setting requires that the endpoint contains the bucket.
            (setting, "https://b.example.com", "https://b.example.com"),
        ] {
            let mut all = KEYS.to_vec();
            all.extend([way, ("endpoint", given)]);
            let (builder, _) = built("s3://b/k", &all, &[]).expect(given);
            assert_eq!(endpoint(&builder).as_deref(), Some(wanted), "{way:?}");
        }
    }

    #[test]
    fn variables_select_variants_of_endpoints() {
        let fips = ("AWS_USE_FIPS_ENDPOINT", "true");
        let dual_stack = ("AWS_USE_DUALSTACK_ENDPOINT", "True");
        for (variables, region, wanted) in [
            (
                vec![fips],
                "us-east-1",
                Some("https://b.s3-fips.us-east-1.amazonaws.com"),
            ),
            (
                vec![dual_stack],
                "cn-north-1",
                Some("https://b.s3.dualstack.cn-north-1.amazonaws.com.cn"),
            ),
            (
                vec![fips, dual_stack],
                "us-gov-west-1",
                Some("https://b.s3-fips.dualstack.us-gov-west-1.amazonaws.com"),
            ),
            (vec![("AWS_USE_FIPS_ENDPOINT", "false")], "us-east-1", None),
            (
                vec![fips, AMBIENT[4]],
                "us-east-1",
                Some("http://127.0.0.1:9000"),
            ),
        ] {
            let mut all = KEYS.to_vec();
            all.push(("region", region));
            let (builder, _) = built("s3://b/k", &all, &variables).expect(region);
            assert_eq!(endpoint(&builder).as_deref(), wanted, "{variables:?}");
        }
        let error = built("s3://b--use1-az4--x-s3/k", &KEYS, &[fips]).expect_err("no variant");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error
                .hint()
                .is_some_and(|hint| hint.contains("AWS_USE_FIPS_ENDPOINT"))
        );
    }

    #[test]
    fn express_bucket_is_recognised_by_name() {
        let (builder, _) = built("s3://b--use1-az4--x-s3/k", &KEYS, &[]).expect("a builder");
        let express = builder.get_config_value(&AmazonS3ConfigKey::S3Express);
        assert_eq!(express.as_deref(), Some("true"));
    }

    #[test]
    fn incomplete_or_missing_credentials_fail() {
        for (options, kind) in [
            (vec![("access_key_id", "a")], ErrorKind::InvalidRequest),
            (vec![("session_token", "a")], ErrorKind::InvalidRequest),
            (vec![("environment", "false")], ErrorKind::PermissionDenied),
            (vec![("aws_no_such_key", "a")], ErrorKind::InvalidRequest),
        ] {
            let error = built("s3://b/k", &options, &[]).expect_err("an error");
            assert_eq!(error.kind(), kind, "{options:?}");
        }
    }

    #[test]
    fn profiles_win_over_keys_in_the_environment() {
        let credential_source = built("s3://b/k", &[("profile", "dev")], &AMBIENT)
            .map(|(_, credential_source)| credential_source);
        if cfg!(feature = "aws-config") {
            assert!(credential_source.expect("a chain").contains("dev"));
        } else {
            assert_eq!(
                credential_source.expect_err("an error").kind(),
                ErrorKind::Unsupported
            );
        }
    }
}
