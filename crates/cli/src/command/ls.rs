//! `tload ls`: lists the contents of a checkpoint from its headers.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;
use tload::{Checkpoint, Loader, Result, Shard, TensorInfo, format_bytes};

use super::open::open;
use crate::args::LsArgs;
use crate::interrupt::Interrupt;
use crate::options;
use crate::output::error::{standard_output, warn};
use crate::output::quantity::format_count;
use crate::output::table::{Align, render};

pub(crate) fn run(args: &LsArgs, interrupt: &Interrupt, out: &mut dyn Write) -> Result<()> {
    let from = (&args.store, &args.links);
    let checkpoint = open(&args.location, from, args.time.timeout, interrupt)?;
    for note in checkpoint.notes() {
        warn(&format!("note: {note}"));
    }
    let listing = Listing::new(&checkpoint, &selected(&checkpoint, args)?);
    if args.json {
        return interrupt.answer().give(out, &listing);
    }
    write_text(out, &listing).map_err(standard_output)
}

/// Returns the selected tensors, in file order.
fn selected(checkpoint: &Checkpoint, args: &LsArgs) -> Result<Vec<TensorInfo>> {
    Loader::new(checkpoint.clone())
        .tensors(options::selection(&args.select)?)
        .selected()
}

/// Output of `--json`; the text shows the same values.
#[derive(Debug, Serialize)]
struct Listing {
    location: String,
    total: Total,
    dtypes: Vec<DtypeTotal>,
    metadata: BTreeMap<String, String>,
    shards: Vec<ShardLine>,
    tensors: Vec<TensorLine>,
}

#[derive(Debug, Serialize)]
struct Total {
    tensors: usize,
    bytes: u64,
    shards: usize,
}

#[derive(Debug, Serialize)]
struct DtypeTotal {
    dtype: &'static str,
    tensors: usize,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct ShardLine {
    location: String,
    file_bytes: u64,
    header_bytes: u64,
    tensors: usize,
}

#[derive(Debug, Serialize)]
struct TensorLine {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: u64,
    /// Index into the shards.
    shard: usize,
    /// Offset from the start of the file, bytes.
    offset: u64,
}

impl Listing {
    fn new(checkpoint: &Checkpoint, tensors: &[TensorInfo]) -> Self {
        let shards = checkpoint.shards();
        Self {
            location: checkpoint.location().to_string(),
            total: Total {
                tensors: tensors.len(),
                bytes: tensors.iter().map(TensorInfo::byte_len).sum(),
                shards: shards.len(),
            },
            dtypes: dtype_totals(tensors),
            metadata: checkpoint.metadata().clone(),
            shards: shards.iter().map(ShardLine::new).collect(),
            tensors: tensors.iter().map(TensorLine::new).collect(),
        }
    }
}

impl ShardLine {
    fn new(shard: &Shard) -> Self {
        Self {
            location: shard.location().to_string(),
            file_bytes: shard.file_bytes(),
            header_bytes: shard.header_bytes(),
            tensors: shard.tensor_count(),
        }
    }
}

impl TensorLine {
    fn new(tensor: &TensorInfo) -> Self {
        Self {
            name: tensor.name().to_owned(),
            dtype: tensor.dtype().name(),
            shape: tensor.shape().to_vec(),
            bytes: tensor.byte_len(),
            shard: tensor.shard(),
            offset: tensor.file_range().start,
        }
    }
}

/// Returns the totals of each dtype, the one with the most bytes first.
fn dtype_totals(tensors: &[TensorInfo]) -> Vec<DtypeTotal> {
    let mut totals = BTreeMap::new();
    for tensor in tensors {
        let dtype = tensor.dtype().name();
        let total = totals.entry(dtype).or_insert(DtypeTotal {
            dtype,
            tensors: 0,
            bytes: 0,
        });
        total.tensors += 1;
        total.bytes += tensor.byte_len();
    }
    let mut totals: Vec<_> = totals.into_values().collect();
    totals.sort_by_key(|total| std::cmp::Reverse(total.bytes));
    totals
}

/// Writes the tables. Totals come last, where they stay in sight after thousands of tensors.
fn write_text(out: &mut dyn Write, listing: &Listing) -> io::Result<()> {
    writeln!(out, "{}", tensor_table(listing))?;
    writeln!(out, "{}", shard_table(listing))?;
    writeln!(out, "{}", dtype_table(listing))?;
    let Total {
        tensors,
        bytes,
        shards,
    } = listing.total;
    writeln!(
        out,
        "total: {}, {} ({bytes} bytes), {}",
        format_count(tensors as u64, "tensor"),
        format_bytes(bytes),
        format_count(shards as u64, "shard"),
    )
}

fn tensor_table(listing: &Listing) -> String {
    let header = [
        ("tensor", Align::Left),
        ("dtype", Align::Left),
        ("shape", Align::Left),
        ("size", Align::Right),
        ("shard", Align::Right),
    ];
    let rows = listing.tensors.iter().map(|tensor| {
        vec![
            tensor.name.clone(),
            tensor.dtype.to_owned(),
            format!("{:?}", tensor.shape),
            format_bytes(tensor.bytes),
            (tensor.shard + 1).to_string(),
        ]
    });
    render(&header, rows)
}

fn shard_table(listing: &Listing) -> String {
    let header = [
        ("shard", Align::Right),
        ("tensors", Align::Right),
        ("size", Align::Right),
        ("file", Align::Left),
    ];
    let rows = listing.shards.iter().enumerate().map(|(index, shard)| {
        vec![
            (index + 1).to_string(),
            shard.tensors.to_string(),
            format_bytes(shard.file_bytes),
            shard.location.clone(),
        ]
    });
    render(&header, rows)
}

fn dtype_table(listing: &Listing) -> String {
    let header = [
        ("dtype", Align::Left),
        ("tensors", Align::Right),
        ("size", Align::Right),
    ];
    let rows = listing.dtypes.iter().map(|total| {
        vec![
            total.dtype.to_owned(),
            total.tensors.to_string(),
            format_bytes(total.bytes),
        ]
    });
    render(&header, rows)
}
