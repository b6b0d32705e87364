//! Boxes of the caller's memory on devices: strided on both sides, and only the slice is read.

#![expect(unsafe_code, reason = "lends memory to loads")]

use std::ops::Range;
use std::sync::Arc;

use tload::{ErrorKind, KeepAlive, Loader, Result};
use tload_testing::fixtures::Rng;

use crate::fixtures::{Files, load, options};
use crate::stub::cuda;
use crate::targets::{Lent, UNTOUCHED};

const ROWS: usize = 120;
const COLUMNS: usize = 500;

/// Rectangle of a matrix of 2-byte elements, and the elements that it goes to.
struct Cut {
    matrix: usize,
    memory: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    place: usize,
    /// Elements from one row to the next, and from one column to the next.
    strides: [usize; 2],
}

impl Cut {
    fn row(&self) -> [i64; 12] {
        let offset = (self.rows.start * COLUMNS + self.columns.start) * 2;
        [
            self.matrix,
            self.memory,
            offset,
            self.place * 2,
            2,
            0,
            self.rows.len(),
            COLUMNS * 2,
            self.strides[0] * 2,
            self.columns.len(),
            2,
            self.strides[1] * 2,
        ]
        .map(|number| i64::try_from(number).expect("small"))
    }

    /// Writes what the load should write.
    fn write(&self, matrix: &[u8], memory: &mut [u8]) {
        for (index, row) in self.rows.clone().enumerate() {
            for (number, column) in self.columns.clone().enumerate() {
                let from = (row * COLUMNS + column) * 2;
                let to = (self.place + index * self.strides[0] + number * self.strides[1]) * 2;
                memory[to..to + 2].copy_from_slice(&matrix[from..from + 2]);
            }
        }
    }
}

/// All but one matrix of four: half of its columns, all of it between other columns, two parts of
/// it, turned around. Each in memory of its own.
fn cuts(rng: &mut Rng) -> Vec<Cut> {
    let half = COLUMNS / 2;
    let between = 7 + rng.index(90);
    let cut = |matrix, rows, columns, place, strides| Cut {
        matrix,
        memory: matrix,
        rows,
        columns,
        place,
        strides,
    };
    vec![
        cut(0, 0..ROWS, half..COLUMNS, 0, [half, 1]),
        cut(1, 0..ROWS, 0..COLUMNS, between, [COLUMNS + between, 1]),
        cut(2, 0..40, 0..COLUMNS, 0, [COLUMNS, 1]),
        cut(2, 60..ROWS, 3..COLUMNS, 50 * COLUMNS, [COLUMNS + 5, 1]),
        cut(3, 0..ROWS, 10..20, 5, [1, ROWS + 1]),
    ]
}

fn place(lent: &Lent, device: Option<i32>) -> (usize, usize, Option<(usize, u64)>) {
    let address = usize::try_from(lent.address()).expect("an address");
    let ordinal = device.and_then(|ordinal| usize::try_from(ordinal).ok());
    (address, lent.len, ordinal.map(|ordinal| (ordinal, 0)))
}

fn boxed(loader: Loader, cuts: &[Cut], lent: &Arc<Vec<Arc<Lent>>>, device: Option<i32>) -> Loader {
    let memory: Vec<_> = lent.iter().map(|it| place(it, device)).collect();
    let rows: Vec<i64> = cuts.iter().flat_map(Cut::row).collect();
    let names: Vec<String> = (0..4).map(|index| format!("m{index}")).collect();
    let owner: KeepAlive = Arc::<Vec<Arc<Lent>>>::clone(lent);
    // SAFETY: the owner keeps the memory alive; tests read only what has been delivered.
    unsafe { loader.into_boxes(&names, &memory, &[], 2, &rows, &owner) }.expect("boxes inside")
}

#[test]
fn boxes_on_devices_are_filled_and_nothing_else() {
    let cuda = cuda();
    let files = Files::matrices(5, ROWS, COLUMNS);
    let mut with_rows = 0;
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let cuts = cuts(&mut rng);
        let device = rng.pick(&[None, Some(0), Some(1)]);
        let len = 2 * ROWS * (COLUMNS + 100);
        let lent: Vec<_> = (0..4).map(|_| Lent::new(&cuda, len, device)).collect();
        let lent = Arc::new(lent);
        cuda.stub.reset();
        cuda.stub.set("copy_delay_us", rng.pick(&["0", "20"]));
        let options = options(|it| {
            it.lanes = Some(1 + rng.index(3));
            it.extent_bytes = rng.pick(&[None, Some(10_000)]);
            it.trial = rng.pick(&["batch", ""]).parse().expect("valid");
        });
        let loader = boxed(files.loader().options(options), &cuts, &lent, device);
        let (tensors, report) = load(&loader).unwrap_or_else(|error| panic!("{seed}: {error}"));
        assert_eq!(tensors.len(), 4);
        for (index, lent) in lent.iter().enumerate() {
            let mut wanted = vec![UNTOUCHED; len];
            for cut in cuts.iter().filter(|cut| cut.memory == index) {
                cut.write(&files.contents[&format!("m{index}")], &mut wanted);
            }
            lent.assert_is(&wanted);
        }
        // Half of the first matrix, two whole ones, and a few columns.
        let read = ROWS * (COLUMNS / 2 + 2 * COLUMNS + 10) * 2;
        assert_eq!(report.tensor_bytes, u64::try_from(read).expect("small"));
        let rows = cuda.stub.count("cuMemcpy2DAsync_v2");
        assert_eq!(rows > 0, device.is_some(), "{rows}");
        with_rows += usize::from(rows > 0);
        let copies: u64 = report.devices.iter().map(|it| it.copies).sum();
        assert!(copies >= u64::try_from(rows).expect("positive"));
        drop((tensors, loader));
        assert!(lent.iter().all(|it| Arc::strong_count(it) == 1));
        drop(lent);
        cuda.assert_in_order();
    }
    assert!(with_rows > 3);
}

/// A load that fails at a copy of rows releases the caller's memory.
#[test]
fn failed_copy_of_rows_releases_boxes() {
    let cuda = cuda();
    let files = Files::matrices(5, ROWS, COLUMNS);
    let lent: Vec<_> = (0..4)
        .map(|_| Lent::new(&cuda, 2 * ROWS * (COLUMNS + 100), Some(0)))
        .collect();
    let lent = Arc::new(lent);
    let options = options(|it| it.extent_bytes = Some(10_000));
    let cuts = cuts(&mut Rng::new(1));
    let loader = boxed(files.loader().options(options), &cuts, &lent, Some(0));
    cuda.stub.set("copy_delay_us", "200");
    cuda.stub.set("fail", "cuMemcpy2DAsync_v2:1:4:1");
    let mut stream = loader.stream().expect("starts");
    let error = stream.by_ref().find_map(Result::err).expect("fails");
    assert_eq!(error.kind(), ErrorKind::Device);
    assert!(error.message().contains("rows of"), "{error}");
    drop((stream, loader));
    cuda.assert_nothing_left();
    // Disowned here: a violation if a copy were still to run.
    drop(lent);
    cuda.assert_in_order();
}

#[test]
fn casts_on_devices_and_boxes_on_several_are_refused() {
    let cuda = cuda();
    let files = Files::matrices(1, ROWS, COLUMNS);
    let lent = [Some(0), Some(1)].map(|device| (device, Lent::new(&cuda, 100, device)));
    let memory = lent.each_ref().map(|(device, it)| place(it, *device));
    let casts = [("BF16".to_owned(), "F32".to_owned())];
    let one: &[i64] = &[0, 0, 0, 0, 2, 1];
    let two: &[i64] = &[0, 0, 0, 0, 2, 0, 0, 1, 2, 2, 2, 0];
    for (rows, wanted) in [(one, "no elements are converted"), (two, "several devices")] {
        let (owner, names): (KeepAlive, _) = (Arc::new(()), ["m0".to_owned()]);
        let loader = files.loader();
        // SAFETY: nothing is loaded.
        let made = unsafe { loader.into_boxes(&names, &memory, &casts, 0, rows, &owner) };
        let error = made.map(|_| ()).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        assert!(error.message().contains(wanted), "{error}");
    }
}
