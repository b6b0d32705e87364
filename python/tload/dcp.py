"""Storage reader and writer of safetensors checkpoints for PyTorch's `torch.distributed.checkpoint`.

>>> import torch.distributed.checkpoint as dcp
>>> import tload.dcp
>>> dcp.load(model.state_dict(), storage_reader=tload.dcp.StorageReader("s3://bucket/model"))

This reader reads everything that `HuggingFaceStorageReader` reads, also from object stores. Each
rank loads only its own parts of tensors, directly into their memory if dtype and layout are the
same, and the ranks of a node read together what several of them need. `StorageWriter` saves what
each rank has, to disks and object stores.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import operator
import os
import sys
import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType
from torch.distributed.checkpoint.storage import StorageReader as _StorageReader
from torch.distributed.checkpoint.utils import _DistWrapper
from torch.futures import Future

from tload._checkpoint.checkpoint import Checkpoint
from tload._checkpoint.opening import open, open_for  # noqa: A004
from tload._errors import Error, FormatError, InvalidRequestError, PeerError, UnsupportedError, advise
from tload._files.dcp_writer import SHARDING_INFO, WRITE, StorageWriter, listed
from tload._load import read_one
from tload._load.into import load_into
from tload._load.load import require_files
from tload._options.keywords import OptionKeywords
from tload._options.load_options import resolve
from tload._options.store_options import take, takes_keywords
from tload._ranks.group import Group, raw_group
from tload._sources.opened import show
from tload._sources.origin import Opening
from tload._tensors import index_boxes, torch_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType
    from typing import Unpack

    from torch.distributed import ProcessGroup
    from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem

    from tload._options.keywords import StoreKeywords
    from tload._options.load_options import Options
    from tload._sources.entries import TensorInfo
    from tload._tensors.index_boxes import Box
    from tload.typing import Source, Store

__all__ = ["StorageReader", "StorageWriter"]

_logger = logging.getLogger(__name__)

FAULTS_SHOWN = 20
"""Maximum number of tensors, or files, that an error names."""

LENGTH_MAX = (1 << 63) - 1
"""Largest dimension that torch accepts."""

GAPS_SHOWN = 4
"""Maximum number of gaps of one tensor that an error names."""

COMPARED_BYTES = 64 << 20
"""Bytes of each of two files that are compared in memory at a time."""

SCALES = ("_scale_inv", "_scale")
"""Suffix of a weight's name in the name of its scale factors, for 8-bit weights."""


QUANTIZED = frozenset({"F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8"})
"""Dtypes of weights that have scale factors."""


@dataclass(frozen=True, slots=True, eq=False)
class _Saved:
    """A box of a tensor that is stored in a file."""

    checkpoint: int
    """Position of the file's checkpoint in `StorageReader._checkpoints`."""
    file: str
    """Name of the file, without its directory."""
    info: TensorInfo
    box: Box


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """A box to read, with its destination."""

    item: ReadItem
    saved: _Saved
    box: Box
    target: torch.Tensor

    @property
    def is_whole(self) -> bool:
        return self.box == self.saved.box

    @property
    def index(self) -> tuple[slice, ...]:
        return _index(self.saved, self.box)


@dataclass(frozen=True, slots=True)
class _Together:
    """Loads that all ranks start together. Sent to each rank with its plan."""

    size: int
    """Number of ranks that load."""
    loads: tuple[tuple[int, int], ...]
    """Positions of checkpoints in `StorageReader._checkpoints`, each with a number of loads."""


class StorageReader(_StorageReader):
    """Storage reader for `torch.distributed.checkpoint.load`.

    The ranks of a node read bytes that several of them need once: see `Group`. They begin each load
    within the `join_timeout` of `options`, or all of them fail. One rank of a node opens objects for
    the others; if some ranks do not come within `join_timeout`, each opens for itself. With
    `share="none"` in `options`, each rank opens and reads for itself.

    After a failed load, the contents of the tensors are undefined. Names, shapes and dtypes that do
    not fit are found before a byte is written.
    """

    @takes_keywords
    def __init__(
        self,
        path: Source,
        thread_count: int = 1,  # noqa: ARG002  # torch's
        *,
        cast: bool = True,
        store: Store | None = None,
        follow_symlinks: bool | None = None,
        options: Options | None = None,
        process_group: ProcessGroup | None = None,
        **keywords: Unpack[StoreKeywords],
    ) -> None:
        """Configure the source. Nothing is opened yet.

        Args:
            path: A safetensors file, a directory, an index file, or a list of files, as paths or
                URLs; or an open `Checkpoint`. A local directory may also hold one file per rank, as
                `HuggingFaceStorageWriter` writes them with `save_distributed=True`.
            thread_count: Ignored. `HuggingFaceStorageReader` has this argument; here `options`
                limit concurrent reads.
            cast: Convert values if a tensor has another dtype than the checkpoint, as
                `HuggingFaceStorageReader` does. If `False`, such a tensor is an error. Default:
                `True`.
            store: Options of object stores: see `tload.open`.
            follow_symlinks: Allow symbolic links that lead out of the source's directory: see
                `tload.open`.
            options: Limits and preferences: see `tload.Options`. `share`, `verify`, `order`, `cache`
                and `memory_limit` must be the same on all ranks.
            process_group: The process group that is passed to `torch.distributed.checkpoint.load`.
                Default: the default process group. If they differ, each rank reads for itself.
            **keywords: Keys of `store`: see `tload.open`.
        """
        self._source = path
        self._cast = cast
        self._store = take(store, keywords)
        self._follow_symlinks = follow_symlinks
        self._options = options
        self._process_group = process_group
        self._checkpoints: list[Checkpoint] = []
        self._saved: dict[str, list[_Saved]] = {}
        self._places: dict[MetadataIndex, list[_Saved]] = {}
        self._overlapping: set[str] = set()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Start over, with another source if one is given."""
        self._close()
        if checkpoint_id is not None:
            self._source = checkpoint_id

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether the argument can be a source."""
        return isinstance(checkpoint_id, (str, os.PathLike))

    def read_metadata(self, *_args: Any) -> Metadata:
        """Open the checkpoint and return its metadata.

        Raises:
            Error: Any failure of opening: see `tload.open`. (`torch.distributed.checkpoint.load`
                converts it to an `AssertionError` with its text, and that to a
                `CheckpointException`.)
            FormatError: The files of the ranks do not form whole tensors, or come from several
                saves.
            CorruptError: A file is missing that the manifest of `verify` lists.
            UnsupportedError: torch lacks the dtype of a tensor.
        """
        self._close()
        self._checkpoints = list(self._open())
        for checkpoint in self._checkpoints:
            require_files(checkpoint, self._options)
        self._refuse_unlisted()
        for position, checkpoint in enumerate(self._checkpoints):
            offsets = [_saved_offsets(shard.location, shard.metadata) for shard in checkpoint.shards]
            for info in checkpoint.values():
                location = checkpoint.shards[info.shard].location
                box = _box(info, location, offsets[info.shard])
                saved = _Saved(position, PurePath(location).name, info, box)
                self._saved.setdefault(info.name, []).append(saved)
                self._places.setdefault(MetadataIndex(info.name, _chunk(saved.box).offsets), []).append(saved)
        self._refuse_incomplete()
        tensors: dict[str, Any] = {}
        for name, found in self._saved.items():
            # torch would plan empty reads for ranks without elements, and would read equal boxes
            # twice.
            boxes = dict.fromkeys(one.box for one in found if index_boxes.size(one.box)) or {found[0].box: None}
            properties = TensorProperties(dtype=_dtype(found[0].info))
            tensors[name] = TensorStorageMetadata(properties, torch.Size(_whole(found)), list(map(_chunk, boxes)))
        return Metadata(tensors, storage_meta=StorageMeta(load_id=str(uuid.uuid4())))

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_args: Any) -> None:  # noqa: FBT001  # torch's
        """Do nothing: `read_metadata` has all information."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans, with the loads that all ranks start together."""
        if len(plans) < 2 or resolve(self._options, OptionKeywords()).share == "none" or self._overlapping:  # noqa: PLR2004
            # Overlapping files are compared first, for which others would have to wait.
            return plans
        together = _Together(len(plans), tuple(self._loads_together(plans)))
        return [replace(plan, storage_data=together) for plan in plans]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the tensors of the plan into the planner's tensors.

        Returns:
            A completed future.

        Raises:
            Error: Any failure of reading: see `tload.stream`.
            FormatError: Two files have different values for the same elements.
            InvalidRequestError: Shapes or dtypes do not fit.
        """
        together = plan.storage_data if isinstance(plan.storage_data, _Together) else None
        with self._group(together) as group:
            requests = [self._request(item, planner) for item in plan.items]
            # A rank may have no elements of a tensor of which other ranks have some.
            loaded = {item.storage_index.fqn for item in plan.items} | set(getattr(planner, "state_dict", None) or ())
            self._refuse(requests, self._saved.keys() - loaded)
            batches: dict[int, list[dict[str, _Request]]] = defaultdict(list)
            for request in requests:
                self._compare_copies(request)
                _add(request, batches[request.saved.checkpoint])
            # The others wait for these.
            for position, loads in together.loads if group is not None and together is not None else ():
                own = batches.pop(position, [])
                for batch in own + [{}] * (loads - len(own)):
                    self._read(self._checkpoints[position], batch, group)
            for position, own in batches.items():
                for batch in own:
                    self._read(self._checkpoints[position], batch, None)
            for request in requests:
                planner.commit_tensor(request.item, request.target)
        self._close()
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _group(self, together: _Together | None) -> contextlib.AbstractContextManager[Group | None]:
        """Return the group of the ranks that load, if it is known and has loads.

        When a rank leaves it early, because of an error, the others fail at once.
        """
        if together is None or not together.loads:
            return contextlib.nullcontext()
        if torch.distributed.get_world_size(self._process_group) != together.size:
            return contextlib.nullcontext()
        return Group.torch(self._process_group)

    def _loads_together(self, plans: list[LoadPlan]) -> Iterator[tuple[int, int]]:
        """Yield the checkpoints of which several ranks load the same tensor, with numbers of loads.

        A load has at most one box of each tensor.
        """
        ranks: Counter[tuple[int, str]] = Counter()
        loads: Counter[int] = Counter()
        for plan in plans:
            boxes = Counter((self._find(item)[0].checkpoint, item.storage_index.fqn) for item in plan.items)
            ranks.update(boxes.keys())
            for (position, _), count in boxes.items():
                loads[position] = max(loads[position], count)
        wanted = {position for (position, _), count in ranks.items() if count > 1}
        yield from ((position, loads[position]) for position in sorted(wanted))

    def _request(self, item: ReadItem, planner: LoadPlanner) -> _Request:
        name = item.storage_index.fqn
        if item.type != LoadItemType.TENSOR:
            message = f"{name!r} is a tensor in the checkpoint, but not for the load's planner"
            raise InvalidRequestError(message, tensor=name)
        saved, box = self._find(item)
        return _Request(item, saved, box, planner.resolve_tensor(item).detach())

    def _find(self, item: ReadItem) -> tuple[_Saved, Box]:
        """Return the file's tensor that has an item of a plan, and the item's box."""
        name = item.storage_index.fqn
        starts = list(map(sum, zip(item.storage_index.offset or (), item.storage_offsets, strict=True)))
        box = tuple((start, start + length) for start, length in zip(starts, item.lengths, strict=True))
        # Files of several saves may start at one position: any of them that has the whole box will
        # do if the others agree.
        for saved in self._places.get(item.storage_index, ()):
            if index_boxes.contains(saved.box, box):
                return saved, box
        message = (
            f"{show(self._source)}: the load's planner requests {name!r}{index_boxes.show(box)}, which is in no file"
        )
        raise InvalidRequestError(message, tensor=name)

    def _compare_copies(self, request: _Request) -> None:
        """Raise `FormatError` if another file has other values for the requested box."""
        saved, name = request.saved, request.saved.info.name
        for other in self._saved[name] if name in self._overlapping else ():
            if other is saved or not index_boxes.meet(request.box, other.box):
                continue
            both = index_boxes.shared(request.box, other.box)
            for box in index_boxes.slabs(both, COMPARED_BYTES // _dtype(saved.info).itemsize):
                mine, its = (self._copy(one, box).reshape(-1).view(torch.uint8) for one in (saved, other))
                if not torch.equal(mine, its):
                    files = f"{saved.file} and {other.file}"
                    message = f"{show(self._source)}: {files} have different values for {name!r}{index_boxes.show(box)}"
                    hint = "remove the files of the earlier save, or save into an empty directory"
                    raise advise(FormatError, message, hint, tensor=name)

    def _copy(self, saved: _Saved, box: Box) -> torch.Tensor:
        checkpoint, index = self._checkpoints[saved.checkpoint], _index(saved, box)
        tensor: torch.Tensor = read_one.read(checkpoint, saved.info.name, index, "torch", "cpu", options=self._options)
        return tensor

    def _read(self, checkpoint: Checkpoint, requests: dict[str, _Request], group: Group | None) -> None:
        # A rank that needs nothing still takes part in a load of its group.
        load_into(
            {name: request.target for name, request in requests.items()},
            checkpoint,
            names=list(requests) or None,
            strict=bool(requests),
            slices={name: request.index for name, request in requests.items() if not request.is_whole},
            cast=self._cast,
            group=group,
            options=self._options,
        )

    def _refuse(self, requests: list[_Request], unread: set[str]) -> None:
        """Raise `InvalidRequestError` that lists all tensors that do not fit, if there are any."""
        faults: dict[str, str] = {}
        hint = "make the tensors match the checkpoint"
        for request in requests:
            info, target = request.saved.info, request.target
            name = info.name
            scale = next((name + suffix for suffix in SCALES if name + suffix in unread), None)
            if tuple(target.shape) != tuple(request.item.lengths):
                faults[name] = f"{name!r} is {tuple(target.shape)}, but {tuple(request.item.lengths)} is to be read"
            elif target.dtype != _dtype(info) and not self._cast:
                faults[name] = f"{name!r} is {target.dtype}, but {_dtype(info)} in the checkpoint"
                hint = "leave out cast=False to convert dtypes, or make the tensors match the checkpoint"
            elif target.dtype != _dtype(info) and info.dtype in QUANTIZED and scale is not None:
                faults[name] = f"{name!r} is quantized: its values are those in the checkpoint times {scale!r}"
                hint = "use torch's QuantizedHuggingFaceStorageReader, or load both as they are"
            elif info.dtype == "F4" and not request.is_whole:
                faults[name] = f"{name!r} is to be read in part, but one element of torch holds two 4-bit floats"
        if faults:
            message = f"{show(self._source)}: {_list(faults.values(), '; ')}"
            raise advise(InvalidRequestError, message, hint, tensor=next(iter(faults)))

    def _refuse_unlisted(self) -> None:
        """Raise `FormatError` if ranks wrote files that an index beside them does not list.

        Such files come from two saves.
        """
        folder = _folder(self._source)
        if folder is None:
            return
        known = {Path(shard.location).resolve() for checkpoint in self._checkpoints for shard in checkpoint.shards}
        beside = (file for file in sorted(folder.glob("*.safetensors")) if file.resolve() not in known)
        unlisted = [file.name for file in beside if _is_of_a_rank(file)]
        if unlisted:
            message = f"{show(self._source)}: the index does not list {_list(unlisted, ', ')}, which ranks wrote"
            raise advise(FormatError, message, "remove the index or these files: they come from different saves")

    def _refuse_incomplete(self) -> None:
        """Raise `FormatError` that lists tensors with gaps or from different saves, if any."""
        faults: dict[str, str] = {}
        for name, found in self._saved.items():
            its = found[0]
            other = next((one for one in found if _kind(one.info) != _kind(its.info)), None)
            if other is not None:
                kinds = " and ".join(f"{_show_kind(one.info)} in {one.file}" for one in (its, other))
                faults[name] = f"{name!r} is {kinds}"
                continue
            shape, solid = _whole(found), [one.box for one in found if index_boxes.size(one.box)]
            if next(index_boxes.overlaps(solid), None) is not None:
                self._overlapping.add(name)
            elif sum(map(index_boxes.size, solid)) == math.prod(shape):
                continue
            gaps = [index_boxes.show(gap) for gap in islice(index_boxes.missing(shape, solid), GAPS_SHOWN)]
            if gaps:
                faults[name] = f"{name!r}, of shape {shape}, lacks {' and '.join(gaps)}"
        if faults:
            files = sorted({one.file for found in self._saved.values() for one in found})
            message = f"{show(self._source)}: {_list(faults.values(), '; ')}; found {_list(files, ', ')}"
            hint = "the files of all ranks of one save, and no others, have to be there"
            raise advise(FormatError, message, hint, tensor=next(iter(faults)))

    def _open(self) -> Iterator[Checkpoint]:
        if isinstance(self._source, Checkpoint):
            yield self._source
            return
        is_url = isinstance(self._source, str) and "://" in self._source
        try:
            opened = self._open_source()
            if not is_url or not any(WRITE in shard.metadata for shard in opened.shards):
                yield opened
                return
            opened.close()
        except FormatError:
            # Ranks that have boxes of one tensor: their files do not form a checkpoint, but each is
            # one.
            files = self._listed(is_complete=False) if is_url else _files_of_ranks(self._source)
            if not files:
                raise
        else:
            files = self._listed(is_complete=True)
        for file in files:
            yield open_for(file, self._store if is_url else None, self._options, follow_symlinks=None)

    def _listed(self, *, is_complete: bool) -> list[str]:
        """Return the files of a save of ranks to a store; an empty list if it may be anything else.

        Raises:
            FormatError: The save has not been completed.
        """
        source: Any = self._source
        files = listed(source, self._store)
        if files is None and is_complete:
            message = f"{show(source)}: the save that wrote these files has not been completed"
            raise advise(FormatError, message, "save again, to another prefix")
        return files or []

    def _open_source(self) -> Checkpoint:
        """Open the source together with the other ranks of the load, or alone if some of them do not come."""
        open_it = partial(open_for, self._source, self._store, self._options, follow_symlinks=self._follow_symlinks)
        options = resolve(self._options, OptionKeywords())
        group = None if options.share == "none" else _group_of_load()
        if group is not None:
            with group:
                try:
                    return open_it(opening=Opening.of(raw_group(group), options))
                except PeerError as error:
                    _logger.warning("tload opens %s on every rank: %s", show(self._source), error)
        return open_it()

    def _close(self) -> None:
        for checkpoint in self._checkpoints:
            if checkpoint is not self._source:
                checkpoint.close()
        self._checkpoints = []
        self._saved, self._places, self._overlapping = {}, {}, set()


def _group_of_load() -> Group | None:
    """Make a group of the ranks of the `torch.distributed.checkpoint.load` that calls this function.

    torch tells no storage reader before the plans which ranks load, and others would be waited for
    in vain. Returns `None` if there are none, or if this is not such a load.
    """
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  # in every Python that the wheel is for
    while frame is not None:
        ranks = frame.f_locals.get("self") if frame.f_code.co_name == "reduce_scatter" else None
        if isinstance(ranks, _DistWrapper):
            if not ranks.use_dist or ranks.get_world_size() == 1:
                return None
            try:
                return Group.torch(ranks.group)
            except InvalidRequestError:
                return None  # Process groups of some backends have no store.
        frame = frame.f_back
    return None


def _files_of_ranks(source: Source) -> list[Path]:
    """Return the files of a local directory if each was written by one rank, else an empty list."""
    folder = _folder(source)
    files = sorted(folder.glob("*.safetensors")) if folder else []
    return files if all(map(_is_of_a_rank, files)) else []


def _folder(source: Source) -> Path | None:
    is_one = isinstance(source, (str, os.PathLike)) and Path(source).is_dir()
    return Path(source) if is_one else None  # type: ignore[arg-type]


def _is_of_a_rank(file: Path) -> bool:
    # Other entries are not files of a rank: a directory, a dangling link.
    try:
        with open(file) as checkpoint:
            return SHARDING_INFO in checkpoint.metadata
    except Error:
        return False


def _saved_offsets(location: str, metadata: dict[str, str]) -> dict[str, list[int]] | None:
    """Return the starts of a file's boxes in their tensors, if the file has them."""
    text = metadata.get(SHARDING_INFO)
    if text is None:
        return None
    try:
        return {name: list(map(operator.index, said["saved_offsets"])) for name, said in json.loads(text).items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        message = f"{location}: {SHARDING_INFO} of the metadata is not what torch writes ({error!r})"
        raise FormatError(message, location=location) from error


def _box(info: TensorInfo, location: str, offsets: dict[str, list[int]] | None) -> Box:
    """Return the box of a file's tensor in the whole tensor."""
    shape = _shape(info)
    start = [0] * len(shape) if offsets is None else offsets.get(info.name, [])
    if len(start) != len(shape) or not all(
        0 <= low <= LENGTH_MAX - length for low, length in zip(start, shape, strict=True)
    ):
        message = f"{location}: {SHARDING_INFO} says that {info.name!r} begins at {start}, and it has the shape {shape}"
        raise FormatError(message, location=location, tensor=info.name)
    return tuple((low, low + length) for low, length in zip(start, shape, strict=True))


def _whole(found: list[_Saved]) -> tuple[int, ...]:
    """Return the shape of a tensor.

    Each rank knows only its own box; all boxes together give the shape.
    """
    return tuple(max(end for _, end in bounds) for bounds in zip(*(one.box for one in found), strict=True))


def _chunk(box: Box) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(low for low, _ in box), torch.Size(high - low for low, high in box))


def _index(saved: _Saved, box: Box) -> tuple[slice, ...]:
    """Return the index of a box in a file's tensor."""
    index = [slice(low - start, high - start) for (low, high), (start, _) in zip(box, saved.box, strict=True)]
    if saved.info.dtype == "F4":
        index[-1] = slice(2 * index[-1].start, 2 * index[-1].stop)
    return tuple(index)


def _kind(info: TensorInfo) -> tuple[str, int]:
    return info.dtype, len(info.shape)


def _show_kind(info: TensorInfo) -> str:
    return f"{info.dtype} with {len(info.shape)} dimensions"


def _list(texts: Iterable[str], separator: str) -> str:
    """Join the first few texts, as many as an error names."""
    texts = list(texts)
    more = [f"and {len(texts) - FAULTS_SHOWN} more"] if len(texts) > FAULTS_SHOWN else []
    return separator.join(texts[:FAULTS_SHOWN] + more)


def _shape(info: TensorInfo) -> tuple[int, ...]:
    # torch packs two 4-bit floats into one element.
    return (*info.shape[:-1], info.shape[-1] // 2) if info.dtype == "F4" else info.shape


def _dtype(info: TensorInfo) -> torch.dtype:
    dtype = getattr(torch, torch_tensors.DTYPES.get(info.dtype, ""), None)
    if not isinstance(dtype, torch.dtype):
        message = f"{info.name!r} has the dtype {info.dtype}, and torch {torch.__version__} has no such dtype"
        raise UnsupportedError(message, tensor=info.name)
    return dtype


def _add(request: _Request, batches: list[dict[str, _Request]]) -> None:
    """Add a request to the first batch that has none of its name, or to a new one."""
    name = request.saved.info.name
    free = next((batch for batch in batches if name not in batch), None)
    if free is None:
        batches.append(free := {})
    free[name] = request
