//! What a store says of an object's own checksums, as headers of an answer. What they mean is for others to judge.
//!
//! Amazon's S3 and its kin say it only when asked to, by a header that has to be signed: `object_store` has no way to add one, so the
//! request is signed a second time. Google says it always. Called by [`super::exchange`], once for a request that carries [`Asks`].

use http::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use object_store::aws::{AwsAuthorizer, AwsCredentialProvider};
use object_store::client::{HttpError, HttpErrorKind, HttpRequest};

/// S3 answers with checksums if this header says so (API reference of `HeadObject`).
const MODE: &str = "x-amz-checksum-mode";

/// Where S3 says what the signature covers of the body; `UNSIGNED-PAYLOAD` if nothing.
const PAYLOAD: &str = "x-amz-content-sha256";

/// The headers that say it.
const STATED: [&str; 7] = [
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-crc32c",
    "x-amz-checksum-sha256",
    "x-amz-checksum-type",
    "x-goog-hash",
    "x-goog-stored-content-encoding",
    "x-goog-stored-content-length",
];

/// Goes along with a request whose answer is to say what the checksums are.
#[derive(Clone, Debug, Default)]
pub(super) struct Asks {
    /// Of S3.
    pub(super) signer: Option<Signer>,
}

/// Signs a request once more.
#[derive(Clone)]
pub(super) struct Signer {
    pub(super) credentials: AwsCredentialProvider,
    pub(super) region: String,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the credentials.
        f.debug_struct("Signer").finish_non_exhaustive()
    }
}

impl Asks {
    /// Adds what S3 wants to be asked with. Other stores say it unasked, and a request whose signature nobody can renew stays as it is.
    pub(super) async fn prepare(&self, request: &mut HttpRequest) -> Result<(), HttpError> {
        let Some(signer) = &self.signer else {
            return Ok(());
        };
        let mode = HeaderValue::from_static("ENABLED");
        request.headers_mut().insert(MODE, mode);
        if request.headers_mut().remove(AUTHORIZATION).is_none() {
            // Nobody signs what everybody may read.
            return Ok(());
        }
        let failed = |error| HttpError::new(HttpErrorKind::Request, error);
        let credential = signer.credentials.get_credential().await.map_err(failed)?;
        let payload = request.headers().get(PAYLOAD);
        let is_unsigned = payload.is_some_and(|payload| payload == "UNSIGNED-PAYLOAD");
        AwsAuthorizer::new(&credential, "s3", &signer.region)
            .with_sign_payload(!is_unsigned)
            .try_authorize(request, None)
            .map_err(failed)
    }
}

/// The headers of an answer that are about checksums: names in lower case, and values.
pub(super) fn stated(headers: &HeaderMap) -> Vec<(&'static str, String)> {
    let mut stated = Vec::new();
    for name in STATED {
        let values = headers.get_all(name).iter();
        let texts = values.filter_map(|value| value.to_str().ok());
        stated.extend(texts.map(|text| (name, text.to_owned())));
    }
    stated
}
