"""`load_file` of every shard in a pool of threads, as vLLM and tokenspeed do.

vLLM's is `multi_thread_safetensors_weights_iterator`. Options: `workers`, 8 by default as in vLLM,
and `clone`: `"worker"`, where the pool copies (tokenspeed), or `"main"`, where the thread that
takes the tensors copies and the pool does little more than map (vLLM).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import measure
from safetensors.torch import load_file


def load(job: measure.Job) -> measure.Tensors:
    in_worker = job.options.get("clone", "worker") == "worker"

    def one(name: str) -> dict[str, Any]:
        tensors = load_file(name)
        return {key: tensor.clone() for key, tensor in tensors.items()} if in_worker else tensors

    with ThreadPoolExecutor(job.options.get("workers", 8)) as pool:
        running = {pool.submit(one, name) for name in job.names}
        for future in as_completed(running):
            running.discard(future)
            tensors = future.result()
            del future
            while tensors:
                key, tensor = tensors.popitem()
                yield key, tensor if in_worker else tensor.clone()


measure.run(load)
