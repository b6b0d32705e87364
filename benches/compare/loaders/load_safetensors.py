"""safetensors: `load_file`, shard after shard (https://huggingface.co/docs/safetensors/api/torch).

It maps the files, and bytes are read when they are first touched: so one byte of every page is
touched. Options: `clone`, which takes tensors one by one from `safe_open` and copies them into
memory of their own; `backend`, `"mmap"` or `"pread"`.
"""

from __future__ import annotations

from typing import Any

import measure
from safetensors import safe_open
from safetensors.torch import load_file


def load(job: measure.Job) -> measure.Tensors:
    backend = job.options.get("backend", "mmap")
    if job.options.get("clone"):
        for name in job.names:
            with safe_open(name, framework="pt", backend=backend) as opened:
                for key in opened.offset_keys():
                    tensor = opened.get_tensor(key)
                    # Memory filled by `pread` already belongs to the caller.
                    yield key, tensor.clone() if backend == "mmap" else tensor
        return
    kept: dict[str, Any] = {}
    for name in job.names:
        tensors = load_file(name, backend=backend)
        if not job.keep:
            measure.touch(tensors.values())
            yield from tensors.items()
        kept |= tensors if job.keep else {}
        del tensors
    measure.touch(kept.values())
    yield from kept.items()


measure.run(load)
