//! Loads into boxes of the caller's memory: makes a target for each tensor from one table.
//!
//! A row of the table is a box, in numbers of bytes but for indices and counts. Offsets and strides
//! in the tensor are those of the whole tensor, also if only a slice of it is read. The cast is one
//! of the list from 1 on, or 0 for none:
//!
//! ```text
//! tensor memory offset place element cast, and for each dimension: count source_stride stride
//! ```

#![expect(
    unsafe_code,
    reason = "passes on that the caller vouches for the memory"
)]

mod slice;

use std::collections::HashMap;

use super::Loader;
use crate::error::{Error, Result};
use crate::format::Dtype;
use crate::memory::{BoxDim, BoxMemory, Cast, KeepAlive, OnGpu, Target, TargetBox};
use crate::plan::{Selection, Slice};
use crate::tensor::TensorInfo;
use slice::Source;

/// Columns before those of the dimensions.
const FIXED: usize = 6;

/// Address and length of a piece of memory; of a GPU's, also the ordinal of that and the stream
/// that orders access, as for [`Target::cuda`].
type BoxPlace = (usize, usize, Option<(usize, u64)>);

/// Lists that the numbers of a row refer to.
#[derive(Debug)]
struct Table {
    memory: Vec<(BoxMemory, Option<OnGpu>)>,
    casts: Vec<Cast>,
    dims: usize,
}

/// A row of the table.
#[derive(Debug)]
struct Row {
    memory: BoxMemory,
    on: Option<OnGpu>,
    place: usize,
    source: Source,
    cast: Option<Cast>,
}

impl Loader {
    /// Configures the load to fill boxes of `memory`: each tensor of `names` goes to the boxes
    /// of its `rows`, all on one device, in memory that `owner` keeps alive. `casts` are pairs of
    /// names of dtypes. Replaces selection, slices and targets: the smallest slice with all boxes
    /// of a tensor is read. Bytes of it in no box are dropped.
    ///
    /// # Safety
    ///
    /// As for [`Target::host`] or [`Target::cuda`], of each piece of memory. No element may be in
    /// two boxes.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::InvalidRequest`] for a row whose box leaves its tensor or memory, and
    /// for a cast that there is not, or on a GPU; [`crate::ErrorKind::NoSuchTensor`] for a name
    /// that the checkpoint does not have.
    #[doc(hidden)]
    pub unsafe fn into_boxes(
        self,
        names: &[String],
        memory: &[BoxPlace],
        casts: &[(String, String)],
        dims: usize,
        rows: &[i64],
        owner: &KeepAlive,
    ) -> Result<Self> {
        let table = Table::new(memory, casts, dims)?;
        let mut boxes: Vec<Vec<(Row, TargetBox)>> = names.iter().map(|_| Vec::new()).collect();
        for (number, numbers) in rows.chunks(FIXED + 3 * dims).enumerate() {
            let (tensor, row) = table
                .read(numbers)
                .and_then(|(tensor, row)| Some((boxes.get_mut(tensor)?, row.boxed()?)))
                .ok_or_else(|| invalid(&format!("row {number} has no box of its memory")))?;
            tensor.push(row);
        }
        let loader = self.select(Selection::names(names)).slices([]);
        let selected = loader.selected()?;
        let infos: HashMap<&str, &TensorInfo> =
            selected.iter().map(|info| (info.name(), info)).collect();
        let (mut targets, mut slices) = (Vec::with_capacity(names.len()), Vec::new());
        for (name, boxes) in names.iter().zip(boxes) {
            let info = infos.get(name.as_str());
            let info = info.ok_or_else(|| invalid(&format!("{name:?} is not selected")))?;
            let refused = |message: &str| invalid(message).with_tensor(name);
            let whole = info.byte_len();
            if boxes.iter().any(|(_, it)| it.source_end() as u64 > whole) {
                return Err(refused(&format!(
                    "a box leaves its tensor of {whole} bytes"
                )));
            }
            let (rows, mut boxes): (Vec<Row>, Vec<TargetBox>) = boxes.into_iter().unzip();
            let on = rows.first().and_then(|row| row.on);
            if rows.iter().any(|row| row.on != on) {
                return Err(refused("the boxes of a tensor are on several devices"));
            }
            let mut len = whole;
            if let Some((slice, sliced)) = sliced(rows, info) {
                len = info.sliced(&slice)?.byte_len();
                slices.push((name.clone(), slice));
                boxes = sliced;
            }
            let owner = Some(KeepAlive::clone(owner));
            let len = usize::try_from(len).ok();
            // SAFETY: the caller vouches for the memory, in which the boxes are.
            let target = len.and_then(|len| unsafe { Target::boxes(boxes, len, on, owner) });
            let target = target.ok_or_else(|| refused("no elements are converted on a GPU"))?;
            targets.push((name.clone(), target));
        }
        Ok(loader.slices(slices).targets(targets))
    }
}

impl Table {
    fn new(memory: &[BoxPlace], casts: &[(String, String)], dims: usize) -> Result<Self> {
        let memory = memory.iter().map(|(address, len, on)| {
            let (address, len) = (*address, *len);
            let on = on.map(|(ordinal, stream)| OnGpu { ordinal, stream });
            (BoxMemory { address, len }, on)
        });
        let casts = casts.iter().map(|(from, to)| {
            let both = Dtype::from_name(from).zip(Dtype::from_name(to));
            let cast = both.map(|(from, to)| Cast { from, to });
            cast.ok_or_else(|| {
                invalid(&format!(
                    "no elements are converted from {from:?} to {to:?}"
                ))
            })
        });
        Ok(Self {
            memory: memory.collect(),
            casts: casts.collect::<Result<_>>()?,
            dims,
        })
    }

    /// Returns the index of a tensor, and its row.
    fn read(&self, numbers: &[i64]) -> Option<(usize, Row)> {
        let mut numbers = numbers.iter().map(|number| usize::try_from(*number).ok());
        let mut next = || numbers.next().flatten();
        let (tensor, (memory, on)) = (next()?, *self.memory.get(next()?)?);
        let (offset, place, element) = (next()?, next()?, next()?);
        let cast = match next()? {
            0 => None,
            number => Some(*self.casts.get(number - 1)?),
        };
        let mut dims = Vec::with_capacity(self.dims);
        for _ in 0..self.dims {
            dims.push(BoxDim {
                count: next()?,
                source_stride: next()?,
                stride: next()?,
            });
        }
        let row = Row {
            memory,
            on,
            place,
            source: Source {
                offset,
                element,
                dims,
            },
            cast,
        };
        Some((tensor, row))
    }
}

impl Row {
    /// Returns the row with its box, if that is inside the memory.
    fn boxed(self) -> Option<(Self, TargetBox)> {
        let made = self.target()?;
        Some((self, made))
    }

    fn target(&self) -> Option<TargetBox> {
        let Source {
            offset,
            element,
            dims,
        } = &self.source;
        let dims = dims.iter().copied();
        match self.cast {
            None => TargetBox::new(self.memory, *offset, self.place, *element, dims),
            Some(cast) if cast.from.bits() == 8 * element => {
                TargetBox::cast(self.memory, *offset, self.place, cast, dims)
            }
            Some(_) => None,
        }
    }
}

/// Returns the smallest slice of a tensor that has its boxes, and the boxes in that slice; `None`
/// if the whole tensor is to be read.
fn sliced(mut rows: Vec<Row>, info: &TensorInfo) -> Option<(Slice, Vec<TargetBox>)> {
    let sources: Vec<&mut Source> = rows.iter_mut().map(|row| &mut row.source).collect();
    let slice = slice::within(sources, info.shape(), info.dtype().bits())?;
    let len = usize::try_from(info.sliced(&slice).ok()?.byte_len()).ok()?;
    let boxes: Option<Vec<TargetBox>> = rows.iter().map(Row::target).collect();
    let boxes = boxes.filter(|boxes| boxes.iter().all(|it| it.source_end() <= len))?;
    Some((slice, boxes))
}

fn invalid(message: &str) -> Error {
    Error::invalid_request(format!("boxes: {message}"))
}
