//! Answers of stores that later openings may use instead of a request (option `cache_check`): the
//! state of an object, the names in a folder, the commit of a hub's revision.
//!
//! ```text
//!  v1/answers/3f2a…   CRC-32C of the rest as 8 hexadecimal digits, a line feed, JSON
//! ```
//!
//! Every answer is kept, whatever the option says, so that it can be set at any time. A file that
//! is torn or damaged counts as absent. The least recently used answers make room for others.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::Cache;
use super::files::{Root, TEXT_BYTES_MAX};
use super::key::answer_name;
use super::room::{disk_bytes, is_file, is_hex, modified};
use super::stamp::checksum;
use crate::guarded_dir::GuardedDir;
use crate::object::ObjectIdentity;
use crate::object::store::{AnswerCache, AnswerPlace, Sha256};
use crate::options::location::RemoteUrl;

/// Directory of the answers, below that of the layout's version.
const FOLDER: &str = "answers";

/// Most space that answers take before some are removed, bytes on disk: those of 16,384 objects,
/// where a file takes 4 KiB.
const ANSWERS_BYTES_MAX: u64 = 64 << 20;

/// Average number of new answers, over all processes, between two measurements of the space.
const MEASURED_ONE_IN: u32 = 256;

/// Number of hexadecimal digits of the CRC.
const DIGITS: usize = 8;

/// Place of the answer to one question about a store.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    root: Arc<Root>,
    /// Name of its file.
    name: String,
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
        /// SHA-256 of the object, if the server stated it.
        #[serde(default)]
        sha256: Option<Sha256>,
    },
}

impl State {
    pub(crate) fn of(identity: &ObjectIdentity, sha256: Option<Sha256>) -> Self {
        Self::Present {
            len: identity.len,
            e_tag: identity.e_tag.clone(),
            version: identity.version.clone(),
            modified: identity.modified,
            sha256,
        }
    }

    /// Returns the SHA-256 that the server stated of the object.
    pub(crate) fn sha256(&self) -> Option<Sha256> {
        match self {
            Self::Absent => None,
            Self::Present { sha256, .. } => *sha256,
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
                ..
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
        root: &Arc<Root>,
        kind: &str,
        url: &RemoteUrl,
        origin: &str,
        is_trusted: bool,
    ) -> Option<Self> {
        Some(Self {
            name: answer_name(kind, url, origin).ok()?,
            root: Arc::clone(root),
            location: url.shown(),
            is_trusted,
        })
    }

    /// Returns the known answer, if it may be used. One that cannot be read is not known.
    pub(crate) fn recall<T: DeserializeOwned>(&self) -> Option<T> {
        self.try_recall().ok().flatten()
    }

    /// Returns the known answer, if it may be used.
    ///
    /// # Errors
    ///
    /// Errors of the file system.
    pub(crate) fn try_recall<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        if !self.is_trusted {
            return Ok(None);
        }
        self.try_last()
    }

    /// Returns the last answer, which is to be confirmed by the store.
    pub(in crate::object) fn last<T: DeserializeOwned>(&self) -> Option<T> {
        self.try_last().ok().flatten()
    }

    fn try_last<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        let read = || {
            let folder = self.folder(false)?;
            Ok((folder.read(&self.name, TEXT_BYTES_MAX)?, folder))
        };
        let (found, folder) = match read() {
            Err(error) if io::Error::kind(&error) == io::ErrorKind::NotFound => return Ok(None),
            found => found?,
        };
        let kept = checked(&found).and_then(|json| serde_json::from_slice(json).ok());
        Ok(kept.map(|kept: Kept<String, T>| {
            // In a cache that cannot be written to, no answer is removed either.
            let _ = folder.touch(&self.name);
            kept.answer
        }))
    }

    /// Opens the directory of the answers, and creates it if `make`.
    fn folder(&self, make: bool) -> io::Result<GuardedDir> {
        self.root.below(&[FOLDER], make)
    }

    /// Keeps an answer for later openings. A cache that cannot be written to keeps none.
    pub(crate) fn remember<T: Serialize>(&self, answer: &T) {
        if let Err(error) = self.try_remember(answer) {
            tracing::debug!(%error, "an answer of a store is not kept");
        }
    }

    /// Forgets an answer that turned out to be wrong.
    pub(crate) fn forget(&self) {
        // Another process may have removed the file.
        let _ = self
            .folder(false)
            .and_then(|folder| folder.remove_file(&self.name));
    }

    fn try_remember<T: Serialize>(&self, answer: &T) -> io::Result<()> {
        let location = &self.location;
        let json = serde_json::to_vec(&Kept { location, answer })?;
        let mut bytes = format!("{:0DIGITS$x}\n", checksum(&json)).into_bytes();
        bytes.extend_from_slice(&json);
        let folder = self.folder(true)?;
        let found = folder.read(&self.name, TEXT_BYTES_MAX);
        if found.is_ok_and(|found| found == bytes) {
            let _ = folder.touch(&self.name);
            return Ok(());
        }
        if fastrand::u32(..MEASURED_ONE_IN) == 0 {
            trim_to(&folder, ANSWERS_BYTES_MAX, None);
        }
        folder.replace(&self.name, &bytes)
    }
}

impl AnswerCache for Cache {
    fn place(&self, kind: &str, url: &RemoteUrl, origin: &str) -> Option<Arc<dyn AnswerPlace>> {
        let question = self.question(kind, url, origin)?;
        Some(Arc::new(question))
    }
}

impl AnswerPlace for Question {
    fn known(&self) -> Option<String> {
        self.recall()
    }

    fn keep(&self, answer: &str) {
        self.remember(&answer);
    }
}

/// Removes answers that were not used for `unused_for`, and the least recently used ones while all
/// exceed their limit.
pub(super) fn trim(root: &GuardedDir, unused_for: Option<Duration>) {
    if let Ok(folder) = root.below(FOLDER) {
        trim_to(&folder, ANSWERS_BYTES_MAX, unused_for);
    }
}

fn trim_to(folder: &GuardedDir, most: u64, unused_for: Option<Duration>) {
    let now = SystemTime::now();
    let mut files: Vec<_> = answers(folder)
        .filter_map(|name| {
            let there = folder.stat(&name).ok().filter(is_file)?;
            Some((modified(&there), disk_bytes(&there), name))
        })
        .collect();
    for (used, _, name) in &mut files {
        // The clock was wrong: a last use in the future becomes the present, as for entries.
        if *used > now {
            let _ = folder.touch(name);
            *used = now;
        }
    }
    files.sort();
    let mut taken = files.iter().map(|(_, bytes, _)| bytes).sum::<u64>();
    for (used, bytes, name) in files {
        let idle = now.duration_since(used).unwrap_or_default();
        let is_old = unused_for.is_some_and(|limit| idle >= limit);
        // Removal fails if another process has removed the file.
        if (is_old || taken > most) && folder.remove_file(&name).is_ok() {
            taken -= bytes;
        }
    }
}

/// Returns the names of answers, and of those that were being written.
fn answers(folder: &GuardedDir) -> impl Iterator<Item = String> {
    let names = folder.names().unwrap_or_default().into_iter();
    names.filter(|name| is_hex(name.split('.').next().unwrap_or_default(), 64))
}

/// Forgets answers by the URL that they are about, without secrets; `None` stands for a file that
/// is damaged, or left over. Returns their number; with `dry_run`, that of those it would forget.
pub(super) fn forget_within(
    root: &GuardedDir,
    dry_run: bool,
    is_chosen: impl Fn(Option<&str>) -> bool,
) -> u64 {
    let Ok(folder) = root.below(FOLDER) else {
        return 0;
    };
    let mut forgotten = 0;
    for name in answers(&folder) {
        let bytes = folder.read(&name, TEXT_BYTES_MAX).unwrap_or_default();
        let kept = checked(&bytes)
            .and_then(|json| serde_json::from_slice::<Kept<String, IgnoredAny>>(json).ok());
        let is_chosen = is_chosen(kept.as_ref().map(|kept| &*kept.location));
        // Removal fails if another process has removed the file.
        if is_chosen && (dry_run || folder.remove_file(&name).is_ok()) {
            forgotten += 1;
        }
    }
    forgotten
}

/// Returns the JSON of a file whose CRC matches.
fn checked(file: &[u8]) -> Option<&[u8]> {
    let (digits, rest) = file.split_at_checked(DIGITS)?;
    let crc = u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    let json = rest.strip_prefix(b"\n")?;
    (checksum(json) == crc).then_some(json)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::guarded_dir::Trust;
    use crate::options::Location;

    #[test]
    fn answers_are_kept_and_damaged_ones_are_absent() {
        let folder = tempfile::tempdir().expect("a directory");
        let root = Arc::new(Root::new(folder.path(), Trust::Own));
        let location = Location::parse("s3://b/k").expect("a URL");
        let ask = |kind, is_trusted| {
            let url = location.remote().expect("a URL");
            Question::new(&root, kind, url, "", is_trusted).expect("has a name")
        };
        let question = ask("object", true);
        assert_eq!(question.recall::<State>(), None);
        let identity = ObjectIdentity {
            len: 7,
            e_tag: Some("\"a\"".to_owned()),
            version: None,
            modified: 5,
        };
        question.remember(&State::of(&identity, None));
        let found = question.recall::<State>().expect("is kept");
        assert_eq!(found.identity(), Some(identity));
        assert_eq!(ask("object", false).recall::<State>(), None, "not trusted");
        assert_eq!(ask("folder", true).recall::<State>(), None, "another kind");
        question.remember(&State::Absent);
        assert_eq!(question.recall(), Some(State::Absent));
        // No file is left over.
        let files = std::fs::read_dir(root.path().join(FOLDER)).expect("exists");
        assert_eq!(files.count(), 1);

        let file = root.path().join(FOLDER).join(&question.name);
        let opened = root.below(&[FOLDER], false).expect("exists");
        let whole = opened.read(&question.name, 1 << 20).expect("is there");
        for len in 0..whole.len() {
            std::fs::write(&file, &whole[..len]).expect("written");
            assert_eq!(question.recall::<State>(), None, "{len} bytes");
        }
        for at in DIGITS + 1..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 1;
            std::fs::write(&file, &bad).expect("written");
            assert_eq!(question.recall::<State>(), None, "byte {at}");
        }
        question.forget();
        question.forget();
    }

    #[test]
    fn answers_make_room_by_their_last_use() {
        let folder = tempfile::tempdir().expect("a directory");
        let below = folder.path();
        let opened = GuardedDir::open(below, Trust::All).expect("opens");
        let now = SystemTime::now();
        let write = |name: &str, age: u64| {
            let path = below.join(name);
            std::fs::write(&path, [b' '; 5000]).expect("written");
            let file = File::options().append(true).open(&path).expect("opens");
            let used = now - Duration::from_secs(age);
            file.set_modified(used).expect("its owner may");
            path
        };
        let name = |digit: char| String::from(digit).repeat(64);
        let oldest = write(&format!("{}.0123456789abcdef", name('a')), 400);
        let older = write(&name('b'), 300);
        let recent = write(&name('c'), 200);
        let foreign = write("read.me", 1000);
        let stat = opened.stat(&name('b')).expect("there");
        let bytes = disk_bytes(&stat);
        let future = write(&name('d'), 0);
        let clock = File::options().append(true).open(&future).expect("opens");
        let wrong = clock.set_modified(now + Duration::from_secs(10_000));
        wrong.expect("its owner may");
        let left = || [&oldest, &older, &recent, &future].map(|path| path.exists());
        trim_to(&opened, 4 * bytes, None);
        assert_eq!(left(), [true; 4]);
        trim_to(&opened, 2 * bytes, None);
        assert_eq!(left(), [false, false, true, true]);
        // The wrong clock's time counts as that of the first look.
        trim_to(&opened, u64::MAX, Some(Duration::from_secs(100)));
        assert_eq!(left(), [false, false, false, true]);
        trim_to(&opened, u64::MAX, Some(Duration::from_nanos(1)));
        assert_eq!(left(), [false; 4]);
        assert!(foreign.exists());
    }
}
