"""Streams of the weights that an engine requests. Imports no engine.

The files of a directory or Hub model come from the engine, those of a URL from the core. This
module selects tensors by name before any tensor data is read.
"""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import tload
from tload import _tload
from tload._checkpoint.opening import open_for
from tload._engines import views
from tload._errors import Error, InvalidRequestError, PeerError, advise
from tload._load.load import require_files
from tload._ranks.group import raw_group
from tload._report.progress import INTERVAL
from tload._sources.opened import show
from tload._sources.origin import Opening

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator, Sequence

    import torch
    from torch.distributed import ProcessGroup

    from tload._checkpoint.checkpoint import Checkpoint
    from tload._options.load_options import Options
    from tload._sources.entries import TensorInfo
    from tload.vllm._settings import Settings


INDEX = "model.safetensors.index.json"
"""Index that comes before others."""

RANK_FILE = re.compile(r"model-(rank-\d+|pp-\d+-tp-\d+)-part-\d+\.safetensors$")
"""Names of the files of a sharded state, as vLLM and SGLang write them."""

WAYS = {
    "past the page cache": "direct_bytes",
    "through the page cache": "buffered_bytes",
    "as views of the files": "mapped_bytes",
    "from object stores": "remote_bytes",
    "from the cache of object stores": "cached_bytes",
}
"""Fields of a report by what log lines call them."""

NAMES_SHOWN = 4
"""Maximum number of files that a message names."""


@dataclasses.dataclass(kw_only=True)
class Opened:
    """A checkpoint that is open, and how its tensors are loaded."""

    checkpoint: Checkpoint
    infos: Mapping[str, TensorInfo]
    """Header entries of all tensors, also of those that are not read, by name."""
    names: list[str] | None
    """The tensors to read, or `None` for all."""
    settings: Settings
    ranks: int
    group: tload.Group | None
    """The ranks that load together, or `None` if this one loads alone."""
    shown: str

    @property
    def device(self) -> str:
        """Device of the tensors."""
        return self.settings.device

    def options(self, *, together: bool) -> Options:
        """Return the options of a load, by the group or alone."""
        return self.settings.for_ranks(self.ranks, together=together)

    def leave_group(self) -> None:
        """Load alone. The other ranks need not wait for this one."""
        if self.group is not None:
            self.group.close()
            self.group = None

    def failure(self, error: Error) -> RuntimeError:
        """Return the error that engines expect."""
        return failure(self.shown, error)


def failure(shown: str, error: Error) -> RuntimeError:
    """Return the error that engines expect, for one of tload."""
    return RuntimeError(f"tload cannot load the model weights of `{shown}`: {error}")


class Weights:
    """The tensors of a checkpoint that is open, in the order of their files."""

    def __init__(self, opened: Opened, tensors: Generator[tuple[str, torch.Tensor], None, None]) -> None:
        self.opened = opened
        self._tensors = tensors

    @property
    def infos(self) -> Mapping[str, TensorInfo]:
        """Header entries of all tensors, also of those that are not read, by name."""
        return self.opened.infos

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._tensors

    def __next__(self) -> tuple[str, torch.Tensor]:
        return next(self._tensors)

    def close(self) -> None:
        """Close the files."""
        self._tensors.close()


class Bar(Protocol):
    """Progress bar with the interface of tqdm."""

    def update(self, n: float) -> object:
        """Add bytes."""


OpenBar: TypeAlias = Callable[[int], AbstractContextManager[Bar]]
Keep: TypeAlias = Callable[[str], bool]


def natural(location: str) -> list[Any]:
    """Return a sort key that puts shard 2 before shard 10."""
    name = os.path.basename(location)  # noqa: PTH119  # of URLs too
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def without_copies(locations: Sequence[str]) -> list[str]:
    """Leave out `consolidated*.safetensors` if there are other files.

    Mistral's models are stored twice in one directory, the second time under other names. Otherwise
    both would be loaded, one over the other.
    """
    others = [location for location in locations if not _is_consolidated(location)]
    return others or list(locations)


def tell_others(folder: str, files: Sequence[str], logger: logging.Logger) -> None:
    """Log the weights of a directory that the engine leaves out: they may be another model.

    The core notes those of the directories that it chooses files from.
    """
    read = {Path(file).name for file in files}
    indexes = sorted(path.name for path in Path(folder).glob("*.safetensors.index.json"))
    if indexes:
        indexes.remove(INDEX if INDEX in indexes else indexes[0])
    others = sorted({path.name for path in Path(folder).glob("*.safetensors")} - read) + indexes
    if others:
        shown = ", ".join(map(repr, others[:NAMES_SHOWN]))
        more = f" and {len(others) - NAMES_SHOWN} more" if len(others) > NAMES_SHOWN else ""
        logger.info("tload reads %d files of `%s`; left out: %s%s", len(read), show(folder), shown, more)


def refuse_shards(locations: Sequence[str], shown: str) -> None:
    """Check that files are not those of a state that was saved by each rank.

    Their tensors have the names and layouts of an engine's parameters. Loaded as a checkpoint, some
    are skipped without an error.

    Raises:
        InvalidRequestError: They are.
    """
    found = [os.path.basename(each) for each in locations if RANK_FILE.match(os.path.basename(each))]  # noqa: PTH119
    if found:
        message = f"`{shown}`: {found[0]!r} is part of a sharded state, not of a checkpoint"
        raise advise(InvalidRequestError, message, 'to load it as one, set "sharded_state": true')


def refuse_gguf(folder: str, engine: str) -> None:
    """Check that a directory without other weights has no GGUF files.

    Raises:
        InvalidRequestError: It has.
    """
    path = Path(folder)
    found = sorted(each.name for each in path.glob("*.gguf")) if path.is_dir() else []
    if found and not any(any(path.glob(pattern)) for pattern in ("*.safetensors", "*.bin", "*.pt")):
        shown = ", ".join(map(repr, found[:NAMES_SHOWN]))
        more = f" and {len(found) - NAMES_SHOWN} more" if len(found) > NAMES_SHOWN else ""
        message = f"`{show(folder)}` has weights in GGUF files only, which tload does not read: {shown}{more}"
        raise advise(
            InvalidRequestError, message, f"use {engine}'s own loader (--load-format gguf), or safetensors files"
        )


def open_source(source: str | Sequence[str], settings: Settings, group: tload.Group | None = None) -> Checkpoint:
    """Open the weights at the user's location. The core leaves second copies in a directory out."""
    store = dict(settings.store or {})
    if settings.options.timeout is not None:
        store.setdefault("open_timeout", settings.options.timeout)
    opening = Opening.of(raw_group(group), settings.options)
    return open_for(source if isinstance(source, str) else list(source), store, None, opening=opening)


def wanted(names: Sequence[str], keep: Keep | None, unused: Keep | None) -> list[str] | None:
    """Return the names to read: those of `keep`, without those of `unused`. `None`: all.

    A model without a use for any tensor gets all of them, as in vLLM.
    """
    kept = list(names) if keep is None else [name for name in names if keep(name)]
    if unused is not None:
        kept = [name for name in kept if not unused(name)] or kept
    return None if len(kept) == len(names) else kept


def stream(
    source: str | Sequence[str],
    settings: Settings,
    *,
    shown: str,
    open_bar: OpenBar,
    logger: logging.Logger,
    ranks: int = 1,
    process_group: ProcessGroup | None = None,
    keep: Keep | None = None,
    unused: Keep | None = None,
    on_cpu: bool = False,
) -> Weights:
    """Open a checkpoint, read its headers, and return an iterator of its tensors.

    Nothing else is read before the first tensor is requested. The caller owns the tensors.

    Args:
        source: Files, in the order to load them; or a directory, an index, a file, or a URL of
            one of these.
        settings: Settings of the load.
        shown: Name of the source in messages.
        open_bar: Makes a bar for a total of bytes.
        logger: Logger for the statistics of the load.
        ranks: Number of processes on this machine that load the same files.
        process_group: Processes that load them at the same time, to read once per node if the
            settings say so. Those that do not come are done without. Default: none.
        keep: Predicate of tensor names to load. Default: all.
        unused: Predicate of names of tensors that the model does not use. Default: none.
        on_cpu: The engine computes on the CPU: the tensors may be views of files.

    Raises:
        RuntimeError: Any failure, as engines expect, with the `tload.Error` as its cause.
    """
    may_map = on_cpu and settings.device == "cpu"
    loading = _load(source, settings, show(shown), open_bar, logger, ranks, process_group, keep, unused, may_map)
    return Weights(next(loading), loading)  # type: ignore[arg-type]  # what it yields first


def _load(  # noqa: PLR0917
    source: str | Sequence[str],
    settings: Settings,
    shown: str,
    open_bar: OpenBar,
    logger: logging.Logger,
    ranks: int,
    process_group: ProcessGroup | None,
    keep: Keep | None,
    unused: Keep | None,
    may_map: bool,  # noqa: FBT001
) -> Iterator[Opened | tuple[str, torch.Tensor]]:
    """Yield what is open once the files are, and then the tensors.

    A generator that has begun closes its files when it is closed or forgotten.
    """
    try:
        # First, so that a rank that fails below has left the group, and the others need not wait.
        joined = _group(process_group, logger) if settings.shares() else None
        with joined or nullcontext() as ranks_here, _open(source, settings, ranks_here, logger) as (checkpoint, group):
            refuse_shards([shard.location for shard in checkpoint.shards], shown)
            names = wanted(list(checkpoint), keep, unused)
            require_files(checkpoint, settings.options)
            opened = Opened(
                checkpoint=checkpoint,
                infos=checkpoint,
                names=names,
                settings=settings,
                ranks=ranks,
                group=group,
                shown=shown,
            )
            yield opened
            if names == []:
                return
            with (
                _start(opened, logger, may_map=may_map) as tensors,
                open_bar(tensors.progress.bytes_total) as bar,
            ):
                drawn, due = 0, 0.0
                for each in tensors:
                    # Some models have hundreds of thousands of tensors.
                    now = time.monotonic()
                    if now >= due:
                        # Large tensors fill side by side: bytes arrive before the first is
                        # complete.
                        done = tensors.progress.bytes_done
                        bar.update(done - drawn)
                        drawn, due = done, now + INTERVAL
                    yield each
                bar.update(tensors.progress.bytes_done - drawn)
            tell(tensors.report, shown, logger)
    except Error as error:
        raise failure(shown, error) from error


def _group(process_group: ProcessGroup | None, logger: logging.Logger) -> tload.Group | None:
    """Return the group of the ranks, or `None` if this one reads alone."""
    if process_group is None or process_group.size() == 1:
        return None
    try:
        return tload.Group.torch(process_group)
    except Error as error:
        logger.warning("tload reads on every rank, as the process group cannot be used: %s", error)
        return None


@contextmanager
def _open(
    source: str | Sequence[str], settings: Settings, group: tload.Group | None, logger: logging.Logger
) -> Iterator[tuple[Checkpoint, tload.Group | None]]:
    """Open the weights together with the other ranks, or alone if some of them do not load now.

    Provides the group to load with, or `None` to load alone.
    """
    if group is not None:
        try:
            opened = open_source(source, settings, group)
        except PeerError as error:
            _tell_alone(error, logger)
            # The others need not wait for this rank.
            group.close()
            group = None
    if group is None:
        opened = open_source(source, settings)
    with opened:
        yield opened, group


def _tell_alone(error: PeerError, logger: logging.Logger) -> None:
    logger.warning("tload reads on every rank, as they do not load together: %s", error)


def _start(opened: Opened, logger: logging.Logger, *, may_map: bool) -> tload.TensorStream[torch.Tensor]:
    """Start to read together with the other ranks, or alone if some of them do not load now."""
    checkpoint, names, device = opened.checkpoint, opened.names, opened.device
    if opened.group is not None:
        options = opened.options(together=True)
        try:
            return tload.stream(checkpoint, names=names, device=device, options=options, group=opened.group)
        except PeerError as error:
            # With other files or options on some ranks, the model would not be right.
            if error.expected is not None:
                raise
            _tell_alone(error, logger)
    options = opened.options(together=False)
    may_map = may_map and not checkpoint.is_sealed
    if may_map and views.are_best(opened.settings.options, (shard.location for shard in checkpoint.shards)):
        options = dataclasses.replace(options, cache="map")
    return tload.stream(checkpoint, names=names, device=device, options=options)


def _is_consolidated(location: str) -> bool:
    return os.path.basename(location).startswith("consolidated")  # noqa: PTH119  # of URLs too


def tell(report: tload.Report, shown: str, logger: logging.Logger) -> None:
    """Log the statistics of a load."""
    if report.group is not None and report.group.reason is not None:
        logger.warning("tload shares less than it could: %s", report.group.reason)
    logger.info(
        "tload read %d tensors of `%s` in %.2f seconds with %s: %s",
        report.tensors,
        shown,
        report.seconds,
        report.engine.name,
        how([report]),
    )
    logger.debug("%s", report)


def how(reports: Sequence[tload.Report], straight_bytes: int = 0) -> str:
    """Return how the bytes of loads came, and others straight from the page cache."""
    ways = dict.fromkeys(WAYS, 0)
    ways["through the page cache"] = straight_bytes
    for report in reports:
        for way, field in WAYS.items():
            ways[way] += getattr(report, field)
    shared = (report for report in reports if report.group is not None and report.group.share != "none")
    ways["shared by the ranks of this node"] = sum(report.received_bytes for report in shared)
    found = ", ".join(f"{_tload.format_bytes(size)} {way}" for way, size in ways.items() if size)
    return found or "nothing to read"
