"""fastsafetensors on the CPU (https://github.com/foundation-model-stack/fastsafetensors).

Kept: whole files into memory, tensors as views of it. Streamed: its `ParallelLoader`, with borrowed
tensors and files read in pieces, its cheapest way. Options are those of the loader: `max_threads`,
`bbuf_size_kb`. FASTSAFETENSORS_ODIRECT=0 makes it read through the page cache.
"""

from __future__ import annotations

import contextlib

import measure
import torch  # noqa: F401  (it imports torch when it is first used; the clock starts after that)
from fastsafetensors import ParallelLoader, SafeTensorsFileLoader, SingleGroup

#: Bytes of one file read at a time when tensors are streamed.
BATCH_BYTES = 512 << 20


def load(job: measure.Job) -> measure.Tensors:
    if job.keep:
        loader = SafeTensorsFileLoader(SingleGroup(), "cpu", nogds=True, **job.options)
        loader.add_filenames({0: job.names})
        copied = loader.copy_files_to_device()
        yield from ((name, copied.get_tensor(name)) for name in loader.get_keys())
        # Since 0.4, tensors outlive both.
        copied.close()
        loader.close()
        return
    parallel = ParallelLoader(
        SingleGroup(),
        job.names,
        use_tqdm_on_load=False,
        accumulate_resident=False,
        borrowed_tensors=True,
        max_batch_bytes=BATCH_BYTES,
        device="cpu",
        nogds=True,
        **job.options,
    )
    with contextlib.closing(parallel.iterate_weights()) as tensors:
        yield from tensors
    parallel.close()


measure.run(load)
