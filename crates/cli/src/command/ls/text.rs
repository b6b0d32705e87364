//! Tables of a listing.

use std::io::{self, Write};

use tload::internal::format_bytes;

use super::listing::{Listing, Tensors, Total};
use crate::output::table::{Align, render};
use tload_quantity::format_count;

/// Writes the tables. Totals come last, where they stay in sight after thousands of tensors.
pub(super) fn write(out: &mut dyn Write, listing: &Listing) -> io::Result<()> {
    if matches!(listing.tensors, Tensors::Largest(_)) {
        writeln!(out, "largest tensors:")?;
    }
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
    let rows = listing.lines().iter().map(|tensor| {
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
