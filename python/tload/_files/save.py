"""Checkpoints that are written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tload import _tload
from tload._errors import InvalidRequestError
from tload._options import store_options
from tload._report import spans
from tload._report.decode import decode
from tload._sources.keys import read_sealing
from tload._sources.locations import check_location
from tload._tensors import stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Unpack

    import numpy as np
    import torch

    from tload._options.keywords import StoreKeywords
    from tload.typing import Key, Location, Size, Store

WRITE_BYTES = 64 << 20
"""Bytes between two checks for signals."""


@dataclass(frozen=True, slots=True)
class SaveReport:
    """Statistics of one `tload.save`."""

    location: str
    """The destination, without secrets."""
    id: str
    """Identifier of the write, as in the names of its shards."""
    files: tuple[str, ...]
    """Names of the files with tensors, in the order of the index."""
    tensors: int
    """Number of tensors, without aliases."""
    tensor_bytes: int
    """Bytes of the tensors."""
    file_bytes: int
    """Bytes of the files with tensors."""
    replaced: str | None
    """Checkpoint that was replaced, which is kept until `tload.remove_incomplete`, or `None`."""
    direct: bool
    """True if files were written with direct I/O, past the page cache."""


class Leftover(NamedTuple):
    """Files that a write has left, from `tload.remove_incomplete`."""

    location: str
    """Path or URL."""
    removed: bool
    """True if it was removed: a writer that still runs keeps its own."""


def _texts(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return metadata whose keys and values are texts."""
    for pair in metadata.items():
        for text in pair:
            if not isinstance(text, str):
                message = f"metadata[{pair[0]!r}]: wanted a str, found {type(text).__qualname__}"
                raise TypeError(message)
            if any("\ud800" <= character <= "\udfff" for character in text):
                message = f"metadata[{pair[0]!r}] is not Unicode"
                raise InvalidRequestError(message)
    return dict(metadata)


@store_options.takes_keywords
def save(
    tensors: Mapping[str, torch.Tensor | np.ndarray[Any, Any]]
    | torch.nn.Module
    | Iterable[tuple[str, torch.Tensor | np.ndarray[Any, Any]]],
    location: Location,
    *,
    max_shard_size: Size = "5GB",
    metadata: Mapping[str, str] | None = None,
    replace: bool = False,
    manifest: bool = False,
    plain_names: bool = False,
    key: Key | None = None,
    recipients: Sequence[str] = (),
    store: Store | None = None,
    **keywords: Unpack[StoreKeywords],
) -> SaveReport:
    """Write a checkpoint: all of its files, or none.

    The files are written beside the destination, with direct I/O, and take its place at once when
    all bytes are on disk. Until then, and if the program is killed, the destination is as it was.
    In an object store, shards have names of their own, and the index that names them comes last.

    From a mapping or module, each file has the bytes that `safetensors` writes, and tensors are
    distributed over files as `huggingface_hub` does it. An iterator is written while it produces
    tensors: they are stored in its order.

    Args:
        tensors: Tensors of torch, on CPUs or GPUs, or arrays of numpy, by name; a module, whose
            `state_dict()` is written; or an iterable of pairs of name and tensor. They must not be
            changed during the call. Names of a mapping that are the same memory are stored once, as
            `safetensors.torch.save_model` does it, or transformers for its models: the others are
            in the metadata.
        location: The directory to write, or a file with a name in `.safetensors`; directories above
            it are created. Or the URL of a prefix in S3, Google Cloud Storage or Azure.
        max_shard_size: Maximum bytes of tensors in one file of a directory; a larger tensor has a
            file of its own. Default: 5 GB.
        metadata: Metadata of each file. Default: `{"format": "pt"}` for tensors of torch, as
            transformers expects it, else none. `{}` for none.
        replace: Replace a checkpoint that is there. Other files in its directory are kept. The old
            directory is kept, under another name, until `tload.remove_incomplete`. Default:
            `False`: an existing file, or a directory with files, is an error.
        manifest: Write a manifest for `tload verify` too; takes the time of three digests. Not for
            iterators, nor to replace a checkpoint in a store. Default: `False`.
        plain_names: Name shards as `huggingface_hub` does, `model-00001-of-00002.safetensors`, not
            with the identifier of the write. Only for a new directory. Default: `False`.
        key: Keyset of Tink to seal the checkpoint with: see `tload.open` for its forms. A sealed
            checkpoint is written to a new directory or an empty prefix, with plain names, from a
            mapping or module, and without `manifest`: it has one of its own. Default: a new key if
            there are recipients, else the checkpoint is not sealed; variables are not read.
        recipients: Public keys of age, its plugins or SSH, whose owners can open the checkpoint.
            Default: none.
        store: Options of the object store: see `tload.open`.
        **keywords: Keys of `store`: see `tload.open`.

    Returns:
        The statistics of the write.

    Raises:
        InvalidRequestError: The destination exists, or a tensor cannot be stored.
        UnsupportedError: Files have no such dtype, or nothing can be written to this location.
        ChangedError: Another writer was faster. The error names it.
        OutOfMemoryError, PermissionDeniedError, RemoteError, IoError: While writing.

    Examples:
        >>> tload.save(module, "model", max_shard_size="2GB")
        >>> tload.save({"a": torch.zeros(2)}, "a.safetensors", replace=True)
        >>> tload.save(module, "s3://bucket/sealed", key=pathlib.Path("key.json"))
        >>> tload.save(((name, tensor.half()) for name, tensor in tload.stream("model")), "half")
    """
    check_location("location", location)
    store = store_options.take(store, keywords)
    # Models of transformers say which of two names its loaders, and engines, do not look for.
    tied = getattr(tensors, "_tied_weights_keys", None) or ()
    if hasattr(tensors, "state_dict"):
        tensors = cast("Mapping[str, torch.Tensor]", tensors.state_dict())
    known, same = None, {}
    if isinstance(tensors, Mapping):
        known = {name: stored.described(name, tensor) for name, tensor in tensors.items()}
    if metadata is None:
        is_torch = known is None or any(hasattr(tensor.value, "data_ptr") for tensor in known.values())
        metadata = {"format": "pt"} if is_torch else {}
    if known is not None:
        same = stored.aliases(known, taken=(*metadata, "total_size"), tied=tied)
        known = {name: tensor for name, tensor in known.items() if name not in same}
    with spans.around("tload.save") as describe:
        writer = _tload.Writer(
            location,
            None if known is None else [(name, tensor.dtype, tensor.shape) for name, tensor in known.items()],
            max_shard_size=_tload.parse_bytes("max_shard_size", str(max_shard_size)),
            metadata=_texts(metadata),
            aliases=same,
            replace=replace,
            manifest=manifest,
            plain_names=plain_names,
            fragment=False,
            sealing=read_sealing(key, recipients),
            store=store_options.resolve(location, store, os.environ),
        )
        try:
            if known is None:
                pairs = cast("Iterable[tuple[str, torch.Tensor]]", tensors)
                entries = (stored.described(name, tensor) for name, tensor in pairs)
            else:
                entries = (known[name] for name in writer.order())
            for entry in entries:
                writer.begin(entry.name, entry.dtype, entry.shape)
                for piece in entry.pieces():
                    for start in range(0, len(piece), WRITE_BYTES):
                        writer.write(piece[start : start + WRITE_BYTES])
            report = writer.finish()
        finally:
            writer.abort()
        decoded: SaveReport = decode(SaveReport, json.loads(report))
        for name in ("location", "tensors", "tensor_bytes"):
            describe(name, getattr(decoded, name))
    return decoded


@store_options.takes_keywords
def remove_incomplete(
    location: Location, *, store: Store | None = None, **keywords: Unpack[StoreKeywords]
) -> list[Leftover]:
    """Remove what writes to a location have left: files of killed writers, and replaced checkpoints.

    Args:
        location: The directory, file or prefix that `tload.save` wrote.
        store: Options of the object store: see `tload.open`.
        **keywords: Keys of `store`: see `tload.open`.

    Returns:
        What was found: tuples `(location, removed)`. Files of a writer that runs are not removed:
        in stores and on network file systems, one that has not written for a day does not run.

    Raises:
        PermissionDeniedError, RemoteError, IoError: They cannot be removed.

    Examples:
        >>> tload.remove_incomplete("model")
    """
    check_location("location", location)
    store = store_options.take(store, keywords)
    pairs = store_options.resolve(location, store, os.environ)
    return [Leftover._make(row) for row in _tload.remove_incomplete(location, store=pairs)]
