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
        let copies = copies([to, from, lengths], count, attributes, firsts, kinds)?;
        let failed = |index| failed.put_if_wanted(index);
        copy::submit_batch(driver, &copies, stream, here, failed)
    };

    Context fn cuMemcpyBatchAsync_v2(
        to: In<usize>, from: In<usize>, lengths: In<usize>, count: usize,
        attributes: In<Attributes>, firsts: In<usize>, kinds: usize,
        stream: u64,
    ) |driver, here| {
        let copies = copies([to, from, lengths], count, attributes, firsts, kinds)?;
        copy::submit_batch(driver, &copies, stream, here, |_| ())
    };
}

/// Returns the copies. Each must have valid attributes, which apply from the copy with their index
/// in `firsts` to the next one's.
fn copies(
    lists: [In<usize>; 3],
    count: usize,
    attributes: In<Attributes>,
    firsts: In<usize>,
    kinds: usize,
) -> Outcome<Vec<BatchCopy>> {
    let firsts = firsts.list(kinds.min(count))?;
    let ascend = firsts.windows(2).all(|pair| pair[0] < pair[1]);
    let inside = firsts.first() == Some(&0) && firsts.last() < Some(&count);
    let known = |it: &Attributes| matches!(it[0], 1..=3) && it[5] <= 1;
    if kinds > count || !ascend || !inside || !attributes.list(kinds)?.iter().all(known) {
        return Err(INVALID_VALUE);
    }
    let [to, from, len] = lists.map(|list| list.list(count));
    let ranges = to?.into_iter().zip(from?).zip(len?);
    let copies = ranges.map(|((to, from), len)| BatchCopy { to, from, len });
    Ok(copies.collect())
}
