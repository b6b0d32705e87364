//! Whole loads of possibly hostile files over storage that may fail: right bytes or a typed error,
//! within the budget, and nothing left at the end.

use std::cell::Cell;
use std::collections::BTreeSet;

use super::header::file_of;
use super::{Input, assert_fit_to_print};
use crate::fixtures::Rng;
use crate::receive;
use crate::sim::SimConfig;
use crate::simulation::Simulation;
use tload::Order;
use tload::TensorInfo;
use tload::internal::plan::Layout;
use tload::internal::schedule::{Depth, InFlight};
use tload_base::error::ErrorKind;
use tload_format::{self as format, Dtype, LENGTH_BYTES};
use tload_storage::MemorySource;

/// Interprets `input` as settings of the load, the faults, and then the JSON of a file's header or
/// the data to make one; the tensors' bytes are derived from it.
pub(super) fn check(input: &[u8]) {
    let mut input = Input::new(input);
    let seed = input.bits();
    let layout = Layout {
        extent_bytes: input.pick(&[4096, 16_384, 65_536, 1 << 20]),
        alignment: input.pick(&[1, 512, 4096]),
        gap_bytes: input.pick(&[0, 4096, 65_536]),
    };
    let jobs = 1 + input.index_up_to(11);
    let in_flight = input.pick(&[1, 50_000, 1 << 20]);
    let order = input.pick(&[Order::Ready, Order::File]);
    let spare = input.pick(&[0, 1, 100_000, 1 << 30]);
    let fault = input.byte();
    let mut engine = SimConfig::new(seed, jobs);
    engine.short_once_in = input.pick(&[0, 1, 4]);
    // Cut after the header was read: a file that shrank.
    let cut = input.pick(&[0_usize, 0, 0, 1, 5000]);
    let made;
    let json = if input.byte().is_multiple_of(2) {
        made = table(&mut input);
        made.as_bytes()
    } else {
        input.rest()
    };
    let Some(mut file) = file_of(json) else {
        return;
    };
    let header_bytes = file.len().min(8 + header_len(&file));
    let tensors = Rng::new(seed).bytes(file.len() - header_bytes);
    file[header_bytes..].copy_from_slice(&tensors);
    let parsed = format::parse(&file[8..header_bytes], file.len() as u64).expect("fits");
    let infos: Vec<_> = parsed
        .tensors
        .into_iter()
        .map(|entry| TensorInfo::new(entry, 0))
        .collect();
    let kept = file.len().saturating_sub(cut).max(header_bytes);
    let mut simulation = Simulation {
        sources: vec![MemorySource::new("file", &file[..kept])],
        layouts: vec![layout],
        tensors: infos,
        order,
        depth: Depth::fixed(jobs, in_flight),
        memory_limit: 0,
        engines: vec![engine],
    };
    let extents = simulation.plan().extents.len();
    let faults: BTreeSet<usize> = (fault > 200 && extents > 0)
        .then(|| usize::from(fault) % extents)
        .into_iter()
        .collect();
    simulation.engines[0].faults.clone_from(&faults);
    let least = simulation.limit_min();
    // The header's tensors are in the file, so the budget is bounded by the file, with its regions
    // rounded to pages.
    assert!(
        least <= file.len() as u64 + (4 << 20),
        "{least} of {}",
        file.len()
    );
    simulation.memory_limit = least + spare;
    run(&simulation, &file, kept < file.len(), !faults.is_empty());
}

/// Returns the JSON of a valid header, so that not every change of the input ends at the first
/// brace.
fn table(input: &mut Input<'_>) -> String {
    let mut entries = Vec::new();
    let mut begin = 0;
    while !input.is_empty() && entries.len() < 24 {
        let dtype = input.pick(&Dtype::ALL);
        let most = input.pick(&[1, 9, 300, 2000, 9000]);
        // Four elements of any dtype are whole bytes.
        let elements = input.index_up_to(most) / 4 * 4;
        let end = begin + elements * dtype.bits() / 8;
        entries.push(format!(
            r#""{}":{{"dtype":"{dtype}","shape":[{elements}],"data_offsets":[{begin},{end}]}}"#,
            entries.len()
        ));
        begin = end;
    }
    // The padding determines where tensors begin, and so which of them are aligned.
    let padding = " ".repeat(input.index_up_to(9));
    format!("{{{}}}{padding}", entries.join(","))
}

fn header_len(file: &[u8]) -> usize {
    let len = format::header_len(&file[..8], file.len() as u64).expect("made to fit");
    debug_assert!(LENGTH_BYTES + len <= file.len() as u64);
    usize::try_from(len).expect("small")
}

fn run(simulation: &Simulation, file: &[u8], is_cut: bool, has_faults: bool) {
    let delivered = Cell::new(0);
    let (result, watched) = simulation.run_alone(&|_, tensor| {
        let range = tensor.info().file_range();
        let start = usize::try_from(range.start).expect("in the file");
        let end = usize::try_from(range.end).expect("in the file");
        assert!(
            tensor.bytes() == &file[start..end],
            "{tensor:?}: wrong bytes"
        );
        delivered.set(delivered.get() + 1);
        receive(&tensor);
    });
    match result {
        Ok(()) => {
            assert!(!has_faults, "a failed read went unnoticed");
            assert_eq!(
                delivered.get(),
                with_bytes(simulation),
                "tensors are missing"
            );
        }
        Err(error) => {
            assert!(is_cut || has_faults, "{error:?}");
            assert!(
                matches!(error.kind(), ErrorKind::Io | ErrorKind::Changed),
                "{error:?}"
            );
            assert_fit_to_print(&error);
        }
    }
    let usage = watched.usage();
    assert!(
        usage.peak <= simulation.memory_limit,
        "{usage:?}: beyond the limit"
    );
    assert_eq!(usage.charged, 0, "bytes still charged after the load");
    assert_eq!(watched.in_flight(), InFlight::default(), "still in flight");
}

fn with_bytes(simulation: &Simulation) -> usize {
    let tensors = simulation.tensors.iter();
    tensors.filter(|tensor| tensor.byte_len() > 0).count()
}
