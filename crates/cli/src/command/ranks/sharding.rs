//! Tensors of one rank. Pure.
//!
//! Both ways need names and shapes only and know no model. They divide a checkpoint as engines do,
//! so that reads, memory and time are those of a real start, but not into the slices that a certain
//! engine would ask for.

use tload::{Indices, Result, Sharding, Slice, TensorInfo};

use crate::args::ShardArg;

/// Experts of any model that numbers them.
const EXPERTS: &str = "*experts.{}.*";

/// Names and slices of the tensors of one rank.
#[derive(Debug)]
pub(super) struct RankTensors {
    /// All that are selected if `None`.
    pub(super) names: Option<Vec<String>>,
    pub(super) slices: Vec<(String, Slice)>,
}

/// Returns the tensors that `rank` of `size` ranks loads, of those `selected`.
pub(super) fn of_rank(
    shard: ShardArg,
    selected: &[TensorInfo],
    rank: usize,
    size: usize,
) -> Result<RankTensors> {
    Ok(match shard {
        ShardArg::None => RankTensors {
            names: None,
            slices: Vec::new(),
        },
        ShardArg::Tp => {
            let slice = |tensor: &TensorInfo| {
                let bits = (tensor.byte_len() * 8).checked_div(tensor.element_count())?;
                let slice = even_slice(tensor.shape(), bits, rank, size)?;
                Some((tensor.name().to_owned(), slice))
            };
            RankTensors {
                names: None,
                slices: selected.iter().filter_map(slice).collect(),
            }
        }
        ShardArg::Ep => {
            let tensors = selected
                .iter()
                .map(|tensor| (tensor.name(), tensor.shape()));
            let sharded = Sharding::ep(rank, size, EXPERTS)?.apply(tensors)?;
            RankTensors {
                names: Some(sharded.names),
                slices: sharded.slices,
            }
        }
    })
}

/// Returns an equal slice of a tensor with elements of `bits`, if it can be divided along its first
/// or second dimension.
fn even_slice(shape: &[usize], bits: u64, rank: usize, size: usize) -> Option<Slice> {
    if shape.len() < 2 {
        return None;
    }
    (0..2).find_map(|dim| {
        let count = shape[dim] / size;
        if count == 0 || !shape[dim].is_multiple_of(size) {
            return None;
        }
        // Elements of less than a byte are packed: a slice begins and ends on whole bytes.
        let inner: u64 = shape[dim + 1..].iter().map(|len| *len as u64).product();
        if !(count as u64 * inner * bits).is_multiple_of(8) {
            return None;
        }
        let whole = shape[..dim].iter().map(|len| Indices::from(0..*len));
        let cut = Indices::from(rank * count..(rank + 1) * count);
        Some(Slice::new(whole.chain([cut])))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_of_the_first_dimension_that_divides() {
        let rows = even_slice(&[8, 6], 16, 1, 4);
        assert_eq!(rows, Some(Slice::new([Indices::from(2..4)])));
        let columns = even_slice(&[6, 8], 16, 3, 4);
        assert_eq!(columns, Some(Slice::new([0..6, 6..8])));
        for shape in [&[8][..], &[], &[6, 6], &[0, 0]] {
            assert_eq!(even_slice(shape, 16, 0, 4), None, "{shape:?}");
        }
        // Rows of one and a half bytes.
        assert_eq!(even_slice(&[4, 3], 4, 1, 4), None);
        assert_eq!(
            even_slice(&[4, 3], 4, 1, 2),
            Some(Slice::new([Indices::from(2..4)]))
        );
    }
}
