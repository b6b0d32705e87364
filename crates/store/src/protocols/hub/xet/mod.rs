//! Content store of a hub (xet): which files are in it, the token for it, and whether it is used.
//! Called by [`crate::Store`].
//!
//! ```text
//!  resolve/COMMIT/FILE ──▶ X-Xet-Hash                       at the opening, by the bridge
//!  api/models/…/xet-read-token/COMMIT ──▶ token, content store           once per repository
//!  STORE/v2/reconstructions/HASH ──▶ terms, presigned URLs               per range
//!  presigned URLs ──▶ chunks                              per run of terms in one place
//! ```
//!
//! The hub redirects the first request for a file to its bridge, as all requests without xet, and
//! names the contents in that response. From then on ranges come from the content store, which
//! cannot change: the hash names the bytes. Until the store has delivered something, any failure of
//! it turns it off, and the bridge is used, as for files that are not in it.
//!
//! The protocol is <https://huggingface.co/docs/xet>. The token of the hub goes to the hub only,
//! that of the content store to the content store only, and presigned URLs get neither.

#[cfg(feature = "testing")]
mod fuzz;
mod reading;
mod terms;
mod unpack;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream;
use http::HeaderValue;
use object_store::ObjectMeta;
use object_store::client::HttpClient;
use object_store::path::Path;
use serde::Deserialize;
use url::Url;

#[cfg(feature = "testing")]
pub use self::fuzz::assert_content_store_is_bounded;
use self::reading::Reading;
use self::terms::Version;
#[cfg(test)]
pub(crate) use self::terms::terms_of_one_xorb;
use super::contents::ContentStore;
use super::malformed;
use super::repository::ask;
use crate::Fault;
use crate::backend::{Arrived, Attempt, Pieces};
use crate::builder::Opening;
use crate::http::addresses::Reach;
use crate::http::response_capture::{ResponseCapture, reach_of_peer};
use crate::requests::Requests;
use crate::sync::lock::Mutex;
use crate::sync::retry::{AskedWait, Transient};

/// Time before a token expires at which it is renewed: `REFRESH_BUFFER_SEC` in `cas_client/auth.rs`
/// of xet-client 1.6.
const MARGIN: Duration = Duration::from_secs(30);

/// Longest lifetime of a token that is believed.
const LIFETIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// Longest pause of a content store that a request waits for while the bridge may be used instead.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Digits of the name of a file's contents (<https://huggingface.co/docs/xet/file-id>).
const HASH_DIGITS: usize = 64;

/// Variable that leaves out the content store.
const DISABLE: &str = "HF_HUB_DISABLE_XET";

/// Content store of one repository, as far as it is known.
struct Xet {
    client: HttpClient,
    /// URL of the hub.
    hub: Url,
    /// URL of tokens, without the commit (<https://huggingface.co/docs/xet/auth>).
    tokens: String,
    files: Mutex<BTreeMap<Path, Arc<File>>>,
    access: tokio::sync::Mutex<Option<Arc<Access>>>,
    /// True once a byte has come from the content store.
    has_delivered: AtomicBool,
    /// True once it has failed before it delivered anything. Shared by the openings that send their
    /// requests alike: they are as many minutes at most as a store is kept.
    is_off: Arc<AtomicBool>,
    /// True if it is asked by version 1 of the query. Shared like the above.
    is_version_1: Arc<AtomicBool>,
}

/// File in the content store.
struct File {
    hash: String,
    commit: String,
    meta: ObjectMeta,
}

/// Address of the content store, and the token for it.
struct Access {
    url: String,
    token: HeaderValue,
    until: Instant,
    /// Networks that the hub is in.
    reach: Reach,
}

/// Response to the request for a token.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    access_token: String,
    /// Seconds since 1970.
    exp: u64,
    cas_url: String,
}

/// Opens the content store of a repository at a hub; `None` if the endpoint is no URL, or the
/// environment forbids it, so that files are read by the bridge.
pub(super) fn open(
    opening: &Opening,
    client: &HttpClient,
    endpoint: &str,
    repository: &str,
) -> Option<Box<dyn ContentStore>> {
    if opening.environment.is_set(DISABLE) {
        return None;
    }
    Some(Box::new(Xet {
        client: client.clone(),
        hub: Url::parse(endpoint).ok()?,
        tokens: format!("{endpoint}/api/models/{repository}/xet-read-token"),
        files: Mutex::default(),
        access: tokio::sync::Mutex::default(),
        has_delivered: AtomicBool::new(false),
        is_off: Arc::default(),
        is_version_1: Arc::default(),
    }))
}

#[async_trait]
impl ContentStore for Xet {
    fn again(&self) -> Box<dyn ContentStore> {
        Box::new(Self {
            client: self.client.clone(),
            hub: self.hub.clone(),
            tokens: self.tokens.clone(),
            files: Mutex::default(),
            access: tokio::sync::Mutex::default(),
            has_delivered: AtomicBool::new(false),
            is_off: Arc::clone(&self.is_off),
            is_version_1: Arc::clone(&self.is_version_1),
        })
    }

    fn learn(&self, commit: &str, file: &Path, meta: &ObjectMeta, captured: &ResponseCapture) {
        let is_name = |hash: &&String| {
            hash.len() == HASH_DIGITS && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let Some(hash) = captured.xet_hash.as_ref().filter(is_name) else {
            return;
        };
        let learned = File {
            hash: hash.clone(),
            commit: commit.to_owned(),
            meta: meta.clone(),
        };
        self.files.lock().insert(file.clone(), Arc::new(learned));
    }

    /// A content store that has not delivered anything yet is left if it fails, or brings nothing
    /// for half of the patience of the attempt: the bridge has the other half. If it asks to wait,
    /// it is left at the last attempt only.
    async fn range<'a>(
        &'a self,
        requests: &'a Requests,
        path: &Path,
        range: Range<u64>,
        attempt: Attempt,
    ) -> Result<Option<(ObjectMeta, Pieces<'a>)>, Fault> {
        let Attempt { patience, is_last } = attempt;
        let Some(file) = self.find(path).filter(|file| range.end <= file.meta.size) else {
            return Ok(None);
        };
        let meta = file.meta.clone();
        let mut reading = Reading::new(requests, self, file, range);
        let first = if self.has_delivered.load(Ordering::Relaxed) {
            reading.next().await
        } else {
            let limit = patience / 2;
            let slow = |_| Err(reading::too_slow(requests, limit));
            let first = tokio::time::timeout(limit, reading.first(is_last)).await;
            first.unwrap_or_else(slow)
        };
        let first = match first {
            Ok(first) => first,
            Err(fault) if asks_to_wait(&fault) && !is_last => return Err(hinted(fault)),
            Err(fault) if self.turn_off(requests, &fault) => return Ok(None),
            Err(fault) => return Err(hinted(fault)),
        };
        let rest = stream::unfold(Some(reading), |reading| async move {
            let mut reading = reading?;
            match reading.next().await {
                Ok(arrived) => Some((Ok(arrived?), Some(reading))),
                Err(fault) => Some((Err(fault), None)),
            }
        });
        let pieces = stream::iter(first.map(Ok))
            .chain(rest)
            .map(|piece| self.observe(requests, piece));
        Ok(Some((meta, pieces.boxed())))
    }
}

impl Xet {
    fn find(&self, file: &Path) -> Option<Arc<File>> {
        if self.is_off.load(Ordering::Relaxed) {
            return None;
        }
        self.files.lock().get(file).cloned()
    }

    /// Returns the version of the query to ask with: 2 unless that has turned out to be of no use.
    fn version(&self) -> Version {
        if self.is_version_1.load(Ordering::Relaxed) {
            Version::One
        } else {
            Version::Two
        }
    }

    fn use_version(&self, version: Version) {
        let is_version_1 = version == Version::One;
        self.is_version_1.store(is_version_1, Ordering::Relaxed);
    }

    /// Stops using the content store after a failure, unless it has delivered something; returns
    /// whether it is off.
    fn turn_off(&self, requests: &Requests, fault: &Fault) -> bool {
        let may_be_off = !self.has_delivered.load(Ordering::Relaxed);
        if may_be_off && !self.is_off.swap(true, Ordering::Relaxed) {
            tracing::info!(
                error = %fault.error,
                hub = requests.server.address.origin,
                "files are read by the hub's bridge, because its content store failed"
            );
        }
        self.is_off.load(Ordering::Relaxed)
    }

    /// Takes note of a part of a response, or of its failure.
    fn observe(
        &self,
        requests: &Requests,
        piece: Result<Arrived, Fault>,
    ) -> Result<Arrived, Fault> {
        match piece {
            Ok(Arrived::Bytes(bytes)) => {
                self.has_delivered.store(true, Ordering::Relaxed);
                Ok(Arrived::Bytes(bytes))
            }
            Ok(Arrived::Unusable) => Ok(Arrived::Unusable),
            Err(mut fault) => {
                if !asks_to_wait(&fault) && self.turn_off(requests, &fault) {
                    // The fault counts as transient so that the next attempt uses the bridge.
                    fault.transient = fault.transient.or(Some(Transient::Broken));
                }
                Err(hinted(fault))
            }
        }
    }

    /// Returns the token for the content store: the last one, or another one if that has expired or
    /// was `refused`.
    async fn access(
        &self,
        requests: &Requests,
        commit: &str,
        refused: Option<&Arc<Access>>,
    ) -> Result<Arc<Access>, Fault> {
        let mut held = self.access.lock().await;
        let is_refused = |access: &Arc<Access>| refused.is_some_and(|one| Arc::ptr_eq(one, access));
        if let Some(access) = &*held
            && Instant::now() < access.until
            && !is_refused(access)
        {
            return Ok(Arc::clone(access));
        }
        if self.is_off.load(Ordering::Relaxed) {
            let message = "the hub's content store failed before";
            let captured = ResponseCapture::default();
            return Err(reading::fault(requests, &captured, message, None));
        }
        let renewed = self.renew(requests, commit).await;
        match &renewed {
            Ok(access) => *held = Some(Arc::clone(access)),
            Err(fault) if asks_to_wait(fault) => {}
            // Remember the failure, so that requests that wait for the lock do not repeat it.
            Err(fault) => {
                self.turn_off(requests, fault);
            }
        }
        renewed
    }

    async fn renew(&self, requests: &Requests, commit: &str) -> Result<Arc<Access>, Fault> {
        let began = Instant::now();
        // The opening has used the hub's credentials, so they are not in doubt.
        let refused = |status| {
            let asked = "the hub, asked for a token for its content store,";
            reading::refusal(asked, status).into()
        };
        let question = || async {
            let url = format!("{}/{commit}", self.tokens).parse();
            let url = url.map_err(|_| super::repository::failed("a URL that is none".into()))?;
            let (_, answer) = ask(&self.client, url, refused).await?;
            let reach = Reach::from_host(&self.hub).or_else(reach_of_peer);
            Ok((answer, reach.unwrap_or(Reach::Public)))
        };
        let ((answer, reach), captured) = requests.send("GET", question).await?;
        // The cause is left out: it may quote the token.
        let wrong = || {
            malformed(
                requests,
                "it is not a token for the content store",
                &captured,
            )
        };
        let answer: Answer = serde_json::from_slice(&answer).map_err(|_| wrong())?;
        let mut token = HeaderValue::from_str(&format!("Bearer {}", answer.access_token))
            .map_err(|_| wrong())?;
        token.set_sensitive(true);
        let ours = SystemTime::now().duration_since(UNIX_EPOCH).ok();
        let theirs = captured.date.and_then(|date| u64::try_from(date).ok());
        let now = theirs.or(ours.map(|now| now.as_secs())).unwrap_or_default();
        let lifetime = Duration::from_secs(answer.exp.saturating_sub(now)).min(LIFETIME_MAX);
        Ok(Arc::new(Access {
            url: answer.cas_url.trim_end_matches('/').to_owned(),
            token,
            until: began + lifetime.saturating_sub(MARGIN),
            reach,
        }))
    }
}

/// Returns whether a server has asked for a short pause, which does not tell that it is of no use.
fn asks_to_wait(fault: &Fault) -> bool {
    let is_short = match fault.asked {
        Some(AskedWait::Estimate(wait) | AskedWait::Reset(wait)) => wait <= WAIT_MAX,
        None => fault.error.status() == Some(429),
    };
    fault.transient == Some(Transient::Busy) && is_short
}

/// Adds to the hint of a failure how the content store is left out.
fn hinted(mut fault: Fault) -> Fault {
    let hint = fault.error.hint().unwrap_or("try again");
    let hint = format!("{hint}; with {DISABLE}=1 the file is read by the hub's bridge instead");
    fault.error = fault.error.with_hint(hint);
    fault
}
