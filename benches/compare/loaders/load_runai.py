"""Run:ai Model Streamer: `RUNAI_STREAMER_CONCURRENCY=N load_runai.py URL-OF-SHARD…`."""

import sys

import measure
from runai_model_streamer import SafetensorsStreamer


def load() -> dict:
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(sys.argv[1:])
        return dict(streamer.get_tensors())


measure.run(load)
