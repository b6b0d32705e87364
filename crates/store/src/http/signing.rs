//! Signs requests a second time, for headers that `object_store` cannot add before it signs: S3
//! refuses a request with an `x-amz-` header that the signature does not cover, and Azure covers
//! all of its own headers and the conditions with an account's key.

use http::header::{AUTHORIZATION, HeaderName};
use object_store::aws::{AwsAuthorizer, AwsCredentialProvider};
use object_store::azure::{AzureAuthorizer, AzureCredential, AzureCredentialProvider};
use object_store::client::{HttpError, HttpErrorKind, HttpRequest};

use super::current_request::current;
use super::response_capture::signed;

/// Header with the part of the body that S3's signature covers; `UNSIGNED-PAYLOAD` if none.
const PAYLOAD: &str = "x-amz-content-sha256";

/// Signs a request again.
#[derive(Clone)]
pub(crate) enum Signer {
    Aws {
        credentials: AwsCredentialProvider,
        region: String,
    },
    /// With the key of an account; other credentials of Azure do not depend on the request.
    Azure {
        credentials: AzureCredentialProvider,
        account: String,
    },
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The output omits the credentials.
        f.debug_struct("Signer").finish_non_exhaustive()
    }
}

impl Signer {
    pub(crate) fn is_of_aws(&self) -> bool {
        matches!(self, Self::Aws { .. })
    }

    /// Returns whether the signature must cover a header, if the request has it.
    fn covers(&self, name: &HeaderName) -> bool {
        match self {
            Self::Aws { .. } => name.as_str().starts_with("x-amz-"),
            // Azure's signature covers some other headers too, which options rarely set.
            Self::Azure { .. } => true,
        }
    }

    /// Replaces the signature of a request. Anonymous requests have none.
    pub(crate) async fn sign(&self, request: &mut HttpRequest) -> Result<(), HttpError> {
        if !request.headers().contains_key(AUTHORIZATION) {
            return Ok(());
        }
        let failed = |error| HttpError::new(HttpErrorKind::Request, error);
        match self {
            Self::Aws {
                credentials,
                region,
            } => {
                let credential = credentials.get_credential().await.map_err(failed)?;
                let payload = request.headers().get(PAYLOAD);
                let is_unsigned = payload.is_some_and(|payload| payload == "UNSIGNED-PAYLOAD");
                request.headers_mut().remove(AUTHORIZATION);
                AwsAuthorizer::new(&credential, "s3", region)
                    .with_sign_payload(!is_unsigned)
                    .try_authorize(request, None)
                    .map_err(failed)
            }
            Self::Azure {
                credentials,
                account,
            } => {
                let credential = credentials.get_credential().await.map_err(failed)?;
                if !matches!(*credential, AzureCredential::AccessKey(_)) {
                    return Ok(());
                }
                request.headers_mut().remove(AUTHORIZATION);
                AzureAuthorizer::new(&credential, account)
                    .try_authorize(request)
                    .map_err(failed)
            }
        }
    }
}

/// Signs an HTTP request of the current request again, after these headers were added.
pub(crate) async fn sign_again(
    request: &mut HttpRequest,
    added: &[HeaderName],
) -> Result<(), HttpError> {
    let covers = |signer: &Signer| added.iter().any(|name| signer.covers(name));
    match current(|it| it.signer.as_ref().is_some_and(covers)) {
        Some(true) => sign_changed(request).await,
        Some(false) | None => Ok(()),
    }
}

/// Signs an HTTP request of the current request again, after its URL was changed.
pub(crate) async fn sign_changed(request: &mut HttpRequest) -> Result<(), HttpError> {
    if let Some(signer) = current(|it| it.signer.clone()).flatten() {
        signer.sign(request).await?;
        signed(request);
    }
    Ok(())
}
