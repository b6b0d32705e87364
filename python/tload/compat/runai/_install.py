"""Installs this package in `sys.modules` in place of runai_model_streamer, and uninstalls it."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from tload import InvalidRequestError
from tload._errors import advise

NAME = "runai_model_streamer"

_PACKAGES = {
    "": "tload.compat.runai",
    ".distributed_streamer": "tload.compat.runai.distributed_streamer",
    ".file_streamer": "tload.compat.runai.file_streamer",
    ".s3_utils": None,
    ".safetensors_streamer": None,
}
"""Packages of runai_model_streamer, each with the module of this package that has its contents."""

_MODULES = {
    ".distributed_streamer.distributed_streamer": "tload.compat.runai.distributed_streamer",
    ".file_streamer.file_streamer": "tload.compat.runai.file_streamer",
    ".file_streamer.requests_iterator": "tload.compat.runai.file_streamer",
    ".s3_utils.s3_utils": "tload.compat.runai.stores",
    ".safetensors_streamer.safetensors_pytorch": "tload.compat.runai.safetensors_pytorch",
    ".safetensors_streamer.safetensors_streamer": "tload.compat.runai.safetensors_streamer",
}
"""Modules of runai_model_streamer, each with its counterpart."""


_NOT_THEIRS = frozenset(
    {
        "RUNAI_STREAMER_MEMORY_LIMIT_ENV_VAR_NAME",
        "RunaiStreamerInvalidInputException",
        "RunaiStreamerMemoryLimitException",
        "install",
        "uninstall",
    }
)
"""Public names of this package that are not in `__all__` of a package of runai_model_streamer."""


def install() -> None:
    """Make `import runai_model_streamer` import this package from now on, in this process.

    Call it before importing the program that uses runai_model_streamer, in each of its processes.
    Repeated calls have no effect. `runai_model_streamer` need not be installed, and is unchanged if
    it is.

    Raises:
        InvalidRequestError: `runai_model_streamer` itself is already imported, and its users would
            keep it.
    """
    if _is_ours(sys.modules.get(NAME)):
        return
    if is_imported():
        where = getattr(sys.modules[NAME], "__file__", None) or "?"
        message = f"{NAME} has been imported already, from {where}: its users would keep it"
        raise advise(InvalidRequestError, message, "call tload.compat.runai.install() before anything imports it")
    modules = {path: _package(NAME + path, source) for path, source in _PACKAGES.items()}
    modules |= {path: importlib.import_module(source) for path, source in _MODULES.items()}
    # `import a.b.c as c` looks up attributes first. Parents come before their children.
    for path, module in modules.items():
        parent, _, name = path.rpartition(".")
        if name:
            setattr(modules[parent], name, module)
    sys.modules.update({NAME + path: module for path, module in modules.items()})


def is_imported() -> bool:
    """Return whether `runai_model_streamer` itself has been imported, so that `install` refuses."""
    return NAME in sys.modules and not _is_ours(sys.modules[NAME])


def uninstall() -> None:
    """Revert `install`. Objects that were imported from here in the meantime stay valid."""
    if _is_ours(sys.modules.get(NAME)):
        for path in [*_PACKAGES, *_MODULES]:
            sys.modules.pop(NAME + path, None)


def _package(name: str, source: str | None) -> ModuleType:
    package = ModuleType(name, f"`{name}`, of tload.compat.runai.")
    # `importlib.util.find_spec` reads it.
    package.__spec__ = ModuleSpec(name, None, origin="tload.compat.runai", is_package=True)
    package.__path__ = []
    # Programs look for files beside it: there is none of that package.
    package.__file__ = __file__
    if source is None:
        return package
    ours = importlib.import_module(source)
    vars(package).update({name: getattr(ours, name) for name in ours.__all__})
    vars(package)["__all__"] = [name for name in ours.__all__ if name not in _NOT_THEIRS]
    if name == NAME:
        vars(package)["logger_level"] = os.environ.get("RUNAI_STREAMER_LOG_LEVEL", "INFO").upper()
    return package


def _is_ours(module: ModuleType | None) -> bool:
    spec = getattr(module, "__spec__", None)
    return spec is not None and spec.origin == "tload.compat.runai"
