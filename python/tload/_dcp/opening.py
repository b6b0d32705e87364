"""Opens the source of a storage reader: a checkpoint, or the files that the ranks of a save wrote."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint.utils import _DistWrapper

from tload._checkpoint.checkpoint import Checkpoint
from tload._checkpoint.opening import open, open_for  # noqa: A004
from tload._dcp.writer import SHARDING_INFO, WRITE, listed
from tload._errors import Error, FormatError, InvalidRequestError, PeerError, advise
from tload._options.keywords import OptionKeywords
from tload._options.load_options import resolve
from tload._ranks.group import Group, raw_group
from tload._sources.opened import refuse_store, show
from tload._sources.origin import Opening

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from tload._options.load_options import Options
    from tload.typing import Source, Store

_logger = logging.getLogger("tload.dcp")


@dataclass(frozen=True, slots=True)
class Origin:
    """A source, and how it is opened."""

    source: Source
    store: Store | None
    options: Options | None
    follow_symlinks: bool | None

    def checkpoints(self) -> Iterator[Checkpoint]:
        """Open the source, as one checkpoint or as those of the files of ranks.

        Raises:
            Error: Any failure of opening: see `tload.open`.
        """
        if isinstance(self.source, Checkpoint):
            refuse_store(self.source, self.store)
            yield self.source
            return
        is_url = isinstance(self.source, str) and "://" in self.source
        try:
            opened = self._open_one()
            if not is_url or not any(WRITE in shard.metadata for shard in opened.shards):
                yield opened
                return
            opened.close()
        except FormatError:
            # Ranks that have boxes of one tensor: their files do not form a checkpoint, but each is
            # one.
            files = self._listed(is_complete=False) if is_url else _files_of_ranks(self.source)
            if not files:
                raise
        else:
            files = self._listed(is_complete=True)
        for file in files:
            yield open_for(file, self.store if is_url else None, self.options, follow_symlinks=None)

    def _listed(self, *, is_complete: bool) -> list[str]:
        """Return the files of a save of ranks to a store; an empty list if it may be anything else.

        Raises:
            FormatError: The save has not been completed.
        """
        source: Any = self.source
        files = listed(source, self.store, self.options)
        if files is None and is_complete:
            message = f"{show(source)}: the save that wrote these files has not been completed"
            raise advise(FormatError, message, "save again, to another prefix")
        return files or []

    def _open_one(self) -> Checkpoint:
        """Open the source together with the other ranks of the load, or alone if some of them do not come."""
        open_it = partial(open_for, self.source, self.store, self.options, follow_symlinks=self.follow_symlinks)
        options = resolve(self.options, OptionKeywords())
        group = None if options.share == "none" else _group_of_load()
        if group is not None:
            with group:
                try:
                    return open_it(opening=Opening.of(raw_group(group), options))
                except PeerError as error:
                    _logger.warning("tload opens %s on every rank: %s", show(self.source), error)
        return open_it()


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
    folder = folder_of(source)
    files = sorted(folder.glob("*.safetensors")) if folder else []
    return files if all(map(is_of_a_rank, files)) else []


def folder_of(source: Source) -> Path | None:
    is_one = isinstance(source, (str, os.PathLike)) and Path(source).is_dir()
    return Path(source) if is_one else None  # type: ignore[arg-type]


def is_of_a_rank(file: Path) -> bool:
    # Other entries are not files of a rank: a directory, a dangling link.
    try:
        with open(file) as checkpoint:
            return SHARDING_INFO in checkpoint.metadata
    except Error:
        return False
