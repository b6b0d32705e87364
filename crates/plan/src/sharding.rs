//! Slices of tensors by rank: tensor, expert and pipeline parallelism. Pure.

mod number_pattern;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use self::number_pattern::NumberPattern;
use crate::error::{Error, Result, counted};
use crate::{Indices, Selection, Slice};

/// Maximum number of tensors that an error names.
const SHOWN: usize = 10;

/// One rank's share of a checkpoint: the tensors that it loads, and the slices of those that are
/// split.
///
/// Shardings combine with [`and`](Self::and): the second divides what the first has left to this
/// rank.
///
/// # Examples
///
/// ```
/// # mod tload {
/// #     pub use tload_base::error::*;
/// #     pub use tload_plan::*;
/// # }
/// use tload::Sharding;
///
/// # let experts: Vec<_> = (0..8).map(|index| format!("0.experts.{index}.weight")).collect();
/// # let names = experts.iter().map(String::as_str).chain(["0.q_proj.weight", "0.o_proj.weight"]);
/// # let tensors = names.map(|name| (name, &[8, 8][..]));
/// let (rank, size) = (3, 8);
/// let attention = [("*.q_proj.weight", 0), ("*.o_proj.weight", 1)];
/// let sharding = Sharding::tp(rank, size, attention)?
///     .and(Sharding::ep(rank, size, "*.experts.{}.*")?);
/// // `tensors` has the name and the shape of each tensor of the checkpoint.
/// let mine = sharding.apply(tensors)?;
/// assert_eq!(mine.names, ["0.experts.3.weight", "0.q_proj.weight", "0.o_proj.weight"]);
/// // A load of `within(mine.names)` with `slices(mine.slices)` reads this rank's share.
/// # Ok::<(), tload::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sharding {
    splits: Vec<Split>,
}

/// Tensors and slices of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sharded {
    /// Names of the tensors to load, in the order of the checkpoint: for
    /// `Loader::within`.
    pub names: Vec<String>,
    /// Slices of those that are not loaded whole, by name: for
    /// `Loader::slices`.
    pub slices: Vec<(String, Slice)>,
}

#[derive(Clone, Debug)]
enum Split {
    /// Slices along a dimension; the first rule that matches a tensor applies.
    Dimensions {
        position: Position,
        rules: Vec<(Selection, usize)>,
    },
    /// Whole tensors, by a number in their names.
    Numbers {
        position: Position,
        pattern: Box<NumberPattern>,
        /// Tensors without a number that only the first rank loads, and only the last one.
        first: Option<Selection>,
        last: Option<Selection>,
    },
    /// Slices by name, each with the shape of the tensor that it is a slice of.
    Slices(HashMap<String, (Vec<usize>, Slice)>),
}

/// Name, shape and remaining indices of a tensor.
struct Divided<'t> {
    name: &'t str,
    shape: &'t [usize],
    /// Indices along each dimension.
    steps: Vec<Indices>,
    is_kept: bool,
}

impl Sharding {
    /// Splits tensors along a dimension: tensor parallelism. `dims` holds pairs of a glob of whole
    /// names (see [`Selection::glob`]) and a dimension; the first one that matches a tensor
    /// applies. Tensors without a match are loaded whole by every rank.
    ///
    /// Divides as `torch.chunk` and `Shard` of `DTensor` do: every rank gets the length divided by
    /// `size`, rounded up, until nothing is left. The last ranks get less or nothing (a slice of
    /// length 0) if `size` does not divide the length.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] if `rank` is not below `size`, or for a malformed glob.
    ///
    /// [`ErrorKind::InvalidRequest`]: crate::error::ErrorKind::InvalidRequest
    ///
    /// # Examples
    ///
    /// ```
    /// # mod tload {
    /// #     pub use tload_base::error::*;
    /// #     pub use tload_plan::*;
    /// # }
    /// use tload::{Indices, Sharding, Slice};
    ///
    /// let second = Sharding::tp(1, 2, [("*.weight", 0)])?;
    /// let mine = second.apply([("up.weight", &[6, 4][..]), ("norm", &[4][..])])?;
    /// assert_eq!(mine.names, ["up.weight", "norm"]);
    /// let rows = Slice::new([Indices::from(3..6)]);
    /// assert_eq!(mine.slices[0].1.dims()[0], rows.dims()[0]);
    /// # Ok::<(), tload::Error>(())
    /// ```
    pub fn tp<G: AsRef<str>>(
        rank: usize,
        size: usize,
        dims: impl IntoIterator<Item = (G, usize)>,
    ) -> Result<Self> {
        let position = Position::new(rank, size)?;
        let rules = dims
            .into_iter()
            .map(|(glob, dim)| Ok((Selection::glob(glob.as_ref())?, dim)))
            .collect::<Result<_>>()?;
        Ok(Self::from(Split::Dimensions { position, rules }))
    }

    /// Divides whole experts among the ranks: expert parallelism. `pattern` is a glob with `{}` in
    /// the place of the expert's number, such as `*.experts.{}.*`. The numbers found are divided
    /// into contiguous runs of equal length; the first ranks get one more if `size` does not divide
    /// their count. Tensors that do not match are loaded by every rank.
    ///
    /// Experts stacked in one tensor have no numbers; split their dimension with [`tp`](Self::tp).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] if `rank` is not below `size`, or for a malformed pattern.
    ///
    /// [`ErrorKind::InvalidRequest`]: crate::error::ErrorKind::InvalidRequest
    ///
    /// # Examples
    ///
    /// ```
    /// # mod tload {
    /// #     pub use tload_base::error::*;
    /// #     pub use tload_plan::*;
    /// # }
    /// let first = tload::Sharding::ep(0, 2, "*.experts.{}.*")?;
    /// let names = ["a.experts.0.up", "a.experts.1.up", "norm"];
    /// let mine = first.apply(names.map(|name| (name, &[4][..])))?;
    /// assert_eq!(mine.names, ["a.experts.0.up", "norm"]);
    /// # Ok::<(), tload::Error>(())
    /// ```
    pub fn ep(rank: usize, size: usize, pattern: &str) -> Result<Self> {
        Self::pp::<&str>(rank, size, pattern, [], [])
    }

    /// Divides whole layers among the ranks: pipeline parallelism. `pattern` is a glob with `{}` in
    /// the place of the layer's number, such as `*.layers.{}.*`; layers are divided as experts are
    /// by [`ep`](Self::ep).
    ///
    /// Tensors outside of layers are loaded by every rank, except those that match a glob of
    /// `first` or `last`: only the first or the last rank loads them (both, if they match both, as
    /// tied embeddings do).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] if `rank` is not below `size`, or for a malformed pattern.
    ///
    /// [`ErrorKind::InvalidRequest`]: crate::error::ErrorKind::InvalidRequest
    pub fn pp<G: AsRef<str>>(
        rank: usize,
        size: usize,
        pattern: &str,
        first: impl IntoIterator<Item = G>,
        last: impl IntoIterator<Item = G>,
    ) -> Result<Self> {
        let position = Position::new(rank, size)?;
        let pattern = Box::new(NumberPattern::new(pattern)?);
        Ok(Self::from(Split::Numbers {
            position,
            pattern,
            first: any_of(first)?,
            last: any_of(last)?,
        }))
    }

    /// Takes given slices of tensors, by name. Each comes with the shape of the tensor that it is a
    /// slice of, which must be that of the checkpoint's, and keeps all of its dimensions. Other
    /// tensors are loaded whole; names that the checkpoint lacks have no effect.
    pub fn from_slices(slices: impl IntoIterator<Item = (String, Vec<usize>, Slice)>) -> Self {
        let slices = slices
            .into_iter()
            .map(|(name, shape, slice)| (name, (shape, slice)));
        Self::from(Split::Slices(slices.collect()))
    }

    /// Returns the combination of both: `other` divides what this sharding leaves to the rank.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.splits.extend(other.splits);
        self
    }

    /// Returns the tensors and slices of this rank, of all tensors of a checkpoint by name and
    /// shape.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::NoSuchTensor`] for a pattern that matches nothing: it is probably misspelt.
    /// * [`ErrorKind::InvalidRequest`] for a tensor that does not have the dimension of its rule,
    ///   or the shape that its slice is of.
    ///
    /// [`ErrorKind::NoSuchTensor`]: crate::error::ErrorKind::NoSuchTensor
    /// [`ErrorKind::InvalidRequest`]: crate::error::ErrorKind::InvalidRequest
    pub fn apply<'t>(
        &self,
        tensors: impl IntoIterator<Item = (&'t str, &'t [usize])>,
    ) -> Result<Sharded> {
        let tensors = tensors.into_iter().map(|(name, shape)| Divided {
            name,
            shape,
            steps: shape.iter().map(|len| Indices::from(0..*len)).collect(),
            is_kept: true,
        });
        let mut tensors: Vec<Divided<'_>> = tensors.collect();
        let names: Vec<&str> = tensors.iter().map(|tensor| tensor.name).collect();
        for split in &self.splits {
            split.apply(&names, &mut tensors)?;
        }
        let mut sharded = Sharded::default();
        for tensor in tensors.into_iter().filter(|tensor| tensor.is_kept) {
            sharded.names.push(tensor.name.to_owned());
            let whole = tensor.shape.iter().map(|len| Indices::from(0..*len));
            if !whole.eq(tensor.steps.iter().copied()) {
                let slice = Slice::new(tensor.steps);
                sharded.slices.push((tensor.name.to_owned(), slice));
            }
        }
        Ok(sharded)
    }
}

#[doc(hidden)]
impl From<Split> for Sharding {
    fn from(split: Split) -> Self {
        Self {
            splits: vec![split],
        }
    }
}

impl Split {
    fn apply(&self, names: &[&str], tensors: &mut [Divided<'_>]) -> Result<()> {
        match self {
            Self::Dimensions { position, rules } => {
                let mut is_matched = vec![false; names.len()];
                for (globs, dim) in rules {
                    for index in globs.resolve(names)? {
                        if !std::mem::replace(&mut is_matched[index], true) {
                            tensors[index].split(*dim, *position)?;
                        }
                    }
                }
            }
            Self::Numbers {
                position,
                pattern,
                first,
                last,
            } => {
                let numbers = pattern.numbers(names)?;
                let found: BTreeSet<u64> = numbers.iter().flatten().copied().collect();
                let run = position.even_run(found.len());
                let mine: BTreeSet<u64> =
                    found.into_iter().skip(run.start).take(run.len()).collect();
                let ends = [
                    (first, position.rank == 0),
                    (last, position.rank + 1 == position.size),
                ];
                // By tensor: false if it matches an end that is not on this rank.
                let mut is_here = vec![None; names.len()];
                for (globs, is_end) in ends {
                    let Some(globs) = globs else { continue };
                    for index in globs.resolve(names)? {
                        is_here[index] = Some(is_end || is_here[index] == Some(true));
                    }
                }
                for ((tensor, number), is_here) in tensors.iter_mut().zip(numbers).zip(is_here) {
                    tensor.is_kept &= match number {
                        Some(number) => mine.contains(&number),
                        None => is_here.unwrap_or(true),
                    };
                }
            }
            Self::Slices(slices) => {
                let mut others = Vec::new();
                for tensor in tensors {
                    let Some((shape, slice)) = slices.get(tensor.name) else {
                        continue;
                    };
                    let left = tensor.steps.iter().map(|steps| steps.count);
                    if left.clone().eq(shape.iter().copied()) {
                        tensor.keep(slice);
                    } else if tensor.is_kept {
                        others.push((tensor.name, left.collect::<Vec<_>>(), shape));
                    }
                }
                if let Some((first, ..)) = others.first() {
                    return Err(other_shapes(&others).with_tensor(*first));
                }
            }
        }
        Ok(())
    }
}

impl Divided<'_> {
    /// Keeps one rank's indices along a dimension.
    fn split(&mut self, dim: usize, position: Position) -> Result<()> {
        if dim >= self.shape.len() {
            let message = format!(
                "cannot split along dimension {dim} into {}: the tensor's shape is {:?}",
                position.size, self.shape
            );
            return Err(Error::invalid_request(message)
                .with_tensor(self.name)
                .with_hint("dimensions count from 0; put a rule with a narrower glob first"));
        }
        let mine = position.rounded_up_run(self.steps[dim].count);
        narrow(&mut self.steps[dim], Indices::from(mine));
        Ok(())
    }

    /// Keeps a slice of the indices.
    fn keep(&mut self, slice: &Slice) {
        for (steps, kept) in self.steps.iter_mut().zip(slice.dims()) {
            narrow(steps, *kept);
        }
    }
}

/// Keeps some of the indices along a dimension; `kept` counts among them.
fn narrow(steps: &mut Indices, kept: Indices) {
    // Every second index from 4 on, and of these every third from the second on: every sixth index
    // from 6 on. The start is past the end if nothing is kept.
    *steps = Indices {
        start: steps.start + kept.start * steps.step,
        count: kept.count,
        step: steps.step * kept.step,
        single: kept.single,
    };
}

/// Returns the error for tensors whose slices are of other shapes: name, found, wanted.
fn other_shapes(others: &[(&str, Vec<usize>, &Vec<usize>)]) -> Error {
    let shown = others.iter().take(SHOWN).map(|(name, found, wanted)| {
        format!("{name:?} has shape {found:?} in the checkpoint, {wanted:?} here")
    });
    let mut shown: Vec<_> = shown.collect();
    if others.len() > SHOWN {
        shown.push(format!("and {} more", others.len() - SHOWN));
    }
    let count = counted(others.len() as u64, "divided tensor");
    let message = format!("{count} with another shape: {}", shown.join("; "));
    Error::invalid_request(message).with_hint("check whether the checkpoint is that of this model")
}

/// Returns the union of globs; `None` if there are none.
fn any_of<G: AsRef<str>>(globs: impl IntoIterator<Item = G>) -> Result<Option<Selection>> {
    let mut union: Option<Selection> = None;
    for glob in globs {
        let glob = Selection::glob(glob.as_ref())?;
        union = Some(match union {
            Some(union) => union.union(glob),
            None => glob,
        });
    }
    Ok(union)
}

/// Rank among those that divide something.
#[derive(Clone, Copy, Debug)]
struct Position {
    rank: usize,
    size: usize,
}

impl Position {
    fn new(rank: usize, size: usize) -> Result<Self> {
        if rank < size {
            return Ok(Self { rank, size });
        }
        let message = format!(
            "there is no rank {rank} among {}",
            counted(size as u64, "rank")
        );
        Err(Error::invalid_request(message)
            .with_hint("ranks count from 0 and are below the size, which is at least 1"))
    }

    /// Returns this rank's indices of `len`: the length divided by the size, rounded up, until
    /// nothing is left.
    fn rounded_up_run(self, len: usize) -> Range<usize> {
        let step = len.div_ceil(self.size);
        let bound = |rank: usize| rank.saturating_mul(step).min(len);
        bound(self.rank)..bound(self.rank + 1)
    }

    /// Returns this rank's indices of `len`, of lengths that differ by one at most.
    fn even_run(self, len: usize) -> Range<usize> {
        let (step, longer) = (len / self.size, len % self.size);
        let bound = |rank: usize| rank * step + rank.min(longer);
        bound(self.rank)..bound(self.rank + 1)
    }
}
