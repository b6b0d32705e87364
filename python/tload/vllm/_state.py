"""Loads sharded states into the tensors of an engine's model. Imports no engine.

Each rank reads its own files, straight into its parameters. Names, shapes and dtypes are compared
with theirs before anything is read.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import tload
from tload._engines.reload import FLOATS
from tload._engines.sharded import Numbers
from tload._errors import Error, InvalidRequestError, NotFoundError, advise
from tload._sources.opened import show
from tload._tensors import torch_tensors
from tload.vllm import _weights

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping, Sequence

    import torch

    from tload._checkpoint.checkpoint import Checkpoint
    from tload._engines.sharded import Pattern
    from tload.vllm._settings import Settings
    from tload.vllm._weights import OpenBar

AS_SAVED = "load a state with the engine, model, quantization and parallel sizes that it was saved with"
UNLISTED = ("http://", "https://")
"""Schemes of servers that list no files."""


def load(
    source: str | Sequence[str],
    state: Mapping[str, torch.Tensor],
    settings: Settings,
    pattern: Pattern,
    *,
    open_bar: OpenBar,
    logger: logging.Logger,
) -> None:
    """Load this rank's files of a sharded state.

    Args:
        source: A directory, its URL, or a list of files.
        state: Tensors of the model, by the names that they have in the files.
        settings: Settings of the load.
        pattern: Pattern of the names of the files.
        open_bar: Makes a bar for a total of bytes.
        logger: Logger for the statistics of the load.

    Raises:
        RuntimeError: Any failure, as engines expect, with the `tload.Error` as its cause.
    """
    shown = show(source)
    try:
        files = _files(source, settings, pattern, shown)
        with _weights.open_source(files, settings) as opened:
            total = sum(info.nbytes for info in opened.values())
            with open_bar(total) as bar:
                try:
                    report = tload.load_into(
                        state,
                        opened,
                        cast=_is_cast(opened, state, shown, logger),
                        options=settings.for_ranks(1),
                        progress=_Drawing(bar),
                    )
                except InvalidRequestError as error:
                    # Its own advice is for those who call `load_into`.
                    message = str(error).removesuffix(f"\n  hint: {error.hint}")
                    raise advise(InvalidRequestError, message, AS_SAVED) from error
        _weights.tell(report, shown, logger)
    except Error as error:
        message = f"tload cannot load the sharded state of `{shown}`: {error}"
        raise RuntimeError(message) from error


class _Drawing:
    """Draws progress as a bar."""

    def __init__(self, bar: _weights.Bar) -> None:
        self._bar = bar
        self._drawn = 0

    def __call__(self, progress: tload.Progress) -> None:
        self._bar.update(progress.bytes_done - self._drawn)
        self._drawn = progress.bytes_done


def _files(source: str | Sequence[str], settings: Settings, pattern: Pattern, shown: str) -> list[str]:
    """Return the locations of this rank's files."""
    if not isinstance(source, str):
        by_name = {os.path.basename(each): each for each in source}  # noqa: PTH119  # of URLs too
        if "/" in pattern.text or len(by_name) < len(source):
            message = f"pattern {pattern.text!r}: a list of files has no directories"
            raise advise(InvalidRequestError, message, "name the directory, or its URL, as the source")
        return [by_name[name] for name in pattern.choose(by_name, shown)]
    folder = source.rstrip("/")
    if source.lower().startswith(UNLISTED):
        return [f"{folder}/{name}" for name in pattern.choose(_probed(folder, settings, pattern), shown)]
    names = [each.path for each in tload.list_files(source, store=settings.store)]
    return [f"{folder}/{name}" for name in pattern.choose(names, shown)]


def _probed(folder: str, settings: Settings, pattern: Pattern) -> list[str]:
    """Return the names of this rank's files on a server that does not list them.

    The first file of each rank, and of one rank more, shows how many have saved the state.
    """
    ranks = pattern.ranks

    def there(numbers: Numbers) -> bool:
        try:
            _weights.open_source([f"{folder}/{pattern.render(numbers)}"], settings).close()
        except NotFoundError:
            return False
        return True

    first = [Numbers(pp, tp, 0) for pp, tp in itertools.product(range(ranks.pp_size), range(ranks.tp_size))]
    # A name without a number is that of every rank.
    more = [Numbers(ranks.pp, ranks.tp_size, 0), Numbers(ranks.pp_size, ranks.tp, 0)]
    own = Numbers(ranks.pp, ranks.tp, 0)
    names = {pattern.render(own)}
    found = {name for numbers in [*first, *more] if there(numbers) for name in [pattern.render(numbers)]}
    parts = (own._replace(part=part) for part in itertools.count(1))
    for numbers in itertools.takewhile(lambda each: pattern.render(each) not in names and there(each), parts):
        found.add(pattern.render(numbers))
    return sorted(found)


def _is_cast(opened: Checkpoint, state: Mapping[str, torch.Tensor], shown: str, logger: logging.Logger) -> bool:
    """Return whether tensors have other floating-point dtypes than the model, as after `--dtype`.

    Of all other differences, the load makes an error.
    """
    names = torch_tensors.dtype_names()
    differ = []
    for name, info in opened.items():
        wanted = names.get(state[name].dtype) if name in state else info.dtype
        if wanted != info.dtype:
            if info.dtype not in FLOATS or wanted not in FLOATS:
                return False
            differ.append(name)
    if differ:
        first = differ[0]
        logger.warning(
            "`%s` was saved with another dtype: %d tensors are converted, such as %r from %s to %s",
            shown, len(differ), first, opened[first].dtype, state[first].dtype,
        )  # fmt: skip
    return bool(differ)
