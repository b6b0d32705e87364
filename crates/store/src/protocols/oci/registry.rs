//! One artifact of a registry as a store: the manifest is the listing, blobs are the objects.
//!
//! Requests are sent once, as by the other stores, and a second time after a challenge.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use chrono::DateTime;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RANGE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use object_store::client::{HttpClient, HttpRequest, HttpRequestBody, HttpResponse};
use object_store::path::Path;
use object_store::{
    Attributes, Error, Extensions, GetOptions, GetRange, GetResult, GetResultPayload, ObjectMeta,
    Result,
};
use sha2::{Digest as _, Sha256, Sha512};
use tokio::sync::{Mutex, OnceCell};
use url::Url;

use super::challenge::{Authorization, Challenge};
use super::login::Login;
use super::manifest::{File, INDEXES, MANIFESTS, Manifest};
use super::{failed, judged, whole};
use crate::answers::Answers;
use crate::backend::StoreBackend;
use crate::error::ErrorKind;
use crate::errors::classification::{Classification, changed};
use crate::explain::failure::Fault;
use crate::http::addresses::Reach;
use crate::http::ranged_response::{ContentRange, KnownLen};
use crate::http::redirects::NamedBy;
use crate::http::response_capture::{
    ResponseCapture, denies_access, is_of_first_host, reach_of_peer,
};
use crate::lists::tree::{Files, Level, Listed};
use crate::options::location::hexadecimal;
use crate::options::oci_reference::OciReference;
use crate::requests::{Requests, operation};

/// Number of indexes that may lead to a manifest.
const INDEXES_MAX: usize = 2;

/// An artifact of a registry.
pub(crate) struct Registry {
    pub(super) base: Url,
    pub(super) artifact: OciReference,
    pub(super) client: HttpClient,
    /// Client for token services.
    pub(super) tokens: HttpClient,
    pub(super) login: Login,
    /// False if an option sets the header `Authorization`.
    pub(super) answers_challenges: bool,
    pub(super) session: Session,
    pub(super) manifest: OnceCell<Artifact>,
}

/// Last challenge and the answer to it, which all requests share.
#[derive(Default)]
pub(super) struct Session(Mutex<Answered>);

#[derive(Default)]
struct Answered {
    challenge: Option<(Challenge, NamedBy)>,
    authorization: Option<Authorization>,
    /// Failure of the helper, if the answer is one without credentials for this reason.
    helper_failure: Option<Classification>,
}

/// Manifest that is read. It never changes: digests name everything.
pub(super) struct Artifact {
    digest: String,
    files: Files<File>,
}

/// No other opening shares a registry: its logins come from files and programs of other tools.
#[async_trait]
impl StoreBackend for Registry {
    fn for_opening(self: Arc<Self>, _: &Answers) -> Arc<dyn StoreBackend> {
        self
    }

    async fn get(
        &self,
        requests: &Requests,
        path: &Path,
        options: GetOptions,
    ) -> Result<(GetResult, ResponseCapture), Fault> {
        let ask = || self.file(path, options.clone());
        requests.send(operation(&options), ask).await
    }

    async fn list(&self, requests: &Requests, prefix: Option<&Path>) -> Result<Level, Fault> {
        let (level, _) = requests.send("LIST", || self.level(prefix)).await?;
        Ok(level)
    }

    /// The manifest is the list, and a request for a file reads it.
    async fn find_list(&self, requests: &Requests, file: &Path) -> Result<(), Fault> {
        let options = GetOptions::new().with_head(true);
        self.get(requests, file, options).await.map(drop)
    }

    fn commit_name(&self) -> Option<&str> {
        self.manifest.get().map(|artifact| &*artifact.digest)
    }
}

impl Registry {
    /// Requests a file, or a range of it.
    async fn file(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let artifact = self.artifact().await?;
        let Some(file) = artifact.files.get(path.as_ref()) else {
            return Err(judged(
                Classification::new(ErrorKind::NotFound, "the artifact has no such file")
                    .hint("check the path; files in archives cannot be read"),
            ));
        };
        let is_wanted = |tag: &String| *tag == file.e_tag();
        if !options.if_match.as_ref().is_none_or(is_wanted) {
            return Err(judged(changed()));
        }
        if options.if_none_match.as_ref().is_some_and(is_wanted) {
            return Err(Error::NotModified {
                path: path.to_string(),
                source: "the artifact has this file".into(),
            });
        }
        if options.head {
            return Ok(result(path, file, 0..file.len, stream::empty().boxed()));
        }
        let range = match options.range {
            Some(GetRange::Bounded(range)) => range.start..range.end.min(file.len),
            Some(GetRange::Offset(start)) => start..file.len,
            Some(GetRange::Suffix(len)) => file.len.saturating_sub(len)..file.len,
            None => 0..file.len,
        };
        self.blob(path, file, range).await
    }

    /// Lists what is directly below a prefix.
    async fn level(&self, prefix: Option<&Path>) -> Result<Level> {
        let describe = |location, file: &File| Listed {
            location,
            len: Some(file.len),
            modified: 0,
            e_tag: Some(file.e_tag()),
            version: None,
        };
        Ok(self.artifact().await?.files.level(prefix, describe))
    }

    async fn artifact(&self) -> Result<&Artifact> {
        let ask = || async {
            let mut reference = self.artifact.reference.clone();
            for _ in 0..=INDEXES_MAX {
                let (body, content_type) = self.ask_manifest(&reference).await?;
                let digest = checked_digest(&reference, &body)?;
                match Manifest::parse(&body, content_type.as_deref()).map_err(judged)? {
                    Manifest::Files(files) => return Ok(Artifact { digest, files }),
                    Manifest::Index(next) => reference = next,
                }
            }
            let message = "the tag names an index of indexes of indexes";
            Err(judged(
                Classification::new(ErrorKind::Unsupported, message)
                    .hint("pass the digest of a manifest"),
            ))
        };
        self.manifest.get_or_try_init(ask).await
    }

    /// Requests a manifest; returns its bytes and type.
    async fn ask_manifest(&self, reference: &str) -> Result<(Vec<u8>, Option<String>)> {
        let accepted = [MANIFESTS, INDEXES].concat().join(", ");
        let headers = [(ACCEPT, header(&accepted)?)];
        let response = self.ask("manifests", reference, &headers, None).await?;
        if !response.status().is_success() {
            // `ResponseCapture` has the response.
            return Err(failed("refused"));
        }
        let content_type = text(response.headers(), &CONTENT_TYPE).map(str::to_owned);
        Ok((whole(response).await?, content_type))
    }

    /// Sends a request about the repository, and sends it again with an answer if the registry
    /// challenges it.
    async fn ask(
        &self,
        kind: &str,
        reference: &str,
        headers: &[(HeaderName, HeaderValue)],
        known_len: Option<KnownLen>,
    ) -> Result<HttpResponse> {
        let url = format!(
            "{}v2/{}/{kind}/{reference}",
            self.base, self.artifact.repository
        );
        let uri: http::Uri = url.parse().map_err(failed)?;
        let send = async |authorization: Option<&HeaderValue>| {
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.uri_mut() = uri.clone();
            request.headers_mut().extend(headers.iter().cloned());
            known_len.map(|len| request.extensions_mut().insert(len));
            let authorization = authorization.map(|value| (AUTHORIZATION, value.clone()));
            request.headers_mut().extend(authorization);
            self.client.execute(request).await.map_err(failed)
        };
        let held = self.held().await?;
        let mut response = send(held.as_ref()).await?;
        // Another host, which the registry redirected to, names no token service.
        let is_challenge = response.status() == StatusCode::UNAUTHORIZED && is_of_first_host();
        if is_challenge && self.answers_challenges {
            let answer = self.answer(response.headers(), held.as_ref()).await?;
            if let Some(authorization) = answer {
                response = send(Some(&authorization)).await?;
            }
        }
        if denies_access() && is_of_first_host() {
            let session = self.session.0.lock().await;
            if let Some(failure) = session.helper_failure.clone() {
                return Err(judged(failure));
            }
        }
        Ok(response)
    }

    /// Returns the header to send: that of the last answer, renewed if it has expired.
    async fn held(&self) -> Result<Option<HeaderValue>> {
        let mut session = self.session.0.lock().await;
        let Some(authorization) = &session.authorization else {
            return Ok(None);
        };
        if authorization
            .until
            .is_none_or(|until| Instant::now() < until)
        {
            return Ok(Some(authorization.header.clone()));
        }
        self.renew(&mut session).await
    }

    /// Answers a challenge, unless another request has done so since this one was sent with `held`.
    async fn answer(
        &self,
        headers: &HeaderMap,
        held: Option<&HeaderValue>,
    ) -> Result<Option<HeaderValue>> {
        let reach = Reach::from_host(&self.base)
            .or_else(reach_of_peer)
            .unwrap_or(Reach::Public);
        let challenge = Challenge::parse(headers, &self.base, reach).map_err(judged)?;
        let mut session = self.session.0.lock().await;
        let known = session.authorization.as_ref().map(|known| &known.header);
        if known.is_some() && known != held {
            return Ok(known.cloned());
        }
        let host = self.base.clone();
        session.challenge = challenge.map(|it| (it, NamedBy { host, reach }));
        self.renew(&mut session).await
    }

    /// Answers the last challenge anew.
    async fn renew(&self, session: &mut Answered) -> Result<Option<HeaderValue>> {
        let Some((challenge, named)) = session.challenge.clone() else {
            return Ok(None);
        };
        // A helper is asked each time: credentials that it returned before may have expired.
        let resolved = self.login.resolved().await;
        session.helper_failure = resolved.as_ref().err().cloned();
        let login = match resolved {
            Ok(login) => login,
            // Public artifacts need a token, but no credentials.
            Err(_) if matches!(challenge, Challenge::Bearer { .. }) => Login::Anonymous,
            Err(failure) => return Err(judged(failure)),
        };
        let repository = &self.artifact.repository;
        let answer = challenge
            .answer(&self.tokens, &login, repository, named)
            .await;
        session.authorization = match &session.helper_failure {
            Some(failure) if answer.is_err() && denies_access() => {
                return Err(judged(failure.clone()));
            }
            _ => answer?,
        };
        let authorization = session.authorization.as_ref();
        Ok(authorization.map(|authorization| authorization.header.clone()))
    }

    /// Requests a range of a blob.
    async fn blob(&self, path: &Path, file: &File, range: Range<u64>) -> Result<GetResult> {
        if file.len == 0 {
            return Ok(result(path, file, 0..0, stream::empty().boxed()));
        }
        let bytes = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
        let headers = [(RANGE, header(&bytes)?)];
        let known_len = Some(KnownLen(file.len));
        let response = self.ask("blobs", &file.digest, &headers, known_len).await?;
        if response.status() != StatusCode::PARTIAL_CONTENT {
            return Err(failed("refused"));
        }
        // It is the one asked for: `ranged_response.rs` has compared it.
        let sent = ContentRange::of(response.headers()).map_err(judged)?;
        if let Some(ContentRange::Sent { len: Some(len), .. }) = sent {
            require_len(file, len)?;
        }
        let (head, body) = response.into_parts();
        let body = body.bytes_stream().map(|bytes| bytes.map_err(failed));
        Ok(GetResult {
            extensions: head.extensions,
            ..result(path, file, range, body.boxed())
        })
    }
}

/// Returns the digest of a manifest, which must be the one that it was requested by.
fn checked_digest(reference: &str, body: &[u8]) -> Result<String> {
    let found = match reference.split_once(':') {
        Some(("sha512", _)) => format!("sha512:{}", hexadecimal(&Sha512::digest(body))),
        _ => format!("sha256:{}", hexadecimal(&Sha256::digest(body))),
    };
    if reference.contains(':') && reference != found {
        let message = format!("the registry sent the manifest {found} for {reference}");
        return Err(judged(
            Classification::new(ErrorKind::Remote, message)
                .hint("check the registry, and proxies and caches in front of it"),
        ));
    }
    Ok(found)
}

fn require_len(file: &File, len: u64) -> Result<()> {
    if file.len == len {
        return Ok(());
    }
    let message = format!(
        "the layer {} has {len} bytes, but {} in the manifest",
        file.digest, file.len
    );
    Err(judged(
        Classification::new(ErrorKind::Remote, message).hint("push the artifact again"),
    ))
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn header(text: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(text).map_err(failed)
}

fn meta(location: Path, file: &File) -> ObjectMeta {
    ObjectMeta {
        location,
        last_modified: DateTime::default(),
        size: file.len,
        e_tag: Some(file.e_tag()),
        version: None,
    }
}

fn result(
    path: &Path,
    file: &File,
    range: Range<u64>,
    body: BoxStream<'static, Result<bytes::Bytes>>,
) -> GetResult {
    GetResult {
        payload: GetResultPayload::Stream(body),
        meta: meta(path.clone(), file),
        range,
        attributes: Attributes::default(),
        extensions: Extensions::default(),
    }
}
