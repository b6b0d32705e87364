"""Opens what callers pass, alone or with the ranks of a group, and opens the same again elsewhere."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tload import _tload
from tload._options import store_options
from tload._options.keywords import OptionKeywords
from tload._options.load_options import resolve
from tload._report import spans
from tload._sources.keys import read_key
from tload._sources.locations import check_location, follows

if TYPE_CHECKING:
    from tload._options.load_options import Options
    from tload.typing import Duration, Key, Location, Store


class Opening(NamedTuple):
    """Group whose ranks open a checkpoint together, before they load it."""

    group: _tload.Group
    join_timeout: float | None

    @classmethod
    def of(cls, group: _tload.Group | None, options: Options) -> Opening | None:
        """Return the opening of a load, or `None` if each rank opens for itself."""
        if group is None or options.share == "none":
            return None
        limits = {"join_timeout": options.join_timeout, "timeout": options.timeout}
        seconds = [_tload.seconds(name, limit) for name, limit in limits.items() if limit is not None]
        return cls(group, min(seconds, default=None))


@dataclass(frozen=True, slots=True, repr=False)
class Origin:
    """Arguments of `tload.open`, to open the same checkpoint again."""

    source: Location | list[Location]
    store: list[tuple[str, str]]
    """Options that the caller passed; those of the environment are read at each opening."""
    follow_symlinks: bool
    key: Key | None = None
    """Key that the caller passed; that of the environment is read at each opening."""
    folder: str | None = None
    """Current directory, if a path is relative to it, and it is known."""
    single_file_first: bool = False
    """`True` to read `model.safetensors` even if there is an index, as in transformers."""

    def open(self, timeout: Duration | None = None, opening: Opening | None = None) -> _tload.Checkpoint:
        """Open the checkpoint within `timeout`. Default: `TLOAD_TIMEOUT`."""
        together = {} if opening is None else opening._asdict()
        if timeout is None:
            timeout = resolve(None, OptionKeywords(), variables=("timeout",)).timeout
        key = read_key(self.key, os.environ)
        pairs = store_options.merge(self.source, self.store, os.environ, timeout)
        with spans.around("tload.open") as describe:
            if isinstance(self.source, list):
                opened = _tload.Checkpoint.open_all(self.source, store=pairs, key=key, **together)
            else:
                opened = _tload.Checkpoint.open(
                    self.source,
                    store=pairs,
                    key=key,
                    follow_symlinks=self.follow_symlinks,
                    single_file_first=self.single_file_first,
                    **together,
                )
            describe("location", opened.location)
            return opened

    def elsewhere(self, raw: _tload.Checkpoint) -> tuple[Origin, bool]:
        """Return the arguments by which another process opens `raw`, and whether a URL has a secret.

        Paths are absolute, and models of a Hub are of the commit that is open.
        """
        given = self.source if isinstance(self.source, list) else [self.source]
        if self.folder is not None:
            given = [os.path.join(self.folder, each) if _is_path(each) else each for each in given]  # noqa: PTH118
        found = raw.locations_elsewhere(given)
        locations = [own if other is None else other for own, other in zip(given, found, strict=True)]
        source = locations if isinstance(self.source, list) else locations[0]
        return dataclasses.replace(self, source=source, folder=None), None in found


def origin_of(
    source: Location | Sequence[Location], store: Store | None, *, follow_symlinks: bool | None, key: Key | None = None
) -> Origin:
    """Check the arguments of `tload.open`."""
    follows_links = follows(follow_symlinks, os.environ)
    if isinstance(source, (str, os.PathLike)):
        check_location("source", source)
        return Origin(source, store_options.read(store), follows_links, key, _current_folder([source]))
    if isinstance(source, (bytes, Mapping)) or not isinstance(source, Sequence):
        message = f"source: wanted a str, an os.PathLike, or a list of them, found {type(source).__qualname__}"
        raise TypeError(message)
    locations = list(source)
    for index, location in enumerate(locations):
        check_location(f"source[{index}]", location)
    return Origin(locations, store_options.read(store), follows_links, key, _current_folder(locations))


def _current_folder(locations: list[Location]) -> str | None:
    """Return the current directory if one of the locations is relative to it."""
    if not any(_is_path(each) and not os.path.isabs(each) for each in locations):  # noqa: PTH117
        return None
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return None


def _is_path(location: Location) -> bool:
    return not isinstance(location, str) or "://" not in location
