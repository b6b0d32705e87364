//! Configuration by variables and profiles of AWS, besides credentials: endpoints, the region,
//! certificates, and the files that name them.

use std::path::PathBuf;

use object_store::aws::AmazonS3ConfigKey;

#[cfg(feature = "aws-config")]
use super::aws;
use super::endpoint::{OfProfile, Variants};
use crate::builder::{Opening, is_plain};
use crate::environment::Environment;
use crate::error::Result;
use crate::http::trust::Bundle;

/// Returns whether endpoints that variables and profiles of AWS configure must be ignored; `None`
/// leaves that to the profile.
fn ignores_endpoints(environment: &Environment) -> Option<bool> {
    let text = environment.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")?;
    Some(text.eq_ignore_ascii_case("true"))
}

/// Endpoints that variables and a profile configure, and which of them count.
pub(super) struct ConfiguredEndpoint {
    /// True if an option gives the endpoint.
    pub(super) is_given: bool,
    /// True if no variable counts, nor the profile.
    pub(super) is_ignored: bool,
    pub(super) of_profile: Option<String>,
    /// Variants of AWS's own endpoints.
    pub(super) variants: Variants,
}

impl ConfiguredEndpoint {
    /// Reads the profile unless an option or a variable makes it irrelevant. `passed` are the
    /// options that have names of `object_store`, `ambient` the variables.
    pub(super) fn new(
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
    pub(super) fn hides(&self, key: AmazonS3ConfigKey) -> bool {
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

#[cfg(feature = "aws-config")]
pub(super) fn profile_region(opening: &Opening) -> Result<Option<String>> {
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
pub(super) fn bundle(opening: &Opening) -> Option<Bundle> {
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
pub(super) fn profile_region(_: &Opening) -> Result<Option<String>> {
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

/// Returns whether options leave nothing to the files of the AWS configuration. With TLS, these may
/// name certificates.
fn needs_no_files(opening: &Opening) -> bool {
    let options = opening.options;
    let has_credentials =
        options.get("access_key_id").is_some() || options.flag("anonymous") == Some(true);
    let has = |name| options.get(name).is_some();
    let has_bundle = has("ca_file") || opening.environment.get("AWS_CA_BUNDLE").is_some();
    let has_endpoint = has("endpoint") && (has_bundle || is_plain(options.get("endpoint")));
    has_credentials && has_endpoint && has("region")
}

/// Returns the files of the AWS configuration, unless options give everything that is read from
/// them.
#[expect(
    clippy::unnecessary_wraps,
    reason = "the signature that protocols have"
)]
pub(super) fn files(opening: &Opening) -> Option<Vec<PathBuf>> {
    let may_read = opening.may_read_environment() || opening.options.get("profile").is_some();
    let is_complete = needs_no_files(opening);
    // The SDK reads these variables itself, also for a profile that options name.
    let environment = Environment::from_process();
    let of_aws = [
        ("AWS_CONFIG_FILE", "~/.aws/config"),
        ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    ]
    .iter()
    .filter(|_| may_read && !is_complete);
    let of_aws = of_aws.filter_map(|(variable, usual)| {
        environment.expanded(environment.get(variable).unwrap_or(usual))
    });
    Some(of_aws.collect())
}
