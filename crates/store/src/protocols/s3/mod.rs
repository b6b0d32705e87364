//! Opens S3 and compatible stores, and knows their errors about regions. Used by [`crate::Store`]
//! through [`PROTOCOL`], as the other protocols are.
//!
//! `configured` reads what variables and profiles configure, with the SDK (`aws`) for profiles;
//! `endpoint` and `access_point` address the bucket, and `credential_source` says whose credentials
//! sign.

mod access_point;
#[cfg(feature = "aws-config")]
mod aws;
#[cfg(feature = "aws-config")]
mod aws_http;
mod configured;
mod credential_source;
mod endpoint;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, Checksum};

use self::access_point::AccessPoint;
use self::configured::{ConfiguredEndpoint, bundle, profile_region};
use self::credential_source::{CredentialSource, credential_source};
use self::endpoint::{endpoint, require_scheme, require_url, with_access_point, with_address};
use crate::builder::{OpenStore, Opening, StoreProtocol, is_plain, no_retries};
use crate::credentials::origin::Credentials;
use crate::environment::Variables;
use crate::error::{Error, Result};
use crate::explain::context::Hints;
use crate::explain::failure::Failure;
use crate::explain::rules::{CODES, Rules, STATUSES, rules};
use crate::http::client::Extras;
use crate::http::pages::Format;
use crate::http::signing::Signer;
use crate::http::trust::OF_REQUESTS;
use crate::options::StoreOptions;
use crate::options::location::Protocol;

/// Default region, the same as that of AWS's own tools.
const DEFAULT_REGION: &str = "us-east-1";

/// Amazon S3 and compatible stores.
pub(crate) static PROTOCOL: StoreProtocol = StoreProtocol {
    protocol: Protocol::S3,
    open,
    files: configured::files,
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

fn builder(opening: &Opening) -> Result<(AmazonS3Builder, CredentialSource)> {
    let access_point = AccessPoint::of(opening.url)?;
    let explicit = opening.is_explicit(&EXPLICIT);
    // Digest of the bytes; the signature of a request needs it too.
    let mut builder = AmazonS3Builder::new().with_checksum_algorithm(Checksum::SHA256);
    let mut client_settings = Vec::new();
    let passed = opening.passed_settings()?;
    let ambient = opening.ambient_settings(explicit)?;
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

/// Refuses a bucket whose name cannot be part of a URL, or would end the host name. In
/// `https://evil.example#.host`, the host is `evil.example`, which would receive the session token.
fn require_label(builder: &AmazonS3Builder, opening: &Opening, bucket: &str) -> Result<()> {
    let refused = |reason: &str, hint: &str| {
        Err(Error::invalid_request(reason.to_owned())
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
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
    if let Some(region) = region.filter(|it| !it.bytes().all(allowed)) {
        let reason = format!("{region:?} is not the name of a region");
        return refused(
            &reason,
            "correct the option region, AWS_REGION or the profile's region",
        );
    }
    let is_set = |key| builder.get_config_value(&key).as_deref() == Some("true");
    let is_in_host = is_set(AmazonS3ConfigKey::VirtualHostedStyleRequest)
        || is_set(AmazonS3ConfigKey::S3Express);
    if !is_in_host || bucket.bytes().all(allowed) {
        return Ok(());
    }
    refused(
        "the bucket's name cannot be part of a host name",
        "check the bucket's name, or set addressing=path",
    )
}
