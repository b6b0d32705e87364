//! Requirements of tests that not every machine meets: the test prints that it is skipped, or
//! fails.
//!
//! `TLOAD_REQUIRE=uring,tokio-uring,direct,loopfs` turns a skip for one of these names into a
//! failure; `all` does so for every skip.

use std::io::Write;

/// Returns the value of `found`. On an error, prints that the test is skipped and why, or panics if
/// `TLOAD_REQUIRE` names `name`.
pub(crate) fn requirement<T>(name: &str, found: Result<T, String>) -> Option<T> {
    match found {
        Ok(found) => Some(found),
        Err(reason) => {
            let required = variable("TLOAD_REQUIRE").unwrap_or_default();
            let is_required = required
                .split(',')
                .map(str::trim)
                .any(|required| required == name || required == "all");
            assert!(
                !is_required,
                "TLOAD_REQUIRE names {name}, which is missing: {reason}"
            );
            say(&format!("SKIPPED: needs {name}: {reason}"));
            None
        }
    }
}

/// Prints to stderr directly: the test harness shows captured output only of tests that fail.
pub(crate) fn say(line: &str) {
    // A closed stderr is no reason to fail.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Requires that an `io_uring` ring can be set up.
pub(crate) fn uring() -> Option<()> {
    let ring = tload::internal::probe::ring();
    let found = ring.error.map_or(Ok(()), Err);
    requirement("uring", found)
}

/// Requires that the engine of the crate `tokio-uring` can be set up.
pub(crate) fn tokio_uring() -> Option<()> {
    use tload::internal::engine::{EngineKind, EngineSetup, open};
    let setup = EngineSetup::new([].into(), 1);
    let opened = open(EngineKind::TokioUring, true, &setup);
    let found = opened.map(drop).map_err(|error| error.chain());
    requirement("tokio-uring", found)
}

/// Returns the engines for files that this machine supports, and requires all.
pub(crate) fn engines() -> Vec<tload::EngineChoice> {
    let _ = (uring(), tokio_uring());
    tload::internal::engine::available()
}

/// Requires that the temporary folder supports direct I/O and refuses misaligned reads, as disks
/// do.
pub(crate) fn direct() -> Option<()> {
    let folder = crate::files::folder();
    let path = folder.path().join("probe");
    std::fs::write(&path, [0; 4096]).expect("the temporary folder takes files");
    let direct = tload::internal::probe::direct_io(&path).expect("the file was just written");
    let found = match (direct.error, direct.offset_alignment) {
        (Some(error), _) => Err(error),
        // Btrfs and tmpfs accept O_DIRECT, report no alignment, and read through the page cache.
        (None, None) => Err("the file system states no alignment".to_owned()),
        (None, Some(_)) => Ok(()),
    };
    requirement("direct", found)
}

#[expect(
    clippy::disallowed_methods,
    reason = "tests are steered from outside; the library is not"
)]
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
