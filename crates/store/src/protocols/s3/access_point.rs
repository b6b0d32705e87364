//! Access points of S3: other names for a bucket, each with its own host name and permissions.
//! Pure; used by `mod.rs`.
//!
//! An alias of an access point (`NAME-…-s3alias`) is used like the name of a bucket, and needs
//! nothing here.

use crate::error::{Error, ErrorKind, Result};
use crate::options::location::RemoteUrl;

/// Access point, as its ARN names it: `arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AccessPoint {
    /// Region that requests are signed for.
    pub(super) region: String,
    /// First label of the host name.
    pub(super) label: String,
}

impl AccessPoint {
    /// Returns the access point that a URL names in place of a bucket, if it names one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for other ARNs, and [`ErrorKind::Unsupported`] for access
    /// points that need other requests.
    pub(super) fn of(url: &RemoteUrl) -> Result<Option<Self>> {
        let Some(arn) = url.host().strip_prefix("arn:") else {
            return Ok(None);
        };
        let refused = |kind, message: &str, hint: &str| {
            let error = Error::new(kind, message).with_location(url.shown());
            Err(error.with_hint(hint))
        };
        let unsupported = |what: &str, hint: &str| {
            let message = format!("{what} cannot be read");
            refused(ErrorKind::Unsupported, &message, hint)
        };
        let malformed = |message: &str| {
            let hint = "write s3://arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME/KEY, or the access point's alias: s3://ALIAS/KEY";
            refused(ErrorKind::InvalidRequest, message, hint)
        };
        let fields: Vec<_> = arn.splitn(5, ':').collect();
        let &[_, service, region, account, resource] = &fields[..] else {
            return malformed("the ARN is incomplete");
        };
        let of_access_point = "use an access point of a bucket, or the bucket itself";
        match service {
            "s3" => {}
            "s3-outposts" => return unsupported("access points on Outposts", of_access_point),
            "s3-object-lambda" => {
                return unsupported("Object Lambda access points", of_access_point);
            }
            _ => return malformed("the ARN is not of S3"),
        }
        let name = resource
            .strip_prefix("accesspoint")
            .and_then(|name| name.strip_prefix(['/', ':']));
        let Some(name) = name else {
            if region.is_empty() && account.is_empty() {
                let hint = "write s3://BUCKET/KEY";
                let message = "this is the ARN of a bucket, wanted its name";
                return refused(ErrorKind::InvalidRequest, message, hint);
            }
            return malformed("the ARN is not of an access point");
        };
        if region.is_empty() {
            let hint = "use an access point of one region, or a bucket";
            return unsupported("multi-Region access points", hint);
        }
        let is_account = account.len() == 12 && account.bytes().all(|byte| byte.is_ascii_digit());
        if !is_account || !is_label(name) || !is_label(region) {
            return malformed("the ARN's region, account or name is malformed");
        }
        Ok(Some(Self {
            region: region.to_owned(),
            label: format!("{name}-{account}"),
        }))
    }
}

/// Returns whether a text can be a label of a host name.
fn is_label(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Location;

    fn of(url: &str) -> Result<Option<AccessPoint>> {
        let location = Location::parse(url)?;
        AccessPoint::of(location.remote().expect("a URL"))
    }

    #[test]
    fn arns_of_access_points_are_parsed() {
        for arn in [
            "arn:aws:s3:eu-west-1:123456789012:accesspoint/my-ap",
            "arn:aws-cn:s3:eu-west-1:123456789012:accesspoint:my-ap",
        ] {
            for rest in ["", "/", "/m/a.safetensors"] {
                let url = format!("s3://{arn}{rest}");
                let found = of(&url).expect(&url).expect(&url);
                assert_eq!(found.region, "eu-west-1");
                assert_eq!(found.label, "my-ap-123456789012");
                let location = Location::parse(&url).expect("a URL");
                assert_eq!(location.to_string(), url.trim_end_matches('/'));
                let path = rest.trim_matches('/');
                assert_eq!(location.remote().expect("a URL").path, path);
            }
        }
        for name in ["bucket", "my-ap-o0o0o0o0-s3alias", "arn"] {
            assert_eq!(of(&format!("s3://{name}/k")).expect(name), None);
        }
    }

    #[test]
    fn other_arns_are_refused_with_reason() {
        for (arn, kind, words) in [
            (
                "aws:s3:::bucket/key",
                ErrorKind::InvalidRequest,
                "ARN of a bucket",
            ),
            (
                "aws:s3::123456789012:accesspoint/a.mrap/k",
                ErrorKind::Unsupported,
                "multi-Region",
            ),
            (
                "aws:s3-object-lambda:eu-west-1:123456789012:accesspoint/a/k",
                ErrorKind::Unsupported,
                "Object Lambda",
            ),
            (
                "aws:s3-outposts:eu-west-1:123456789012:outpost/o/accesspoint/a/k",
                ErrorKind::Unsupported,
                "Outposts",
            ),
            ("aws:s3:eu-west-1", ErrorKind::InvalidRequest, "incomplete"),
            (
                "aws:s3:eu-west-1:123456789012:job/1",
                ErrorKind::InvalidRequest,
                "not of an access point",
            ),
            (
                "aws:sqs:eu-west-1:123456789012:queue",
                ErrorKind::InvalidRequest,
                "not of S3",
            ),
            (
                "aws:s3:eu-west-1:1234:accesspoint/a/k",
                ErrorKind::InvalidRequest,
                "malformed",
            ),
            (
                "aws:s3:evil.example#:123456789012:accesspoint/a/k",
                ErrorKind::InvalidRequest,
                "malformed",
            ),
        ] {
            let error = of(&format!("s3://arn:{arn}")).expect_err(arn);
            assert_eq!(error.kind(), kind, "{arn}: {error}");
            assert!(error.message().contains(words), "{arn}: {error}");
            assert!(error.hint().is_some(), "{arn}");
        }
    }
}
