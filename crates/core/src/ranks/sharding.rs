//! Slices of tensors by rank: tensor, expert and pipeline parallelism. Pure.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use globset::{Glob, GlobMatcher};

use crate::error::{Error, ErrorKind, Result, counted};
use crate::plan::{Selection, Slice, Steps};

/// Maximum number of tensors that an error names.
const SHOWN: usize = 10;

/// Place of the number in a pattern.
const NUMBER: &str = "{}";

/// One rank's share of a checkpoint: the tensors that it loads, and the slices of those that are
/// split.
///
/// Shardings combine with [`and`](Self::and): the second divides what the first has left to this
/// rank.
///
/// ```no_run
/// # fn main() -> tload::Result<()> {
/// use tload::{Loader, Location, Selection, Sharding};
///
/// let loader = Loader::open(&Location::parse("model_dir")?)?;
/// let (rank, size) = (3, 8);
/// let attention = [("*.q_proj.weight", 0), ("*.o_proj.weight", 1)];
/// let sharding = Sharding::tp(rank, size, attention)?
///     .and(Sharding::ep(rank, size, "*.experts.{}.*")?);
/// let tensors = loader.checkpoint().tensors().iter();
/// let mine = sharding.apply(tensors.map(|tensor| (tensor.name(), tensor.shape())))?;
/// let stream = loader
///     .tensors(Selection::names(mine.names))
///     .slices(mine.slices)
///     .stream()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Sharding {
    splits: Vec<Split>,
}

/// Tensors and slices of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sharded {
    /// Names of the tensors to load, in the order of the checkpoint: for [`Selection::names`].
    pub names: Vec<String>,
    /// Slices of those that are not loaded whole, by name: for
    /// [`Loader::slices`](crate::Loader::slices).
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
    steps: Vec<Steps>,
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
    pub fn tp<G: AsRef<str>>(
        rank: usize,
        size: usize,
        dims: impl IntoIterator<Item = (G, usize)>,
    ) -> Result<Self> {
        let position = Position::new(rank, size)?;
        let rules = dims.into_iter();
        let rules = rules.map(|(glob, dim)| Ok((Selection::glob(glob.as_ref())?, dim)));
        let rules = rules.collect::<Result<_>>()?;
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
        let slices = slices.into_iter();
        let slices = slices.map(|(name, shape, slice)| (name, (shape, slice)));
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
    pub fn apply<'t>(
        &self,
        tensors: impl IntoIterator<Item = (&'t str, &'t [usize])>,
    ) -> Result<Sharded> {
        let tensors = tensors.into_iter().map(|(name, shape)| Divided {
            name,
            shape,
            steps: shape.iter().map(|len| Steps::from(0..*len)).collect(),
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
            let whole = tensor.shape.iter().map(|len| Steps::from(0..*len));
            if !whole.eq(tensor.steps.iter().copied()) {
                let slice = Slice::new(tensor.steps);
                sharded.slices.push((tensor.name.to_owned(), slice));
            }
        }
        Ok(sharded)
    }
}

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
                let mine = position.even_run(found.len());
                let mine: BTreeSet<u64> = found
                    .into_iter()
                    .skip(mine.start)
                    .take(mine.len())
                    .collect();
                let ends = [
                    (first, position.rank == 0),
                    (last, position.rank + 1 == position.size),
                ];
                // By tensor: false if it matches an end, but none that is this rank.
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
        narrow(&mut self.steps[dim], Steps::from(mine));
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
fn narrow(steps: &mut Steps, kept: Steps) {
    // Every second index from 4 on, and of these every third from the second on: every sixth index
    // from 6 on. The start is past the end if nothing is kept.
    *steps = Steps {
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
            Some(union) => union.or(glob),
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

/// Glob with a number in one place.
#[derive(Clone, Debug)]
struct NumberPattern {
    text: String,
    before: GlobMatcher,
    after: GlobMatcher,
}

impl NumberPattern {
    fn new(text: &str) -> Result<Self> {
        let (before, after) = text
            .split_once(NUMBER)
            .filter(|(_, after)| !after.contains(NUMBER))
            .ok_or_else(|| {
                let message = format!("pattern {text:?} has no single {NUMBER} for the number");
                Error::invalid_request(message).with_hint("for example *.layers.{}.*")
            })?;
        let compile = |glob: &str| {
            let glob = Glob::new(glob).map_err(|error| {
                let message = format!("pattern {text:?} is malformed: {}", error.kind());
                Error::invalid_request(message)
            })?;
            Ok(glob.compile_matcher())
        };
        Ok(Self {
            text: text.to_owned(),
            before: compile(before)?,
            after: compile(after)?,
        })
    }

    /// Returns the number in each name that matches.
    fn numbers(&self, names: &[&str]) -> Result<Vec<Option<u64>>> {
        let numbers: Vec<_> = names.iter().map(|name| self.number(name)).collect();
        if numbers.iter().any(Option::is_some) {
            return Ok(numbers);
        }
        let total = counted(names.len() as u64, "tensor");
        let message = format!("pattern {:?} matches none of {total}", self.text);
        let error = Error::new(ErrorKind::NoSuchTensor, message);
        let any = Selection::glob(&self.text.replace(NUMBER, "*"))?;
        let hint = match any.resolve(names) {
            Ok(_) => Some(format!(
                "{NUMBER} stands for a number; the names have none there"
            )),
            Err(error) => error.hint().map(str::to_owned),
        };
        Err(
            match hint.filter(|hint| hint.starts_with("did you mean") || hint.starts_with(NUMBER)) {
                Some(hint) => error.with_hint(hint),
                None => error.with_hint("list the names with ‹list_names›"),
            },
        )
    }

    /// Returns the first number of a name that is in the place.
    fn number(&self, name: &str) -> Option<u64> {
        let mut from = 0;
        while let Some(start) = name[from..].find(|c: char| c.is_ascii_digit()) {
            let start = from + start;
            let digits = name[start..].find(|c: char| !c.is_ascii_digit());
            let end = digits.map_or(name.len(), |len| start + len);
            if self.before.is_match(&name[..start]) && self.after.is_match(&name[end..]) {
                return name[start..end].parse().ok();
            }
            from = end;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TENSORS: [(&str, &[usize]); 9] = [
        ("model.embed.weight", &[10, 4]),
        ("model.layers.0.q_proj.weight", &[8, 4]),
        ("model.layers.0.o_proj.weight", &[4, 8]),
        ("model.layers.1.experts.0.up", &[6, 4]),
        ("model.layers.1.experts.1.up", &[6, 4]),
        ("model.layers.1.experts.10.up", &[6, 4]),
        ("model.layers.2.q_proj.weight", &[8, 4]),
        ("model.norm.weight", &[4]),
        ("lm_head.weight", &[10, 4]),
    ];

    /// Returns the indices of the names, and the slices by index.
    fn apply(sharding: &Sharding) -> (Vec<usize>, Vec<(usize, Slice)>) {
        let index = |name: &str| {
            let position = TENSORS.iter().position(|(known, _)| *known == name);
            position.expect("a tensor of the checkpoint")
        };
        let Sharded { names, slices } = sharding.apply(TENSORS).expect("matches");
        let names = names.iter().map(|name| index(name)).collect();
        let slices = slices.into_iter();
        (
            names,
            slices.map(|(name, slice)| (index(&name), slice)).collect(),
        )
    }

    fn slice<const N: usize>(ranges: [Range<usize>; N]) -> Slice {
        Slice::new(ranges)
    }

    fn valid(sharding: Result<Sharding>) -> Sharding {
        sharding.expect("valid")
    }

    #[test]
    fn tensors_split_along_the_dimension_of_the_first_rule() {
        let rules = [("*.o_proj.*", 1), ("*layers.0.*", 0), ("*embed*", 0)];
        let all: Vec<usize> = (0..9).collect();
        let (names, slices) = apply(&valid(Sharding::tp(1, 2, rules)));
        assert_eq!(names, all);
        let halves = [
            (0, slice([5..10, 0..4])),
            (1, slice([4..8, 0..4])),
            (2, slice([0..4, 4..8])),
        ];
        assert_eq!(slices, halves);
        let (names, slices) = apply(&valid(Sharding::tp(0, 1, rules)));
        assert_eq!((names, slices.len()), (all, 0));
    }

    #[test]
    fn uneven_lengths_are_divided_as_by_torch() {
        // torch.arange(10).chunk(4) has the lengths 3, 3, 3 and 1; of 8 ranks the last three get
        // nothing.
        let lens = |size: usize, len: usize| -> Vec<usize> {
            let ranks = 0..size;
            let run = |rank| Position { rank, size }.rounded_up_run(len).len();
            ranks.map(run).collect()
        };
        assert_eq!(lens(4, 10), [3, 3, 3, 1]);
        assert_eq!(lens(8, 10), [2, 2, 2, 2, 2, 0, 0, 0]);
        assert_eq!(lens(3, 0), [0, 0, 0]);
        let (_, slices) = apply(&valid(Sharding::tp(7, 8, [("*embed*", 0)])));
        assert_eq!(slices, [(0, slice([10..10, 0..4]))]);
    }

    #[test]
    fn given_slices_are_kept_and_divided_further() {
        let every = |start, count, step| Steps {
            start,
            count,
            step,
            single: false,
        };
        let rows = Slice::new([every(1, 3, 3)]);
        let given = [
            ("lm_head.weight".to_owned(), vec![10, 4], rows.clone()),
            ("unknown".to_owned(), vec![7], rows),
        ];
        let (names, slices) = apply(&Sharding::from_slices(given.clone()));
        assert_eq!(names.len(), TENSORS.len());
        let columns = Steps::from(0..4);
        assert_eq!(slices, [(8, Slice::new([every(1, 3, 3), columns]))]);
        // From rows 1, 4 and 7, the second of two ranks gets row 7; in the other order, rows 6 and
        // 8 of 5 to 9.
        let last = || valid(Sharding::tp(1, 2, [("lm_head.*", 0)]));
        let both = Sharding::from_slices(given).and(last());
        assert_eq!(apply(&both).1, [(8, Slice::new([every(7, 1, 3), columns]))]);
        let odd = (
            "lm_head.weight".to_owned(),
            vec![5, 4],
            Slice::new([every(1, 2, 2)]),
        );
        let both = last().and(Sharding::from_slices([odd]));
        assert_eq!(apply(&both).1, [(8, Slice::new([every(6, 2, 2), columns]))]);
    }

    #[test]
    fn slices_of_other_shapes_are_listed() {
        let given = ["lm_head.weight", "model.norm.weight", "model.embed.weight"]
            .map(|name| (name.to_owned(), vec![10, 4], Slice::new([0..5, 0..4])));
        let error = error(Ok(Sharding::from_slices(given.clone())));
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        assert_eq!(error.tensor(), Some("model.norm.weight"));
        assert_eq!(
            error.message(),
            "1 divided tensor with another shape: \"model.norm.weight\" has shape [4] in the \
             checkpoint, [10, 4] here"
        );
        // Another rank's tensors do not matter.
        let first = ["lm_head.*", "*.norm.*"];
        let elsewhere = valid(Sharding::pp(1, 2, "*.layers.{}.*", first, []));
        let mine = elsewhere.and(Sharding::from_slices(given)).apply(TENSORS);
        assert_eq!(mine.expect("fits").slices.len(), 1);
    }

    #[test]
    fn experts_are_divided_by_number() {
        let own = |rank, size| apply(&valid(Sharding::ep(rank, size, "*.experts.{}.*"))).0;
        // Three experts, 0, 1 and 10, in the order of their numbers.
        assert_eq!(own(0, 2), [0, 1, 2, 3, 4, 6, 7, 8]);
        assert_eq!(own(1, 2), [0, 1, 2, 5, 6, 7, 8]);
        assert_eq!(own(3, 4), [0, 1, 2, 6, 7, 8]);
    }

    #[test]
    fn layers_and_ends_are_divided_among_stages() {
        let pattern = "*.layers.{}.*";
        let own = |rank, size, first: &[&str], last: &[&str]| {
            let first = first.iter().copied();
            apply(&valid(Sharding::pp(
                rank,
                size,
                pattern,
                first,
                last.iter().copied(),
            )))
            .0
        };
        assert_eq!(own(0, 2, &[], &[]), [0, 1, 2, 3, 4, 5, 7, 8]);
        assert_eq!(own(1, 2, &[], &[]), [0, 6, 7, 8]);
        let (first, last) = (["*embed*"], ["*.norm.*", "lm_head*"]);
        assert_eq!(own(0, 3, &first, &last), [0, 1, 2]);
        assert_eq!(own(1, 3, &first, &last), [3, 4, 5]);
        assert_eq!(own(2, 3, &first, &last), [6, 7, 8]);
        // Tied embeddings.
        for (rank, is_end) in [(0, true), (1, false), (2, true)] {
            let own = own(rank, 3, &["*embed*"], &["*embed*"]);
            assert_eq!(own.contains(&0), is_end);
        }
    }

    #[test]
    fn shardings_combine() {
        let experts = valid(Sharding::ep(1, 2, "*.experts.{}.*"));
        let rows = valid(Sharding::tp(1, 2, [("*.up", 0)]));
        let both = (vec![0, 1, 2, 5, 6, 7, 8], vec![(5, slice([3..6, 0..4]))]);
        assert_eq!(apply(&experts.clone().and(rows.clone())), both);
        assert_eq!(apply(&rows.and(experts)), both);
        // Another dimension, and a slice of a slice.
        let quarter = |dim| {
            valid(Sharding::tp(0, 2, [("*embed*", 0)])).and(valid(Sharding::tp(
                1,
                2,
                [("*embed*", dim)],
            )))
        };
        assert_eq!(apply(&quarter(1)).1, [(0, slice([0..5, 2..4]))]);
        assert_eq!(apply(&quarter(0)).1, [(0, slice([3..5, 0..4]))]);
    }

    fn error(sharding: Result<Sharding>) -> Error {
        sharding
            .and_then(|sharding| sharding.apply(TENSORS))
            .expect_err("refused")
    }

    #[test]
    fn impossible_requests_are_refused() {
        for (rank, size) in [(0, 0), (2, 2), (9, 8)] {
            for sharding in [
                Sharding::tp(rank, size, [("*", 0)]),
                Sharding::ep(rank, size, "*.{}.*"),
                Sharding::pp(rank, size, "*.{}.*", ["*"], ["*"]),
            ] {
                let error = error(sharding);
                assert_eq!(error.kind(), ErrorKind::InvalidRequest);
                assert!(
                    error
                        .message()
                        .contains(&format!("no rank {rank} among {size} rank"))
                );
            }
        }
        let error_of_dim = error(Sharding::tp(0, 2, [("*.weight", 1)]));
        assert_eq!(error_of_dim.kind(), ErrorKind::InvalidRequest);
        assert_eq!(error_of_dim.tensor(), Some("model.norm.weight"));
        assert_eq!(
            error_of_dim.message(),
            "cannot split along dimension 1 into 2: the tensor's shape is [4]"
        );
        for pattern in ["*.layers.*", "*.{}.{}.*", "[{}", ""] {
            let error = error(Sharding::ep(0, 2, pattern));
            assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{pattern:?}");
            assert!(error.message().contains(&format!("{pattern:?}")), "{error}");
        }
    }

    #[test]
    fn pattern_without_match_suggests_another() {
        for (sharding, message, hint) in [
            (
                Sharding::tp(0, 2, [("*.q_porj.weight", 0)]),
                "glob \"*.q_porj.weight\" matches none of 9 tensors",
                "did you mean \"*.q_proj.weight\"?",
            ),
            (
                Sharding::ep(0, 2, "*.expert.{}.*"),
                "pattern \"*.expert.{}.*\" matches none of 9 tensors",
                "did you mean \"*.experts.*.*\"?",
            ),
            (
                Sharding::pp(0, 2, "*.layers.{}.*", ["*.embde.*"], []),
                "glob \"*.embde.*\" matches none of 9 tensors",
                "did you mean \"*.embed.*\"?",
            ),
            (
                Sharding::ep(0, 2, "*.norm.{}"),
                "pattern \"*.norm.{}\" matches none of 9 tensors",
                "{} stands for a number; the names have none there",
            ),
            (
                Sharding::ep(0, 2, "vision.{}.*"),
                "pattern \"vision.{}.*\" matches none of 9 tensors",
                "list the names with Checkpoint::tensors",
            ),
        ] {
            let error = error(sharding);
            assert_eq!(error.kind(), ErrorKind::NoSuchTensor);
            assert_eq!((error.message(), error.hint()), (message, Some(hint)));
        }
    }

    #[test]
    fn numbers_are_whole_runs_of_digits_in_their_place() {
        let pattern = NumberPattern::new("a*.x{}.*").expect("valid");
        for (name, number) in [
            ("a.x12.w", Some(12)),
            ("a3.x4.w", Some(4)),
            ("a.x5.x6.w", Some(5)),
            ("é.x5.w", None),
            ("a.x5", None),
            ("aé.x007.é", Some(7)),
            ("a.x99999999999999999999.w", None),
        ] {
            assert_eq!(pattern.number(name), number, "{name}");
        }
    }

    proptest! {
        #[test]
        fn every_element_belongs_to_one_rank(
            shapes in prop::collection::vec(prop::collection::vec(0usize..6, 1..4), 1..10),
            dims in prop::collection::vec(any::<prop::sample::Index>(), 10),
            tp in 1usize..6,
            ep in 1usize..6,
        ) {
            // Tensors of even numbers are experts.
            let names: Vec<_> = (0..shapes.len())
                .map(|index| if index % 2 == 0 { format!("a.experts.{index}.w") } else { format!("a.{index}.w") })
                .collect();
            let rules: Vec<_> = (names.iter().zip(&shapes).zip(dims))
                .map(|((name, shape), dim)| (name.clone(), dim.index(shape.len())))
                .collect();
            let mut found: Vec<Vec<u32>> = (shapes.iter())
                .map(|shape| vec![0; shape.iter().product()])
                .collect();
            for (rank, group) in (0..ep).flat_map(|group| (0..tp).map(move |rank| (rank, group))) {
                let sharding = valid(Sharding::tp(rank, tp, rules.clone()))
                    .and(valid(Sharding::ep(group, ep, "*.experts.{}.*")));
                let shapes_by_name = names.iter().map(String::as_str);
                let sharded = sharding
                    .apply(shapes_by_name.zip(shapes.iter().map(Vec::as_slice)))
                    .expect("matches");
                for name in sharded.names {
                    let index = names.iter().position(|known| *known == name).expect("known");
                    let mut slices = sharded.slices.iter();
                    let slice = slices.find(|(of, _)| *of == name).map(|(_, slice)| slice.clone());
                    let cut = slice.unwrap_or_default().cut(&shapes[index], 8).expect("inside");
                    let runs = match &cut.strides {
                        None => vec![cut.range.clone()],
                        Some(strides) => {
                            let start = cut.range.start;
                            let is_wanted = |at: &u64| strides.before(at + 1) > strides.before(*at);
                            (0..strides.span()).filter(is_wanted).map(|at| start + at..start + at + 1).collect()
                        }
                    };
                    for at in runs.into_iter().flatten() {
                        found[index][usize::try_from(at).expect("small")] += 1;
                    }
                }
            }
            for (index, found) in found.iter().enumerate() {
                // Tensors without a number are in every group.
                let times = if index % 2 == 0 { 1 } else { u32::try_from(ep).expect("small") };
                prop_assert!(found.iter().all(|count| *count == times), "{index}: {found:?}");
            }
        }
    }
}
