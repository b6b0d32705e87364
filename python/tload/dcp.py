"""A reader of safetensors checkpoints for PyTorch's distributed checkpointing (`torch.distributed.checkpoint`).

>>> import torch.distributed.checkpoint as dcp
>>> import tload.dcp
>>> dcp.load(model.state_dict(), storage_reader=tload.dcp.StorageReader("s3://bucket/model"))  # doctest: +SKIP

What `HuggingFaceStorageReader` reads this reads too, also from object stores. Each rank reads only those parts of
tensors that it has, and straight into their memory where dtype and layout are the same.
"""

from __future__ import annotations

import json
import math
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
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
from torch.futures import Future

from tload import _torch
from tload._checkpoint import Checkpoint, open  # noqa: A004
from tload._errors import FormatError, InvalidRequestError, UnsupportedError, advise
from tload._into import load_into

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem

    from tload._checkpoint import Source, TensorInfo
    from tload._options import Options
    from tload._store import Store

__all__ = ["StorageReader"]

SHARDING_INFO = "DCP_SHARDING_INFO"
"""Where `HuggingFaceStorageWriter` keeps, in the metadata of a rank's file, where its parts of tensors begin."""

FAULTS_SHOWN = 20
"""Tensors that an error names."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A part of a tensor to read, and where to."""

    item: ReadItem
    info: TensorInfo
    target: torch.Tensor

    @property
    def is_whole(self) -> bool:
        return math.prod(self.item.lengths) == math.prod(_shape(self.info))

    @property
    def index(self) -> tuple[slice, ...]:
        offsets = zip(self.item.storage_offsets, self.item.lengths, strict=True)
        return tuple(slice(offset, offset + length) for offset, length in offsets)


class StorageReader(_StorageReader):
    """Reads for `torch.distributed.checkpoint.load`, on each rank for itself.

    A load that fails leaves what its tensors hold undefined. Names, shapes and dtypes that do not fit are found before
    a byte is written.
    """

    def __init__(
        self,
        source: Source,
        *,
        cast: bool = False,
        store: Store | None = None,
        options: Options | None = None,
    ) -> None:
        """Say where to read from. Nothing is opened yet.

        Args:
            source: A safetensors file, a directory, an index file, or a list of files, as paths or URLs; or an open
                `Checkpoint`. A local directory may also hold one file per rank, as `HuggingFaceStorageWriter` writes
                them with `save_distributed=True`.
            cast: Tensors may have another dtype than the checkpoint; values are converted. Default: `False`.
            store: How to reach object stores: see `tload.open`.
            options: Limits and preferences: see `tload.Options`.
        """
        self._source = source
        self._cast = cast
        self._store = store
        self._options = options
        self._checkpoints: list[Checkpoint] = []
        self._places: dict[MetadataIndex, Checkpoint] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin again, with another source if one is given."""
        self._close()
        if checkpoint_id is not None:
            self._source = checkpoint_id

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether this can be a source."""
        return isinstance(checkpoint_id, (str, os.PathLike))

    def read_metadata(self, *_args: Any) -> Metadata:
        """Open the checkpoint and say what is in it.

        Raises:
            Error: Any failure of opening: see `tload.open`. (`torch.distributed.checkpoint.load` makes an
                `AssertionError` of it, with its text, and that a `CheckpointException`.)
            UnsupportedError: torch lacks the dtype of a tensor.
        """
        self._close()
        self._checkpoints = list(self._open())
        tensors: dict[str, Any] = {}
        for checkpoint in self._checkpoints:
            offsets = [_saved_offsets(shard.location, shard.metadata) for shard in checkpoint.shards]
            for info in checkpoint.values():
                chunk = _chunk(info, offsets[info.shard])
                self._places[MetadataIndex(info.name, chunk.offsets)] = checkpoint
                known = tensors.setdefault(
                    info.name, TensorStorageMetadata(TensorProperties(dtype=_dtype(info)), chunk.sizes, [])
                )
                known.chunks.append(chunk)
        for tensor in tensors.values():
            # A rank knows its own part only: together they say how large the tensor is.
            ends = [map(sum, zip(chunk.offsets, chunk.sizes, strict=True)) for chunk in tensor.chunks]
            tensor.size = torch.Size([max(of_one) for of_one in zip(*ends, strict=True)])
        return Metadata(tensors, storage_meta=StorageMeta(load_id=str(uuid.uuid4())))

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_args: Any) -> None:  # noqa: FBT001  # torch's
        """Do nothing: all is known from `read_metadata`."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what the plan says into the planner's tensors.

        Returns:
            A future that is done.

        Raises:
            Error: Any failure of reading: see `tload.stream`.
            InvalidRequestError: Shapes or dtypes do not fit.
        """
        requests: dict[int, list[_Request]] = {}
        for item in plan.items:
            if item.type != LoadItemType.TENSOR:
                message = f"{item.storage_index.fqn!r} is no tensor for the load's planner, and in a checkpoint it is"
                raise InvalidRequestError(message, tensor=item.storage_index.fqn)
            index = self._checkpoints.index(self._places[item.storage_index])
            info = self._checkpoints[index][item.storage_index.fqn]
            requests.setdefault(index, []).append(_Request(item, info, planner.resolve_tensor(item).detach()))
        self._refuse(request for of_one in requests.values() for request in of_one)
        for index, of_one in requests.items():
            for batch in _batches(of_one):
                self._read(self._checkpoints[index], batch)
            for request in of_one:
                planner.commit_tensor(request.item, request.target)
        self._close()
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _read(self, checkpoint: Checkpoint, requests: dict[str, _Request]) -> None:
        load_into(
            {name: request.target for name, request in requests.items()},
            checkpoint,
            names=list(requests),
            slices={name: request.index for name, request in requests.items() if not request.is_whole},
            cast=self._cast,
            options=self._options,
        )

    def _refuse(self, requests: Iterable[_Request]) -> None:
        """Raise `InvalidRequestError` that names what does not fit, if there is any."""
        faults = {}
        for request in requests:
            name, target = request.info.name, request.target
            if tuple(target.shape) != tuple(request.item.lengths):
                faults[name] = f"{name!r} is {tuple(target.shape)}, and {tuple(request.item.lengths)} is to be read"
            elif target.dtype != _dtype(request.info) and not self._cast:
                faults[name] = f"{name!r} is {target.dtype}, and {_dtype(request.info)} in the checkpoint"
            elif request.info.dtype == "F4" and not request.is_whole:
                faults[name] = f"{name!r} is to be read in part, and two 4-bit floats are one element of torch's"
        if not faults:
            return
        shown = "; ".join(list(faults.values())[:FAULTS_SHOWN])
        if len(faults) > FAULTS_SHOWN:
            shown += f"; and {len(faults) - FAULTS_SHOWN} more"
        location = self._checkpoints[0].location
        hint = "pass cast=True to convert dtypes, or make the tensors as the checkpoint has them"
        raise advise(InvalidRequestError, f"{location}: {shown}", hint, tensor=next(iter(faults)))

    def _open(self) -> Iterator[Checkpoint]:
        if isinstance(self._source, Checkpoint):
            yield self._source
            return
        try:
            yield open(self._source, store=self._store)
        except FormatError:
            # Ranks that have parts of the same tensor: together no checkpoint, but each of its files is one.
            files = _files_of_ranks(self._source)
            if not files:
                raise
            for file in files:
                yield open(file)

    def _close(self) -> None:
        for checkpoint in self._checkpoints:
            if checkpoint is not self._source:
                checkpoint.close()
        self._checkpoints = []
        self._places = {}


def _files_of_ranks(source: Source) -> list[Path]:
    """Return the files of a local directory if each was written by one rank, else none."""
    if not isinstance(source, (str, os.PathLike)) or not Path(source).is_dir():
        return []
    files = sorted(Path(source).glob("*.safetensors"))
    for file in files:
        with open(file) as checkpoint:
            if SHARDING_INFO not in checkpoint.metadata:
                return []
    return files


def _saved_offsets(location: str, metadata: dict[str, str]) -> dict[str, list[int]]:
    """Return where in their tensors a file's parts begin, if it says so."""
    text = metadata.get(SHARDING_INFO)
    if text is None:
        return {}
    try:
        return {name: [int(offset) for offset in said["saved_offsets"]] for name, said in json.loads(text).items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        message = f"{location}: {SHARDING_INFO} of the metadata is not what torch writes ({error!r})"
        raise FormatError(message, location=location) from error


def _chunk(info: TensorInfo, offsets: dict[str, list[int]]) -> ChunkStorageMetadata:
    shape = _shape(info)
    offset = offsets.get(info.name, [0] * len(shape))
    if len(offset) != len(shape) or min(offset, default=0) < 0:
        message = f"{SHARDING_INFO} says that {info.name!r} begins at {offset}, and it has the shape {shape}"
        raise FormatError(message, tensor=info.name)
    return ChunkStorageMetadata(torch.Size(offset), torch.Size(shape))


def _shape(info: TensorInfo) -> tuple[int, ...]:
    # torch packs two 4-bit floats into one element.
    return (*info.shape[:-1], info.shape[-1] // 2) if info.dtype == "F4" else info.shape


def _dtype(info: TensorInfo) -> torch.dtype:
    dtype = getattr(torch, _torch.DTYPES.get(info.dtype, ""), None)
    if not isinstance(dtype, torch.dtype):
        message = f"{info.name!r} has the dtype {info.dtype}, and torch {torch.__version__} has no such dtype"
        raise UnsupportedError(message, tensor=info.name)
    return dtype


def _batches(requests: list[_Request]) -> Iterator[dict[str, _Request]]:
    """Sort requests into as few batches as may be in which each name comes once."""
    batches: list[dict[str, _Request]] = []
    for request in requests:
        free = next((batch for batch in batches if request.info.name not in batch), None)
        if free is None:
            batches.append(free := {})
        free[request.info.name] = request
    yield from batches
