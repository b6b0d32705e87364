"""Opening of what loads take, a location or an open checkpoint, as the extension module's checkpoint."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tload import _tload
from tload._errors import InvalidRequestError, advise
from tload._options import store_options
from tload._sources.locations import follows
from tload._sources.origin import origin_of

if TYPE_CHECKING:
    from tload._sources.origin import Opening, Origin
    from tload.typing import Duration, Key, Source, Store


class Opened:
    """Open files, which loads take in place of a location. Base class of `tload.Checkpoint`."""

    __slots__ = ("_origin", "_raw", "location")

    location: str

    def __init__(self, raw: _tload.Checkpoint, origin: Origin) -> None:
        """Keep the files, and the arguments that opened them."""
        self._raw: _tload.Checkpoint | None = raw
        self._origin = origin
        self.location = raw.location


def usable(opened: Opened, timeout: Duration | None = None) -> _tload.Checkpoint:
    """Return the checkpoint to load from. Opening it may take `timeout`.

    A fork has none of the threads that send requests to object stores, so there it is opened again.

    Raises:
        InvalidRequestError: It is closed.
        ChangedError: It has to be opened again, and its files have changed.
    """
    raw = opened._raw  # noqa: SLF001
    if raw is None:
        hint = "stream inside the with block, or pass the location instead"
        raise advise(InvalidRequestError, f"{opened.location}: the checkpoint is closed", hint)
    if raw.is_cut_off():
        origin, _ = opened._origin.elsewhere(raw)  # noqa: SLF001
        again = origin.open(timeout)
        again.require_state(raw.state())
        opened._raw = raw = again  # noqa: SLF001
    return raw


def open_raw(
    source: Source,
    store: Store | None,
    timeout: Duration | None = None,
    *,
    follow_symlinks: bool | None = None,
    key: Key | None = None,
    opening: Opening | None = None,
) -> _tload.Checkpoint:
    """Open a source within `timeout`. An open `Checkpoint` is used as it is."""
    if isinstance(source, Opened):
        follows(follow_symlinks, os.environ)
        refuse_store(source, store)
        if key is not None:
            hint = "pass key= to tload.open"
            raise advise(InvalidRequestError, f"{source.location}: key= has no effect on an open checkpoint", hint)
        return usable(source, timeout)
    return origin_of(source, store, follow_symlinks=follow_symlinks, key=key).open(timeout, opening)


def refuse_store(opened: Opened, store: Store | None) -> None:
    """Check that no options of stores are passed with an open checkpoint.

    Raises:
        InvalidRequestError: There are some.
    """
    store_options.check(store)
    if store:
        hint = "pass store= to tload.open, or pass the location instead of the checkpoint"
        raise advise(InvalidRequestError, f"{opened.location}: store= has no effect on an open checkpoint", hint)


def show(source: Source) -> str:
    """Return the name of a source in messages: its location without secrets."""
    if isinstance(source, Opened):
        return source.location
    if isinstance(source, (str, os.PathLike)):
        return _tload.show_location(source)
    shown = [_tload.show_location(location) for location in source]
    return shown[0] if len(shown) == 1 else f"{shown[0]} and {len(shown) - 1} more" if shown else "nothing"
