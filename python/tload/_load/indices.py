"""Slices of a load, and errors of indices with the tensor and the file that they are about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict

from tload import _tload
from tload._errors import Error, InvalidIndexError, advise
from tload._load.selection import texts
from tload._load.sharding import Sharding
from tload._options.load_options import Options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tload.typing import Index


class Slices(TypedDict, total=False):
    """Keyword arguments of the extension module's `Loader`."""

    slices: list[tuple[str, Index]]
    sharding: _tload.Sharding


def slices_of(slices: Mapping[str, Index] | Sharding | None) -> Slices:
    """Return the keyword arguments of the extension for `slices`."""
    if slices is None:
        return {}
    if isinstance(slices, Sharding):
        return {"sharding": slices._raw}  # noqa: SLF001
    if not isinstance(slices, Mapping):
        message = f"slices: wanted a mapping of names to indices or a tload.Sharding, found {type(slices).__qualname__}"
        raise TypeError(message)
    if slices:
        texts("slices", slices)
    return {"slices": list(slices.items())}


def raise_named(error: Exception, checkpoint: _tload.Checkpoint, indices: Iterable[tuple[str, Index]]) -> None:
    """Raise `error` with the tensor whose index is invalid, if an index has caused it.

    Raises:
        InvalidIndexError: An index does not fit to the shape of its tensor.
        TypeError: An index is of a wrong type.
    """
    if isinstance(error, Error):
        return
    for name, index in indices:
        try:
            _tload.Loader(
                checkpoint,
                names=[],
                found=[],
                globs=[],
                regexes=[],
                device="cpu",
                options=Options(),
                slices=[(name, index)],
            )
        except (IndexError, TypeError, ValueError) as own:
            if (type(own), str(own)) != (type(error), str(error)):
                continue
            info = next(info for info in checkpoint.tensors() if info[0] == name)
            shape, location = info[2], checkpoint.shards()[info[4]][0]
            message = f"{location}: tensor {name!r}: {own}"
            if isinstance(own, TypeError):
                raise TypeError(message) from error
            hint = f"the tensor's shape is {list(shape)}"
            raise advise(InvalidIndexError, message, hint, location=location, tensor=name) from error
