"""Run:ai Model Streamer (https://github.com/run-ai/runai-model-streamer): all files at once.

The environment tunes it: RUNAI_STREAMER_CONCURRENCY, and RUNAI_STREAMER_FS_STRATEGY for files. Kept
tensors are `owned`, its default, which needs no copy; streamed ones are views of reused memory, its
cheapest way.
"""

from __future__ import annotations

import measure
from runai_model_streamer import SafetensorsStreamer


def load(job: measure.Job) -> measure.Tensors:
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(job.names, owned=job.keep)
        yield from streamer.get_tensors()


measure.run(load)
