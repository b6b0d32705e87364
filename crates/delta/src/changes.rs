//! The changed elements of one tensor, read from the patch a window at a time, and checked.

use std::collections::HashMap;

use tload::{Dtype, Result, TensorInfo};

use crate::patch::Patch;
use crate::pieces::element_bytes;
use crate::record::{Change, TensorRecord};

/// Elements of a window.
const WINDOW: u64 = 1 << 20;

/// Tensors of a patch that are in memory, by name. Others are read.
pub type Kept = HashMap<String, Vec<u8>>;

/// Elements that a patch replaces in a tensor, from front to back.
pub(crate) struct Changes<'p> {
    patch: &'p Patch,
    kept: &'p Kept,
    name: &'p str,
    /// `None` if the patch has the tensor as a whole.
    indices: Option<&'p TensorInfo>,
    values: &'p TensorInfo,
    /// Bytes of an element; for a whole tensor, 1.
    width: usize,
    /// Elements of the tensor.
    elements: u64,
    /// Elements of the patch that have been read.
    read: u64,
    window: Window,
}

#[derive(Default)]
struct Window {
    indices: Vec<u64>,
    values: Vec<u8>,
    next: usize,
}

impl<'p> Changes<'p> {
    /// Returns the changes of a tensor, `None` if there are none. Its record has been checked.
    pub(crate) fn new(
        patch: &'p Patch,
        record: &'p TensorRecord,
        kept: &'p Kept,
    ) -> Result<Option<Self>> {
        let (indices, values) = match record.change {
            Change::None => return Ok(None),
            Change::Whole => (None, patch.own(&record.name)?),
            Change::Sparse => {
                let (indices, values) = patch.sparse(&record.name)?;
                (Some(indices), values)
            }
        };
        let width = match indices {
            None => 1,
            Some(_) => element_bytes(values).unwrap_or(1),
        };
        Ok(Some(Self {
            patch,
            kept,
            name: &record.name,
            indices,
            values,
            width,
            elements: record.shape.iter().product(),
            read: 0,
            window: Window::default(),
        }))
    }

    /// Replaces the elements of a piece, which is `offset` bytes into the tensor and comes after
    /// the pieces before.
    pub(crate) fn put(&mut self, offset: u64, piece: &mut [u8]) -> Result<()> {
        if self.indices.is_none() {
            return self.fetch(self.values, offset, piece);
        }
        let width = self.width;
        loop {
            let Window {
                indices,
                values,
                next,
            } = &mut self.window;
            let changed = indices[*next..]
                .iter()
                .zip(values[*next * width..].chunks(width));
            for (index, value) in changed {
                let at = usize::try_from(index * width as u64 - offset);
                let Some(at) = at.ok().filter(|at| *at < piece.len()) else {
                    return Ok(());
                };
                piece[at..at + width].copy_from_slice(value);
                *next += 1;
            }
            if !self.refill()? {
                return Ok(());
            }
        }
    }

    /// Reads the next elements. Their indices must be ascending, distinct and inside of the tensor.
    /// Returns whether there were any.
    fn refill(&mut self) -> Result<bool> {
        let Some(indices) = self.indices else {
            return Ok(false);
        };
        let all = indices.shape().first().map_or(0, |count| *count as u64);
        let count = WINDOW.min(all - self.read);
        let mut last = self.window.indices.last().copied();
        self.window = Window::default();
        let len = |width: u64| usize::try_from(count * width).unwrap_or(usize::MAX);
        let wide = indices.dtype().bits() as u64 / 8;
        let mut bytes = vec![0; len(wide)];
        self.fetch(indices, self.read * wide, &mut bytes)?;
        for index in numbers(indices.dtype(), &bytes) {
            let inside = u64::try_from(index).ok().filter(|at| *at < self.elements);
            let inside = inside.ok_or_else(|| {
                let message = format!("index {index} of {} elements", self.elements);
                self.patch.invalid(self.name, message)
            })?;
            if last.is_some_and(|last| last >= inside) {
                let message = format!("index {inside} is not above the one before");
                return Err(self.patch.invalid(self.name, message));
            }
            last = Some(inside);
            self.window.indices.push(inside);
        }
        let wide = self.width as u64;
        let mut values = vec![0; len(wide)];
        self.fetch(self.values, self.read * wide, &mut values)?;
        self.window.values = values;
        self.read += count;
        Ok(count > 0)
    }

    fn fetch(&self, tensor: &TensorInfo, offset: u64, memory: &mut [u8]) -> Result<()> {
        match self.kept.get(tensor.name()) {
            Some(kept) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                memory.copy_from_slice(&kept[start..start + memory.len()]);
                Ok(())
            }
            None => self.patch.pieces.read(tensor, offset, memory),
        }
    }
}

/// Returns the indices in bytes of a tensor of this dtype.
fn numbers(dtype: Dtype, bytes: &[u8]) -> impl Iterator<Item = i64> {
    let width = dtype.bits() / 8;
    bytes.chunks(width).map(move |number| {
        let mut wide = [0; 8];
        wide[..width].copy_from_slice(number);
        if width == 4 {
            i64::from(i32::from_le_bytes([wide[0], wide[1], wide[2], wide[3]]))
        } else {
            i64::from_le_bytes(wide)
        }
    })
}
