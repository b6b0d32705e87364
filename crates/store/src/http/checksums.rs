//! Reads an object's own checksums from the headers of a response, without interpreting them.
//!
//! Amazon's S3 and compatible stores send checksums only on request, by a header that must be
//! signed. `object_store` cannot add one, so the request is signed a second time. Google always
//! sends them. Called by [`response_capture`](super::response_capture), once for a request that
//! carries [`Asks`].

use http::header::{HeaderMap, HeaderValue};
use object_store::client::{HttpError, HttpRequest};

use super::signing::Signer;

/// Header that makes S3 send checksums (API reference of `HeadObject`).
const MODE: &str = "x-amz-checksum-mode";

/// Headers about checksums.
const STATED: [&str; 7] = [
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-crc32c",
    "x-amz-checksum-sha256",
    "x-amz-checksum-type",
    "x-goog-hash",
    "x-goog-stored-content-encoding",
    "x-goog-stored-content-length",
];

/// Extension of a request whose response should state checksums.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asks {
    /// Signer for S3; `None` for other stores.
    pub(crate) signer: Option<Signer>,
}

impl Asks {
    /// Adds the header that S3 requires. Other stores send checksums unasked, and a request that
    /// cannot be signed again stays as it is.
    pub(crate) async fn prepare(&self, request: &mut HttpRequest) -> Result<(), HttpError> {
        let Some(signer) = &self.signer else {
            return Ok(());
        };
        let mode = HeaderValue::from_static("ENABLED");
        request.headers_mut().insert(MODE, mode);
        signer.sign(request).await
    }
}

/// Returns the headers of a response that are about checksums: names in lower case, and values.
pub(crate) fn stated(headers: &HeaderMap) -> Vec<(&'static str, String)> {
    let mut stated = Vec::new();
    for name in STATED {
        let values = headers.get_all(name).iter();
        let texts = values.filter_map(|value| value.to_str().ok());
        stated.extend(texts.map(|text| (name, text.to_owned())));
    }
    stated
}
