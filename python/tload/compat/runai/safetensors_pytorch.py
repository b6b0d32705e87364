"""Tensors of safetensors headers, in the types of runai_model_streamer."""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tload
from tload._checkpoint.opening import open_for
from tload._errors import advise
from tload._options.load_options import resolve
from tload._ranks.group import raw_group
from tload._sources.origin import Opening
from tload._tensors.torch_tensors import DTYPES
from tload.compat.runai import environment
from tload.compat.runai.closing import Closing
from tload.compat.runai.errors import value_errors
from tload.compat.runai.stores import kind_of_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from tload.compat.runai.distributed_streamer import DistributedStreamer
    from tload.compat.runai.stores import S3Credentials

# Constants of runai_model_streamer, which programs import. Nothing here uses them.
LITTLE_ENDIAN_LONG_LONG_STRUCT_FORMAT = "<Q"
MAX_HEADER_SIZE = 100 << 20
SAFETENSORS_DATA_OFFSETS_KEY = "data_offsets"
SAFETENSORS_DTYPE_KEY = "dtype"
SAFETENSORS_HEADER_BUFFER_SIZE = 8
SAFETENSORS_NAME_KEY = "name"
SAFETENSORS_SHAPE_KEY = "shape"


@dataclass(frozen=True, slots=True)
class Offsets:
    """Byte range of a tensor, counted from the end of the file's header."""

    start: int
    """First byte."""
    end: int
    """End, exclusive."""

    def get_diff(self) -> int:
        """Return the number of bytes."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class SafetensorMetadata:
    """Header entry of one tensor."""

    name: str
    """The tensor's name."""
    shape: list[int]
    """Elements along each dimension."""
    dtype: str
    """The element type as safetensors files write it, for example `"BF16"`."""
    offsets: Offsets
    """Byte range of the tensor."""

    def get_bytesize(self) -> int:
        """Return the length in bytes."""
        return self.offsets.get_diff()

    def get_item_count(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    def get_torch_dtype(self) -> torch.dtype:
        """Return torch's dtype, or raise `ValueError`."""
        import torch

        dtype: torch.dtype | None = getattr(torch, DTYPES.get(self.dtype, ""), None)
        if dtype is None:
            message = f"Unsupported dtype {self.dtype!r} of {self.name!r}: torch {torch.__version__} has no such dtype"
            raise ValueError(message)
        return dtype

    def get_element_size(self) -> int:
        """Return the bytes of torch's element (which holds two of `F4`)."""
        return self.get_torch_dtype().itemsize


@dataclass(frozen=True, slots=True)
class OpenFiles(Closing):
    """Files whose headers have been read.

    A context manager that closes them; streams keep them open until they end.
    """

    checkpoints: list[tload.Checkpoint]
    """One checkpoint of all files, or one of each file if a name is in several of them."""
    files: list[list[SafetensorMetadata]]
    """The tensors of each file, in the order of the file."""
    header_bytes: list[int]
    """Start of each file's first tensor, bytes."""

    def repeated(self) -> set[str]:
        """Return the names that are in several files."""
        counts = Counter(tensor.name for file in self.files for tensor in file)
        return {name for name, count in counts.items() if count > 1}

    def _close(self) -> None:
        for checkpoint in self.checkpoints:
            checkpoint.close()


def open_files(
    paths: Sequence[str | os.PathLike[str]], credentials: S3Credentials | None, group: tload.Group | None = None
) -> OpenFiles:
    """Open files and read their headers. Those of an object store are opened once per node of `group`.

    Raises:
        ValueError: A file cannot be opened, or is not a valid safetensors file.
        PeerError: A process of the group does not open them.
    """
    locations = [os.fspath(path) for path in paths]
    if not locations:
        return OpenFiles([], [], [])
    kind = kind_of_all(locations)
    store = environment.store(kind, credentials) or None
    opening = None if group is None else Opening.of(raw_group(group), resolve(None, environment.group_options()))
    with value_errors():
        try:
            checkpoints = [open_for(locations, store, None, opening=opening)]
        except (tload.FormatError, tload.InvalidRequestError):
            # A name, or even a file, may be repeated here, which is not a valid checkpoint. Any
            # other error is raised again.
            _refuse_directories(locations)
            checkpoints = [open_for([path], store, None, opening=opening) for path in locations]
    opened = OpenFiles(checkpoints, [], [])
    for checkpoint in checkpoints:
        _add(checkpoint, opened)
    return opened


def _refuse_directories(paths: Sequence[str]) -> None:
    for path in paths:
        if Path(path).is_dir():
            message = f"{path}: is a directory, and files are streamed"
            raise advise(tload.InvalidRequestError, message, f"stream_files(list_safetensors({path!r}))")


def _add(checkpoint: tload.Checkpoint, opened: OpenFiles) -> None:
    files: list[list[SafetensorMetadata]] = [[] for _ in checkpoint.shards]
    for info in checkpoint.values():
        header_bytes = checkpoint.shards[info.shard].header_bytes
        start, end = info.file_range
        offsets = Offsets(start - header_bytes, end - header_bytes)
        files[info.shard].append(SafetensorMetadata(info.name, list(info.shape), info.dtype, offsets))
    for file in files:
        # An empty tensor starts where its neighbour does.
        file.sort(key=lambda tensor: (tensor.offsets.start, tensor.offsets.end))
    opened.files.extend(files)
    opened.header_bytes.extend(shard.header_bytes for shard in checkpoint.shards)


def prepare_request(
    fs: DistributedStreamer, paths: list[str], s3_credentials: S3Credentials | None
) -> list[tuple[int, list[SafetensorMetadata], list[int]]]:
    """Read the headers of files.

    Args:
        fs: Ignored: tload reads headers by itself.
        paths: The files, local ones or all of one kind of store.
        s3_credentials: Options of S3. Default: from the environment.

    Returns:
        For each file, the start of its first tensor (bytes), its tensors in file order, and their
        lengths (bytes).

    Raises:
        ValueError: A file cannot be opened, or is not a valid safetensors file.
    """
    del fs
    with open_files(paths, s3_credentials) as opened:
        return [
            (header_bytes, tensors, [tensor.get_bytesize() for tensor in tensors])
            for header_bytes, tensors in zip(opened.header_bytes, opened.files, strict=True)
        ]
