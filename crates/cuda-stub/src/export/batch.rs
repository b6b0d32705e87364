//! Functions that queue several copies at once: `cuMemcpyBatchAsync` of CUDA 12.8 and its successor
//! of CUDA 13.0, which does not report the copy that failed.

use super::{In, Out};
use crate::copy::{self, BatchCopy};
use crate::status::{INVALID_VALUE, Outcome};

/// `CUmemcpyAttributes`: the order of accesses to the source (1 in stream order, 2 during the call,
/// 3 any), the hints of two locations, which concern managed memory, and flags.
pub(crate) type Attributes = [u32; 6];

super::driver_functions! {
    Context fn cuMemcpyBatchAsync(
        to: In<usize>, from: In<usize>, lengths: In<usize>, count: usize,
        attributes: In<Attributes>, firsts: In<usize>, kinds: usize,
        failed: Out<usize>, stream: u64,
    ) |driver, here| {
        failed.put_if_wanted(usize::MAX);
        check(attributes, firsts, kinds, count)?;
        let copies = copies(to, from, lengths, count)?;
        copy::submit_batch(driver, &copies, stream, here).map_err(|(status, index)| {
            failed.put_if_wanted(index);
            status
        })
    };

    Context fn cuMemcpyBatchAsync_v2(
        to: In<usize>, from: In<usize>, lengths: In<usize>, count: usize,
        attributes: In<Attributes>, firsts: In<usize>, kinds: usize,
        stream: u64,
    ) |driver, here| {
        check(attributes, firsts, kinds, count)?;
        let copies = copies(to, from, lengths, count)?;
        copy::submit_batch(driver, &copies, stream, here).map_err(|(status, _)| status)
    };
}

/// Checks that every copy has valid attributes: each applies from the copy with its index in
/// `firsts` to the next one's.
fn check(attributes: In<Attributes>, firsts: In<usize>, kinds: usize, count: usize) -> Outcome {
    let firsts = firsts.list(kinds.min(count))?;
    let ascend = firsts.windows(2).all(|pair| pair[0] < pair[1]);
    let inside = firsts.first() == Some(&0) && firsts.last() < Some(&count);
    let known = |it: &Attributes| matches!(it[0], 1..=3) && it[5] <= 1;
    let valid = kinds <= count && ascend && inside && attributes.list(kinds)?.iter().all(known);
    valid.then_some(()).ok_or(INVALID_VALUE)
}

fn copies(
    to: In<usize>,
    from: In<usize>,
    lengths: In<usize>,
    count: usize,
) -> Outcome<Vec<BatchCopy>> {
    let (to, from) = (to.list(count)?.into_iter(), from.list(count)?);
    let ranges = to.zip(from).zip(lengths.list(count)?);
    let copies = ranges.map(|((to, from), len)| BatchCopy { to, from, len });
    Ok(copies.collect())
}
