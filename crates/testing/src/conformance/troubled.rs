//! Contract of engines on failing storage: a failed job returns an error with the location, the
//! other jobs are right, and all memory is freed.

use std::cell::RefCell;
use std::fmt;

use super::engine::{Bench, EngineRequest, EngineUnderTest};
use super::run_all;
use crate::fixtures::Rng;
use tload::internal::engine::Done;
use tload_base::error::ErrorKind;

/// Behaviour of the storage from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Normal.
    None,
    /// Reads of the second source fail repeatedly.
    Fails,
    /// One read in three, of any source, fails.
    FailsNowAndThen,
    /// Reads are short, with odd lengths.
    Short,
}

/// Engine, and the control of its storage.
pub struct TroubledEngine {
    /// Engine to test.
    pub under_test: EngineUnderTest,
    /// Sets the behaviour of the storage.
    pub storage: Box<dyn Fn(Trouble)>,
}

impl fmt::Debug for TroubledEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.under_test.fmt(f)
    }
}

type Open<'a> = &'a dyn Fn(&EngineRequest<'_>) -> TroubledEngine;

/// Runs all checks on engines made by `open`.
pub fn troubled_engine_suite(name: &str, open: Open<'_>) {
    run_all(
        name,
        &[
            ("failures belong to their jobs", &|| failures(open)),
            ("failures now and then", &|| now_and_then(open)),
            ("short answers", &|| short(open)),
        ],
    );
}

const LEN: usize = 1 << 20;
const WINDOW: usize = 128 << 10;
const JOBS: usize = LEN / WINDOW;

/// Opens an engine over two sources. Also returns the control of its storage.
fn bench(open: Open<'_>) -> (Bench, Box<dyn Fn(Trouble)>) {
    let contents = (0..2).map(|seed| Rng::new(seed).bytes(LEN)).collect();
    let storage = RefCell::new(None);
    let bench = Bench::open(
        &|request| {
            let opened = open(request);
            *storage.borrow_mut() = Some(opened.storage);
            opened.under_test
        },
        contents,
        JOBS,
    );
    let storage = storage.into_inner().expect("an engine was opened");
    (bench, storage)
}

/// Reads alternately from both sources and returns the results.
fn read(bench: &mut Bench) -> Vec<Done> {
    for index in 0..JOBS {
        bench.submit(index, index % 2, index * WINDOW, WINDOW, WINDOW);
    }
    bench.reap_all()
}

/// Checks that a job failed with storage's error and that the error has the location.
fn expect_failed(bench: &Bench, done: &Done) {
    let error = done.result.as_ref().expect_err("storage failed");
    let kinds = [ErrorKind::Io, ErrorKind::Remote];
    assert!(kinds.contains(&error.kind()), "{}", error.chain());
    assert!(error.location().is_some(), "{}", error.chain());
    let start = (done.extent * WINDOW) as u64;
    let range = error.range().expect("names the bytes");
    // A request reports the bytes that it did not receive, which may be less than a job or more.
    let is_here = range.start < start + WINDOW as u64 && start < range.end;
    assert!(is_here || bench.is_remote(), "{range:?} of {start}");
}

fn failures(open: Open<'_>) {
    let (mut bench, storage) = bench(open);
    storage(Trouble::Fails);
    for done in read(&mut bench) {
        if done.extent % 2 == 0 {
            bench.compare(&done, 0, done.extent * WINDOW, WINDOW);
        } else {
            expect_failed(&bench, &done);
        }
    }
    bench.assert_all_slots_free();
    storage(Trouble::None);
    for done in read(&mut bench) {
        bench.compare(&done, done.extent % 2, done.extent * WINDOW, WINDOW);
    }
    bench.assert_all_slots_free();
}

fn now_and_then(open: Open<'_>) {
    let (mut bench, storage) = bench(open);
    storage(Trouble::FailsNowAndThen);
    for _ in 0..4 {
        for done in read(&mut bench) {
            if done.result.is_ok() {
                bench.compare(&done, done.extent % 2, done.extent * WINDOW, WINDOW);
            } else {
                expect_failed(&bench, &done);
            }
        }
        bench.assert_all_slots_free();
    }
}

fn short(open: Open<'_>) {
    let (mut bench, storage) = bench(open);
    storage(Trouble::Short);
    for _ in 0..4 {
        for done in read(&mut bench) {
            bench.compare(&done, done.extent % 2, done.extent * WINDOW, WINDOW);
        }
        bench.assert_all_slots_free();
    }
}
