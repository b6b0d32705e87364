//! Columns of the ranks of a node: the leader reads a matrix once and scatters it to one region for
//! each band of columns, and each rank takes the region of its band only.

#![expect(unsafe_code, reason = "reads memory that was lent to a load")]

use std::ops::Range;

use tload::verify::MANIFEST_NAME;
use tload::{ErrorKind, Indices, Loader, Order, Report, Result, Slice, Tensor, Verify};

use crate::files::{folder, location, options, write, write_manifest};
use crate::sharing::{PATIENCE, all_good, assert_alone, assert_read_once, load_all, matrices};
use crate::sinks::lend;

const ROWS: usize = 2048;
const COLUMNS: usize = 512;

/// Returns columns of each of so many matrices.
fn columns(count: usize, columns: Range<usize>) -> Vec<(String, Slice)> {
    let slice = Slice::new([Indices::from(0..ROWS), Indices::from(columns)]);
    let name = |index| (format!("m{index}"), slice.clone());
    (0..count).map(name).collect()
}

/// Returns the columns of a rank, of which each has as many.
fn share(count: usize, rank: usize, size: usize) -> Vec<(String, Slice)> {
    let share = COLUMNS / size;
    columns(count, rank * share..(rank + 1) * share)
}

fn bytes_of(tensors: &[Tensor]) -> u64 {
    tensors.iter().map(Tensor::byte_len).sum()
}

/// Asserts that the rank took the bytes of its tensors and no others, without a copy.
fn assert_shown(tensors: &[Tensor], report: &Report) {
    let found = (report.received_bytes, report.copied_bytes);
    assert_eq!(found, (bytes_of(tensors), 0), "{report}");
}

#[test]
fn each_rank_shows_a_region_of_its_columns() {
    let folder = folder();
    let path = folder.path();
    write(&path.join("m.safetensors"), &matrices(3, ROWS, COLUMNS));
    for (size, private) in [(2, true), (4, false), (8, true)] {
        let loaded = all_good(load_all(size, path, |rank, loader| {
            let private = options(|it| it.private = Some(private));
            loader.slices(share(3, rank, size)).options(private)
        }));
        for (rank, (tensors, report)) in loaded.iter().enumerate() {
            let alone = |loader: Loader| loader.slices(share(3, rank, size));
            assert_alone(path, alone, tensors);
            assert_shown(tensors, report);
            assert!(tensors.iter().all(|it| it.is_writable() == private));
            assert_eq!(report.read_bytes > 0, rank == 0, "{report}");
        }
        assert_read_once(&loaded, 2);
    }
}

/// Writes of one rank are not seen by another that shows the same columns.
#[test]
fn equal_and_overlapping_columns_share_a_region() {
    let folder = folder();
    let path = folder.path();
    write(&path.join("m.safetensors"), &matrices(2, ROWS, COLUMNS));
    let wants = [0..100, 0..100, 200..333, 300..450, 451..452, 452..512];
    for extent_bytes in [None, Some(64 << 10)] {
        let set = |rank: usize, loader: Loader| {
            let slices = columns(2, wants[rank].clone());
            let short = options(|it| it.extent_bytes = extent_bytes);
            loader.slices(slices).options(short)
        };
        let loaded = all_good(load_all(wants.len(), path, set));
        for (rank, (tensors, report)) in loaded.iter().enumerate() {
            assert_alone(path, |loader| set(rank, loader), tensors);
            assert_eq!(report.received_bytes, bytes_of(tensors), "{report}");
            let is_gathered = wants[rank].end > 200 && wants[rank].end <= 450;
            assert_eq!(report.copied_bytes > 0, is_gathered, "{rank}: {report}");
            assert_eq!(report.read_bytes > 0, rank == 0, "{report}");
        }
    }
}

#[test]
fn ranks_may_want_columns_rows_and_everything() {
    let folder = folder();
    let path = folder.path();
    write(&path.join("m.safetensors"), &matrices(2, ROWS, COLUMNS));
    let rows = Slice::new([Indices::from(100..900)]);
    let both = Slice::new([Indices::from(5..2000), Indices::from(400..512)]);
    let every_third = Slice::new([
        Indices::from(0..ROWS),
        Indices {
            start: 1,
            count: 170,
            step: 3,
            single: false,
        },
    ]);
    // Columns of the first matrix that each rank loads. Of the second one, each has its own.
    let wants = [
        None,
        Some(columns(1, 0..256).remove(0).1),
        Some(rows),
        Some(both),
        Some(every_third),
    ];
    let set = |rank: usize, loader: Loader| {
        let mut slices = columns(2, rank * 100..(rank + 1) * 100);
        slices.remove(0);
        let first = wants[rank].clone().map(|slice| ("m0".to_owned(), slice));
        loader.slices(slices.into_iter().chain(first))
    };
    let loaded = all_good(load_all(wants.len(), path, set));
    for (rank, (tensors, _)) in loaded.iter().enumerate() {
        assert_alone(path, |loader| set(rank, loader), tensors);
    }
    assert_read_once(&loaded, 2);
}

#[test]
fn columns_fill_memory_of_the_caller() {
    let folder = folder();
    let path = folder.path();
    write(&path.join("m.safetensors"), &matrices(2, ROWS, COLUMNS));
    let loaded = all_good(load_all(4, path, |rank, it| {
        let targets = ["m0", "m1"].map(|name| (name.to_owned(), lend(ROWS * COLUMNS * 2 / 4)));
        it.slices(share(2, rank, 4)).targets(targets)
    }));
    for (rank, (tensors, report)) in loaded.iter().enumerate() {
        let opened = Loader::open(location(path)).expect("a good checkpoint");
        let alone = opened.slices(share(2, rank, 4)).stream().expect("starts");
        for alone in alone.collect::<Result<Vec<_>>>().expect("loads") {
            let found = tensors.iter().find(|it| it.name() == alone.name());
            let found = found.expect("loaded too");
            let target = found.target().expect("memory of the caller");
            // SAFETY: leaked by `lend`; handed out, so the load no longer writes to it.
            let bytes = unsafe { std::slice::from_raw_parts(found.as_ptr(), target.len()) };
            assert!(bytes == alone.bytes(), "{}: bytes", found.name());
        }
        assert_eq!(report.received_bytes, bytes_of(tensors), "{report}");
    }
    assert_read_once(&loaded, 2);
}

/// The leader compares all bytes, also those that no rank wants.
#[test]
fn columns_are_verified() {
    let folder = folder();
    let path = folder.path();
    let file = path.join("m.safetensors");
    let mut contents = matrices(2, ROWS, COLUMNS);
    write(&file, &contents);
    write_manifest(path);
    let wants = [0..100, 200..301, 400..512];
    let manifest = path.join(MANIFEST_NAME).to_str().expect("UTF-8").to_owned();
    for verify in [Verify::Require, Verify::Sha256(Some(manifest))] {
        let load = || {
            load_all(3, path, |rank, loader| {
                loader
                    .slices(columns(2, wants[rank].clone()))
                    .options(options(|it| it.verify = verify.clone()))
            })
        };
        let loaded = all_good(load());
        for (rank, (tensors, report)) in loaded.iter().enumerate() {
            let alone = |loader: Loader| loader.slices(columns(2, wants[rank].clone()));
            assert_alone(path, alone, tensors);
            assert_shown(tensors, report);
        }
        let last = contents.len() - 1;
        contents[last] ^= 1;
        write(&file, &contents);
        for loaded in load() {
            assert_eq!(loaded.expect_err("damaged").kind(), ErrorKind::Corrupt);
        }
        contents[last] ^= 1;
        write(&file, &contents);
    }
}

/// A matrix of 16 MiB in parts needs a slot of 4 MiB beside it.
#[test]
fn columns_are_published_whole_where_slots_do_not_fit() {
    let folder = folder();
    let path = folder.path();
    let (rows, size) = (8 * ROWS, 2);
    write(&path.join("m.safetensors"), &matrices(2, rows, COLUMNS));
    for (limit, is_shown) in [(19, false), (24, true)] {
        let set = |rank: usize, loader: Loader| {
            let share = COLUMNS / size;
            let slice = Slice::new([
                Indices::from(0..rows),
                Indices::from(rank * share..(rank + 1) * share),
            ]);
            let limit = options(|it| it.memory_limit = Some(2 * (limit << 20)));
            let slices = ["m0", "m1"].map(|name| (name.to_owned(), slice.clone()));
            loader.slices(slices).options(limit)
        };
        let loaded = all_good(load_all(size, path, set));
        for (rank, (tensors, report)) in loaded.iter().enumerate() {
            assert_alone(path, |loader| set(rank, loader), tensors);
            assert_eq!(report.copied_bytes == 0, is_shown, "{report}");
        }
    }
}

/// Memory for one matrix and a slot at a time, which the ranks take in turns with rows of their own
/// in between.
#[test]
fn tight_budgets_of_columns_never_deadlock() {
    let folder = folder();
    let path = folder.path();
    let count = 12;
    write(&path.join("m.safetensors"), &matrices(count, ROWS, COLUMNS));
    for order in [Order::Ready, Order::File] {
        let set = |rank: usize, loader: Loader| {
            let mut slices = share(count, rank, 4);
            for (_, slice) in slices.iter_mut().step_by(3) {
                *slice = Slice::new([Indices::from(rank * 512..(rank + 1) * 512)]);
            }
            let tight = options(|it| {
                it.memory_limit = Some(10 << 20);
                it.order = order;
                it.timeout = Some(PATIENCE);
            });
            loader.slices(slices).options(tight)
        };
        let loaded = all_good(load_all(4, path, set));
        for (rank, (tensors, _)) in loaded.iter().enumerate() {
            assert_alone(path, |loader| set(rank, loader), tensors);
        }
    }
}
