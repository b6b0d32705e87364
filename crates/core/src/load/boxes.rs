//! Loads into boxes of the caller's memory: makes a target for each tensor from one table.
//!
//! A row of the table is a box, in numbers of bytes but for indices and counts:
//!
//! ```text
//! tensor memory offset place element, and for each dimension: count source_stride stride
//! ```

#![expect(
    unsafe_code,
    reason = "passes on that the caller vouches for the memory"
)]

use std::collections::HashMap;
use std::ptr::NonNull;

use super::Loader;
use crate::error::{Error, Result};
use crate::memory::{BoxDim, KeepAlive, Target, TargetBox};

/// Columns before those of the dimensions.
const FIXED: usize = 5;

impl Loader {
    /// Configures the load to fill boxes of host memory: each selected tensor, or slice, is one of
    /// `names` and goes to the boxes of its rows, each in one piece of `memory`, which `owner`
    /// keeps alive. Bytes in no box are read and dropped.
    ///
    /// # Safety
    ///
    /// As for [`Target::host`], of each piece of memory: address and length. No element may be in
    /// two boxes.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::InvalidRequest`] for a row whose box leaves its tensor or memory, and
    /// for a name that is not selected.
    #[doc(hidden)]
    pub unsafe fn into_boxes(
        self,
        names: &[String],
        memory: &[(usize, usize)],
        dims: usize,
        table: &[i64],
        owner: &KeepAlive,
    ) -> Result<Self> {
        let width = FIXED + 3 * dims;
        let mut boxes: Vec<Vec<TargetBox>> = vec![Vec::new(); names.len()];
        for (number, row) in table.chunks(width).enumerate() {
            let (tensor, it) = read(row, width, memory)
                .and_then(|(tensor, it)| Some((boxes.get_mut(tensor)?, it)))
                .ok_or_else(|| invalid(&format!("row {number} has no box of its memory")))?;
            tensor.push(it);
        }
        let selected = self.selected()?;
        let lens: HashMap<&str, u64> = selected
            .iter()
            .map(|info| (info.name(), info.byte_len()))
            .collect();
        let mut targets = Vec::with_capacity(names.len());
        for (name, boxes) in names.iter().zip(boxes) {
            let len = lens
                .get(name.as_str())
                .and_then(|len| usize::try_from(*len).ok());
            let len = len.ok_or_else(|| invalid(&format!("{name:?} is not selected")))?;
            // SAFETY: the caller vouches for the memory, in which the boxes are.
            let target = unsafe { Target::boxes(boxes, len, Some(KeepAlive::clone(owner))) };
            let target = target.ok_or_else(|| {
                invalid(&format!("a box leaves its tensor of {len} bytes")).with_tensor(name)
            })?;
            targets.push((name.clone(), target));
        }
        Ok(self.targets(targets))
    }
}

/// Returns the index of a tensor, and its box.
fn read(row: &[i64], width: usize, memory: &[(usize, usize)]) -> Option<(usize, TargetBox)> {
    let mut numbers = row.iter().map(|number| usize::try_from(*number).ok());
    let mut next = || numbers.next().flatten();
    let (tensor, memory) = (next()?, memory.get(next()?)?);
    let (offset, place, element) = (next()?, next()?, next()?);
    let mut dims = Vec::with_capacity((width - FIXED) / 3);
    for _ in 0..(width - FIXED) / 3 {
        dims.push(BoxDim {
            count: next()?,
            source_stride: next()?,
            stride: next()?,
        });
    }
    let start = NonNull::new(std::ptr::with_exposed_provenance_mut(memory.0))?;
    let memory = NonNull::slice_from_raw_parts(start, memory.1);
    let made = TargetBox::new(memory, offset, place, element, dims)?;
    Some((tensor, made))
}

fn invalid(message: &str) -> Error {
    Error::invalid_request(format!("boxes: {message}"))
}
