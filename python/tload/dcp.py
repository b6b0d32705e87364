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
import math
import os
import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.metadata import (
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType
from torch.distributed.checkpoint.storage import StorageReader as _StorageReader
from torch.futures import Future

from tload._dcp.opening import Origin, folder_of, is_of_a_rank
from tload._dcp.saved import Saved, box_of, chunk, dtype_of, index_in, kind, saved_offsets, show_kind, whole
from tload._dcp.writer import StorageWriter
from tload._errors import FormatError, InvalidRequestError, advise
from tload._load import read_one
from tload._load.into import load_into
from tload._load.load import require_files
from tload._options.keywords import OptionKeywords
from tload._options.load_options import resolve
from tload._options.store_options import take, takes_keywords
from tload._ranks.group import Group
from tload._sources.opened import show
from tload._tensors import index_boxes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Unpack

    from torch.distributed import ProcessGroup
    from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem

    from tload._checkpoint.checkpoint import Checkpoint
    from tload._options.keywords import StoreKeywords
    from tload._options.load_options import Options
    from tload._tensors.index_boxes import Box
    from tload.typing import Source, Store

__all__ = ["StorageReader", "StorageWriter"]

FAULTS_SHOWN = 20
"""Maximum number of tensors, or files, that an error names."""

GAPS_SHOWN = 4
"""Maximum number of gaps of one tensor that an error names."""

COMPARED_BYTES = 64 << 20
"""Bytes of each of two files that are compared in memory at a time."""

SCALES = ("_scale_inv", "_scale")
"""Suffix of a weight's name in the name of its scale factors, for 8-bit weights."""


QUANTIZED = frozenset({"F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8"})
"""Dtypes of weights that have scale factors."""


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """A box to read, with its destination."""

    item: ReadItem
    saved: Saved
    box: Box
    target: torch.Tensor

    @property
    def is_whole(self) -> bool:
        return self.box == self.saved.box

    @property
    def index(self) -> tuple[slice, ...]:
        return index_in(self.saved, self.box)


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
        self._saved: dict[str, list[Saved]] = {}
        self._places: dict[MetadataIndex, list[Saved]] = {}
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
        self._checkpoints = list(self._origin().checkpoints())
        for checkpoint in self._checkpoints:
            require_files(checkpoint, self._options)
        self._refuse_unlisted()
        for position, checkpoint in enumerate(self._checkpoints):
            offsets = [saved_offsets(shard.location, shard.metadata) for shard in checkpoint.shards]
            for info in checkpoint.values():
                location = checkpoint.shards[info.shard].location
                box = box_of(info, location, offsets[info.shard])
                saved = Saved(position, PurePath(location).name, info, box)
                self._saved.setdefault(info.name, []).append(saved)
                self._places.setdefault(MetadataIndex(info.name, chunk(saved.box).offsets), []).append(saved)
        self._refuse_incomplete()
        tensors: dict[str, Any] = {}
        for name, found in self._saved.items():
            # torch would plan empty reads for ranks without elements, and would read equal boxes
            # twice.
            boxes = dict.fromkeys(one.box for one in found if index_boxes.size(one.box)) or {found[0].box: None}
            properties = TensorProperties(dtype=dtype_of(found[0].info))
            tensors[name] = TensorStorageMetadata(properties, torch.Size(whole(found)), list(map(chunk, boxes)))
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

    def _find(self, item: ReadItem) -> tuple[Saved, Box]:
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
            for box in index_boxes.slabs(both, COMPARED_BYTES // dtype_of(saved.info).itemsize):
                mine, its = (self._copy(one, box).reshape(-1).view(torch.uint8) for one in (saved, other))
                if not torch.equal(mine, its):
                    files = f"{saved.file} and {other.file}"
                    message = f"{show(self._source)}: {files} have different values for {name!r}{index_boxes.show(box)}"
                    hint = "remove the files of the earlier save, or save into an empty directory"
                    raise advise(FormatError, message, hint, tensor=name)

    def _copy(self, saved: Saved, box: Box) -> torch.Tensor:
        checkpoint, index = self._checkpoints[saved.checkpoint], index_in(saved, box)
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
            elif target.dtype != dtype_of(info) and not self._cast:
                faults[name] = f"{name!r} is {target.dtype}, but {dtype_of(info)} in the checkpoint"
                hint = "leave out cast=False to convert dtypes, or make the tensors match the checkpoint"
            elif target.dtype != dtype_of(info) and info.dtype in QUANTIZED and scale is not None:
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
        folder = folder_of(self._source)
        if folder is None:
            return
        known = {Path(shard.location).resolve() for checkpoint in self._checkpoints for shard in checkpoint.shards}
        beside = (file for file in sorted(folder.glob("*.safetensors")) if file.resolve() not in known)
        unlisted = [file.name for file in beside if is_of_a_rank(file)]
        if unlisted:
            message = f"{show(self._source)}: the index does not list {_list(unlisted, ', ')}, which ranks wrote"
            raise advise(FormatError, message, "remove the index or these files: they come from different saves")

    def _refuse_incomplete(self) -> None:
        """Raise `FormatError` that lists tensors with gaps or from different saves, if any."""
        faults: dict[str, str] = {}
        for name, found in self._saved.items():
            its = found[0]
            other = next((one for one in found if kind(one.info) != kind(its.info)), None)
            if other is not None:
                kinds = " and ".join(f"{show_kind(one.info)} in {one.file}" for one in (its, other))
                faults[name] = f"{name!r} is {kinds}"
                continue
            shape, solid = whole(found), [one.box for one in found if index_boxes.size(one.box)]
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

    def _origin(self) -> Origin:
        return Origin(self._source, self._store, self._options, self._follow_symlinks)

    def _close(self) -> None:
        for checkpoint in self._checkpoints:
            if checkpoint is not self._source:
                checkpoint.close()
        self._checkpoints = []
        self._saved, self._places, self._overlapping = {}, {}, set()


def _list(texts: Iterable[str], separator: str) -> str:
    """Join the first few texts, as many as an error names."""
    texts = list(texts)
    more = [f"and {len(texts) - FAULTS_SHOWN} more"] if len(texts) > FAULTS_SHOWN else []
    return separator.join(texts[:FAULTS_SHOWN] + more)


def _add(request: _Request, batches: list[dict[str, _Request]]) -> None:
    """Add a request to the first batch that has none of its name, or to a new one."""
    name = request.saved.info.name
    free = next((batch for batch in batches if name not in batch), None)
    if free is None:
        batches.append(free := {})
    free[name] = request
