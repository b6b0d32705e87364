//! Tensors in host memory, in place: the engine has read straight into the memory that the tensor
//! will own.
//!
//! The sink only counts, and copies slices with gaps, which are read by way of staging memory. A
//! tensor is complete when its last piece has arrived, on any lane.

#![expect(
    unsafe_code,
    reason = "makes tensors of memory that it knows to be filled"
)]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tload_memory::convert::{Conversions, convert_nearby};

use super::Sink;
use crate::cuda::Context;
use crate::engine::Wait;
use crate::error::Result;
use crate::format::Dtype;
use crate::memory::{DeviceBytes, Filled, RegionBytes};
use crate::plan::{Extent, Plan, REWRITTEN_ALIGNMENT};
use crate::tensor::{Tensor, TensorBytes, TensorInfo};

/// Sink that completes host tensors of one load on one lane; clones share the counts.
#[derive(Clone, Debug)]
pub struct HostSink {
    inner: Arc<Inner>,
    /// GPU that reads the tensors in place.
    gpu: Option<Context>,
    conversions: Conversions,
    ready: Vec<(usize, Tensor)>,
}

#[derive(Debug)]
struct Inner {
    plan: Arc<Plan>,
    tensors: Arc<[TensorInfo]>,
    /// Pieces not yet arrived, by tensor.
    missing: Box<[AtomicU32]>,
    copied_bytes: AtomicU64,
    converted_tensors: AtomicU64,
    /// Bytes after the conversion.
    converted_bytes: AtomicU64,
}

impl HostSink {
    /// Creates a sink for `plan`, which was made of `tensors` in this order.
    pub fn new(plan: Arc<Plan>, tensors: Arc<[TensorInfo]>) -> Self {
        let missing = plan
            .targets
            .iter()
            .map(|target| AtomicU32::new(target.pieces))
            .collect();
        Self {
            inner: Arc::new(Inner {
                plan,
                tensors,
                missing,
                copied_bytes: AtomicU64::new(0),
                converted_tensors: AtomicU64::new(0),
                converted_bytes: AtomicU64::new(0),
            }),
            gpu: None,
            conversions: Conversions::default(),
            ready: Vec::new(),
        }
    }

    /// Hands the tensors out as those of `gpu`, which shares the host's memory, if there is one.
    pub(crate) fn for_gpu(self, gpu: Option<Context>) -> Self {
        Self { gpu, ..self }
    }

    /// Converts tensors when they are complete. The plan has room for the results.
    pub(crate) fn converting(self, conversions: Conversions) -> Self {
        Self {
            conversions,
            ..self
        }
    }

    /// Number of tensors that this load converted, and their bytes afterwards.
    pub(crate) fn converted(&self) -> (u64, u64) {
        let inner = &self.inner;
        (
            inner.converted_tensors.load(Ordering::Relaxed),
            inner.converted_bytes.load(Ordering::Relaxed),
        )
    }

    /// Number of bytes that this load copied in memory: those of slices with gaps, and of tensors
    /// at offsets in their file that no address can be congruent to.
    pub fn copied_bytes(&self) -> u64 {
        self.inner.copied_bytes.load(Ordering::Relaxed)
    }
}

/// Converts the bytes of a tensor in their region.
///
/// # Safety
///
/// As for [`RegionBytes::rewrite`].
unsafe fn convert(inner: &Inner, bytes: &mut RegionBytes, from: Dtype, to: Dtype) {
    let rewrite = |memory: &mut [u8], place: Range<usize>| {
        convert_nearby(memory, &place, from, to, REWRITTEN_ALIGNMENT)
    };
    // SAFETY: the caller's promise.
    unsafe { bytes.rewrite(rewrite) };
    let len = bytes.as_slice().len() as u64;
    inner.converted_tensors.fetch_add(1, Ordering::Relaxed);
    inner.converted_bytes.fetch_add(len, Ordering::Relaxed);
}

impl Sink for HostSink {
    type Tensor = (usize, Tensor);

    fn in_flight(&self) -> usize {
        0
    }

    fn submit(&mut self, extent: &Extent, filled: Filled) -> Result<()> {
        let inner = &*self.inner;
        let filled = if let Some(piece) = inner.plan.slice_in(extent) {
            let copied = &inner.copied_bytes;
            copied.fetch_add(piece.len as u64, Ordering::Relaxed);
            filled.arrived(piece.extent_offset..piece.extent_offset + piece.len)
        } else {
            assert!(
                filled.bytes().len() >= extent.needed,
                "engines fill whole extents"
            );
            filled
        };
        let (region, _) = filled.region().expect("host loads lease from regions");
        let region = Arc::clone(region);
        // The window's last owner must be gone before its tensors may be read.
        drop(filled);
        for piece in &inner.plan.pieces[extent.pieces.clone()] {
            // Acquire and release: the lane that completes the tensor sees the bytes that other
            // lanes have read.
            if inner.missing[piece.tensor].fetch_sub(1, Ordering::AcqRel) > 1 {
                continue;
            }
            let target = &inner.plan.targets[piece.tensor];
            let info = inner.tensors[piece.tensor].clone();
            let (_, offset) = target.place.expect("a tensor with pieces has a place");
            let len = usize::try_from(info.byte_len()).expect("mapped, so it fits");
            // SAFETY: every piece of the tensor has arrived: its windows were filled as far as
            // needed and their leases were dropped before the count went down.
            let mut bytes = unsafe { RegionBytes::new(Arc::clone(&region), offset, len) };
            let to = self.conversions.of(piece.tensor);
            if let Some(to) = to {
                // SAFETY: as below: a tensor that is converted is alone, too.
                unsafe { convert(inner, &mut bytes, info.dtype(), to) };
            } else if target.realign {
                // SAFETY: the plan puts such a tensor alone into its region, all of whose leases
                // are gone: each brought a piece of this tensor.
                let copied = unsafe { bytes.align_down(REWRITTEN_ALIGNMENT) };
                inner
                    .copied_bytes
                    .fetch_add(copied as u64, Ordering::Relaxed);
            }
            let bytes = match &self.gpu {
                Some(gpu) => TensorBytes::Device(DeviceBytes::in_place(bytes, gpu)),
                None => TensorBytes::Host(bytes),
            };
            let tensor = Tensor::new(info, bytes).converted(to);
            self.ready.push((piece.tensor, tensor));
        }
        Ok(())
    }

    fn reap(&mut self, _wait: Wait, ready: &mut Vec<Self::Tensor>) -> Result<()> {
        ready.append(&mut self.ready);
        Ok(())
    }
}
