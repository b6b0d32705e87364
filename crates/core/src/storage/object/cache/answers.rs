//! Answers of stores that later openings may use instead of a request (option `cache_check`): the
//! state of an object, the names in a folder, the commit of a hub's revision.
//!
//! ```text
//!  v1/answers/3f2a…   CRC-32C of the rest as 8 hexadecimal digits, a line feed, JSON
//! ```
//!
//! Every answer is kept, whatever the option says, so that it can be set at any time. A file that
//! is torn or damaged counts as absent.

use std::fs::{DirBuilder, File};
use std::io::{self, Read as _};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::entry::replace;
use super::key::answer_name;
use super::stamp::checksum;
use crate::options::location::RemoteUrl;
use crate::storage::ObjectIdentity;

/// Directory of the answers, below that of the layout's version.
const FOLDER: &str = "answers";

/// Longest file that is read, bytes: more than a hub's longest description, as JSON.
const BYTES_MAX: u64 = 256 << 20;

/// Number of hexadecimal digits of the CRC.
const DIGITS: usize = 8;

/// Place of the answer to one question about a store.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    file: PathBuf,
    /// URL without secrets.
    location: String,
    /// True if a known answer is used.
    is_trusted: bool,
}

/// Contents of a file.
#[derive(Serialize, Deserialize)]
struct Kept<L, T> {
    location: L,
    answer: T,
}

/// State of an object when it was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum State {
    Absent,
    Present {
        len: u64,
        e_tag: Option<String>,
        version: Option<String>,
        modified: i64,
    },
}

impl State {
    pub(crate) fn of(identity: &ObjectIdentity) -> Self {
        Self::Present {
            len: identity.len,
            e_tag: identity.e_tag.clone(),
            version: identity.version.clone(),
            modified: identity.modified,
        }
    }

    /// Returns the identity of the object, if there is one.
    pub(crate) fn identity(self) -> Option<ObjectIdentity> {
        match self {
            Self::Absent => None,
            Self::Present {
                len,
                e_tag,
                version,
                modified,
            } => Some(ObjectIdentity {
                len,
                e_tag,
                version,
                modified,
            }),
        }
    }
}

impl Question {
    /// Describes a question of this `kind` about `url`; `None` if its answer is not kept, as for
    /// objects that are not cached.
    pub(super) fn new(
        folder: &Path,
        kind: &str,
        url: &RemoteUrl,
        origin: &str,
        is_trusted: bool,
    ) -> Option<Self> {
        let name = answer_name(kind, url, origin).ok()?;
        Some(Self {
            file: folder.join(FOLDER).join(name),
            location: url.shown(),
            is_trusted,
        })
    }

    /// Returns the known answer, if it may be used.
    pub(crate) fn recall<T: DeserializeOwned>(&self) -> Option<T> {
        if !self.is_trusted {
            return None;
        }
        let found = read(&self.file).ok()?;
        let kept: Kept<String, T> = serde_json::from_slice(checked(&found)?).ok()?;
        Some(kept.answer)
    }

    /// Keeps an answer for later openings. A cache that cannot be written to keeps none.
    pub(crate) fn remember<T: Serialize>(&self, answer: &T) {
        if let Err(error) = self.try_remember(answer) {
            tracing::debug!(%error, "an answer of a store is not kept");
        }
    }

    /// Forgets an answer that turned out to be wrong.
    pub(crate) fn forget(&self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.file);
    }

    fn try_remember<T: Serialize>(&self, answer: &T) -> io::Result<()> {
        let location = &self.location;
        let json = serde_json::to_vec(&Kept { location, answer })?;
        let mut bytes = format!("{:0DIGITS$x}\n", checksum(&[&json])).into_bytes();
        bytes.extend_from_slice(&json);
        if read(&self.file).is_ok_and(|found| found == bytes) {
            return Ok(());
        }
        if let Some(folder) = self.file.parent() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)?;
        }
        replace(&self.file, &bytes)
    }
}

/// Forgets answers by the URL that they are about, without secrets; `None` stands for a file that
/// is damaged, or left over.
pub(super) fn forget_within(folder: &Path, is_chosen: impl Fn(Option<&str>) -> bool) {
    let files = std::fs::read_dir(folder.join(FOLDER));
    for file in files.into_iter().flatten().flatten() {
        let bytes = read(&file.path()).unwrap_or_default();
        let kept = checked(&bytes)
            .and_then(|json| serde_json::from_slice::<Kept<String, IgnoredAny>>(json).ok());
        if is_chosen(kept.as_ref().map(|kept| &*kept.location)) {
            // Another process may have been faster.
            let _ = std::fs::remove_file(file.path());
        }
    }
}

/// Reads a regular file, and nothing that a link points to.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the JSON of a file whose CRC matches.
fn checked(file: &[u8]) -> Option<&[u8]> {
    let (digits, rest) = file.split_at_checked(DIGITS)?;
    let crc = u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    let json = rest.strip_prefix(b"\n")?;
    (checksum(&[json]) == crc).then_some(json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Location;

    #[test]
    fn answers_are_kept_and_damaged_ones_are_absent() {
        let folder = tempfile::tempdir().expect("a directory");
        let location = Location::parse("s3://b/k").expect("a URL");
        let ask = |kind, is_trusted| {
            let url = location.remote().expect("a URL");
            Question::new(folder.path(), kind, url, "", is_trusted).expect("has a name")
        };
        let question = ask("object", true);
        assert_eq!(question.recall::<State>(), None);
        let identity = ObjectIdentity {
            len: 7,
            e_tag: Some("\"a\"".to_owned()),
            version: None,
            modified: 5,
        };
        question.remember(&State::of(&identity));
        let found = question.recall::<State>().expect("is kept");
        assert_eq!(found.identity(), Some(identity));
        assert_eq!(ask("object", false).recall::<State>(), None, "not trusted");
        assert_eq!(ask("folder", true).recall::<State>(), None, "another kind");
        question.remember(&State::Absent);
        assert_eq!(question.recall(), Some(State::Absent));
        // No file is left over.
        let files = std::fs::read_dir(folder.path().join(FOLDER)).expect("exists");
        assert_eq!(files.count(), 1);

        let whole = read(&question.file).expect("is there");
        for len in 0..whole.len() {
            std::fs::write(&question.file, &whole[..len]).expect("written");
            assert_eq!(question.recall::<State>(), None, "{len} bytes");
        }
        for at in DIGITS + 1..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 1;
            std::fs::write(&question.file, &bad).expect("written");
            assert_eq!(question.recall::<State>(), None, "byte {at}");
        }
        question.forget();
        question.forget();
    }
}
