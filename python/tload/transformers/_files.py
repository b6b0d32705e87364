"""The files of a checkpoint, as transformers finds and opens them.

transformers takes more than tensors from files: the metadata of quantized checkpoints, the dtype of
the weights, and the places from which accelerate reads offloaded weights later. So it gets the
paths that it would find itself; for those, `safe_open` returns a handle of the running load.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tload._errors import UnsupportedError, advise
from tload._patch import SharedChange, patch
from tload.safetensors._open import HandlePath
from tload.transformers._lazy import LazyTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Self

    from tload._checkpoint.checkpoint import Checkpoint

FIND = "_get_resolved_checkpoint_files"
"""transformers' function that returns the paths of a model's files, and the contents of its index."""

READS_WHOLE = "_is_on_hf_mount"
"""transformers' function that returns whether it must read a file without `safe_open`."""

SUFFIX = ".safetensors"

Found: TypeAlias = tuple[list[HandlePath], dict[str, Any]]
"""Paths of a model's files, and the contents of its index: what `FIND` returns."""

_found: ContextVar[Found | None] = ContextVar("_found", default=None)
"""Result of the next search of transformers in this thread, in place of its own."""


class ShardHandle:
    """Handle of one file, as `safe_open` returns it: its tensors come from the running load."""

    def __init__(self, metadata: Mapping[str, str], tensors: dict[str, LazyTensor]) -> None:
        """Wrap the file's metadata and those of its tensors that count."""
        self._metadata = metadata
        self._tensors = tensors

    def metadata(self) -> dict[str, str] | None:
        """Return the file's `__metadata__`, or `None` if it has none."""
        return dict(self._metadata) or None

    def keys(self) -> list[str]:
        """Return the names of the tensors, sorted."""
        return sorted(self._tensors)

    def get_slice(self, name: str) -> LazyTensor:
        """Return a handle of a tensor, without reading it."""
        return self._tensors[name]

    def get_tensor(self, name: str) -> Any:
        """Read a whole tensor."""
        return self._tensors[name][...]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: the load ends with `from_pretrained`."""


@contextmanager
def found_by_transformers(checkpoint: Checkpoint, take: Callable[..., Any], read: Callable[..., Any]) -> Iterator[None]:
    """Let transformers find the files of `checkpoint` in this thread, whatever it searches for first.

    That is the model itself. Later searches, such as that for an adapter, are its own.

    Args:
        checkpoint: The open checkpoint.
        take: Returns a whole tensor by its name: see `LazyTensor`.
        read: Returns a part of a tensor.
    """
    with patch(), _search():
        token = _found.set(_files(checkpoint, take, read))
        try:
            yield
        finally:
            _found.reset(token)


def _files(checkpoint: Checkpoint, take: Callable[..., Any], read: Callable[..., Any]) -> Found:
    # The order of files decides which dtype the model gets if nothing else does.
    tensors: list[dict[str, LazyTensor]] = [{} for _ in checkpoint.shards]
    for name, info in checkpoint.items():
        tensors[info.shard][name] = LazyTensor(info, take, read)
    paths = []
    for shard, own in zip(checkpoint.shards, tensors, strict=True):
        path = HandlePath(_with_suffix(str(_local(shard.location) or shard.location)))
        path.handle = ShardHandle(shard.metadata, own)
        paths.append(path)
    # Offloaded weights are read from these files on use. Those of remote files, and of files whose
    # location is too long to be shown whole, are written to a folder.
    local = [_local(shard.location) for shard in checkpoint.shards]
    places = {name: str(place) for name, info in checkpoint.items() if (place := local[info.shard]) is not None}
    return paths, {"all_checkpoint_keys": list(checkpoint), "weight_map": places}


def _local(location: str) -> Path | None:
    """Return the absolute path of a local file, else `None`."""
    if "://" in location:
        return None
    # Unlike `Path.is_file`, it takes names that are too long.
    return Path(location).absolute() if os.path.isfile(location) else None  # noqa: PTH113


def _with_suffix(path: str) -> str:
    """Return a path by which transformers takes a file for one of safetensors."""
    return path if path.endswith(SUFFIX) else path + SUFFIX


_replaced: dict[str, tuple[Any, Any]] = {}


def _replace() -> None:
    from transformers import modeling_utils

    if not hasattr(modeling_utils, FIND):
        message = "this version of transformers finds files in a way that tload does not know"
        raise advise(UnsupportedError, message, "use tload.patch(), and report this to the authors of tload")
    for name, substitute in ((FIND, _finder), (READS_WHOLE, _asker)):
        theirs = getattr(modeling_utils, name, None)
        if theirs is not None and name not in _replaced:
            _replaced[name] = (theirs, substitute(theirs))
            setattr(modeling_utils, name, _replaced[name][1])


def _restore() -> None:
    from transformers import modeling_utils

    while _replaced:
        name, (theirs, ours) = _replaced.popitem()
        if getattr(modeling_utils, name) is ours:
            setattr(modeling_utils, name, theirs)


_search = SharedChange(_replace, _restore)


def _finder(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def find(*arguments: Any, **keywords: Any) -> Any:
        found = _found.get()
        if found is None:
            return theirs(*arguments, **keywords)
        _found.set(None)
        return found

    return find


def _asker(theirs: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda path: not isinstance(path, HandlePath) and theirs(path)
