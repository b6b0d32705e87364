//! Endpoints of S3: which of them are valid, those of AWS, and the bucket in them.

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

use crate::builder::Opening;
use crate::environment::Environment;
use crate::error::{Error, ErrorKind, Result};

/// Beginnings of AWS's regions and the domains of their services, outside the partitions whose
/// domain is [`DOMAIN`] (`partitions.json` of botocore 1.44).
const DOMAINS: [(&str, &str); 6] = [
    ("cn-", "amazonaws.com.cn"),
    ("eusc-", "amazonaws.eu"),
    ("us-iso-", "c2s.ic.gov"),
    ("us-isob-", "sc2s.sgov.gov"),
    ("eu-isoe-", "cloud.adc-e.uk"),
    ("us-isof-", "csp.hci.ic.gov"),
];

const DOMAIN: &str = "amazonaws.com";

/// Variants of AWS's own endpoints. An endpoint that is given has none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Variants {
    /// With cryptography that is validated by FIPS 140.
    pub(crate) is_fips: bool,
    /// Also reachable over IPv6.
    pub(crate) is_dual_stack: bool,
}

impl Variants {
    #[cfg(feature = "aws-config")]
    pub(super) fn are_any(self) -> bool {
        self.is_fips || self.is_dual_stack
    }

    /// Returns the variants of the variables, which override the profile, whose variants these are.
    pub(super) fn or_of_variables(self, environment: &Environment) -> Self {
        let flag = |name, of_profile| {
            let text = environment.get(name);
            text.map_or(of_profile, |text| text.eq_ignore_ascii_case("true"))
        };
        Self {
            is_fips: flag("AWS_USE_FIPS_ENDPOINT", self.is_fips),
            is_dual_stack: flag("AWS_USE_DUALSTACK_ENDPOINT", self.is_dual_stack),
        }
    }

    /// Returns AWS's endpoint in a region; `None` for the one that `object_store` uses by itself.
    fn endpoint(self, region: &str) -> Option<String> {
        let has_domain = DOMAINS.iter().any(|(start, _)| region.starts_with(start));
        let is_usual = !has_domain && !self.is_fips && !self.is_dual_stack;
        (!is_usual).then(|| self.endpoint_of("s3", region))
    }

    /// Returns the endpoint of a service of AWS in a region.
    fn endpoint_of(self, service: &str, region: &str) -> String {
        let domain = DOMAINS
            .iter()
            .find(|(start, _)| region.starts_with(start))
            .map_or(DOMAIN, |(_, domain)| domain);
        let fips = if self.is_fips { "-fips" } else { "" };
        let dual_stack = if self.is_dual_stack { ".dualstack" } else { "" };
        format!("https://{service}{fips}{dual_stack}.{region}.{domain}")
    }
}

/// Settings of endpoints in a profile of the AWS configuration files.
#[derive(Debug, Default)]
pub(crate) struct OfProfile {
    pub(crate) endpoint: Option<String>,
    /// True if endpoints that are configured, there or by variables, do not count.
    pub(crate) ignores_endpoints: bool,
    pub(crate) variants: Variants,
}

/// Returns the endpoint that a builder has so far.
pub(super) fn endpoint(builder: &AmazonS3Builder) -> Option<String> {
    let value = |key| builder.get_config_value(&key);
    value(AmazonS3ConfigKey::S3Endpoint).or_else(|| value(AmazonS3ConfigKey::Endpoint))
}

/// Sets where the bucket's name goes. For the host name, the builder needs an endpoint that already
/// contains it.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] for variants of the endpoints of directory buckets.
pub(super) fn with_address(
    builder: AmazonS3Builder,
    opening: &Opening,
    variants: Variants,
) -> Result<AmazonS3Builder> {
    let bucket = opening.url.host();
    let value = |key| builder.get_config_value(&key);
    let region = value(AmazonS3ConfigKey::Region).unwrap_or_default();
    let given = endpoint(&builder);
    let express = opening.options.flag("express").unwrap_or(
        value(AmazonS3ConfigKey::S3Express).as_deref() == Some("true")
            || (given.is_none() && bucket.ends_with("--x-s3")),
    );
    let addressing = opening.options.get("addressing");
    let is_virtual = match (addressing, &given) {
        (Some(addressing), _) => addressing == "virtual",
        (None, Some(_)) => {
            value(AmazonS3ConfigKey::VirtualHostedStyleRequest).as_deref() == Some("true")
        }
        // The wildcard in S3's certificate stands for one label, and host names have no capitals.
        (None, None) => is_label(bucket),
    };
    let endpoint = match given {
        None if express => no_variants(variants, opening)?,
        None => variants.endpoint(&region),
        Some(endpoint) => Some(endpoint),
    };
    let endpoint = endpoint.map(|endpoint| {
        if is_virtual && !express {
            with_bucket(&endpoint, bucket, addressing.is_some())
        } else {
            endpoint
        }
    });
    let builder = builder
        .with_s3_express(express)
        .with_virtual_hosted_style_request(is_virtual);
    Ok(match endpoint {
        Some(endpoint) => builder
            .with_config(AmazonS3ConfigKey::S3Endpoint, &endpoint)
            .with_endpoint(endpoint),
        None => builder,
    })
}

/// Sets the host of an access point, whose name there is `label`.
///
/// # Errors
///
/// [`ErrorKind::InvalidRequest`] for `addressing=path`.
pub(super) fn with_access_point(
    builder: AmazonS3Builder,
    opening: &Opening,
    label: &str,
    variants: Variants,
) -> Result<AmazonS3Builder> {
    if opening.options.get("addressing") == Some("path") {
        let message = "an access point's name is part of the host name, wanted addressing=virtual";
        let error = Error::invalid_request(message);
        let hint =
            "use the access point's alias in place of its ARN, which is addressed like a bucket";
        return Err(error.with_location(opening.url.shown()).with_hint(hint));
    }
    let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
    let regional = endpoint(&builder)
        .unwrap_or_else(|| variants.endpoint_of("s3-accesspoint", &region.unwrap_or_default()));
    let endpoint = with_bucket(&regional, label, false);
    Ok(builder
        .with_s3_express(false)
        .with_virtual_hosted_style_request(true)
        .with_config(AmazonS3ConfigKey::S3Endpoint, &endpoint)
        .with_endpoint(endpoint))
}

/// Leaves the endpoint of a directory bucket to `object_store`, which knows no variants of it.
fn no_variants(variants: Variants, opening: &Opening) -> Result<Option<String>> {
    let variable = match (variants.is_fips, variants.is_dual_stack) {
        (true, _) => "AWS_USE_FIPS_ENDPOINT",
        (false, true) => "AWS_USE_DUALSTACK_ENDPOINT",
        (false, false) => return Ok(None),
    };
    let message = "directory buckets can be read from AWS's standard endpoints only";
    let hint =
        format!("set {variable}=false, or correct the same setting in the AWS configuration files");
    let error = Error::new(ErrorKind::Unsupported, message).with_hint(hint);
    Err(error.with_location(opening.url.shown()))
}

fn is_label(bucket: &str) -> bool {
    bucket
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// Domains of stores below which each bucket has its own host name, in addition to hosts that are
/// called `s3`.
const STORE_DOMAINS: [&str; 5] = [
    ".aliyuncs.com",
    ".digitaloceanspaces.com",
    ".myqcloud.com",
    ".r2.cloudflarestorage.com",
    "storage.googleapis.com",
];

/// Puts the bucket's name before the host, unless it is there: settings of `object_store` require
/// an endpoint that contains it. With the option (`is_option`), the endpoint may be either, so that
/// only known stores count: `minio.example.com` is no bucket called `minio`.
fn with_bucket(endpoint: &str, bucket: &str, is_option: bool) -> String {
    let (scheme, host) = endpoint.split_once("://").unwrap_or(("https", endpoint));
    let is_store = |host: &str| {
        let name = host.split([':', '/']).next().unwrap_or(host);
        let label = name.split('.').next().unwrap_or(name);
        label == "s3"
            || label.starts_with("s3-")
            || STORE_DOMAINS.iter().any(|domain| name.ends_with(domain))
    };
    let rest = host
        .strip_prefix(bucket)
        .and_then(|rest| rest.strip_prefix('.'));
    if rest.is_some_and(|rest| !is_option || is_store(rest)) {
        return endpoint.to_owned();
    }
    format!("{scheme}://{bucket}.{host}")
}

/// Requires that the endpoint is a URL: signing a request to anything else panics in
/// `object_store`. A bucket before an IP address is one example.
pub(super) fn require_url(endpoint: Option<&str>) -> Result<()> {
    // `url` drops some blanks.
    let is_url = |it: &str| !it.contains(char::is_whitespace) && url::Url::parse(it).is_ok();
    if endpoint.is_none_or(is_url) {
        return Ok(());
    }
    let message = "the endpoint with the bucket's name added is not a URL";
    let hint = "write endpoint=http://host:port; with an IP address use addressing=path";
    Err(Error::invalid_request(message).with_hint(hint))
}

/// Variables that name the endpoint, in order of precedence.
pub(super) const ENDPOINTS: [&str; 3] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];

/// Requires that the endpoint that variables name, unless it does not count, has a scheme.
pub(super) fn require_scheme(environment: &Environment, is_ignored: bool) -> Result<()> {
    let set = ENDPOINTS
        .iter()
        .find_map(|name| Some((*name, environment.get(name)?)));
    let Some((name, _)) = set.filter(|(_, value)| !is_ignored && !has_scheme(value)) else {
        return Ok(());
    };
    // The value is not shown, because it may hold a password.
    let message = format!("the variable {name} is not a URL: it has no http:// or https://");
    Err(Error::invalid_request(message).with_hint(format!("set {name}=http://host:port")))
}

fn has_scheme(url: &str) -> bool {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|it| {
        ["http", "https"]
            .iter()
            .any(|known| it.eq_ignore_ascii_case(known))
    })
}
