//! Limits on allocations for hostile files: the memory that opening takes is bounded by the file's
//! length, never by its contents. Runs in a process of its own, since it counts bytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use overlay::Overlay;
use requirement::requirement;
use tload::internal::HeaderError;
use tload::{Checkpoint, ErrorKind, Loader, Location, Selection, Verify, verify};

#[path = "it/files.rs"]
#[expect(
    dead_code,
    reason = "shared with the tests in `it`, which need more of it"
)]
mod files;
#[path = "it/overlay.rs"]
mod overlay;
#[path = "it/requirement.rs"]
#[expect(
    dead_code,
    reason = "shared with the tests in `it`, which need more of it"
)]
mod requirement;

/// Allocator that counts current and peak bytes.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTED: Counting = Counting;

#[expect(unsafe_code, reason = "an allocator is unsafe by its nature")]
// SAFETY: every call is passed to the system allocator, with the caller's arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Memory that opening takes whatever the file holds, bytes: threads, paths, the first read.
const CONSTANT: usize = 1 << 20;

/// Length of the bombs, bytes. Their memory grows with it; the longest valid header is 25 times as
/// long.
const LENGTH: usize = 4_000_000;

/// Opens a file with these bytes. Returns the peak of allocated bytes, the number of allocations,
/// and the result.
fn open(folder: &Path, name: &str, bytes: &[u8]) -> (usize, usize, tload::Result<Checkpoint>) {
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("the temporary folder takes files");
    let location = Location::from_path(path);
    let (before, calls) = (NOW.load(Ordering::Relaxed), CALLS.load(Ordering::Relaxed));
    PEAK.store(before, Ordering::Relaxed);
    let opened = Checkpoint::open(&location);
    let calls = CALLS.load(Ordering::Relaxed) - calls;
    (PEAK.load(Ordering::Relaxed) - before, calls, opened)
}

fn file(header: &str) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file
}

/// Repeats `one` with increasing numbers, up to [`LENGTH`] bytes.
fn many(one: impl Fn(usize) -> String) -> String {
    let mut text = String::with_capacity(LENGTH);
    let mut number = 0;
    while text.len() < LENGTH {
        text.push_str(if number == 0 { "" } else { "," });
        text.push_str(&one(number));
        number += 1;
    }
    text
}

const EMPTY: &str = r#"{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;

/// Description, header, maximum memory as a multiple of its length, maximum number of allocations
/// for each thousand of its bytes, and the expected error; `None` for a valid one.
type Bomb = (&'static str, String, usize, usize, Option<&'static str>);

#[expect(clippy::too_many_lines, reason = "a table")]
fn headers() -> Vec<Bomb> {
    let nested = |open: &str| format!(r#"{{"t":{{"x":{}"#, open.repeat(LENGTH / open.len()));
    let entry = |fields: String| format!(r#"{{"t":{{{fields}}}}}"#);
    vec![
        (
            "tensors without bytes",
            format!("{{{}}}", many(|n| format!("\"{n}\":{EMPTY}"))),
            12,
            120,
            None,
        ),
        (
            "one name again and again",
            format!("{{{}}}", many(|_| format!("\"a\":{EMPTY}"))),
            6,
            60,
            Some("DuplicateTensor"),
        ),
        (
            "a shape without end",
            entry(format!(
                r#""dtype":"U8","shape":[{}],"data_offsets":[0,1]"#,
                many(|_| "1".into())
            )),
            14,
            1,
            Some("Truncated"),
        ),
        (
            "a shape whose product overflows",
            entry(format!(
                r#""dtype":"U8","shape":[{}],"data_offsets":[0,1]"#,
                many(|_| "9".into())
            )),
            18,
            1,
            Some("ShapeOverflow"),
        ),
        ("arrays in arrays", nested("["), 3, 1, Some("NotJson")),
        (
            "objects in objects",
            nested("{\"a\":"),
            3,
            1,
            Some("NotJson"),
        ),
        (
            "one number of millions of digits",
            entry(format!(r#""x":{}"#, "9".repeat(LENGTH))),
            4,
            1,
            Some("NotJson"),
        ),
        (
            "one name of millions of bytes",
            format!("{{\"{}\":1}}", "n".repeat(LENGTH)),
            6,
            1,
            Some("InvalidEntry"),
        ),
        (
            "one name of millions of bytes, in escapes",
            format!("{{\"{}\":1}}", "\\u0041".repeat(LENGTH / 6)),
            4,
            1,
            Some("InvalidEntry"),
        ),
        (
            "a dtype of millions of bytes",
            entry(format!(r#""dtype":"{}""#, "F".repeat(LENGTH))),
            5,
            1,
            Some("UnknownDtype"),
        ),
        (
            "metadata of many keys",
            format!(
                "{{\"__metadata__\":{{{}}}}}",
                many(|n| format!("\"{n:x}\":\"\""))
            ),
            24,
            500,
            None,
        ),
        (
            "metadata of one value",
            format!("{{\"__metadata__\":{{\"a\":\"{}\"}}}}", "v".repeat(LENGTH)),
            6,
            1,
            None,
        ),
        (
            "metadata with one key again and again",
            format!(
                "{{\"__metadata__\":{{{}}}}}",
                many(|_| "\"a\":\"b\"".into())
            ),
            3,
            1,
            Some("DuplicateMetadata"),
        ),
        ("white space", " ".repeat(LENGTH), 3, 1, Some("NotAnObject")),
    ]
}

/// Returns bombs in index files.
fn indexes() -> Vec<Bomb> {
    let map = |entries: String| format!("{{\"weight_map\":{{{entries}}}}}");
    vec![
        (
            "tensors of one shard",
            map(many(|n| format!("\"{n}\":\"a\""))),
            40,
            600,
            Some("NotFound"),
        ),
        (
            "a shard for each",
            map(many(|n| format!("\"{n}\":\"{n}\""))),
            60,
            800,
            Some("NotFound"),
        ),
        (
            "one tensor again and again",
            map(many(|_| "\"a\":\"b\"".into())),
            30,
            600,
            Some("twice"),
        ),
        (
            "nested",
            format!("{{\"x\":{}", "[".repeat(LENGTH)),
            4,
            1,
            Some("EOF while parsing"),
        ),
        (
            "a name of millions of bytes",
            map(format!("\"{}\":\"../x\"", "n".repeat(LENGTH))),
            8,
            1,
            Some("leaves the directory"),
        ),
        (
            "a shard of millions of bytes",
            map(format!("\"t\":\"{}\"", "n/".repeat(LENGTH / 2) + "x")),
            16,
            1,
            Some("NotFound"),
        ),
    ]
}

/// Returns bombs in files beside a checkpoint: manifests, and payloads of signatures.
fn manifests() -> Vec<Bomb> {
    let whole = |files: String| format!("{{\"tload_manifest\":1,\"files\":{{{files}}}}}");
    let digests = format!(
        r#""crc64nvme":"{}","sha256":"{}""#,
        "0".repeat(16),
        "0".repeat(64)
    );
    let empty = format!(r#"{{"bytes":0,{digests}}}"#);
    let tensor = format!(r#"{{"begin":0,"end":0,{digests}}}"#);
    let tensors = many(|n| format!("\"{n}\":{tensor}"));
    vec![
        (
            "files without bytes",
            whole(many(|n| format!("\"{n}\":{empty}"))),
            6,
            60,
            None,
        ),
        (
            "tensors without bytes",
            whole(format!(
                "\"a\":{{\"bytes\":0,{digests},\"tensors\":{{{tensors}}}}}"
            )),
            6,
            60,
            None,
        ),
        (
            "one file again and again",
            whole(many(|_| format!("\"a\":{empty}"))),
            3,
            30,
            Some("appears twice"),
        ),
        (
            "a name of millions of bytes",
            whole(format!("\"{}\":1", "n".repeat(LENGTH))),
            6,
            1,
            Some("wanted struct"),
        ),
        (
            "a digest of millions of bytes",
            whole(format!(
                "\"a\":{{\"bytes\":1,\"sha256\":\"{}\"}}",
                "0".repeat(LENGTH)
            )),
            4,
            1,
            Some("hexadecimal digits"),
        ),
        (
            "nested",
            format!("{{\"x\":{}", "[".repeat(LENGTH)),
            4,
            1,
            Some("EOF while parsing"),
        ),
    ]
}

fn signed() -> Vec<Bomb> {
    let statement = |subject: &str, predicate: &str| {
        let kind = "https://in-toto.io/Statement/v1";
        let signature = "https://model_signing/signature/v1.0";
        format!(
            r#"{{"_type":"{kind}","predicateType":"{signature}","subject":{subject},"predicate":{predicate}}}"#
        )
    };
    let resources = |resources: String| {
        let files =
            format!(r#"{{"serialization":{{"method":"files"}},"resources":[{resources}]}}"#);
        statement(r#"[{"digest":{}}]"#, &files)
    };
    let resource = r#"{"name":"","algorithm":"","digest":""}"#;
    vec![
        (
            "files without names",
            resources(many(|_| resource.to_owned())),
            8,
            10,
            Some("the digest of its subject"),
        ),
        (
            "what is not looked at",
            statement(
                "[]",
                &format!("{{\"x\":[{}]}}", many(|n| format!("{{\"{n}\":{n}}}"))),
            ),
            5,
            10,
            Some("missing field"),
        ),
        (
            "subjects",
            statement(
                &format!("[{}]", many(|_| r#"{"digest":{}}"#.into())),
                r#"{"serialization":{"method":"files"},"resources":[]}"#,
            ),
            9,
            10,
            Some("subjects, wanted one"),
        ),
        (
            "digests of a subject",
            statement(
                &format!(
                    r#"[{{"digest":{{{}}}}}]"#,
                    many(|n| format!("\"{n}\":\"\""))
                ),
                r#"{"serialization":{"method":"files"},"resources":[]}"#,
            ),
            5,
            10,
            Some("the digest of its subject"),
        ),
        (
            "nested",
            statement("[]", &"[".repeat(LENGTH)),
            5,
            10,
            Some("at line 1 column"),
        ),
    ]
}

/// Like [`open`], for a file beside a checkpoint, which verifying loads read.
fn found(folder: &Path, name: &str, text: &str) -> (usize, usize, tload::Result<()>) {
    let checkpoint = folder.join("m.safetensors");
    std::fs::write(&checkpoint, file("{}")).expect("the temporary folder takes files");
    let checkpoint = Checkpoint::open(Location::from_path(checkpoint)).expect("a good one");
    let path = folder.join(name);
    std::fs::write(&path, text).expect("the temporary folder takes files");
    let (before, calls) = (NOW.load(Ordering::Relaxed), CALLS.load(Ordering::Relaxed));
    PEAK.store(before, Ordering::Relaxed);
    let found = verify::find(&checkpoint, &Verify::Auto).map(|_| ());
    let calls = CALLS.load(Ordering::Relaxed) - calls;
    let peak = PEAK.load(Ordering::Relaxed) - before;
    std::fs::remove_file(path).expect("written above");
    (peak, calls, found)
}

/// Function that checks a description, a length, the memory used, and its limits.
type Judge<'a> = &'a mut dyn FnMut(&str, usize, (usize, usize), (usize, usize));

/// Checks files beside a checkpoint, which verifying loads read.
fn look_beside(folder: &Path, check: Judge<'_>) {
    let manifests = manifests()
        .into_iter()
        .map(|bomb| (verify::MANIFEST_NAME, bomb));
    let signed = signed()
        .into_iter()
        .map(|(name, statement, times, per_1000, wanted)| {
            let kind = "application/vnd.in-toto+json";
            let payload = base64::prelude::BASE64_STANDARD.encode(statement);
            let bundle =
                format!(r#"{{"dsseEnvelope":{{"payload":"{payload}","payloadType":"{kind}"}}}}"#);
            ("model.sig", (name, bundle, times, per_1000, wanted))
        });
    for (file, (name, text, times, per_1000, wanted)) in manifests.chain(signed) {
        let (peak, calls, found) = found(folder, file, &text);
        check(name, text.len(), (peak, calls), (times, per_1000));
        match (found, wanted) {
            (Ok(()), None) => {}
            (Err(error), Some(wanted)) => {
                assert!(error.chain().contains(wanted), "{name}: {}", error.chain());
                assert!(error.chain().len() < 2000, "{name}: a flood");
            }
            (found, wanted) => assert_eq!(
                found.map_err(|error| error.chain()).err(),
                wanted.map(str::to_owned),
                "{name}"
            ),
        }
    }
}

/// Lock held by each test: allocations of another thread would be counted too.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A sparse file of one tebibyte: on an overlay, and before Linux 6.5, the kernel looks up each
/// requested page.
#[test]
fn sparse_file_on_overlay_takes_memory_for_selection_only() {
    const LENGTH: u64 = 1 << 40;
    const BUDGET: u64 = 64 << 20;
    /// Memory beside the budget, which is not the allocator's: threads, plan, report.
    const ALLOCATED: usize = 4 << 20;
    let alone = alone();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo made the folder");
    let header = format!(
        r#"{{"big":{{"dtype":"U8","shape":[{LENGTH}],"data_offsets":[0,{LENGTH}]}},"small":{{"dtype":"U8","shape":[16],"data_offsets":[{LENGTH},{}]}}}}"#,
        LENGTH + 16
    );
    let path = folder.path().join("m.safetensors");
    let file = std::fs::File::create(&path).expect("a temporary folder");
    file.write_all_at(&self::file(&header), 0).expect("room");
    let end = 8 + header.len() as u64 + LENGTH;
    let written = file.write_all_at(b"sixteen bytes it", end);
    if requirement(
        "sparse files of 1 TiB",
        written.map_err(|error| error.to_string()),
    )
    .is_none()
    {
        return;
    }
    let Some(overlay) = requirement("overlay", Overlay::mount(folder.path())) else {
        return;
    };
    let location = Location::from_path(overlay.path().join("m.safetensors"));
    let sparse = Loader::open(&location).expect("a good header");
    let options = files::options(|it| it.memory_limit = Some(BUDGET));
    let peak = |select: &str| {
        let sparse = sparse
            .clone()
            .options(options.clone())
            .select(Selection::names([select]));
        let before = NOW.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        let loaded = sparse.stream().map(|mut stream| {
            let tensor = stream.next().expect("one").expect("is read");
            assert_eq!(tensor.bytes(), b"sixteen bytes it");
            assert!(stream.next().is_none());
            stream.report()
        });
        (PEAK.load(Ordering::Relaxed) - before, loaded)
    };
    let (allocated, loaded) = peak("small");
    let report = loaded.expect("fits");
    assert!(report.memory_peak <= BUDGET, "{report}");
    assert!(allocated < ALLOCATED, "{allocated} bytes for 16");
    // A file that is refused is refused before all of it is read.
    let (allocated, refused) = peak("big");
    assert_eq!(
        refused.expect_err("beyond the budget").kind(),
        ErrorKind::OutOfMemory
    );
    // Includes the plan of 262,144 reads.
    assert!(allocated < 64 << 20, "{allocated} bytes to refuse");
    drop(alone);
}

#[test]
fn opening_takes_memory_for_file_length_and_not_for_claims() {
    let _alone = alone();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo made the folder");
    let mut failures = Vec::new();
    let mut check = |name: &str,
                     len: usize,
                     (peak, calls): (usize, usize),
                     (times, per_1000): (usize, usize)| {
        if peak > len * times + CONSTANT || calls > len / 1000 * per_1000 + 2000 {
            let found = peak / len.max(1);
            let each = calls * 1000 / len.max(1);
            failures.push(format!(
                "{name}: {peak} bytes for {len} ({found} times, {times} allowed), {calls} allocations ({each} per 1000, {per_1000} allowed)"
            ));
        }
    };
    for (name, header, times, per_1000, wanted) in headers() {
        let bytes = file(&header);
        let (peak, calls, opened) = open(folder.path(), "m.safetensors", &bytes);
        check(name, bytes.len(), (peak, calls), (times, per_1000));
        match (opened, wanted) {
            (Ok(_), None) => {}
            (Err(error), Some(wanted)) => {
                let cause = std::error::Error::source(&error).expect("a cause");
                let cause: &HeaderError = cause.downcast_ref().expect("of the header");
                let debug = format!("{cause:?}");
                assert!(debug.starts_with(wanted), "{name}: {error}");
                assert!(error.chain().len() < 8000, "{name}: a flood");
            }
            (found, wanted) => panic!("{name}: {found:?}, wanted {wanted:?}"),
        }
    }
    for (name, index, times, per_1000, wanted) in indexes() {
        let (peak, calls, opened) =
            open(folder.path(), "m.safetensors.index.json", index.as_bytes());
        check(name, index.len(), (peak, calls), (times, per_1000));
        let error = opened.expect_err(name);
        let wanted = wanted.expect("all are refused");
        let is_wanted = error.chain().contains(wanted)
            || wanted == "NotFound" && error.kind() == ErrorKind::NotFound;
        assert!(is_wanted, "{name}: {}", error.chain());
        assert!(error.chain().len() < 16_000, "{name}: a flood");
    }
    look_beside(folder.path(), &mut check);
    // Lengths that a header claims, in a file that is shorter.
    for claimed in [3, 100_000_000, 100_000_001, u64::MAX] {
        let mut bytes = claimed.to_le_bytes().to_vec();
        bytes.extend_from_slice(b"{}");
        let (peak, calls, opened) = open(folder.path(), "m.safetensors", &bytes);
        check(
            &format!("a claim of {claimed}"),
            bytes.len(),
            (peak, calls),
            (1, 0),
        );
        assert_eq!(
            opened.expect_err("too short").kind(),
            ErrorKind::InvalidFormat
        );
    }
    let claims =
        r#"{"t":{"dtype":"U8","shape":[1125899906842624],"data_offsets":[0,1125899906842624]}}"#;
    let (peak, calls, opened) = open(folder.path(), "m.safetensors", &file(claims));
    check("a petabyte", claims.len(), (peak, calls), (1, 0));
    assert_eq!(
        opened.expect_err("too short").kind(),
        ErrorKind::InvalidFormat
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
