"""What `runai_model_streamer` 0.17 offers, over tload.

Opt-in, in one of two ways:

>>> import tload.compat.runai as runai_model_streamer  # doctest: +SKIP

in a program of your own, or for programs of others, before they are imported, in each of their processes:

>>> tload.compat.runai.install()  # doctest: +SKIP
>>> from runai_model_streamer import SafetensorsStreamer  # this package's  # doctest: +SKIP

`uninstall` undoes it. Neither needs `runai_model_streamer`, nor its packages for S3, GCS and Azure, to be installed.

What differs:

- Tensors are always the caller's own: `owned` is not needed, nor is `clone`. Keeping a small one keeps at most about
  1 MiB beside it.
- CUDA devices are read to directly, through a small pinned buffer, and not by way of tensors in host memory.
- Failures are `ValueError`, as there, and say which file, tensor and bytes; `__cause__` is tload's exception. Devices
  and memory that fail raise tload's `DeviceError` (a `RuntimeError`) and `OutOfMemoryError` (a `MemoryError`).
- Processes do not divide files among them. Where `is_distributed=True` would make them, `UnsupportedError` is raised.
- `FileStreamer` reads ranges of files, not of objects, and they come in order. Of an object store, it lists what is
  below the prefix, not whatever begins with that text.
- `FileStreamer` does not verify ranges, and refuses to read where `TLOAD_VERIFY` is strict, such as `require`.
- `pull_files` skips what is there already.
- Not here are `libstreamer`, `streamer_mock`, and all that is internal there.

The variables of `runai_model_streamer`, read at each call. Those of tload (`TLOAD_*`) stand for what they leave open.

==================================================  ==================================================================
`RUNAI_STREAMER_MEMORY_LIMIT`                       Bytes of tensors that may wait for the caller. -1: all; 0: the
                                                    largest one and 2 MiB (on the way to a GPU: at least 64 MiB).
                                                    Unset: 512 MiB or more, as `tload.Options` says, not 40 GB
`RUNAI_STREAMER_FS_QUEUE_DEPTH`                     Reads in flight, of files: the first number counts. Unset: found
                                                    while reading
`RUNAI_STREAMER_CONCURRENCY`                        The same if that is unset. Object stores: no meaning, the requests
                                                    in flight are found while reading
`RUNAI_STREAMER_OBJ_CONCURRENCY`                    None: it counts clients, of which tload has one for each store
`RUNAI_STREAMER_CHUNK_BYTESIZE`                     Bytes of one read or request; at least 2 MiB for files, 5 MiB else
`RUNAI_STREAMER_FS_CHUNK_BYTESIZE`                  The same for files, and wins
`AWS_ENDPOINT_URL`                                  The endpoint of S3, unless credentials have one
`RUNAI_STREAMER_S3_ENDPOINT`                        The same if that is unset
`RUNAI_STREAMER_OVERRIDE_ENDPOINT_URL`              The endpoint of whatever store it is; wins over these two
`RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING`          1: the bucket is in the host's name, 0: in the path. Unset: in the
                                                    path if there is an endpoint
`RUNAI_STREAMER_S3_UNSIGNED`                        1: no credentials
`RUNAI_STREAMER_S3_MAX_RETRIES`                     How often a failed request is tried again, if positive
`RUNAI_STREAMER_S3_REQUEST_TIMEOUT_MS`              Milliseconds that may pass without a byte (there: with few)
`AWS_*`, `AZURE_*`, `GOOGLE_*`                      As `tload.open` says
`AZURE_STORAGE_ENDPOINT_SUFFIX`                     The end of the host's name, behind the account
`RUNAI_STREAMER_GCS_CREDENTIAL_FILE`                The key file of a service account
`RUNAI_STREAMER_GCS_USE_ANONYMOUS_CREDENTIALS`      1 or true: no credentials
`CLOUD_STORAGE_EMULATOR_ENDPOINT`                   The endpoint of GCS
`RUNAI_STREAMER_DIST`                               0: `is_distributed=True` is ignored; 1 and auto: see
                                                    `DistributedStreamer`
`RUNAI_STREAMER_LOG_LEVEL`, `_LOG_TO_STDERR`,       None: what is logged, is logged with `logging`, by the name of
`_LOG_FILE`                                         this package and `tload`
`RUNAI_STREAMER_RING_BUFFERS`,                      None: there is no ring of buffers
`_MAX_PADS_PER_BUFFER`
`RUNAI_STREAMER_FS_STRATEGY`, `_FS_MAX_ENGINES`,    None: tload chooses its engine, see `TLOAD_ENGINE` and
`_FS_REGISTER_BUFFERS`,                             `TLOAD_CACHE`
`_FS_NO_REGISTER_BUFFERS`, `_DIRECT_BLOCK`
`RUNAI_STREAMER_PINNED_MEMORY_MODE`,                None: pinned memory is tload's affair
`_DEVICE_SLAB_BYTES`
`RUNAI_STREAMER_S3_TARGET_GBPS`,                    None: requests and bytes in flight are found while reading, see
`_S3_MAX_CONNECTIONS`, `_S3_MAX_INFLIGHT_MIB`,      `TLOAD_DEPTH` and `TLOAD_IN_FLIGHT`
`_INFLIGHT_WINDOW_MARGIN`, `_S3_LOW_SPEED_LIMIT`
`RUNAI_STREAMER_S3_TIMEOUT`                         None: requests are tried again by number, not by time
`RUNAI_STREAMER_S3_TRACE`                           None
`RUNAI_STREAMER_NO_BOTO3_SESSION`                   None: there is no boto3
`RUNAI_STREAMER_GCS_USE_GRPC`                       None: GCS is asked over HTTP
`RUNAI_STREAMER_EXPERIMENTAL_AZURE_CACHE_*`         None: no such cache is looked for
`RUNAI_STREAMER_OVERRIDE_OBJ_PLUGIN`                None: `gs://` is GCS, not S3
`RUNAI_STREAMER_DIST_*`,                            None: nothing is divided among processes
`RUNAI_STREAMER_CUDA_ALIGNMENT`,
`RUNAI_STREAMER_PROCESS_GROUP_SIZE`
`STREAMER_LIBRARY`                                  None
==================================================  ==================================================================
"""

from tload.compat.runai._install import install, uninstall
from tload.compat.runai.distributed_streamer import DistributedStreamer
from tload.compat.runai.file_streamer import FileChunks, FileStreamer
from tload.compat.runai.object_storage import ObjectStorageModel, list_safetensors, pull_files
from tload.compat.runai.safetensors_streamer import SafetensorsStreamer

__all__ = [
    "DistributedStreamer",
    "FileChunks",
    "FileStreamer",
    "ObjectStorageModel",
    "SafetensorsStreamer",
    "install",
    "list_safetensors",
    "pull_files",
    "uninstall",
]
