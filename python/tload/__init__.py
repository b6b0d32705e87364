"""Loads LLM weights as fast as the hardware allows.

Tensors of safetensors checkpoints are read in place, and are yielded while later ones are still
being read:

>>> import tload
>>> for name, tensor in tload.stream("model_dir"):
...     module.get_parameter(name).data.copy_(tensor)
>>> state = tload.load("model_dir")
>>> state = tload.load("s3://bucket/model_dir", store=tload.S3(region="eu-west-1"))
>>> state = tload.load("model_dir", device="cuda")
>>> tload.load_into(module, "model_dir")
>>> with tload.open("model_dir") as checkpoint:  # headers only
...     print(checkpoint["lm_head.weight"].shape)
"""

from typing import TYPE_CHECKING

from tload._checkpoint.checkpoint import Checkpoint
from tload._checkpoint.opening import open, open_async  # noqa: A004
from tload._checkpoint.reader import Reader, Reading
from tload._errors import (
    CancelledError,
    ChangedError,
    CorruptError,
    DeviceError,
    Error,
    FormatError,
    InvalidRequestError,
    IoError,
    LoadTimeoutError,
    NoSuchTensorError,
    NotFoundError,
    OutOfMemoryError,
    PeerError,
    PermissionDeniedError,
    RemoteError,
    UnsupportedError,
)
from tload._load.into import load_into
from tload._load.load import load, stream
from tload._load.sharding import Sharding
from tload._load.stream import TensorStream
from tload._options.load_options import Options
from tload._patch import patch
from tload._ranks.group import Group
from tload._report import log as _log
from tload._report.progress import Progress
from tload._sources.entries import Shard, TensorInfo
from tload._tload import Tensor, __version__, parked_bytes, release_staging
from tload.report import (
    CacheReport,
    DepthReport,
    DeviceReport,
    EngineReport,
    GroupReport,
    MirrorReport,
    PatchReport,
    PhaseReport,
    Report,
    StageTimes,
    StagingReport,
    Unverified,
    VerificationReport,
    VerifiedBy,
)

__all__ = [
    "GCS",
    "HTTP",
    "OCI",
    "S3",
    "Azure",
    "CacheReport",
    "CancelledError",
    "ChangedError",
    "Checkpoint",
    "CopyPlan",
    "CopyReport",
    "CorruptError",
    "DeltaReport",
    "DepthReport",
    "DeviceError",
    "DeviceReport",
    "EngineReport",
    "Error",
    "FileReport",
    "FormatError",
    "Group",
    "GroupReport",
    "HuggingFace",
    "InvalidRequestError",
    "IoError",
    "Leftover",
    "ListedFile",
    "LoadTimeoutError",
    "MirrorReport",
    "Mismatch",
    "NoSuchTensorError",
    "NotFoundError",
    "Options",
    "OutOfMemoryError",
    "PatchReport",
    "PeerError",
    "PermissionDeniedError",
    "PhaseReport",
    "PlannedFile",
    "Progress",
    "Reader",
    "Reading",
    "RemoteError",
    "Report",
    "SaveReport",
    "Shard",
    "Sharding",
    "StageTimes",
    "StagingReport",
    "Tensor",
    "TensorInfo",
    "TensorStream",
    "UnsupportedError",
    "Unverified",
    "VerificationReport",
    "VerifiedBy",
    "VerifyReport",
    "__version__",
    "apply",
    "apply_into",
    "copy",
    "diff",
    "list_files",
    "load",
    "load_into",
    "open",
    "open_async",
    "parked_bytes",
    "patch",
    "release_staging",
    "remove_incomplete",
    "save",
    "stream",
    "verify",
]

_SUBMODULES = frozenset(
    {"compat", "dcp", "memory", "metrics", "report", "safetensors", "sglang", "transformers", "typing", "vllm"}
)
"""Modules that are imported when an attribute of their name is first read."""

_LATER = {
    "_files.copy": ("CopyPlan", "CopyReport", "ListedFile", "PlannedFile", "copy", "list_files"),
    "_files.save": ("Leftover", "SaveReport", "remove_incomplete", "save"),
    "_files.delta": ("DeltaReport", "apply", "apply_into", "diff"),
    "_files.verify": ("FileReport", "Mismatch", "VerifyReport", "verify"),
    "_options.stores": ("GCS", "HTTP", "OCI", "S3", "Azure", "HuggingFace"),
}
"""Modules that few programs need, with the names here that import them."""

if TYPE_CHECKING:
    from tload import memory as memory
    from tload import report as report
    from tload import typing as typing
    from tload._files.copy import CopyPlan, CopyReport, ListedFile, PlannedFile, copy, list_files
    from tload._files.delta import DeltaReport, apply, apply_into, diff
    from tload._files.save import Leftover, SaveReport, remove_incomplete, save
    from tload._files.verify import FileReport, Mismatch, VerifyReport, verify
    from tload._options.stores import GCS, HTTP, OCI, S3, Azure, HuggingFace
else:  # for type checkers, every name would exist

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name in _SUBMODULES:
            return import_module(f"tload.{name}")
        for module, names in _LATER.items():
            if name in names:
                return getattr(import_module(f"tload.{module}"), name)
        message = f"module 'tload' has no attribute {name!r}"
        raise AttributeError(message)

    def __dir__() -> list[str]:
        return sorted({*__all__, *(name for name in globals() if name.startswith("_"))})


del TYPE_CHECKING


_log.configure_from_environment()
