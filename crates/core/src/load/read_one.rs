//! Reads of a single tensor on the calling thread, for callers that need one tensor at a time.

use std::sync::Arc;

use rustix::param::page_size;
use tload_memory::convert::Conversions;

use super::stream::Canceller;
use super::{Checkpoint, Loader};
use crate::engine::Wait;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Pool;
use crate::options::LoadOptions;
use crate::plan::{self, Arrangement, Layout, Selection, Slice, Wanted};
use crate::sink::{HostSink, Sink};
use crate::storage::{FileSource, Source};
use crate::tensor::{Tensor, TensorBytes, TensorInfo};
use crate::verify::Verify;

/// Maximum length of a tensor that the calling thread reads. Longer tensors are loaded by engines,
/// with parallel reads. Opening an engine costs about a millisecond, in which a thread copies this
/// many bytes from the page cache (2026-11).
const READ_BYTES_MAX: u64 = 4 << 20;

/// Layout for reading a small tensor from a file: through the page cache, whose pages are read
/// whole.
const BUFFERED: Layout = Layout {
    extent_bytes: 1 << 20,
    alignment: 1,
    gap_bytes: 16 << 10,
};

impl Checkpoint {
    /// Returns whether [`Self::read`] would read this on the calling thread, from a file on a local
    /// file system: it never waits for a network, nor long for anything else. True for requests
    /// that `read` would refuse at once.
    #[doc(hidden)]
    pub fn reads_at_once(&self, name: &str, slice: &Slice) -> bool {
        let Some(Ok(info)) = self.get(name).map(|info| info.sliced(slice)) else {
            return true;
        };
        let file = self.small(&info);
        info.byte_len() == 0 || file.is_some_and(|file| !file.file_system().network)
    }

    /// Returns the file from which the calling thread would read this tensor, if it would.
    fn small(&self, info: &TensorInfo) -> Option<&FileSource> {
        let range = info.file_range();
        let file = self.shards()[info.shard()].source().as_file();
        file.filter(|_| range.end - range.start <= READ_BYTES_MAX)
    }

    /// Reads one tensor, or a slice of it, into host memory. The calling thread reads small tensors
    /// of files itself, through the page cache. Other tensors, and all that are to be verified,
    /// take a separate load with these options.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoSuchTensor`]; [`ErrorKind::InvalidRequest`] for a slice outside the tensor's
    /// shape; any error of the read.
    ///
    /// # Examples
    ///
    /// ```
    /// # let model = tload_testing::ExampleModel::new(); let path = model.path();
    ///
    /// use tload::{Checkpoint, Indices, LoadOptions, Slice};
    ///
    /// let checkpoint = Checkpoint::open(path)?;
    /// let options = LoadOptions::new();
    /// let bias = checkpoint.read("layer.0.bias", &Slice::default(), &options)?;
    /// assert_eq!(bias.byte_len(), 16);
    /// let row = Slice::new([Indices::at(1)]);
    /// assert_eq!(checkpoint.read("layer.0.weight", &row, &options)?.shape(), [4]);
    /// # Ok::<(), tload::Error>(())
    /// ```
    pub fn read(&self, name: &str, slice: &Slice, options: &LoadOptions) -> Result<Tensor> {
        self.read_cancellable(name, slice, options, Canceller::default())
    }

    /// Reads as [`Self::read`]. `canceller` cancels the separate load, if there is one.
    ///
    /// # Errors
    ///
    /// As [`Self::read`], and [`ErrorKind::Cancelled`].
    pub fn read_cancellable(
        &self,
        name: &str,
        slice: &Slice,
        options: &LoadOptions,
        canceller: Canceller,
    ) -> Result<Tensor> {
        let located = |error: Error| self.located(error);
        let Some(info) = self.get(name) else {
            let names: Vec<&str> = self.tensors().iter().map(TensorInfo::name).collect();
            let missing = Selection::names([name]).resolve(&names).err();
            return Err(located(missing.unwrap_or_else(|| {
                Error::new(ErrorKind::NoSuchTensor, "the checkpoint has no such tensor")
            })));
        };
        let info = info.sliced(slice).map_err(located)?;
        let conversions = match options.dtype {
            Some(to) => {
                options.validate()?;
                Conversions::new(self.tensors(), std::slice::from_ref(&info), to)
            }
            None => Conversions::default(),
        };
        if info.byte_len() == 0 && options.verify == Verify::Off {
            return Ok(Tensor::new(info, TensorBytes::Empty).converted(conversions.of(0)));
        }
        // A read of a dead mount does not return; only a separate load can be abandoned.
        let may_hang = |file: &FileSource| options.timeout.is_some() && file.file_system().network;
        let alone = |file: &FileSource| options.verify == Verify::Off && !may_hang(file);
        if let Some(file) = self.small(&info).filter(|file| alone(file)) {
            let tensor = read(info, file, conversions)?;
            file.verify_unchanged()?;
            return Ok(tensor);
        }
        let loader = Loader::new(self.clone())
            .select(Selection::names([name]))
            .slices([(name.to_owned(), slice.clone())])
            .of_one_tensor()
            .options(options.clone())
            .cancelled_by(canceller);
        // Read to the end of the stream, which checks that the file has not changed.
        let tensors: Vec<Tensor> = loader.stream()?.collect::<Result<_>>()?;
        let tensor = tensors.into_iter().next();
        tensor.ok_or_else(|| Error::new(ErrorKind::Io, "the load returned no tensor"))
    }
}

fn read(info: TensorInfo, source: &dyn Source, conversions: Conversions) -> Result<Tensor> {
    let wanted = Wanted {
        source: 0,
        range: info.file_range(),
        strides: info.strides().cloned(),
        alignment: info.dtype().alignment(),
        destination: 0,
    };
    let rewritten = |_| conversions.bytes(0, info.byte_len(), info.dtype());
    let plan = plan::build_rewriting(&[wanted], &[BUFFERED], &[Arrangement::InPlace], &rewritten);
    let plan = Arc::new(plan);
    // The pool has room for this tensor alone. A larger pool would map more memory, in huge pages.
    let room = plan.region_bytes_max(0).next_multiple_of(page_size());
    let pool = Pool::new(room as u64, Arc::default());
    let mut sink = HostSink::new(Arc::clone(&plan), [info].into()).converting(conversions);
    for region in &plan.regions {
        let mut memory = pool
            .try_region(region.bytes, region.tensors)?
            .expect("there is room for it");
        for extent in &plan.extents[region.extents.clone()] {
            let mut bytes = source.fetch(extent.offset, extent.needed)?;
            plan.gather(extent, &mut bytes);
            let filled = match plan.slice_in(extent) {
                None => memory.carve(extent.window).fill_from(&bytes),
                Some(piece) => {
                    let slice = &bytes[piece.extent_offset..piece.extent_offset + piece.len];
                    memory.carve(piece.len).fill_from(slice)
                }
            };
            sink.submit(extent, filled)?;
        }
    }
    let mut ready = Vec::new();
    sink.reap(Wait::No, &mut ready)?;
    let (_, tensor) = ready.pop().expect("all of it has arrived");
    tensor.received();
    Ok(tensor)
}
