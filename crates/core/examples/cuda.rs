//! Loads a checkpoint into GPU memory, and its largest tensor into memory that `cudarc` has
//! allocated: `cargo run --release --example cuda -- model_dir`.

#![expect(clippy::print_stdout, reason = "an example prints")]
#![expect(unsafe_code, reason = "lends memory to a load")]

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtrMut};
use tload::{Checkpoint, Device, KeepAlive, Loader, Selection, Target, Tensor};

fn main() -> Result<(), Box<dyn Error>> {
    let location = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let loader = Checkpoint::open(location)?.load().device(Device::Cuda(0));
    let tensors = into_memory_of_the_load(&loader)?;
    let largest = tensors.iter().max_by_key(|tensor| tensor.byte_len());
    if let Some(largest) = largest.filter(|tensor| tensor.byte_len() > 0) {
        into_a_slice(&loader, largest)?;
    }
    Ok(())
}

/// tload allocates.
fn into_memory_of_the_load(loader: &Loader) -> tload::Result<Vec<Tensor>> {
    let mut stream = loader.stream()?;
    let mut tensors = Vec::new();
    for tensor in &mut stream {
        let tensor = tensor?;
        // All bytes are there: kernels of any stream may read them, as long as `tensor` or a clone
        // of it lives. When the last one is dropped, the memory is freed behind all work that is
        // queued on the device by then.
        if let Some(bytes) = tensor.device_bytes() {
            let (address, ordinal) = (bytes.address(), bytes.ordinal());
            let (name, len) = (tensor.name(), bytes.len());
            println!("{name:?}: {len} bytes at {address:#x} of cuda:{ordinal}");
        }
        tensors.push(tensor);
    }
    println!("{}", stream.report());
    Ok(tensors)
}

/// Another library allocates, and owns the memory before, during and after the load.
fn into_a_slice(loader: &Loader, tensor: &Tensor) -> Result<(), Box<dyn Error>> {
    let (name, len) = (tensor.name(), usize::try_from(tensor.byte_len())?);
    // The primary context of the GPU, which tload uses too.
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    // The zeros are still being written when this returns. tload's copies begin behind them,
    // because the target names the stream.
    let mut slice = stream.alloc_zeros::<u8>(len)?;
    let address = {
        let (address, _recorded) = slice.device_ptr_mut(&stream);
        address
    };
    let slice = Arc::new(slice);
    let owner: KeepAlive = Arc::<CudaSlice<u8>>::clone(&slice);
    // SAFETY: `len` bytes of GPU 0, which `owner` keeps; no other code uses them until the load is
    // over; `stream` is live.
    let target = unsafe { Target::cuda(0, address, len, address_of(&stream), Some(owner)) };

    let one = loader.clone().select(Selection::names([name]));
    for tensor in one.targets([(name.to_owned(), target)]).stream()? {
        // Says only that the bytes are there.
        let tensor = tensor?;
        println!("{:?} is in memory of the caller's", tensor.name());
    }

    // On the way back: the same bytes as in host memory.
    let found = stream.clone_dtoh(&*slice)?;
    let on_host = loader.clone().device(Device::Cpu);
    for tensor in on_host.select(Selection::names([name])).stream()? {
        let same = tensor?.bytes() == found;
        println!("{name:?}: {}", if same { "same bytes" } else { "differs" });
    }
    Ok(())
}

/// A stream as [`Target::cuda`] takes it.
fn address_of(stream: &CudaStream) -> u64 {
    stream.cu_stream().expose_provenance() as u64
}
