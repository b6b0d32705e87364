"""Loads of many tensors or parts at once: `tload.stream` for the safetensors interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tload._load.load import stream as stream_tensors
from tload._options.keywords import LoadKeywords, OptionKeywords
from tload._options.load_options import resolve
from tload._report.readers import readers
from tload.safetensors._errors import as_safetensors
from tload.safetensors._index import packed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from tload._load.stream import TensorStream
    from tload.safetensors._index import Basic
    from tload.safetensors._source import Opened


class PartStream:
    """Yields `(name, tensor)` as they become complete. Temporary tensors are freed one by one."""

    __slots__ = ("_cuts", "_is_view", "_opened", "_stream")

    def __init__(self, opened: Opened, indices: Mapping[str, Basic | None]) -> None:
        """Start to read."""
        for name, index in indices.items():
            info = opened.checkpoint[name]
            if index is not None and info.dtype == "F4":
                packed(index, info.shape)
        keywords = LoadKeywords(device=opened.device if opened.is_on_gpu else "cpu")
        if len(indices) < len(opened.checkpoint):
            keywords["names"] = [*indices]
        slices = {name: index for name, index in indices.items() if index is not None}
        # A part has no digest of its own: it is cut from the whole tensor after verification.
        self._cuts = slices if opened.is_verified else {}
        # Parts may have gaps, which a view of a file would include. No engine reads views.
        engine = resolve(None, OptionKeywords(), variables=("engine",)).engine
        self._is_view = opened.is_mapped and not slices and engine in {None, "auto"}
        keywords["cache"] = "map" if self._is_view else opened.cache
        if slices and not opened.is_verified:
            keywords["slices"] = slices
        elif self._is_view:
            keywords["writable"] = True
        self._opened = opened
        with as_safetensors():
            self._stream: TensorStream[Any] = stream_tensors(
                opened.checkpoint, framework="torch" if opened.framework.is_torch else "numpy", **keywords
            )

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[str, Any]:
        with as_safetensors():
            name, tensor = next(self._stream)
        index = self._cuts.get(name)
        if index is not None:
            tensor = self._opened.cut(tensor, self._opened.checkpoint[name], index)
        return name, self._opened.finish(readers.handed_out(tensor, is_view=self._is_view))

    def cancel(self) -> None:
        """Stop reading. May be called from any thread."""
        self._stream.cancel()

    def close(self) -> None:
        """Stop reading and free tensors that were not yielded."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
