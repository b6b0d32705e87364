//! The fuzz targets without a fuzzer: on every input in `fuzz/corpus`, and on thousands of
//! mutations of these, each from a seed.
//!
//! A failure prints its input's seed or file. `TLOAD_SEED=17 cargo test -p tload --test it fuzz`
//! runs one seed again.

use std::collections::BTreeSet;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use tload_testing::fixtures::Rng;
use tload_testing::fuzz::{TARGETS, run};

use crate::files::read;
use crate::requirement::{say, variable};

/// Number of seeded inputs of each target.
const SEEDS: u64 = 4000;

/// Maximum length of all corpora together, bytes: they are in the repository.
const CORPUS_BYTES_MAX: u64 = 1 << 20;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// Returns the committed inputs of a target: from fuzzing, written by hand, and past failures.
fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = fuzz().join("corpus").join(target);
    let entries = std::fs::read_dir(&folder).expect("each target has a corpus");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("listed").path()).collect();
    paths.sort();
    paths
        .into_iter()
        .map(|path| (path.clone(), read(&path)))
        .collect()
}

fn names(folder: &Path, cut: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).expect("a folder of the repository");
    let names = entries.map(|entry| entry.expect("listed").file_name());
    let names = names.map(|name| name.to_str().expect("UTF-8").replace(cut, ""));
    names.collect()
}

#[test]
fn every_target_has_a_fuzzer_and_a_small_corpus() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names(&fuzz().join("fuzz_targets"), ".rs"), targets);
    assert_eq!(names(&fuzz().join("corpus"), "?"), targets);
    let manifest = String::from_utf8(read(&fuzz().join("Cargo.toml"))).expect("UTF-8");
    let mut bytes = 0;
    for target in &targets {
        assert!(
            manifest.contains(&format!("name = \"{target}\"")),
            "{target}"
        );
        let corpus = corpus(target);
        assert!(corpus.len() >= 10, "{target}: {} inputs", corpus.len());
        bytes += corpus
            .iter()
            .map(|(_, input)| input.len() as u64)
            .sum::<u64>();
    }
    assert!(bytes < CORPUS_BYTES_MAX, "{bytes} bytes of corpora");
}

/// Returns the targets that one of their inputs breaks; each target runs until its first failure.
fn broken(inputs: impl Fn(&str, &mut dyn FnMut(&str, &[u8]) -> bool)) -> Vec<&'static str> {
    let breaks = |target: &str| {
        let mut is_broken = false;
        inputs(target, &mut |what, input| {
            is_broken = catch_unwind(|| run(target, input)).is_err();
            if is_broken {
                say(&format!("{target} is broken by {what}"));
            }
            is_broken
        });
        is_broken
    };
    let names = TARGETS.iter().map(|(name, _)| *name);
    names.filter(|name| breaks(name)).collect()
}

#[test]
fn corpora_replay_without_failure() {
    let broken = broken(|target, ask| {
        let mut inputs = corpus(target).into_iter();
        inputs.any(|(path, input)| ask(&path.display().to_string(), &input));
    });
    assert_eq!(broken, [""; 0]);
}

#[test]
fn seeded_inputs_run_without_failure() {
    let one = variable("TLOAD_SEED").map(|text| text.parse().expect("TLOAD_SEED is a number"));
    let seeds = one.map_or(0..SEEDS, |seed| seed..seed + 1);
    let broken = broken(|target, ask| {
        let corpus = corpus(target);
        let input = |seed| mutated(&mut Rng::new(seed), &corpus);
        let mut seeds = seeds.clone();
        seeds.any(|seed| ask(&format!("TLOAD_SEED={seed}"), &input(seed)));
    });
    assert_eq!(broken, [""; 0]);
}

/// Returns an input of the corpus with a few changes, as libFuzzer makes them; once in ten times
/// random bytes.
fn mutated(rng: &mut Rng, corpus: &[(PathBuf, Vec<u8>)]) -> Vec<u8> {
    const TOKENS: [&[u8]; 12] = [
        b"\"",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"0",
        b"18446744073709551615",
        b"../",
        b"\\u0000",
        b"\xff",
    ];
    if rng.once_in(10) {
        let len = rng.index(300);
        return rng.bytes(len);
    }
    let mut input = corpus[rng.index(corpus.len())].1.clone();
    for _ in 0..=rng.index(6) {
        let at = rng.index(input.len() + 1);
        let end = (at + rng.index(16)).min(input.len());
        match rng.below(5) {
            0 if at < input.len() => input[at] ^= 1 << rng.below(8),
            1 => drop(input.splice(at..end, rng.pick(&TOKENS).iter().copied())),
            2 => drop(input.splice(at..at, input[at..end].to_vec())),
            3 => drop(input.drain(at..end)),
            _ => {
                let other = &corpus[rng.index(corpus.len())].1;
                let from = rng.index(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
        }
    }
    input
}
