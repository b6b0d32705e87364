//! Child processes that use the cache of a test, and the objects that they read.

use std::process::Command;

use tload::{Location, StoreOptions};
use tload_testing::fixtures::Rng;

use crate::alone::{command, variable};
use crate::caching::Bench;
use crate::sites::s3_options;

/// Variable with the endpoint, the cache's directory and a seed, one a line, for a child process.
const MARK: &str = "TLOAD_TEST_CACHE_CHILD";

/// Returns the command that runs the test `name` as a child with the cache of `bench`.
pub(crate) fn child(bench: &Bench, name: &str, seed: u64) -> Command {
    let folder = bench.folder.path().display();
    let words = format!("{}\n{folder}\n{seed}", bench.server.url());
    command(name, &[(MARK, &words)])
}

/// Returns the options of a child with a cache of `limit` bytes, the cache's directory, and random
/// numbers; `None` in other processes.
pub(crate) fn of_child(limit: u64) -> Option<(StoreOptions, String, Rng)> {
    let words = variable(MARK)?;
    let words: Vec<_> = words.split('\n').collect();
    let [endpoint, folder, seed] = words.try_into().expect("three words");
    let mut options = s3_options(endpoint);
    for (key, value) in [("cache_dir", folder), ("cache_limit", &limit.to_string())] {
        options.set(key, value).expect("an option");
    }
    let rng = Rng::new(seed.parse().expect("a number"));
    Some((options, folder.to_owned(), rng))
}

/// Returns the key of a numbered object.
pub(crate) fn key_of(at: usize) -> String {
    format!("{at}.safetensors")
}

/// Returns the location of a numbered object, for a child.
pub(crate) fn location_of(at: usize) -> Location {
    Location::parse(&format!("s3://models/{}", key_of(at))).expect("a URL")
}
