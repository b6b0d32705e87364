//! One tensor now, on the calling thread: for those who want this one and then perhaps another.

use std::sync::Arc;

use rustix::param::page_size;

use crate::buffer::Pool;
use crate::checkpoint::{Checkpoint, Shard, ShardSource};
use crate::engine::Wait;
use crate::error::{Error, ErrorKind, Result};
use crate::load::Loader;
use crate::plan::{self, Arrangement, Layout, Selection, Slice, Wanted};
use crate::sink::{HostSink, Sink};
use crate::source::Source;
use crate::tensor::{Tensor, TensorBytes, TensorInfo};

/// Longer tensors are loaded as all are, by engines with reads side by side. Opening those costs about a millisecond, in which a
/// thread copies so much from the page cache (2026-11).
const READ_BYTES_MAX: u64 = 4 << 20;

/// How a small tensor is read from a file: through the page cache, whose pages are read whole.
const BUFFERED: Layout = Layout {
    extent_bytes: 1 << 20,
    alignment: 1,
    gap_bytes: 16 << 10,
};

impl Checkpoint {
    /// Whether a tensor is in a file of a local file system: reading it never waits for a network.
    pub fn is_near(&self, name: &str) -> bool {
        let shard = self.get(name).map(|info| &self.shards()[info.shard()]);
        match shard.map(Shard::source) {
            Some(ShardSource::File(file)) => !file.file_system().network,
            _ => false,
        }
    }

    /// Reads one tensor, or a slice of it, into host memory. Small ones of files are read by the calling thread, through the page
    /// cache; others are a load of their own.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoSuchTensor`]; [`ErrorKind::InvalidRequest`] for a slice of what the tensor does not have; whatever reading
    /// runs into.
    pub fn read(&self, name: &str, slice: &Slice) -> Result<Tensor> {
        let located = |error: Error| error.with_location(self.location());
        let Some(info) = self.get(name) else {
            let names: Vec<&str> = self.tensors().iter().map(TensorInfo::name).collect();
            let missing = Selection::names([name]).resolve(&names).err();
            return Err(located(missing.unwrap_or_else(|| {
                Error::new(ErrorKind::NoSuchTensor, "the checkpoint has no such tensor")
            })));
        };
        let info = info.sliced(slice).map_err(located)?;
        let range = info.file_range();
        if info.byte_len() == 0 {
            return Ok(Tensor::new(info, TensorBytes::Empty));
        }
        if let ShardSource::File(file) = self.shards()[info.shard()].source()
            && range.end - range.start <= READ_BYTES_MAX
        {
            let tensor = read(info, &**file)?;
            file.verify_unchanged()?;
            return Ok(tensor);
        }
        let loader = Loader::new(self.clone())
            .tensors(Selection::names([name]))
            .slices([(name.to_owned(), slice.clone())]);
        let tensor = loader.stream()?.next();
        tensor.unwrap_or_else(|| Err(Error::new(ErrorKind::Io, "the load brought nothing")))
    }
}

fn read(info: TensorInfo, source: &dyn Source) -> Result<Tensor> {
    let wanted = Wanted {
        source: 0,
        range: info.file_range(),
        strides: info.strides().cloned(),
        alignment: info.dtype().alignment(),
        destination: 0,
    };
    let plan = Arc::new(plan::build(&[wanted], &[BUFFERED], &[Arrangement::InPlace]));
    // With room for this tensor alone: a pool that has more maps more, in huge pages.
    let room = plan.region_bytes_max(0).next_multiple_of(page_size());
    let pool = Pool::new(room as u64, Arc::default());
    let mut sink = HostSink::new(Arc::clone(&plan), [info].into());
    for region in &plan.regions {
        let mut memory = pool
            .try_region(region.bytes, region.tensors)?
            .expect("there is room for it");
        for extent in &plan.extents[region.extents.clone()] {
            let mut bytes = source.fetch(extent.offset, extent.needed)?;
            plan.gather(extent, &mut bytes);
            let filled = memory.carve(extent.window).fill_from(&bytes);
            sink.submit(extent, filled)?;
        }
    }
    let mut ready = Vec::new();
    sink.reap(Wait::No, &mut ready)?;
    let (_, tensor) = ready.pop().expect("all of it has arrived");
    tensor.received();
    Ok(tensor)
}
