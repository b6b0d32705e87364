//! Signs requests to S3 a second time, for headers that `object_store` cannot add before it signs:
//! S3 refuses a request with an `x-amz-` header that the signature does not cover.

use http::header::AUTHORIZATION;
use object_store::aws::{AwsAuthorizer, AwsCredentialProvider};
use object_store::client::{HttpError, HttpErrorKind, HttpRequest};

use super::response_capture::signed;

/// Header with the part of the body that S3's signature covers; `UNSIGNED-PAYLOAD` if none.
const PAYLOAD: &str = "x-amz-content-sha256";

/// Beginning of the headers that the signature must cover.
pub(in crate::storage) const COVERED: &str = "x-amz-";

/// Signs a request again.
#[derive(Clone)]
pub(in crate::storage) struct Signer {
    pub(in crate::storage) credentials: AwsCredentialProvider,
    pub(in crate::storage) region: String,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Omits the credentials.
        f.debug_struct("Signer").finish_non_exhaustive()
    }
}

impl Signer {
    /// Replaces the signature of a request. Anonymous requests have none.
    pub(in crate::storage) async fn sign(
        &self,
        request: &mut HttpRequest,
    ) -> Result<(), HttpError> {
        if request.headers_mut().remove(AUTHORIZATION).is_none() {
            return Ok(());
        }
        let failed = |error| HttpError::new(HttpErrorKind::Request, error);
        let credential = self.credentials.get_credential().await.map_err(failed)?;
        let payload = request.headers().get(PAYLOAD);
        let is_unsigned = payload.is_some_and(|payload| payload == "UNSIGNED-PAYLOAD");
        AwsAuthorizer::new(&credential, "s3", &self.region)
            .with_sign_payload(!is_unsigned)
            .try_authorize(request, None)
            .map_err(failed)
    }
}

tokio::task_local! {
    /// Signer of the store that the current request is for.
    static SIGNER: Option<Signer>;
}

/// Runs requests whose headers of options must be signed here: `object_store` signs those of a
/// request for an object, but not those of a listing.
pub(in crate::storage) async fn with_signer<T>(
    signer: Option<Signer>,
    requests: impl Future<Output = T>,
) -> T {
    SIGNER.scope(signer, requests).await
}

/// Signs a request of [`with_signer`] again, after a header was added.
pub(in crate::storage) async fn sign_again(request: &mut HttpRequest) -> Result<(), HttpError> {
    if let Ok(Some(signer)) = SIGNER.try_with(Option::clone) {
        signer.sign(request).await?;
        signed(request);
    }
    Ok(())
}
