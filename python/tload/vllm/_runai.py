"""What vLLM needs of the package of Run:ai Model Streamer, for those who do not have it: lists and files of buckets."""

from __future__ import annotations

from vllm.model_executor.model_loader import weight_utils
from vllm.transformers_utils import runai_utils

from tload._errors import UnsupportedError, advise


def provide() -> None:
    """Let vLLM pull the configuration of a model from a bucket with tload.

    vLLM looked for the package when it was imported, and remembers what it found: that is replaced.

    Raises:
        UnsupportedError: This tload has no `tload.compat.runai`.
    """
    try:
        from tload.compat import runai
    except ImportError as error:
        hint = "install a version of tload that has it, or unset TLOAD_REPLACE_RUNAI"
        raise advise(UnsupportedError, f"TLOAD_REPLACE_RUNAI=1: no tload.compat.runai ({error})", hint) from error

    runai.install()
    runai_utils.runai_pull_files = runai.pull_files
    runai_utils.runai_list_safetensors = runai.list_safetensors
    # For `runai_streamer_sharded`, which stays vLLM's.
    weight_utils.SafetensorsStreamer = runai.SafetensorsStreamer
