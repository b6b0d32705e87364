"""Call of a load: the arguments that all loads take, and how they open and plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tload import _tload
from tload._load import indices, prefetched, selection
from tload._options import store_options
from tload._options.load_options import resolve
from tload._sources.opened import open_raw
from tload._sources.origin import Opening

if TYPE_CHECKING:
    from tload._load.indices import Slices
    from tload._options.keywords import IntoKeywords
    from tload._ranks.group import Group
    from tload.typing import Source


class Call:
    """Source and keyword arguments of a load. The caller changes `options` before it opens."""

    __slots__ = ("_keywords", "_source", "_store", "group", "options")

    def __init__(self, source: Source, keywords: IntoKeywords) -> None:
        """Check the options of the load and of its store, and merge them with the environment."""
        self._source = source
        self._keywords = keywords
        self._store = store_options.take(keywords.get("store"), keywords)
        self.options = resolve(keywords.get("options"), keywords)
        self.group: Group | None = keywords.get("group")

    def open(self, joined: _tload.Group | None) -> _tload.Checkpoint:
        """Open the source, alone or with the ranks of the group."""
        prefetched.load_begins()
        options, follow_symlinks = self.options, self._keywords.get("follow_symlinks")
        opening = Opening.of(joined, options)
        return open_raw(
            self._source,
            self._store,
            options.timeout,
            follow_symlinks=follow_symlinks,
            key=self._keywords.get("key"),
            opening=opening,
        )

    def rules(self, checkpoint: _tload.Checkpoint) -> selection.Rules:
        """Return the selection of tensors."""
        keywords = self._keywords
        return selection.rules(checkpoint, keywords.get("names"), keywords.get("glob"), keywords.get("regex"))

    def loader(self, checkpoint: _tload.Checkpoint, slices: Slices, **others: Any) -> _tload.Loader:
        """Plan the load. An error of an index names its tensor."""
        try:
            return _tload.Loader(checkpoint, **slices, **others, options=self.options)
        except (IndexError, TypeError, ValueError) as error:
            indices.raise_named(error, checkpoint, slices.get("slices", ()))
            raise
