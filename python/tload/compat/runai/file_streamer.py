"""Raw ranges of files, read ahead of the caller by a few threads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tload import InvalidRequestError, UnsupportedError
from tload._errors import advise
from tload._options.keywords import OptionKeywords
from tload._options.load_options import is_strict, resolve
from tload.compat.runai import environment
from tload.compat.runai.closing import Closing
from tload.compat.runai.errors import (
    RunaiStreamerInvalidInputException,
    RunaiStreamerMemoryLimitException,
    value_errors,
)
from tload.compat.runai.object_storage import is_wanted, list_objects
from tload.compat.runai.range_reads import Range, RangeReads
from tload.compat.runai.stores import Kind, kind_of, kind_of_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from tload.compat.runai.stores import S3Credentials

__all__ = [
    "RUNAI_STREAMER_MEMORY_LIMIT_ENV_VAR_NAME",
    "FileChunks",
    "FileStreamer",
    "RunaiStreamerInvalidInputException",
    "RunaiStreamerMemoryLimitException",
]

RUNAI_STREAMER_MEMORY_LIMIT_ENV_VAR_NAME = environment.MEMORY_LIMIT
"""Alias with runai_model_streamer's name, which its users import."""

# Constants of runai_model_streamer, which programs import. Nothing here uses them.
DEFAULT_MAX_PADS_PER_BUFFER = 1024
DEFAULT_MEMORY_LIMIT_STRING = "40000000000"
DEFAULT_RING_BUFFERS = 18
DIRECT_IO_BLOCK = os.sysconf("SC_PAGESIZE")
RUNAI_STREAMER_MAX_PADS_PER_BUFFER_ENV_VAR_NAME = "RUNAI_STREAMER_MAX_PADS_PER_BUFFER"
RUNAI_STREAMER_RING_BUFFERS_ENV_VAR_NAME = "RUNAI_STREAMER_RING_BUFFERS"

READ_AHEAD_BYTES = 512 << 20
"""Maximum bytes that wait for the caller without RUNAI_STREAMER_MEMORY_LIMIT, as in
`tload.stream`."""


class FileChunks:
    """Ranges of one file. They need not be adjacent or in order, and may be empty."""

    def __init__(self, id: int, path: str, offsets: list[int], sizes: list[int]) -> None:
        """Describe the ranges to read.

        Args:
            id: Identifier of the ranges; unique among all requests of one `stream_files`.
            path: Path of the file.
            offsets: Start of each range, bytes.
            sizes: Length of each range, bytes.

        Raises:
            ValueError: The numbers of offsets and sizes differ.
        """
        if len(offsets) != len(sizes):
            message = f"FileChunks of {path!r}: {len(offsets)} offsets and {len(sizes)} sizes: wanted equal numbers"
            raise InvalidRequestError(message)
        self.id = id
        self.path = path
        self.offsets = offsets
        self.sizes = sizes

    @staticmethod
    def contiguous(id: int, path: str, offset: int, sizes: list[int]) -> FileChunks:
        """Make adjacent ranges of these sizes that start at `offset`."""
        offsets = []
        for size in sizes:
            offsets.append(offset)
            offset += size
        return FileChunks(id, path, offsets, sizes)

    def total_size(self) -> int:
        """Return the sum of all ranges, bytes."""
        return sum(self.sizes)

    def max_chunk_size(self) -> int:
        """Return the length of the longest range, bytes. There must be at least one range."""
        return max(self.sizes)

    def __repr__(self) -> str:
        return f"FileChunks(id={self.id}, path={self.path!r}, {len(self.sizes)} ranges, {self.total_size()} bytes)"


class FileStreamer(Closing):
    """Reads ranges of files, one set at a time. A context manager that stops reading at its end.

    Ranges are yielded in the order of the request. (runai_model_streamer yields them in any order.)
    Each is a tensor of its own, which is not overwritten. A range that cannot be read ends the
    stream; another can be started then.

    Ranges are not verified, because digests cover tensors and files. `TLOAD_VERIFY=auto` changes
    nothing here; a mode that refuses unverified bytes, such as `require`, is an error.
    `SafetensorsStreamer` does compare.
    """

    def __init__(self) -> None:
        """Make an idle streamer."""
        self.device_str = "cpu"
        self._reads: RangeReads | None = None

    @property
    def outstanding(self) -> int:
        """Number of requested ranges that have not been taken yet."""
        return self._reads.outstanding if self._reads else 0

    def stream_files(
        self,
        file_stream_requests: list[FileChunks],
        credentials: S3Credentials | None = None,
        device: str | torch.device | None = "cpu",
        memory_limit: int | None = None,
        owned: bool = True,  # noqa: FBT001, FBT002  # the signature is theirs
    ) -> None:
        """Start to read ranges of files.

        Args:
            file_stream_requests: The ranges.
            credentials: Ignored: for object stores.
            device: Device of the tensors. Default: `"cpu"`.
            memory_limit: Maximum bytes that may wait for the caller; -1: no limit; 0: one range at
                a time. Default: RUNAI_STREAMER_MEMORY_LIMIT, else 512 MiB or the longest range.
            owned: Ignored: the caller always owns its tensors.

        Raises:
            ValueError: The ranges of an earlier call have not all been taken.
            InvalidRequestError: `TLOAD_VERIFY` refuses unverified bytes.
            UnsupportedError: A path is in an object store.
            RunaiStreamerInvalidInputException: torch does not know the device, or files and stores
                are mixed.
            RunaiStreamerMemoryLimitException: The limit is smaller than the longest range.
        """
        del credentials, owned
        if self.outstanding:
            message = f"{self.outstanding} ranges of an earlier stream_files are outstanding"
            hint = "take them with get_chunks(), or close its generator, before the next stream_files"
            raise advise(InvalidRequestError, message, hint)
        kind = kind_of_all(request.path for request in file_stream_requests)
        if kind is not Kind.FILE:
            message = f"{file_stream_requests[0].path!r}: ranges of objects are not supported, only tensors and files"
            hint = "stream the tensors with SafetensorsStreamer, or pull the file first with pull_files"
            raise advise(UnsupportedError, message, hint)
        if file_stream_requests and is_strict(resolve(None, OptionKeywords())):
            message = f"{file_stream_requests[0].path!r}: ranges of files cannot be verified, as TLOAD_VERIFY requires"
            hint = "stream the tensors with SafetensorsStreamer, or set TLOAD_VERIFY=auto or off"
            raise advise(InvalidRequestError, message, hint)
        self.device_str = device_name(device)
        sizes = [size for request in file_stream_requests for size in request.sizes]
        limit = environment.memory_limit(sizes, memory_limit)
        depth = environment.options(kind).get("depth")
        self._close()
        self._reads = RangeReads(
            [
                Range(request.id, index, request.path, offset, size)
                for request in file_stream_requests
                for index, (offset, size) in enumerate(zip(request.offsets, request.sizes, strict=True))
            ],
            ahead_bytes=READ_AHEAD_BYTES if limit is None else limit,
            threads=depth,
        )

    def get_chunks(self) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Yield `(id, index, tensor)` for each range.

        These are the ID of the request, the index of the range in it, and the bytes of the range.

        The tensor is of `uint8` and has the shape `(1, size)`.

        Raises:
            ValueError: A range cannot be read, or goes beyond the end of its file.
        """
        import torch

        reads, device = self._reads, self.device_str
        if reads is None:
            return

        def chunk(read: tuple[Range, bytearray]) -> tuple[int, int, torch.Tensor]:
            range, buffer = read
            # `frombuffer` refuses empty buffers.
            flat = torch.frombuffer(buffer, dtype=torch.uint8) if buffer else torch.empty(0, dtype=torch.uint8)
            tensor = flat.view(1, -1)
            return range.id, range.index, tensor if device == "cpu" else tensor.to(device)

        try:
            # Not a loop: its variables would keep a range while the next one is read.
            yield from map(chunk, reads)
        finally:
            reads.close()

    def list_files(
        self,
        prefix: str,
        is_recursive: bool = True,  # noqa: FBT001, FBT002  # the signature is theirs
        allow_patterns: Sequence[str] | None = None,
        ignore_patterns: Sequence[str] | None = None,
    ) -> list[tuple[str, int]]:
        """Return the files below a directory, or the objects below a prefix of a store.

        Each is a pair of its path or URL and its length in bytes.

        Args:
            prefix: The directory, or `s3://bucket/prefix`, `gs://bucket/prefix` or
                `az://container/prefix`. Stores are accessed with the options of the environment.
            is_recursive: Include subdirectories. Links to them are not followed. Default: `True`.
            allow_patterns: Globs, one of which must match the whole path or URL; `*` matches `/`,
                too. Default: all.
            ignore_patterns: Globs of whole paths or URLs to leave out. Default: none.

        Raises:
            ValueError: The prefix cannot be listed. An empty prefix of a store is not an error.
        """
        if kind_of(prefix) is Kind.FILE:
            found = list(_files(prefix, recursive=is_recursive))
        else:
            with value_errors():
                found = list_objects(prefix, recursive=is_recursive)
        return [(path, size) for path, size in found if is_wanted(path, allow_patterns or None, ignore_patterns)]

    def _close(self) -> None:
        if self._reads is not None:
            self._reads.close()
            self._reads = None


def device_name(device: str | torch.device | None) -> str:
    """Return the name of a device. All host memory is `"cpu"`.

    Raises:
        RunaiStreamerInvalidInputException: torch does not know the device.
    """
    import torch

    if device is None:
        return "cpu"
    try:
        known = torch.device(device)
    except (RuntimeError, TypeError) as error:
        message = f"torch has no device {device!r}: {error}"
        raise RunaiStreamerInvalidInputException(message) from error
    return "cpu" if known.type == "cpu" else str(device)


host_or_device = device_name
"""Alias with runai_model_streamer's name."""


def homogeneous_paths(paths: list[str]) -> bool:
    """Return whether all paths are files, or all are in stores of one kind."""
    return len(set(map(kind_of, paths))) <= 1


def _files(prefix: str, *, recursive: bool) -> Iterator[tuple[str, int]]:
    for folder, folders, names in os.walk(prefix, onerror=_cannot_list):
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118  # as the caller wrote it, `./` and all
            if os.path.isfile(path):  # noqa: PTH113
                yield path, os.path.getsize(path)  # noqa: PTH202
        if not recursive:
            folders.clear()


def _cannot_list(error: OSError) -> None:
    message = f"{error.filename}: cannot be listed: {error.strerror}"
    raise ValueError(message) from error
