"""Replacement of what vLLM needs from Run:ai Model Streamer: listing and copying files."""

from __future__ import annotations

from vllm.model_executor.model_loader import weight_utils
from vllm.transformers_utils import runai_utils

from tload._errors import UnsupportedError, advise


def provide() -> None:
    """Let vLLM pull the configuration of a model from a bucket with tload.

    vLLM looked up the package when it was imported, and stored the result, which is replaced. Where
    the package is installed, it was also imported then: code other than vLLM's keeps it.

    Raises:
        UnsupportedError: This build of tload has no `tload.compat.runai`.
    """
    try:
        from tload.compat import runai
        from tload.compat.runai import _install
    except ImportError as error:
        hint = "install a version of tload that has it, or unset TLOAD_REPLACE_RUNAI"
        raise advise(UnsupportedError, f"TLOAD_REPLACE_RUNAI=1: no tload.compat.runai ({error})", hint) from error

    if not _install.is_imported():
        runai.install()
    runai_utils.runai_pull_files = runai.pull_files
    runai_utils.runai_list_safetensors = runai.list_safetensors
    # For `runai_streamer_sharded`, which remains vLLM's.
    weight_utils.SafetensorsStreamer = runai.SafetensorsStreamer
