//! Caches credentials until shortly before they expire, and then renews them with one request for
//! all callers.
//!
//! Independent of the source of credentials: the AWS SDK (`aws.rs`), or `object_store`'s own tokens
//! of Google and Azure, which would otherwise be lost minutes before they expire if their service
//! fails once. Called by `object_store` before each request.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use object_store::CredentialProvider;

use crate::errors::classification::{Classification, find};
use crate::http::current_request::record;
use crate::sync::lock::Mutex;

/// Credentials are renewed this long before they expire, or after half of their lifetime if that is
/// shorter.
const AHEAD: Duration = Duration::from_secs(300);

/// Pause after a failed renewal, during which credentials that are still valid are used.
const PAUSE: Duration = Duration::from_secs(30);

/// Minimum remaining lifetime of the tokens that `object_store` provides, as long as it can renew
/// them. It does not tell when they expire.
const ASSURED: Duration = Duration::from_secs(240);

/// Source of credentials.
#[async_trait]
pub(crate) trait Load: fmt::Debug + Send + Sync + 'static {
    type Credential: fmt::Debug + Send + Sync + 'static;

    async fn load(&self) -> object_store::Result<Loaded<Self::Credential>>;
}

pub(crate) struct Loaded<C> {
    pub(crate) credential: Arc<C>,
    pub(crate) expires: Option<SystemTime>,
    /// Name of the source, for display.
    pub(crate) source: String,
}

/// Credentials that are fetched, and again before they expire.
pub(crate) trait Renewed: fmt::Debug + Send + Sync {
    /// Returns the source of the credentials in use, if there are any.
    fn source(&self) -> Option<String>;

    /// Records that the store refused the credentials of a request that began then, and returns
    /// whether the next request will have others.
    fn rejected(&self, began: Option<Instant>) -> bool;
}

/// Tokens of one of `object_store`'s own providers.
#[derive(Debug)]
pub(crate) struct Tokens<C> {
    pub(crate) provider: Arc<dyn CredentialProvider<Credential = C>>,
    /// Name of the source, for display.
    pub(crate) source: String,
}

#[async_trait]
impl<C: fmt::Debug + Send + Sync + 'static> Load for Tokens<C> {
    type Credential = C;

    async fn load(&self) -> object_store::Result<Loaded<C>> {
        Ok(Loaded {
            credential: self.provider.get_credential().await?,
            expires: Some(SystemTime::now() + ASSURED),
            source: self.source.clone(),
        })
    }
}

pub(crate) struct CredentialCache<L: Load> {
    load: L,
    held: Mutex<Option<Held<L::Credential>>>,
    /// Held by the task that fetches.
    turn: tokio::sync::Mutex<()>,
    /// Last search that found nothing.
    failed: Mutex<Option<(Instant, Classification)>>,
}

struct Held<C> {
    credential: Arc<C>,
    source: String,
    loaded: Instant,
    expires: Option<SystemTime>,
    /// Time at which to renew.
    renew: Option<SystemTime>,
    /// True if the store refused it.
    rejected: bool,
    /// True if it was fetched because the store refused the previous one.
    replacement: bool,
}

impl<C> Held<C> {
    fn new(loaded: Loaded<C>, now: SystemTime, replacement: bool) -> Self {
        let renew = loaded.expires.map(|expires| {
            let life = expires.duration_since(now).unwrap_or_default();
            expires - AHEAD.min(life / 2)
        });
        Self {
            credential: loaded.credential,
            source: loaded.source,
            loaded: Instant::now(),
            expires: loaded.expires,
            renew,
            rejected: false,
            replacement,
        }
    }

    /// Returns whether it may be used.
    fn is_usable(&self, now: SystemTime) -> bool {
        !self.rejected && self.expires.is_none_or(|expires| now < expires)
    }

    /// Returns whether it need not be renewed yet.
    fn is_fresh(&self, now: SystemTime) -> bool {
        self.is_usable(now) && self.renew.is_none_or(|renew| now < renew)
    }
}

impl<L: Load> CredentialCache<L> {
    pub(crate) fn new(load: L) -> Self {
        Self {
            load,
            held: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            failed: Mutex::default(),
        }
    }

    async fn credential(&self, now: SystemTime) -> object_store::Result<Arc<L::Credential>> {
        if let Some(credential) = self.held(now, Held::is_fresh) {
            return Ok(credential);
        }
        let _turn = match (self.turn.try_lock(), self.held(now, Held::is_usable)) {
            (Ok(turn), _) => turn,
            // Another task fetches new credentials. The old ones are used until then.
            (Err(_), Some(credential)) => return Ok(credential),
            (Err(_), None) => {
                let since = Instant::now();
                let turn = self.turn.lock().await;
                // Many tasks wait for credentials when a load begins. One failed search suffices
                // for all of them.
                if let Some(failure) = self.failed_since(since) {
                    return Err(failure.into());
                }
                turn
            }
        };
        // Another task may have fetched them meanwhile.
        if let Some(credential) = self.held(now, Held::is_fresh) {
            return Ok(credential);
        }
        let usable = self.held(now, Held::is_usable);
        let started = Instant::now();
        let loaded = self.load.load().await;
        record("credentials", started);
        let mut held = self.held.lock();
        match (loaded, usable) {
            (Ok(loaded), _) => {
                let replacement = held.as_ref().is_some_and(|held| held.rejected);
                let new = held.insert(Held::new(loaded, now, replacement));
                Ok(Arc::clone(&new.credential))
            }
            (Err(error), Some(credential)) => {
                // Only this kind of text is logged, because others may hold secrets.
                let failure = classified(&error).map(tracing::field::display);
                tracing::warn!(
                    failure,
                    "cannot renew credentials; the old ones are still valid"
                );
                if let Some(held) = held.as_mut() {
                    held.renew = Some(now + started.elapsed() + PAUSE);
                }
                Ok(credential)
            }
            (Err(error), None) => {
                if let Some(failure) = classified(&error) {
                    *self.failed.lock() = Some((Instant::now(), failure.clone()));
                }
                Err(error)
            }
        }
    }

    fn failed_since(&self, since: Instant) -> Option<Classification> {
        let failed = self.failed.lock();
        let (at, failure) = failed.as_ref()?;
        (*at >= since).then(|| failure.clone())
    }

    /// Returns the credential in hand if it is in a state.
    fn held(
        &self,
        now: SystemTime,
        is_wanted: fn(&Held<L::Credential>, SystemTime) -> bool,
    ) -> Option<Arc<L::Credential>> {
        let held = self.held.lock();
        let held = held.as_ref().filter(|held| is_wanted(held, now))?;
        Some(Arc::clone(&held.credential))
    }
}

impl<L: Load> fmt::Debug for CredentialCache<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialCache")
            .field("source", &self.source())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl<L: Load> CredentialProvider for CredentialCache<L> {
    type Credential = L::Credential;

    async fn get_credential(&self) -> object_store::Result<Arc<L::Credential>> {
        self.credential(SystemTime::now()).await
    }
}

impl<L: Load> Renewed for CredentialCache<L> {
    fn source(&self) -> Option<String> {
        self.held.lock().as_ref().map(|held| held.source.clone())
    }

    fn rejected(&self, began: Option<Instant>) -> bool {
        let mut held = self.held.lock();
        let Some(held) = held.as_mut() else {
            return true;
        };
        if began.is_some_and(|began| began < held.loaded) {
            // New credentials were fetched since, after another request was refused.
            return true;
        }
        if held.replacement && held.loaded.elapsed() < PAUSE {
            // These credentials were just fetched to replace refused ones, so fetching again will
            // not help.
            return false;
        }
        held.rejected = true;
        true
    }
}

/// Returns the failure of a search for credentials that tload itself did.
fn classified(error: &object_store::Error) -> Option<&Classification> {
    find::<Classification>(error).filter(|failure| failure.is_of_credentials)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::UNIX_EPOCH;

    use object_store::aws::AwsCredential;
    use object_store::gcp::GcpCredential;

    use super::*;
    use crate::error::ErrorKind;

    /// Numbers its credentials, which live for `life` seconds, and fails from one of them on.
    #[derive(Debug)]
    struct Numbered {
        loads: AtomicU32,
        life: Option<u64>,
        fails_from: u32,
    }

    #[async_trait]
    impl Load for Numbered {
        type Credential = AwsCredential;

        async fn load(&self) -> object_store::Result<Loaded<AwsCredential>> {
            tokio::task::yield_now().await;
            let number = self.loads.fetch_add(1, Ordering::Relaxed) + 1;
            if number >= self.fails_from {
                let failure = Classification::new(ErrorKind::PermissionDenied, "none left");
                return Err(failure.of_credentials().into());
            }
            Ok(Loaded {
                credential: Arc::new(AwsCredential {
                    key_id: number.to_string(),
                    secret_key: "hunter2".to_owned(),
                    token: None,
                }),
                expires: self.life.map(at),
                source: "numbered".to_owned(),
            })
        }
    }

    fn cache(life: Option<u64>, fails_from: u32) -> CredentialCache<Numbered> {
        let numbered = Numbered {
            loads: AtomicU32::new(0),
            life,
            fails_from,
        };
        CredentialCache::new(numbered)
    }

    fn at(second: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(second)
    }

    async fn key(cache: &CredentialCache<Numbered>, second: u64) -> String {
        let credential = cache.credential(at(second)).await;
        let failure = |error| classified(&error).map(ToString::to_string);
        match credential {
            Ok(credential) => credential.key_id.clone(),
            Err(error) => failure(error).expect("a classified failure"),
        }
    }

    /// Provides one token, and then fails.
    #[derive(Debug, Default)]
    struct Once(std::sync::atomic::AtomicBool);

    #[async_trait]
    impl CredentialProvider for Once {
        type Credential = GcpCredential;

        async fn get_credential(&self) -> object_store::Result<Arc<GcpCredential>> {
            if self.0.swap(true, Ordering::Relaxed) {
                return Err(object_store::Error::Generic {
                    store: "GCS",
                    source: "status 500".into(),
                });
            }
            let bearer = "token".to_owned();
            Ok(Arc::new(GcpCredential { bearer }))
        }
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime").block_on(test);
    }

    #[test]
    fn renewed_five_minutes_ahead_or_after_half_of_a_short_life() {
        run(async {
            let long = cache(Some(3600), 99);
            for (second, wanted) in [(0, "1"), (3299, "1"), (3300, "2")] {
                assert_eq!(key(&long, second).await, wanted, "{second}");
            }
            let short = cache(Some(400), 99);
            for (second, wanted) in [(0, "1"), (199, "1"), (200, "2")] {
                assert_eq!(key(&short, second).await, wanted, "{second}");
            }
            let endless = cache(None, 99);
            assert_eq!(key(&endless, 0).await, "1");
            assert_eq!(key(&endless, u64::from(u32::MAX)).await, "1");
        });
    }

    #[test]
    fn valid_credentials_are_kept_while_renewal_fails() {
        run(async {
            let cache = cache(Some(3600), 2);
            for (second, wanted) in [(0, "1"), (3400, "1"), (3401, "1"), (3600, "none left")] {
                assert_eq!(key(&cache, second).await, wanted, "{second}");
            }
            // Second 3401 was within the pause.
            assert_eq!(cache.load.loads.load(Ordering::Relaxed), 3);
        });
    }

    #[test]
    fn pause_after_failed_renewal_ends_with_the_credentials() {
        run(async {
            let cache = cache(Some(3600), 2);
            for (second, wanted) in [(0, "1"), (3590, "1"), (3605, "none left")] {
                assert_eq!(key(&cache, second).await, wanted, "{second}");
            }
        });
    }

    /// `object_store` asks for a new token minutes before the old one expires, and fails with it.
    #[test]
    fn token_outlasts_failed_renewal_until_store_refuses_it() {
        run(async {
            let cache = CredentialCache::new(Tokens {
                provider: Arc::new(Once::default()),
                source: "instance metadata".to_owned(),
            });
            let now = SystemTime::now();
            for second in [0, 130, 131, 230] {
                let token = cache.credential(now + Duration::from_secs(second)).await;
                assert_eq!(token.expect("a token").bearer, "token", "{second}");
            }
            let late = now + Duration::from_secs(300);
            assert!(cache.credential(late).await.is_err());
            assert!(cache.rejected(Some(Instant::now())));
            assert!(cache.credential(now).await.is_err());
        });
    }

    #[test]
    fn concurrent_callers_share_one_fetch() {
        run(async {
            let cache = cache(None, 99);
            let (one, two) = futures_util::future::join(key(&cache, 0), key(&cache, 0)).await;
            assert_eq!((&*one, &*two), ("1", "1"));
            assert_eq!(cache.load.loads.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn rejected_credentials_are_replaced_once() {
        run(async {
            let cache = cache(None, 99);
            let before = Instant::now();
            assert_eq!(key(&cache, 0).await, "1");
            assert!(cache.rejected(Some(Instant::now())));
            assert_eq!(key(&cache, 0).await, "2");
            // A request that began with the old ones may be retried; one that had the new ones need
            // not.
            assert!(cache.rejected(Some(before)));
            assert!(!cache.rejected(Some(Instant::now())));
            assert_eq!(key(&cache, 0).await, "2");
        });
    }

    #[test]
    fn shows_no_secret() {
        run(async {
            let cache = cache(None, 99);
            assert_eq!(cache.source(), None);
            key(&cache, 0).await;
            let text = format!("{cache:?}");
            assert!(
                text.contains("numbered") && !text.contains("hunter2"),
                "{text}"
            );
        });
    }
}
