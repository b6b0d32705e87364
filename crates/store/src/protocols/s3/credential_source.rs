//! Source of the credentials for a bucket: options, variables, or the search of AWS's tools.

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

#[cfg(feature = "aws-config")]
use super::configured::bundle;
#[cfg(feature = "aws-config")]
use super::{DEFAULT_REGION, aws, aws_http};
use crate::builder::Opening;
use crate::credentials::origin::ANONYMOUS;
use crate::error::{Error, Result};
#[cfg(feature = "aws-config")]
use crate::http::client::Extras;

/// Origin of the credentials.
pub(super) enum CredentialSource {
    /// The builder already has them.
    Known(String),
    /// The AWS SDK looks them up.
    #[cfg(feature = "aws-config")]
    Chain(aws::Chain),
}

pub(super) fn credential_source(
    builder: &AmazonS3Builder,
    opening: &Opening,
) -> Result<CredentialSource> {
    let value = |key| builder.get_config_value(&key);
    if value(AmazonS3ConfigKey::SkipSignature).as_deref() == Some("true") {
        return Ok(CredentialSource::Known(ANONYMOUS.to_owned()));
    }
    let keys = [
        ("access_key_id", AmazonS3ConfigKey::AccessKeyId),
        ("secret_access_key", AmazonS3ConfigKey::SecretAccessKey),
    ];
    let missing = |name: &str| {
        Error::invalid_request(format!("incomplete credentials: {name} is missing"))
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
            crate::error::ErrorKind::Unsupported,
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
