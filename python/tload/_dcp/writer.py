"""Storage writer of safetensors checkpoints for PyTorch's `torch.distributed.checkpoint`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import uuid
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter as _StorageWriter
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from tload import _tload
from tload._errors import (
    ChangedError,
    FormatError,
    InvalidRequestError,
    IoError,
    OutOfMemoryError,
    UnsupportedError,
    advise,
)
from tload._files.save import WRITE_BYTES
from tload._options import store_options
from tload._options.keywords import OptionKeywords
from tload._options.load_options import resolve
from tload._sources.locations import check_location
from tload._sources.opened import show
from tload._tensors import stored, torch_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Unpack

    import torch
    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem

    from tload._options.keywords import StoreKeywords
    from tload._options.load_options import Options
    from tload.typing import Location, Store

SHARDING_INFO = "DCP_SHARDING_INFO"
"""Metadata key under which a file has the start of each of its parts."""

WRITE = "tload.write"
"""Metadata key of the identifier of the save that a file is of."""

LIST = "tload-dcp.json"
"""Name of the list of files, which is written last."""

CLAIM = ".tload-write"
"""Name of the object by which another writer, or a copy, claims a prefix."""

LIST_BYTES_MAX = 64 << 20
"""Longest list that is read."""

MAX_SHARD_BYTES = 1 << 62
"""More than any file: each file here has been decided on."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Place that a rank writes to. Sent to each with its plan."""

    id: str
    folder: str
    """Directory beside the destination, or the prefix of a store, whose files have the identifier
    in their names."""
    destination: str
    """Absolute path of the directory that `folder` becomes, or the same prefix."""
    rank: int
    is_store: bool
    first: int
    """Files of the ranks before this one."""
    total: int
    """Files of all ranks."""

    def file(self, number: int, count: int) -> str:
        """Return the name of one of the rank's files.

        In a directory it is as `HuggingFaceStorageWriter` gives it. In a store it tells readers
        whether all files are there, and `remove_incomplete` whose they are.
        """
        if self.is_store:
            return f"model-{self.id}-{self.first + number:05}-of-{self.total:05}.safetensors"
        return f"shard-{self.rank:05}-model-{number:05}-of-{count:05}.safetensors"


class StorageWriter(_StorageWriter):
    """Storage writer for `torch.distributed.checkpoint.save`.

    Each rank writes the parts of tensors that it has, as `HuggingFaceStorageWriter` does with
    `save_distributed=True`: torch's `HuggingFaceStorageReader` and `tload.dcp.StorageReader` read
    them, with any number of ranks. On disks the files of all ranks are written into a directory
    beside the destination, which takes its place at once; the ranks need to share the file system.
    In an object store a list of the files, `tload-dcp.json`, is written last, in one request on the
    condition that none is there. A save that fails or is killed leaves no checkpoint, and what it
    has written is removed by `tload.remove_incomplete`.
    """

    @store_options.takes_keywords
    def __init__(
        self,
        path: Location,
        thread_count: int = 1,  # noqa: ARG002  # torch's
        *,
        store: Store | None = None,
        **keywords: Unpack[StoreKeywords],
    ) -> None:
        """Configure the destination. Nothing is written yet.

        Args:
            path: The directory to write, new or empty; directories above it are created. Or the URL
                of an empty prefix in S3, Google Cloud Storage or Azure.
            thread_count: Ignored. Torch's writers have this argument.
            store: Options of the object store: see `tload.open`.
            **keywords: Keys of `store`: see `tload.open`.
        """
        check_location("path", path)
        self._path = path
        self._store = store_options.take(store, keywords)
        self._lock: int | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Start over, with another destination if one is given."""
        self._unlock()
        if checkpoint_id is not None:
            self._path = checkpoint_id

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether the argument can be a destination."""
        return isinstance(checkpoint_id, (str, os.PathLike))

    def set_up_storage_writer(self, is_coordinator: bool, *_args: Any, **_keywords: Any) -> None:  # noqa: FBT001  # torch's
        """Do nothing: `prepare_global_plan` decides where to write."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan unchanged, if all of it can be stored.

        Raises:
            UnsupportedError: A value is no tensor.
        """
        names = [item.index.fqn for item in plan.items if item.type == WriteItemType.BYTE_IO]
        if names:
            message = f"{names[0]!r} is no tensor, and safetensors files have nothing else"
            raise advise(UnsupportedError, message, "save such values with torch's FileSystemWriter", tensor=names[0])
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Prepare the destination, on the rank that coordinates, and tell all ranks where to write.

        Raises:
            InvalidRequestError: The destination is not empty.
        """
        its = uuid.uuid4().hex[:12]
        location = _local(self._path)
        if location is None:
            self._require_empty_prefix()
            folder = destination = os.fspath(self._path).rstrip("/")
        else:
            destination = os.path.realpath(location)
            folder = str(self._begin(location, Path(destination), its))
        counts = [len(_files(plan.items)) for plan in plans]
        firsts = accumulate(counts, initial=0)
        return [
            replace(plan, storage_data=_Place(its, folder, destination, rank, location is None, first, sum(counts)))
            for rank, (plan, first) in enumerate(zip(plans, firsts, strict=False), 1)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the parts of this rank.

        Returns:
            A completed future.

        Raises:
            Error: Any failure of writing: see `tload.save`.
        """
        place: _Place = plan.storage_data
        results = []
        files = _files(plan.items)
        for number, items in enumerate(files, 1):
            name = place.file(number, len(files))
            self._write(f"{place.folder}/{name}", items, planner, place)
            stored_as = (place, name)
            results += [WriteResult(it.index, it.tensor_storage_size() or 0, stored_as) for it in items.values()]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:  # noqa: ARG002  # torch's
        """Make the files of all ranks the checkpoint, on the rank that coordinates.

        Raises:
            ChangedError: Another save was faster. The error names it.
            IoError: Files of other ranks are not in the directory: it is not shared.
        """
        found = [result.storage_data for rank in results for result in rank]
        files = sorted({name for _, name in found})
        if not found:
            message = "there are no tensors to save"
            raise InvalidRequestError(message, location=show(self._path))
        place: _Place = found[0][0]
        text = json.dumps({"write": place.id, "files": files}, indent=2).encode()
        if place.is_store:
            _tload.publish_fragments(self._path, text, store=self._pairs())
        else:
            _publish(place, show(self._path), files, text)
        self._unlock()

    def _pairs(self) -> list[tuple[str, str]]:
        return store_options.resolve(self._path, self._store, os.environ)

    def _require_empty_prefix(self) -> None:
        names = [name for name, _ in _tload.list_files(self._path, store=self._pairs())]
        found = next((name for name in names if not name.startswith(".") or name == CLAIM), None)
        if found is not None:
            message = f"{show(self._path)}: a save is for an empty prefix, and {found!r} is there"
            raise advise(InvalidRequestError, message, "save to another prefix, or remove what is there")

    def _begin(self, location: Path, destination: Path, its: str) -> Path:
        """Create the directory beside the destination that the ranks write into, and lock it."""
        if location.exists() and (not location.is_dir() or any(location.iterdir())):
            message = f"{location}: the directory is not empty"
            raise advise(InvalidRequestError, message, "save to another directory, or remove what is there")
        destination.parent.mkdir(parents=True, exist_ok=True)
        stage = destination.parent / f".{destination.name}.tload-{its}"
        stage.mkdir()
        self._lock = os.open(stage, os.O_RDONLY | os.O_DIRECTORY)
        # Without locks, `remove_incomplete` takes it for that of a killed save.
        with contextlib.suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return stage

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __del__(self) -> None:
        if getattr(self, "_lock", None) is not None:
            self._unlock()

    def _write(self, location: str, items: dict[str, WriteItem], planner: SavePlanner, place: _Place) -> None:
        """Write one file."""
        if not place.is_store and not Path(place.folder).is_dir():
            message = f"{place.folder}: the directory that another rank has created is not here"
            raise advise(IoError, message, "the ranks need to share the file system of the destination")
        offsets = {name: {"saved_offsets": list(_chunk(item).offsets)} for name, item in items.items()}
        writer = _tload.Writer(
            location,
            [_described(name, item) for name, item in items.items()],
            max_shard_size=MAX_SHARD_BYTES,
            metadata={"format": "pt", SHARDING_INFO: json.dumps(offsets), "DCP_VERSION": "1.0", WRITE: place.id},
            aliases={},
            replace=False,
            manifest=False,
            plain_names=False,
            fragment=place.is_store,
            sealing=None,
            store=self._pairs() if place.is_store else [],
        )
        try:
            for name in writer.order():
                tensor: torch.Tensor = planner.resolve_data(items[name])  # type: ignore[assignment]
                entry = stored.described(name, tensor.detach())
                writer.begin(entry.name, entry.dtype, entry.shape)
                for piece in entry.pieces():
                    for start in range(0, len(piece), WRITE_BYTES):
                        writer.write(piece[start : start + WRITE_BYTES])
            writer.finish()
        finally:
            writer.abort()


def _chunk(item: WriteItem) -> Any:
    assert item.tensor_data is not None, "values that are no tensors are refused earlier"  # noqa: S101  # torch's types
    return item.tensor_data.chunk


def _described(name: str, item: WriteItem) -> tuple[str, str, tuple[int, ...]]:
    assert item.tensor_data is not None, "values that are no tensors are refused earlier"  # noqa: S101  # torch's types
    stored.check_name(name)
    its = item.tensor_data.properties.dtype
    dtype = torch_tensors.dtype_names().get(its)
    if dtype is None:
        message = f"safetensors files have no dtype {its}"
        raise advise(UnsupportedError, message, "convert it with tensor.to(…)", tensor=name)
    return name, dtype, stored.shape_in_files(name, dtype, tuple(_chunk(item).sizes))


def _files(items: Iterable[WriteItem]) -> list[dict[str, WriteItem]]:
    """Distribute parts over files: a file has one part of a tensor."""
    files: list[dict[str, WriteItem]] = []
    for item in items:
        name = item.index.fqn
        free = next((file for file in files if name not in file), None)
        if free is None:
            files.append(free := {})
        free[name] = item
    return files


def _local(location: Location) -> Path | None:
    """Return the path of a directory; `None` for a prefix of a store."""
    return None if "://" in os.fspath(location) else Path(os.fspath(location))


def _publish(place: _Place, location: str, files: list[str], text: bytes) -> None:
    """Give the directory with the files of all ranks its name. Errors show `location`."""
    stage, destination = Path(place.folder), Path(place.destination)
    missing = next((name for name in files if not (stage / name).is_file()), None)
    if missing is not None:
        message = f"{stage}: {missing}, which another rank has written, is not here"
        raise advise(IoError, message, "the ranks need to share the file system of the destination")
    try:
        with (stage / LIST).open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        _sync(stage)
        stage.rename(destination)
        _sync(stage.parent)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            kind = OutOfMemoryError if error.errno == errno.ENOSPC else IoError
            message = f"cannot write {location}: {error.strerror}"
            raise kind(message, location=location) from error
        message = f"{location}: {_winner(destination)} was faster: its checkpoint is there now"
        raise advise(ChangedError, message, "see that no two programs write to the same place") from error


def listed(location: str, store: Store | None, options: Options | None = None) -> list[str] | None:
    """Return the URLs of the files of a save to a store; `None` if it has not been completed.

    Of the options, `timeout` and `retries` count.

    Raises:
        FormatError: The list is none.
    """
    pairs = store_options.resolve(location, store, os.environ)
    limits = resolve(options, OptionKeywords(), variables=("retries", "timeout"))
    if limits.retries is not None:
        pairs.append(("retries", str(limits.retries)))
    text = _tload.read_beside(location, LIST, bytes_max=LIST_BYTES_MAX, options=limits, store=pairs)
    if text is None:
        return None
    try:
        names = json.loads(text)["files"]
    except (ValueError, KeyError, RecursionError, TypeError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) and "/" not in name for name in names):
        message = f"{show(location)}: {LIST} is not a list of the files of a save"
        raise FormatError(message, location=show(location))
    return [f"{location.rstrip('/')}/{name}" for name in names]


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _winner(location: Path) -> str:
    try:
        return f"write {json.loads((location / LIST).read_bytes())['write']}"
    except (OSError, ValueError, KeyError, RecursionError, TypeError):
        return "another program"
