//! Tensors in host memory, in place: the engine has read straight into the memory that the tensor
//! will own.
//!
//! The sink only counts, and copies slices with gaps, which are read by way of staging memory. A
//! tensor is complete when its last piece has arrived, on any lane.

#![expect(
    unsafe_code,
    reason = "makes tensors of memory that it knows to be filled"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::Sink;
use crate::cuda::Context;
use crate::engine::Wait;
use crate::error::Result;
use crate::memory::{DeviceBytes, Filled, RegionBytes};
use crate::plan::{Extent, Plan};
use crate::tensor::{Tensor, TensorBytes, TensorInfo};

/// Alignment of tensors that are moved in memory, bytes: a cache line, and the widest vectors.
const MOVED_ALIGNMENT: usize = 64;

/// Sink that completes host tensors of one load on one lane; clones share the counts.
#[derive(Clone, Debug)]
pub struct HostSink {
    inner: Arc<Inner>,
    /// GPU that reads the tensors in place.
    gpu: Option<Context>,
    ready: Vec<(usize, Tensor)>,
}

#[derive(Debug)]
struct Inner {
    plan: Arc<Plan>,
    tensors: Arc<[TensorInfo]>,
    /// Pieces not yet arrived, by tensor.
    missing: Box<[AtomicU32]>,
    copied_bytes: AtomicU64,
}

impl HostSink {
    /// Creates a sink for `plan`, which was made of `tensors` in this order.
    pub fn new(plan: Arc<Plan>, tensors: Arc<[TensorInfo]>) -> Self {
        let missing = plan
            .targets
            .iter()
            .map(|target| AtomicU32::new(target.pieces))
            .collect();
        let copied_bytes = AtomicU64::new(0);
        Self {
            inner: Arc::new(Inner {
                plan,
                tensors,
                missing,
                copied_bytes,
            }),
            gpu: None,
            ready: Vec::new(),
        }
    }

    /// Hands the tensors out as those of `gpu`, which shares the host's memory, if there is one.
    pub(crate) fn for_gpu(self, gpu: Option<Context>) -> Self {
        Self { gpu, ..self }
    }

    /// Number of bytes that this load copied in memory: those of slices with gaps, and of tensors
    /// at offsets in their file that no address can be congruent to.
    pub fn copied_bytes(&self) -> u64 {
        self.inner.copied_bytes.load(Ordering::Relaxed)
    }
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
            if target.realign {
                // SAFETY: the plan puts such a tensor alone into its region, all of whose leases
                // are gone: each brought a piece of this tensor.
                let copied = unsafe { bytes.align_down(MOVED_ALIGNMENT) };
                inner
                    .copied_bytes
                    .fetch_add(copied as u64, Ordering::Relaxed);
            }
            let bytes = match &self.gpu {
                Some(gpu) => TensorBytes::Device(DeviceBytes::in_place(bytes, gpu)),
                None => TensorBytes::Host(bytes),
            };
            self.ready.push((piece.tensor, Tensor::new(info, bytes)));
        }
        Ok(())
    }

    fn reap(&mut self, _wait: Wait, ready: &mut Vec<Self::Tensor>) -> Result<()> {
        ready.append(&mut self.ready);
        Ok(())
    }
}
