//! Tensors in host memory of the caller: the lane copies filled slots there itself.

#![expect(
    unsafe_code,
    reason = "writes to the caller's memory, as the plan has it"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::Sink;
use crate::engine::Wait;
use crate::error::Result;
use crate::memory::{Filled, Target, WriteGate};
use crate::plan::{Extent, Plan};
use crate::tensor::{Tensor, TensorBytes, TensorInfo};

/// Sink that fills the caller's memory on one lane of a load; clones share the counts.
#[derive(Clone, Debug)]
pub struct TargetSink {
    inner: Arc<Inner>,
    ready: Vec<(usize, Tensor)>,
}

#[derive(Debug)]
struct Inner {
    plan: Arc<Plan>,
    tensors: Arc<[TensorInfo]>,
    targets: Arc<[Option<Target>]>,
    gate: Arc<WriteGate>,
    /// Pieces not yet arrived, by tensor.
    missing: Box<[AtomicU32]>,
    copied_bytes: AtomicU64,
}

impl TargetSink {
    /// Creates a sink for `plan`, which was made of `tensors` in this order, into `targets`, one
    /// for each tensor of this sink, as long as `gate` is open.
    pub fn new(
        plan: Arc<Plan>,
        tensors: Arc<[TensorInfo]>,
        targets: Arc<[Option<Target>]>,
        gate: Arc<WriteGate>,
    ) -> Self {
        let missing = plan
            .targets
            .iter()
            .map(|target| AtomicU32::new(target.pieces))
            .collect();
        Self {
            inner: Arc::new(Inner {
                plan,
                tensors,
                targets,
                gate,
                missing,
                copied_bytes: AtomicU64::new(0),
            }),
            ready: Vec::new(),
        }
    }

    /// Number of bytes copied so far.
    pub fn copied_bytes(&self) -> u64 {
        self.inner.copied_bytes.load(Ordering::Relaxed)
    }
}

impl Sink for TargetSink {
    type Tensor = (usize, Tensor);

    fn in_flight(&self) -> usize {
        0
    }

    fn submit(&mut self, extent: &Extent, filled: Filled) -> Result<()> {
        let inner = &*self.inner;
        let Some(_inside) = inner.gate.enter() else {
            // The gate is closed: the load is over, and the memory belongs to the caller again.
            return Ok(());
        };
        for piece in &inner.plan.pieces[extent.pieces.clone()] {
            let target = inner.targets[piece.tensor]
                .as_ref()
                .expect("tensors of this destination have targets");
            let bytes = &filled.bytes()[piece.extent_offset..piece.extent_offset + piece.len];
            let offset = usize::try_from(piece.tensor_offset).expect("inside the target's memory");
            // SAFETY: the plan has each byte of a tensor in one piece, and each extent is submitted
            // once.
            unsafe { target.write(offset, bytes) };
            inner
                .copied_bytes
                .fetch_add(piece.len as u64, Ordering::Relaxed);
            // Acquire and release: the lane that completes the tensor sees the bytes that other
            // lanes have written.
            if inner.missing[piece.tensor].fetch_sub(1, Ordering::AcqRel) == 1 {
                let info = inner.tensors[piece.tensor].clone();
                let bytes = TensorBytes::Target(target.clone());
                self.ready.push((piece.tensor, Tensor::new(info, bytes)));
            }
        }
        Ok(())
    }

    fn reap(&mut self, _wait: Wait, ready: &mut Vec<Self::Tensor>) -> Result<()> {
        ready.append(&mut self.ready);
        Ok(())
    }
}
