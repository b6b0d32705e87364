//! Which tensors of a load are converted to another dtype, by the option `dtype`, and what refuses
//! it. Elements are converted by the crate `tload-convert`, in the memory that they are read to.

use tload_memory::convert::Conversions;

use super::destinations::{Destination, Destinations};
use crate::checkpoint::OpenedCheckpoint;
use crate::error::{Error, Result};
use crate::format::Dtype;
use crate::options::LoadOptions;
use crate::tensor::TensorInfo;

/// Returns the conversions of the tensors of a load: of those in host memory that it allocates.
/// The leader of a node reads for ranks that convert by themselves.
///
/// # Errors
///
/// [`crate::ErrorKind::Unsupported`] for a tensor on a GPU that would have to be converted;
/// [`crate::ErrorKind::InvalidRequest`] for tensors in the caller's memory.
pub(super) fn conversions(
    checkpoint: &OpenedCheckpoint,
    tensors: &[TensorInfo],
    destinations: &Destinations,
    options: &LoadOptions,
) -> Result<Conversions> {
    let Some(to) = options.dtype.filter(|_| !destinations.are_published()) else {
        return Ok(Conversions::default());
    };
    let conversions = Conversions::new(checkpoint.tensors(), tensors, to);
    for (index, tensor) in tensors.iter().enumerate() {
        let error = match &destinations.list()[destinations.index_for(index)] {
            Destination::HostTargets | Destination::CudaTargets(_) => into_targets(options),
            gpu @ Destination::Cuda(_) if conversions.of(index).is_some() => {
                on_gpu(options, &gpu.device())
            }
            Destination::Host | Destination::Cuda(_) => continue,
        };
        return Err(error
            .with_location(checkpoint.location())
            .with_tensor(tensor.name()));
    }
    Ok(conversions)
}

fn on_gpu(options: &LoadOptions, device: &str) -> Error {
    let message = format!(
        "{} converts tensors in host memory; this one goes to {device}",
        shown(options)
    );
    Error::unsupported(message)
        .with_hint("load to host memory, or omit ‹dtype› and convert tensors on the GPU")
}

/// Returns the error of a load that is to convert what goes into the caller's memory.
pub(super) fn into_targets(options: &LoadOptions) -> Error {
    let message = format!(
        "{} has no effect on tensors in the caller's memory, whose dtypes are given",
        shown(options)
    );
    Error::invalid_request(message).with_hint("omit ‹dtype›")
}

fn shown(options: &LoadOptions) -> String {
    let name = options.dtype.map_or("", Dtype::name);
    format!("‹dtype={}›", name.to_ascii_lowercase())
}
