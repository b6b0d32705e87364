"""Interface of `runai_model_streamer` 0.17, implemented with tload.

Opt-in, in one of two ways. In a program of your own:

>>> import tload.compat.runai as runai_model_streamer

In each process of other programs, before they are imported:

>>> tload.compat.runai.install()
>>> from runai_model_streamer import SafetensorsStreamer  # this package's

`uninstall` reverts it. Neither needs `runai_model_streamer`, nor its packages for S3, GCS and
Azure, to be installed.

Differences:

- The caller always owns its tensors: neither `owned` nor `clone` is needed. Keeping a small one
  keeps at most about 1 MiB besides it; on a GPU, at most 64 MiB (`TLOAD_REGION_BYTES`).
- Tensors are read to CUDA devices directly, through a small pinned buffer, not through tensors in
  host memory.
- Failures are `ValueError`, as there, and name the file, tensor and bytes; `__cause__` is tload's
  exception. Failures of devices and memory are tload's `DeviceError` (a `RuntimeError`) and
  `OutOfMemoryError` (a `MemoryError`); those of other processes are its `PeerError` (a
  `RuntimeError`).
- With `is_distributed=True`, one process of each node reads what several of them want, and all map
  its memory. Nothing is broadcast, so any backend and any device will do, and nothing is held on a
  GPU. Ranges of files (`DistributedStreamer`) are read by every process.
- `FileStreamer` reads ranges of files, not of objects, and yields them in order. In an object
  store, it lists the objects below the prefix, not all whose keys begin with that text.
- `FileStreamer` does not verify ranges, and refuses to read if `TLOAD_VERIFY` is strict, such as
  `require`.
- `pull_files` skips files that are already there.
- `libstreamer`, `streamer_mock`, and all internals are missing; all constants are there.

The variables of `runai_model_streamer` are read at each call. Settings that they leave open come
from tload's own (`TLOAD_*`).

==================================================  ==================================================================
`RUNAI_STREAMER_MEMORY_LIMIT`                       Bytes of tensors that may wait for the caller. -1: all; 0: the
                                                    largest one and 2 MiB (on the way to a GPU: at least 64 MiB).
                                                    With `is_distributed=True`, of all processes of a node; at least
                                                    twice that minimum for each of them.
                                                    Unset: 512 MiB or more, see `tload.Options`, not 40 GB
`RUNAI_STREAMER_FS_QUEUE_DEPTH`                     Reads of files in flight: only the first number counts. Unset:
                                                    tuned while reading
`RUNAI_STREAMER_CONCURRENCY`                        The same if that is unset. Object stores: no effect, the requests
                                                    in flight are tuned while reading
`RUNAI_STREAMER_OBJ_CONCURRENCY`                    No effect: it counts clients, and tload has one for each store
`RUNAI_STREAMER_CHUNK_BYTESIZE`                     Bytes of one read or request; at least 2 MiB for files, 5 MiB else
`RUNAI_STREAMER_FS_CHUNK_BYTESIZE`                  The same for files; takes precedence
`AWS_ENDPOINT_URL`                                  The endpoint of S3, unless credentials have one
`RUNAI_STREAMER_S3_ENDPOINT`                        The same if that is unset
`RUNAI_STREAMER_OVERRIDE_ENDPOINT_URL`              The endpoint of any store; takes precedence over these two
`RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING`          1: bucket in the host name, 0: in the path. Unset: in the path if
                                                    there is an endpoint
`RUNAI_STREAMER_S3_UNSIGNED`                        1: no credentials
`RUNAI_STREAMER_S3_MAX_RETRIES`                     Number of retries of a failed request, if positive
`RUNAI_STREAMER_S3_REQUEST_TIMEOUT_MS`              Milliseconds that may pass without a byte (there: with few)
`AWS_*`, `AZURE_*`, `GOOGLE_*`                      See `tload.open`
`AZURE_STORAGE_ENDPOINT_SUFFIX`                     The end of the host name, after the account
`RUNAI_STREAMER_GCS_CREDENTIAL_FILE`                The key file of a service account
`RUNAI_STREAMER_GCS_USE_ANONYMOUS_CREDENTIALS`      1 or true: no credentials
`CLOUD_STORAGE_EMULATOR_ENDPOINT`                   The endpoint of GCS
`RUNAI_STREAMER_DIST`                               0: `is_distributed=True` is ignored; 1 and auto: it is not, whatever
                                                    the backend
`RUNAI_STREAMER_DIST_GLOBAL`                        1: read once for all nodes, as `share="cluster"`. Else: once per
                                                    node
`RUNAI_STREAMER_DIST_TIMEOUT`                       Seconds in which all processes must have come. Unset: 600
`RUNAI_STREAMER_LOG_LEVEL`, `_LOG_TO_STDERR`,       No effect: log records go to `logging`, to the loggers of this
`_LOG_FILE`                                         package and `tload`
`RUNAI_STREAMER_RING_BUFFERS`,                      No effect: there is no ring of buffers
`_MAX_PADS_PER_BUFFER`
`RUNAI_STREAMER_FS_STRATEGY`, `_FS_MAX_ENGINES`,    No effect: tload chooses its engine, see `TLOAD_ENGINE` and
`_FS_REGISTER_BUFFERS`,                             `TLOAD_CACHE`
`_FS_NO_REGISTER_BUFFERS`, `_DIRECT_BLOCK`
`RUNAI_STREAMER_PINNED_MEMORY_MODE`,                No effect: tload manages pinned memory
`_DEVICE_SLAB_BYTES`
`RUNAI_STREAMER_S3_TARGET_GBPS`,                    No effect: requests and bytes in flight are tuned while reading,
`_S3_MAX_CONNECTIONS`, `_S3_MAX_INFLIGHT_MIB`,      see `TLOAD_DEPTH` and `TLOAD_IN_FLIGHT`
`_INFLIGHT_WINDOW_MARGIN`, `_S3_LOW_SPEED_LIMIT`
`RUNAI_STREAMER_S3_TIMEOUT`                         No effect: the number of retries is limited, not their time
`RUNAI_STREAMER_S3_TRACE`                           No effect
`RUNAI_STREAMER_NO_BOTO3_SESSION`                   No effect: boto3 is not used
`RUNAI_STREAMER_GCS_USE_GRPC`                       No effect: GCS is accessed over HTTP
`RUNAI_STREAMER_EXPERIMENTAL_AZURE_CACHE_*`         No effect: such a cache is not supported
`RUNAI_STREAMER_OVERRIDE_OBJ_PLUGIN`                No effect: `gs://` is GCS, not S3
`RUNAI_STREAMER_DIST_*`, others,                    No effect: nothing is broadcast
`RUNAI_STREAMER_CUDA_ALIGNMENT`,
`RUNAI_STREAMER_PROCESS_GROUP_SIZE`
`STREAMER_LIBRARY`                                  No effect
==================================================
==================================================================
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
