//! Answers of a store that later openings may use instead of a request (option `cache_check`): when
//! they may, and what a store needs of the cache that keeps them.

use std::fmt;
use std::sync::Arc;

use crate::options::location::RemoteUrl;
use crate::options::store_options::StoreOptions;

/// Requests about what the cache has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Each opening asks whether the objects have changed.
    Always,
    /// Only what the cache does not have is requested.
    Never,
    /// No request is sent.
    Offline,
}

/// Returns the value of the option `cache_check`.
pub fn check(options: &StoreOptions) -> Check {
    match options.get("cache_check") {
        Some("never") => Check::Never,
        Some("offline") => Check::Offline,
        Some(_) | None => Check::Always,
    }
}

/// Cache that keeps answers.
pub trait AnswerCache: fmt::Debug + Send + Sync {
    /// Returns the place of the answer to a question of this `kind` about `url`; `None` if its
    /// answer is not kept. `origin` is the address of the server.
    fn place(&self, kind: &str, url: &RemoteUrl, origin: &str) -> Option<Arc<dyn AnswerPlace>>;
}

/// Places of the answers of one store.
pub(crate) struct Answers<'a> {
    /// `None` if no answers are kept.
    pub(crate) cache: Option<&'a dyn AnswerCache>,
    /// URL of something in the store.
    pub(crate) url: &'a RemoteUrl,
    pub(crate) origin: &'a str,
}

impl Answers<'_> {
    /// Returns the place of the answer to a question of this `kind` about the whole store.
    pub(crate) fn place(&self, kind: &str) -> Option<Arc<dyn AnswerPlace>> {
        let url = RemoteUrl {
            path: String::new(),
            ..self.url.clone()
        };
        self.cache?.place(kind, &url, self.origin)
    }
}

/// Place of the answer to one question.
pub trait AnswerPlace: fmt::Debug + Send + Sync {
    /// Returns the known answer, if it may be used.
    fn known(&self) -> Option<String>;

    /// Keeps an answer for later openings.
    fn keep(&self, answer: &str);
}
