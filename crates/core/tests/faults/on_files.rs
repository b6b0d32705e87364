//! Faults of files: a file system that fails on command (`tload_testbed::slowfs`), and files that
//! change while they are read.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tload::ErrorKind::{Changed, Corrupt, Io, NotFound, PermissionDenied, TimedOut};
use tload::sealed::Algorithm;
use tload::{
    CacheMode, EngineChoice, Key, LoadOptions, Loader, Location, StoreOptions, Tensor, Verify,
};
use tload_testbed::slowfs::{Fault, Mount, Options as Slowness, Request, Rule, serve_if_asked};

use crate::bench::{Oracle, load, until_tabled, watched, write_manifest};
use crate::files::{even, folder, options, write};
use crate::requirement;
use crate::row::{ALL_ON_FILES, Ended, Names, Outcome, Place, Retried, Row, Via, fails};
use crate::sealing::{new_key, seal_with};

/// Not a test: [`Mount::start`] starts a process that runs this function to serve the file system.
#[test]
fn serves() {
    serve_if_asked();
}

/// First byte past the headers and past the kernel's readahead of them.
const PAST_HEADERS: u64 = 1 << 20;

const EXTENT_BYTES: u64 = 512 << 10;

/// Tensors per shard.
const TENSORS: usize = 3;

const INDEX: &str = "model.safetensors.index.json";

/// Enough for a transient fault.
const RETRIES: &str = "3";

/// Timeout for a read to be held.
const PATIENCE: Duration = Duration::from_secs(60);

/// Offset of the flipped byte: the middle of the second tensor of the second shard.
const FLIPPED: u64 = 1_500_000;

/// Mount that a load reads through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mounted {
    /// Every read reaches the file system exactly as the engine issued it.
    Uncached,
    /// Reads go through the page cache unless they are direct.
    Cached,
}

/// Time at which a fault begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// Before the checkpoint is opened.
    Opening,
    /// After the checkpoint is opened and before the load begins.
    Reading,
}

/// Operation on the second shard while a read of it is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutation {
    /// None; the held read is released.
    Wait,
    Truncate,
    Append,
    /// Written to in place.
    Rewrite,
    /// Another file is renamed over it.
    Replace,
    /// Another index is renamed over that of the checkpoint.
    ReplaceIndex,
    Remove,
    /// Status requests fail from now on: the load issues one more at its end.
    FailStatus,
    /// Status requests are never answered from now on.
    HoldStatus,
}

impl Mutation {
    fn words(self) -> &'static str {
        match self {
            Self::Wait => "; released after a while",
            Self::Truncate => "; truncated meanwhile",
            Self::Append => "; appended to meanwhile",
            Self::Rewrite => "; written to meanwhile",
            Self::Replace => "; another file renamed over it meanwhile",
            Self::ReplaceIndex => "; another index renamed over the checkpoint's meanwhile",
            Self::Remove => "; removed meanwhile",
            Self::FailStatus => "; then `errno=EIO,on=stat`",
            Self::HoldStatus => "; then `hold,on=stat`",
        }
    }

    fn does(self, path: &Path, mount: &Mount) {
        let file = || OpenOptions::new().append(true).open(path).expect("opens");
        let status = |fault| mount.fault(&Rule::always(fault).on(Request::Stat));
        match self {
            Self::Wait => {}
            Self::FailStatus => status(errno(libc::EIO)),
            Self::HoldStatus => status(Fault::Hold),
            Self::Truncate => file().set_len(PAST_HEADERS + 4242).expect("writable"),
            Self::Append => file().write_all(&[7; 5]).expect("writable"),
            Self::Rewrite => {
                let open = OpenOptions::new().write(true).open(path).expect("writable");
                open.write_all_at(&shard(1, 9), 0).expect("writable");
                // A different time, whatever the resolution of the file system's clock.
                let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
                file().set_modified(time).expect("writable");
            }
            Self::Replace => {
                let beside = write(&path.with_extension("new"), &shard(1, 9));
                std::fs::rename(beside, path).expect("the same folder");
            }
            Self::ReplaceIndex => put_index(path, 2),
            Self::Remove => std::fs::remove_file(path).expect("removable"),
        }
    }
}

/// Writes an index beside a shard, or replaces it.
fn put_index(shard: &Path, total_size: u64) {
    let placed = (0..2).flat_map(|shard| {
        let file = serde_json::Value::from(format!("m-{shard}.safetensors"));
        (0..TENSORS).map(move |tensor| (format!("{shard}.{tensor}"), file.clone()))
    });
    let weight_map: serde_json::Map<_, _> = placed.collect();
    let metadata = serde_json::json!({"total_size": total_size});
    let text = serde_json::json!({"metadata": metadata, "weight_map": weight_map}).to_string();
    let beside = write(&shard.with_file_name("index.new"), text.as_bytes());
    std::fs::rename(beside, shard.with_file_name(INDEX)).expect("the same folder");
}

/// Row about files, with its rules and options.
#[derive(Clone, Debug)]
pub(crate) struct FileFault {
    pub(crate) row: Row,
    mounted: Mounted,
    rules: Vec<Rule>,
    when: When,
    deed: Option<Mutation>,
    set: fn(&mut LoadOptions),
    /// The load has a timeout.
    is_hurried: bool,
}

fn on_read(fault: &'static str, rule: Rule, outcome: Outcome) -> FileFault {
    let rule = rule.from_byte(PAST_HEADERS);
    FileFault {
        row: Row {
            place: Place::Files,
            fault,
            made: format!("`{rule}`"),
            engines: ALL_ON_FILES,
            outcome,
        },
        mounted: Mounted::Uncached,
        rules: vec![rule],
        when: When::Reading,
        deed: None,
        set: |_| {},
        is_hurried: false,
    }
}

/// Returns a row with the rule unchanged: for requests other than reads, or from the first byte on.
fn on_any(fault: &'static str, rule: Rule, when: When, outcome: Outcome) -> FileFault {
    FileFault {
        when,
        row: Row {
            made: format!("`{rule}`"),
            ..on_read(fault, rule.clone(), outcome).row
        },
        rules: vec![rule.clone()],
        ..on_read(fault, rule, outcome)
    }
}

/// Returns a row in which `deed` happens while a read of the second shard is held.
fn meanwhile(fault: &'static str, deed: Mutation, outcome: Outcome) -> FileFault {
    let held = on_read(fault, Rule::once(Fault::Hold).file("m-1"), outcome);
    FileFault {
        row: Row {
            made: format!("{}{}", held.row.made, deed.words()),
            ..held.row.clone()
        },
        deed: Some(deed),
        ..held
    }
}

impl FileFault {
    fn with(self, set: fn(&mut LoadOptions), words: &str) -> Self {
        let row = Row {
            made: format!("{}{words}", self.row.made),
            ..self.row
        };
        Self { row, set, ..self }
    }

    /// Sets a timeout, which is to end the request that hangs.
    fn hurried(self) -> Self {
        let hurried = self.with(|_| {}, "; a `timeout`");
        Self {
            is_hurried: true,
            ..hurried
        }
    }

    fn via(self, engines: &'static [Via]) -> Self {
        let row = Row {
            engines,
            ..self.row
        };
        Self { row, ..self }
    }

    fn cached(self, engines: &'static [Via]) -> Self {
        Self {
            mounted: Mounted::Cached,
            ..self.via(engines)
        }
    }
}

fn errno(number: i32) -> Fault {
    Fault::Errno(number)
}

fn through_the_page_cache(options: &mut LoadOptions) {
    options.cache = CacheMode::Buffered;
}

const BUFFERED: &str = "; `cache=buffered`";
const MAP: &[Via] = &[Via::Map];

pub(crate) fn rows() -> Vec<FileFault> {
    let groups = [failing(), slow(), short(), changing(), opening(), mapped()];
    groups.into_iter().flatten().collect()
}

/// Reads that fail.
#[expect(clippy::too_many_lines, reason = "a table")]
fn failing() -> Vec<FileFault> {
    let again = Outcome::Loads(Retried::Yes);
    let stays = |says| fails(Io, says, Names::Range, Retried::Yes);
    vec![
        on_read(
            "a read fails with EIO, once",
            Rule::once(errno(libc::EIO)),
            again,
        ),
        on_read(
            "reads fail with EIO, three times in a row",
            Rule::always(errno(libc::EIO)).times(3),
            again,
        ),
        on_read(
            "one read in five fails with EIO",
            Rule::always(errno(libc::EIO)).every(5),
            again,
        ),
        on_read(
            "every read fails with EIO",
            Rule::always(errno(libc::EIO)),
            stays(&["cannot read", "Input/output error"]),
        ),
        on_read(
            "a read fails with ESTALE, once",
            Rule::once(errno(libc::ESTALE)),
            again,
        ),
        on_read(
            "every read fails with ESTALE",
            Rule::always(errno(libc::ESTALE)),
            stays(&["cannot read", "Stale file handle"]),
        ),
        on_read(
            "a read fails with ETIMEDOUT, once",
            Rule::once(errno(libc::ETIMEDOUT)),
            again,
        ),
        on_read(
            "every read fails with ETIMEDOUT",
            Rule::always(errno(libc::ETIMEDOUT)),
            stays(&["cannot read", "Connection timed out"]),
        ),
        on_read(
            "reads fail with EAGAIN, ten times",
            Rule::always(errno(libc::EAGAIN)).times(10),
            again,
        )
        .via(&[Via::Pread]),
        on_read(
            "reads of a ring fail with EAGAIN, ten times",
            Rule::always(errno(libc::EAGAIN)).times(10),
            Outcome::Loads(Retried::ByKernel),
        )
        .via(&[Via::Uring, Via::TokioUring]),
        on_read(
            "reads fail with EINTR, three times",
            Rule::always(errno(libc::EINTR)).times(3),
            again,
        ),
        on_read(
            "every read fails with EACCES",
            Rule::always(errno(libc::EACCES)),
            fails(
                PermissionDenied,
                &["cannot read", "Permission denied"],
                Names::Range,
                Retried::No,
            ),
        ),
        on_read(
            "the file system's server is gone",
            Rule::always(errno(libc::ENOTCONN)),
            fails(
                Io,
                &["cannot read", "endpoint is not connected"],
                Names::Range,
                Retried::Yes,
            ),
        ),
        on_read(
            "a direct read is rejected",
            Rule::once(errno(libc::EINVAL)),
            again,
        ),
        on_read(
            "a read through the page cache fails with EIO, once",
            Rule::once(errno(libc::EIO)),
            Outcome::Loads(Retried::ByKernel),
        )
        .with(through_the_page_cache, BUFFERED)
        .cached(&[Via::Pread]),
    ]
}

/// Reads that are slow, or never end.
fn slow() -> Vec<FileFault> {
    let timed_out = fails(
        TimedOut,
        &[
            "longer than its timeout of",
            "wait",
            "cannot be cancelled",
            // The order of files depends on which thread reads first.
            ".safetensors [",
        ],
        Names::Location,
        Retried::No,
    );
    let not_opened = fails(
        TimedOut,
        &["opening the file", "the load's timeout"],
        Names::Location,
        Retried::No,
    );
    vec![
        on_read(
            "every read is slow",
            Rule::always(Fault::Late(Duration::from_millis(30))),
            Outcome::Loads(Retried::No),
        ),
        meanwhile(
            "a read hangs for a while",
            Mutation::Wait,
            Outcome::Loads(Retried::No),
        ),
        on_read(
            "every read hangs forever",
            Rule::always(Fault::Hold),
            timed_out,
        )
        .hurried(),
        on_read("one read hangs forever", Rule::once(Fault::Hold), timed_out).hurried(),
        on_any(
            "opening for direct reads hangs forever",
            Rule::always(Fault::Hold).on(Request::Open),
            When::Reading,
            not_opened,
        )
        .hurried(),
        on_any(
            "looking up a file for direct reads hangs forever",
            Rule::always(Fault::Hold).on(Request::Stat),
            When::Reading,
            not_opened,
        )
        .hurried(),
        meanwhile(
            "the status request at the end of the load hangs forever",
            Mutation::HoldStatus,
            fails(
                TimedOut,
                &["longer than its timeout of", "the final checks"],
                Names::Location,
                Retried::No,
            ),
        )
        .hurried(),
        on_read(
            "a page of a mapped file hangs forever",
            Rule::always(Fault::Hold),
            timed_out,
        )
        .hurried()
        .cached(MAP),
    ]
}

/// Reads that return too few bytes, or wrong ones.
fn short() -> Vec<FileFault> {
    let whole = Outcome::Loads(Retried::No);
    vec![
        on_read(
            "every read returns half of its bytes",
            Rule::always(Fault::Short(200_000)),
            whole,
        ),
        on_read(
            "every read returns an odd number of bytes",
            Rule::always(Fault::Short(54_321)),
            whole,
        ),
        on_read(
            "reads return one byte, fifty times",
            Rule::always(Fault::Short(1)).times(50),
            whole,
        ),
        on_read(
            "a read returns nothing in the middle of the file",
            Rule::once(Fault::Short(0)),
            fails(
                Changed,
                &["the file ends at byte", "when it was opened"],
                Names::Range,
                Retried::No,
            ),
        ),
        on_read(
            "a read returns a wrong byte",
            Rule::always(Fault::Flip(FLIPPED)).file("m-1"),
            Outcome::Wrong,
        ),
        on_read(
            "a read returns a wrong byte, and a manifest has digests",
            Rule::always(Fault::Flip(FLIPPED)).file("m-1"),
            fails(
                Corrupt,
                &["1.1", "tload-manifest.json"],
                Names::TensorAndRange,
                Retried::No,
            ),
        )
        .with(|it| it.verify = Verify::Require, "; `verify=require`"),
    ]
}

/// Files that change while they are read.
fn changing() -> Vec<FileFault> {
    let changed = |says| fails(Changed, says, Names::Location, Retried::No);
    vec![
        meanwhile(
            "a file is truncated during the load",
            Mutation::Truncate,
            fails(
                Changed,
                &["the file ends at byte"],
                Names::Range,
                Retried::No,
            ),
        ),
        meanwhile(
            "a file grows during the load",
            Mutation::Append,
            changed(&["its length changed from"]),
        ),
        meanwhile(
            "a file is written to during the load",
            Mutation::Rewrite,
            Outcome::Mixed {
                kind: Changed,
                says: &["its modification time changed", "may mix old and new bytes"],
            },
        ),
        meanwhile(
            "another file replaces it during the load: the old one is read to its end, then the load fails",
            Mutation::Replace,
            fails(
                Changed,
                &["it was replaced by another file"],
                Names::Location,
                Retried::No,
            ),
        ),
        meanwhile(
            "another index replaces the checkpoint's during the load",
            Mutation::ReplaceIndex,
            changed(&["it was replaced by another file", INDEX]),
        ),
        meanwhile(
            "a file is removed during the load: it is read to its end",
            Mutation::Remove,
            Outcome::Loads(Retried::No),
        ),
    ]
}

/// Faults before the first tensor is read.
#[expect(clippy::too_many_lines, reason = "a table")]
fn opening() -> Vec<FileFault> {
    let opens = |fault, number, kind, says| {
        let rule = Rule::always(errno(number)).on(Request::Open);
        let outcome = fails(kind, says, Names::Location, Retried::No);
        on_any(fault, rule, When::Opening, outcome)
    };
    vec![
        opens(
            "permission to open a file is denied",
            libc::EACCES,
            PermissionDenied,
            &["cannot open", "let this user read"],
        ),
        opens(
            "a file cannot be opened: too many are open",
            libc::EMFILE,
            Io,
            &["cannot open", "ulimit -n"],
        ),
        on_any(
            "a file that is listed does not exist",
            Rule::always(errno(libc::ENOENT)).on(Request::Open),
            When::Opening,
            fails(
                NotFound,
                &["cannot open", "check the path"],
                Names::Location,
                Retried::No,
            ),
        ),
        on_any(
            "opening for direct reads fails with EIO",
            Rule::always(errno(libc::EIO)).on(Request::Open),
            When::Reading,
            fails(
                Io,
                &["cannot open", "Input/output error"],
                Names::Location,
                Retried::Yes,
            ),
        ),
        on_any(
            "the header cannot be read",
            Rule::always(errno(libc::EIO)),
            When::Opening,
            fails(
                Io,
                &[
                    "cannot read",
                    "Input/output error",
                    "failed after 4 attempts",
                ],
                Names::Range,
                Retried::Yes,
            ),
        ),
        on_any(
            "the header cannot be read, twice",
            Rule::always(errno(libc::EIO)).times(2),
            When::Opening,
            Outcome::Loads(Retried::Yes),
        ),
        on_any(
            "a file cannot be opened, once",
            Rule::once(errno(libc::EIO)).on(Request::Open),
            When::Opening,
            Outcome::Loads(Retried::Yes),
        ),
        on_any(
            "opening for direct reads fails with EIO, once",
            Rule::once(errno(libc::EIO)).on(Request::Open),
            When::Reading,
            Outcome::Loads(Retried::Yes),
        ),
        on_any(
            "the status request fails, once",
            Rule::once(errno(libc::ETIMEDOUT)).on(Request::Stat),
            When::Reading,
            Outcome::Loads(Retried::Yes),
        ),
        on_any(
            "the header comes in small pieces",
            Rule::always(Fault::Short(9)).times(20),
            When::Opening,
            Outcome::Loads(Retried::No),
        ),
        on_any(
            "the header ends early",
            Rule::once(Fault::Short(0)),
            When::Opening,
            fails(
                Changed,
                &["shorter than when it was opened"],
                Names::Range,
                Retried::No,
            ),
        ),
        meanwhile(
            "the status request at the end of the load fails",
            Mutation::FailStatus,
            fails(
                Io,
                &["file's status", "Input/output error"],
                Names::Location,
                Retried::Yes,
            ),
        ),
    ]
}

/// Memory-mapped files.
fn mapped() -> Vec<FileFault> {
    vec![
        on_read(
            "a page of a mapped file fails with EIO, once",
            Rule::once(errno(libc::EIO)),
            Outcome::Loads(Retried::ByKernel),
        )
        .cached(MAP),
        on_read(
            "pages of a mapped file fail with EIO",
            Rule::always(errno(libc::EIO)),
            fails(
                Io,
                &["could not bring in its pages"],
                Names::Range,
                Retried::Yes,
            ),
        )
        .cached(MAP),
        meanwhile(
            "a mapped file is truncated during the load",
            Mutation::Truncate,
            changed_pages(),
        )
        .cached(MAP),
    ]
}

fn changed_pages() -> Outcome {
    fails(
        Changed,
        &["its length changed from"],
        Names::Location,
        Retried::No,
    )
}

/// Returns the name of a shard.
fn name(number: usize) -> String {
    format!("m-{number}.safetensors")
}

/// Writes both shards into a directory, and returns its path.
fn write_shards(folder: &Path) -> PathBuf {
    for number in 0..2 {
        write(
            &folder.join(name(number)),
            &shard(number as u64, number as u64),
        );
    }
    folder.to_owned()
}

/// Returns the bytes of shard `number` in one of its states.
pub(crate) fn shard(number: u64, state: u64) -> Vec<u8> {
    even(&format!("{number}."), state, TENSORS, (1 << 20) + 12_345)
}

/// Checkpoint of two shards, with the two mounts.
pub(crate) struct Bench {
    pub(crate) oracle: Oracle,
    /// Bytes of the shards as they are stored.
    stored: Oracle,
    /// Key of a checkpoint that is stored sealed.
    key: Option<Key>,
    /// Directory behind the mounts.
    backing: PathBuf,
    uncached: Mount,
    cached: Mount,
    _folder: TempDir,
}

impl Bench {
    pub(crate) fn start() -> Option<Self> {
        let folder = folder();
        let backing = write_shards(folder.path());
        write_manifest(&Location::from(&*backing));
        Self::of(folder, backing, None)
    }

    /// Starts a bench of the same checkpoint, sealed.
    pub(crate) fn sealed() -> Option<Self> {
        let folder = folder();
        let path = |name: &str| folder.path().join(name);
        let key = new_key(Algorithm::Aes256, &path("key.json"));
        let (plain, to) = (write_shards(&path("plain")), path("sealed"));
        seal_with(&key, &plain, &to).expect("seals");
        Self::of(folder, to, Some(key))
    }

    fn of(folder: TempDir, backing: PathBuf, key: Option<Key>) -> Option<Self> {
        let mount = |direct| {
            let slowness = Slowness {
                direct,
                ttl: Duration::ZERO,
                ..Slowness::default()
            };
            let mount = Mount::start("on_files::serves", &backing, &slowness);
            requirement::requirement("fuse", mount)
        };
        let stored = (0..2).map(|number| crate::files::read(&backing.join(name(number))));
        Some(Self {
            oracle: Oracle((0..2).map(|number| shard(number, number)).collect()),
            stored: Oracle(stored.collect()),
            key,
            uncached: mount(true)?,
            cached: mount(false)?,
            backing,
            _folder: folder,
        })
    }

    /// Restores the files and clears all faults.
    pub(crate) fn restore(&self) {
        for mount in [&self.uncached, &self.cached] {
            mount.clear_faults();
        }
        for (number, bytes) in self.stored.0.iter().enumerate() {
            let path = self.backing(number);
            if !path.exists() || crate::files::read(&path) != *bytes {
                let beside = write(&path.with_extension("new"), bytes);
                std::fs::rename(beside, path).expect("the same folder");
            }
        }
    }

    fn backing(&self, number: usize) -> PathBuf {
        self.backing.join(name(number))
    }

    pub(crate) fn mount(&self, mounted: Mounted) -> &Mount {
        match mounted {
            Mounted::Uncached => &self.uncached,
            Mounted::Cached => &self.cached,
        }
    }

    /// Opens the checkpoint, calls `then`, and loads.
    pub(crate) fn load(
        &self,
        mounted: Mounted,
        options: LoadOptions,
        then: impl FnOnce(),
    ) -> Ended {
        self.load_and(mounted, options, then, |tensor| tensor.bytes().to_vec())
    }

    /// Like [`Self::load`]; `bytes` reads the bytes of a tensor.
    fn load_and(
        &self,
        mounted: Mounted,
        options: LoadOptions,
        then: impl FnOnce(),
        bytes: impl Fn(&Tensor) -> Vec<u8>,
    ) -> Ended {
        let location = Location::from(self.mount(mounted).path());
        // Failures while the checkpoint is opened are retried, too.
        let retries = StoreOptions::from_pairs([("retries", RETRIES)]).expect("valid options");
        let mut opening = tload::OpenOptions::from(retries);
        opening.key.clone_from(&self.key);
        let loader = Loader::open_with(&location, opening);
        then();
        let loader = loader.map(|loader| loader.options(options));
        let ended = load(&self.oracle, loader, bytes);
        let location = ended.error.as_ref().and_then(tload::Error::location);
        let file_len = self.stored.len_of(location);
        Ended { file_len, ..ended }
    }

    /// Runs a row with one engine; returns `None` if it hangs.
    pub(crate) fn run(&self, fault: &FileFault, via: Via) -> Option<Ended> {
        if !fault.is_hurried {
            return self.run_within(fault, via, None);
        }
        until_tabled(&fault.row, |timeout| {
            self.run_within(fault, via, Some(timeout))
        })
    }

    fn run_within(&self, fault: &FileFault, via: Via, timeout: Option<Duration>) -> Option<Ended> {
        let mount = self.mount(fault.mounted);
        let begin = || fault.rules.iter().for_each(|rule| mount.fault(rule));
        if fault.when == When::Opening {
            begin();
        }
        let has_index = fault.deed == Some(Mutation::ReplaceIndex);
        if has_index {
            put_index(&self.backing(1), 1);
        }
        let mut wanted = options_of(via);
        (fault.set)(&mut wanted);
        wanted.timeout = timeout;
        // Views of a truncated file end with it: touching one raises SIGBUS, as is documented.
        let is_view = via == Via::Map && fault.deed == Some(Mutation::Truncate);
        let bytes = |tensor: &Tensor| {
            if is_view && tensor.name().starts_with("1.") {
                self.oracle.bytes(tensor.name())
            } else {
                tensor.bytes().to_vec()
            }
        };
        let (started, start) = channel();
        let ended = watched(
            || {
                let then = || {
                    if fault.when == When::Reading {
                        begin();
                    }
                    // The receiver is gone if the row has no operation.
                    let _ = started.send(());
                };
                self.load_and(fault.mounted, wanted, then, bytes)
            },
            || {
                let Some(deed) = fault.deed else { return };
                start.recv().expect("the load begins or fails");
                let is_held = mount.wait_for_held(1, PATIENCE);
                deed.does(&self.backing(1), mount);
                mount.release();
                assert!(
                    is_held || fault.is_hurried,
                    "{}: no read was held",
                    fault.row.fault
                );
            },
            || mount.clear_faults(),
        );
        mount.clear_faults();
        if has_index {
            std::fs::remove_file(self.backing(1).with_file_name(INDEX)).expect("written above");
        }
        if fault.deed.is_some() {
            self.restore();
        }
        ended
    }
}

/// Returns the row as it holds for sealed files; `None` if it is not about them: those with views,
/// a plain index, or a manifest of plain digests.
pub(crate) fn when_sealed(mut fault: FileFault) -> Option<FileFault> {
    let is_of_plain = fault.deed == Some(Mutation::ReplaceIndex)
        || fault.row.engines == MAP
        || fault.row.made.contains("verify=");
    fault.row.outcome = fault.row.outcome.when_sealed();
    // The file with the keys, which is opened first, has no counter of retries, and without it a
    // checkpoint is not sealed.
    let is_about_shards = match fault.row.outcome {
        Outcome::Loads(retried) => retried == Retried::Yes,
        Outcome::Fails { kind, .. } => kind == NotFound,
        Outcome::Wrong | Outcome::Mixed { .. } => false,
    };
    if fault.when == When::Opening && is_about_shards {
        let rules = fault.rules.into_iter();
        fault.rules = rules.map(|rule| rule.file("m-1")).collect();
    }
    (!is_of_plain).then_some(fault)
}

/// Returns options of a load that reads in this way.
pub(crate) fn options_of(via: Via) -> LoadOptions {
    options(|it| {
        it.extent_bytes = Some(EXTENT_BYTES);
        it.retries = Some(3);
        (it.engine, it.cache) = match via {
            Via::Uring => (EngineChoice::Uring, CacheMode::Auto),
            Via::TokioUring => (EngineChoice::TokioUring, CacheMode::Auto),
            Via::Pread => (EngineChoice::Pread, CacheMode::Auto),
            Via::Map => (EngineChoice::Auto, CacheMode::Map),
            Via::Object => (EngineChoice::Auto, CacheMode::Auto),
        };
    })
}

/// Returns whether this machine supports reading in this way.
pub(crate) fn is_there(via: Via) -> bool {
    match via {
        Via::Uring => requirement::uring().is_some(),
        Via::TokioUring => requirement::tokio_uring().is_some(),
        Via::Pread | Via::Map | Via::Object => true,
    }
}
