//! Contract of sources: exactly the requested bytes, clipped at the end, and no mixture of two
//! states.

use std::fmt;

use super::run_all;
use crate::fixtures::Rng;
use tload_base::error::ErrorKind;
use tload_storage::Source;

/// Function that replaces the contents of a source.
type Replace = Box<dyn Fn(&[u8])>;

/// Source opened by a check.
pub struct SourceUnderTest {
    /// Source to test.
    pub source: Box<dyn Source>,
    /// Replaces its contents by bytes of another length, as another process would.
    pub replace: Replace,
}

impl fmt::Debug for SourceUnderTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceUnderTest")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

type Open<'a> = &'a dyn Fn(&[u8]) -> SourceUnderTest;

/// Runs all checks on sources that `open` makes from bytes.
pub fn source_suite(name: &str, open: Open<'_>) {
    run_all(
        name,
        &[
            ("length and location", &|| length_and_location(open)),
            ("every kind of range", &|| ranges(open)),
            ("random ranges", &|| random_ranges(open)),
            ("many readers at a time", &|| many_readers(open)),
            ("replaced meanwhile", &|| replaced(open)),
        ],
    );
}

fn length_and_location(open: Open<'_>) {
    for len in [0, 1, 4096, 300_000] {
        let opened = open(&bytes(1, len));
        assert_eq!(opened.source.len(), len as u64);
        assert_eq!(opened.source.is_empty(), len == 0);
        assert!(!opened.source.location().to_string().is_empty());
    }
}

fn ranges(open: Open<'_>) {
    let contents = bytes(2, 70_001);
    let source = open(&contents).source;
    for (offset, len) in [
        (0, 0),
        (0, 1),
        (0, 70_001),
        (0, 70_002),
        (1, 8),
        (69_999, 1),
        (70_000, 1),
        (70_000, 5),
        (70_001, 1),
        (1 << 40, 9),
        (33, 65_536),
    ] {
        let found = source.fetch(offset as u64, len).expect("reads");
        let from = contents.len().min(offset);
        let to = contents.len().min(offset.saturating_add(len));
        assert!(found == contents[from..to], "{len} bytes at {offset}");
    }
}

fn random_ranges(open: Open<'_>) {
    let mut rng = Rng::new(3);
    let contents = bytes(3, 1 << 20);
    let source = open(&contents).source;
    for _ in 0..30 {
        let offset = rng.index(contents.len());
        let len = rng.index(contents.len() - offset + 1);
        let found = source.fetch(offset as u64, len).expect("reads");
        assert!(found == contents[offset..offset + len], "{len} at {offset}");
    }
}

fn many_readers(open: Open<'_>) {
    let contents = bytes(4, 1 << 20);
    let source = open(&contents).source;
    std::thread::scope(|scope| {
        for reader in 0..16 {
            let (source, contents) = (&*source, &contents);
            scope.spawn(move || {
                let offset = reader * 60_000;
                let found = source.fetch(offset as u64, 60_000).expect("reads");
                assert!(found == contents[offset..offset + 60_000]);
            });
        }
    });
}

/// A read after a replacement returns the old bytes or an error, never the new bytes under the old
/// length.
fn replaced(open: Open<'_>) {
    let contents = bytes(5, 50_000);
    for len in [50_001, 10_000] {
        let opened = open(&contents);
        (opened.replace)(&bytes(6, len));
        match opened.source.fetch(40_000, 10_000) {
            Ok(found) => assert!(found == contents[40_000..], "bytes of another state"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.chain()),
        }
    }
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    Rng::new(seed).bytes(len)
}
