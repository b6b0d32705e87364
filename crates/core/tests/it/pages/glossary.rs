//! `docs/glossary.md`: the words that identifiers use, each with the type that it is the name of.

use std::fmt::Write as _;

use tload_testbed::assert_recorded;

use super::REPOSITORY;
use crate::tidy::{Source, root, sources};

const INTRODUCTION: &str = "\
# Glossary

Identifiers and comments use these words and no synonyms, except the public names `parked_bytes` and
`parked_reads` for orphaned ones. Start with [the picture](https://github.com/tload/tload/blob/main/ARCHITECTURE.md).

This page is generated from `crates/core/tests/it/pages/glossary.rs`;
`TLOAD_BLESS=1 cargo test -p tload --test it pages` generates it again.
";

/// A word, its meaning, and the type of that name, or nothing.
type Term = (&'static str, &'static str, &'static str);

const SECTIONS: [(&str, &[Term]); 7] = [
    (
        "Places of bytes",
        &[
            (
                "location",
                "where bytes live, as the user wrote it: a path or a URL; shown without secrets",
                "Location",
            ),
            (
                "store",
                "one bucket, container, web server or repository, with its options and credentials",
                "Store",
            ),
            (
                "source",
                "an opened file or object: its identity, length, hints and small fetches",
                "",
            ),
            (
                "identity",
                "the version of a source: device, inode and times of a file, the ETag of an object",
                "",
            ),
            (
                "source group",
                "sources of one load that share limits and engines",
                "SourceGroup",
            ),
            (
                "backend",
                "a file system or store, as the place of one checkpoint",
                "Backend",
            ),
            (
                "file set",
                "the files of a checkpoint before they are opened",
                "FileSet",
            ),
            (
                "checkpoint",
                "the sources of one model, its shards, with the merged list of tensors",
                "Checkpoint",
            ),
            ("shard", "one file of a checkpoint", "Shard"),
        ],
    ),
    (
        "Plan",
        &[
            (
                "tensor",
                "name, dtype, shape, and the place of its bytes",
                "TensorInfo",
            ),
            (
                "selection",
                "the tensors that the caller requests",
                "Selection",
            ),
            (
                "plan",
                "all regions, extents and pieces of a load, in file order",
                "Plan",
            ),
            (
                "region",
                "one allocation of a destination: one large tensor or a run of small ones",
                "Region",
            ),
            (
                "extent",
                "one contiguous range of a source: one read",
                "Extent",
            ),
            ("piece", "the part of an extent for one tensor", "Piece"),
            (
                "destination",
                "the memory that tensors go to (host, one GPU, the caller's), with its budget and sink",
                "Destination",
            ),
            (
                "arrangement",
                "tensors in memory: in place (as in the file), packed (aligned) or scattered",
                "Arrangement",
            ),
            (
                "load target",
                "a tensor of the caller that a load fills; its memory is a target",
                "LoadTarget",
            ),
        ],
    ),
    (
        "Memory",
        &[
            ("window", "the memory that one extent is read into", ""),
            ("lease", "the exclusive right to a window", "Lease"),
            (
                "strip",
                "a share of a window, for one of several threads that fill it at the same time",
                "Strip",
            ),
            (
                "filled",
                "a lease whose window is known to hold the bytes of the extent",
                "Filled",
            ),
            (
                "staging",
                "intermediate memory: populated once, pinned, kept between loads",
                "",
            ),
            (
                "slab, slot",
                "staging memory of one load or of the cache, and one fixed window of it",
                "Slab",
            ),
            (
                "budget",
                "bytes of the host or a GPU that a load holds and the caller has not received",
                "Pool",
            ),
            (
                "region cache",
                "keeps the memory of a loader from one load to the next",
                "RegionCache",
            ),
            (
                "view",
                "a file as memory: private, mapped, never copied",
                "FileView",
            ),
            (
                "write gate",
                "entered for each write to the caller's memory, closed when the load ends",
                "WriteGate",
            ),
            (
                "orphaned",
                "memory of a finished load whose reads cannot be cancelled",
                "",
            ),
        ],
    ),
    (
        "Reads",
        &[
            (
                "lane",
                "one thread with the pipeline loop and an engine of its own",
                "",
            ),
            ("engine", "fills leases", "Engine"),
            ("sink", "completes tensors from filled leases", "Sink"),
            (
                "job, done",
                "an extent on its way to an engine, and back",
                "Job",
            ),
            (
                "copier",
                "a thread that copies from memory for a lane, which has other work",
                "Copiers",
            ),
            (
                "request",
                "one ranged GET, for one job or several consecutive ones",
                "",
            ),
            (
                "depth",
                "limit on the jobs in flight, adapted to the storage",
                "Depth",
            ),
            (
                "latency histogram",
                "latencies of the reads of a load",
                "LatencyHistogram",
            ),
            ("stalled", "much slower than the other reads", ""),
            (
                "hedge",
                "a second request beside a stalled one, for the missing bytes",
                "",
            ),
            (
                "event count",
                "counter that a lane reads before it looks for work, and then sleeps on",
                "EventCount",
            ),
            (
                "cancellation flag",
                "set once to end a load; wakes threads that are blocked elsewhere",
                "CancelFlag",
            ),
        ],
    ),
    (
        "Verification",
        &[
            ("digest", "a checksum or hash of some bytes", "Digest"),
            (
                "claim",
                "the length and digests that one authority states for a source",
                "Claims",
            ),
            (
                "sidecar",
                "a small file beside a checkpoint, such as a manifest",
                "",
            ),
            (
                "expectation",
                "the claim that a load uses, or the reason why there is none",
                "Expectation",
            ),
            (
                "coverage",
                "the bytes of a source that a load can compare with its expectation",
                "Coverage",
            ),
            ("check", "the comparison, between engine and sink", ""),
        ],
    ),
    (
        "Ranks",
        &[
            ("rank", "one process of a group that loads together", ""),
            (
                "group",
                "the ranks of a load, and the messages between them",
                "Group",
            ),
            ("leader", "the rank that reads for its node", ""),
            (
                "dispatcher",
                "the leader's thread that tells the ranks of its node which memory is filled",
                "Dispatcher",
            ),
            (
                "cluster",
                "the nodes of a load, whose leaders send each other bytes",
                "Cluster",
            ),
            (
                "shared region",
                "memory that the leader fills and all ranks of its node map",
                "",
            ),
            (
                "band",
                "columns of a tensor that the leader publishes as one region",
                "Band",
            ),
        ],
    ),
    (
        "Cache of objects",
        &[
            ("entry", "one object in the cache, in one version", ""),
            ("tile", "64 KiB of an entry", ""),
            ("stamp", "the record of a tile's checksum", ""),
        ],
    ),
];

/// Crates with words of their own.
const OTHERS: [&str; 9] = [
    "cli",
    "cuda-stub",
    "py",
    "pydelta",
    "pymemory",
    "pyreads",
    "serve",
    "testbed",
    "testing",
];

/// Returns the files that declare a public type of this name.
fn declaring<'s>(sources: &'s [Source], name: &str) -> Vec<&'s str> {
    let declares = |line: &str| {
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        let mut is_declared = false;
        line.trim_start().starts_with("pub")
            && words.any(|word| {
                let found = is_declared && word == name;
                is_declared = ["struct", "enum", "trait"].contains(&word);
                found
            })
    };
    let is_other = |source: &Source| {
        let mut others = OTHERS.iter();
        others.any(|name| source.path.starts_with(&format!("crates/{name}/")))
    };
    let sources = sources.iter().filter(|source| !is_other(source));
    sources
        .filter(|source| source.statements().any(declares))
        .map(|source| source.path.as_str())
        .collect()
}

fn page(sources: &[Source]) -> String {
    let mut page = INTRODUCTION.to_owned();
    for (heading, terms) in SECTIONS {
        write!(
            page,
            "\n## {heading}\n\n| word | meaning | type |\n|---|---|---|\n"
        )
        .expect("writing to a string succeeds");
        for (word, meaning, name) in terms {
            let link = if name.is_empty() {
                String::new()
            } else {
                let places = declaring(sources, name);
                assert_eq!(places.len(), 1, "types called {name}: {places:?}");
                format!("[`{name}`]({REPOSITORY}/{})", places[0])
            };
            writeln!(page, "| {word} | {meaning} | {link} |")
                .expect("writing to a string succeeds");
        }
    }
    page
}

#[test]
fn page_has_every_term() {
    assert_recorded(&root().join("docs/glossary.md"), &page(&sources()));
}

#[test]
fn declarations_are_found_by_whole_names() {
    let source = |path: &str, text: &str| Source {
        path: path.to_owned(),
        text: text.to_owned(),
    };
    let sources = [
        source("crates/a/src/a.rs", "pub(crate) struct Lease<'a> {}\n"),
        source(
            "crates/a/src/b.rs",
            "pub struct LeaseX;\nstruct Lease;\nuse a::Lease;\n",
        ),
        source("crates/cli/src/c.rs", "pub struct Lease;\n"),
    ];
    assert_eq!(declaring(&sources, "Lease"), ["crates/a/src/a.rs"]);
}
