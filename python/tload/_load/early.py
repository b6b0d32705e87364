"""Early start of loads to GPUs.

A thread of the core opens contexts and prepares staging memory while the checkpoint is opened.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tload import _tload

if TYPE_CHECKING:
    from tload._options.load_options import Options
    from tload.typing import Framework, Source


@contextlib.contextmanager
def starting(
    source: Source, devices: tuple[object, Mapping[str, object] | None], framework: Framework, options: Options
) -> Iterator[_tload.EarlyStart | None]:
    """Prepare a load to `devices`, a device and a device map, while the block opens the source.

    What the block has not passed to a load is freed at its end.
    """
    ordinals, locations = _ordinals(*devices, framework), _locations(source)
    early = _tload.EarlyStart.begin(locations, ordinals, options) if ordinals and locations else None
    try:
        yield early
    finally:
        if early is not None:
            early.end()


def _locations(source: Source) -> list[str | os.PathLike[str]]:
    """Return the locations that a load opens; none for those that are open, or are no locations."""
    listed = source if isinstance(source, (list, tuple)) else [source]
    return [*listed] if all(isinstance(each, (str, os.PathLike)) for each in listed) else []


def _ordinals(device: object, device_map: Mapping[str, object] | None, framework: Framework) -> list[int]:
    """Return the indices of the GPUs that the arguments name, as far as they are known by now."""
    named = [device, *(device_map.values() if isinstance(device_map, Mapping) else ())]
    found = {ordinal for each in named if (ordinal := _ordinal(each, framework)) is not None}
    return sorted(found)


_DIGITS = 5
"""Most digits of the number of a GPU; the load refuses longer ones."""


def _ordinal(device: object, framework: Framework) -> int | None:
    if isinstance(device, int) and not isinstance(device, bool):
        return device if 0 <= device < 10**_DIGITS else None
    kind, _, ordinal = str(device).partition(":")
    if kind != "cuda":
        return None
    if ordinal:
        return _ordinal(int(ordinal), framework) if ordinal.isdecimal() and len(ordinal) <= _DIGITS else None
    torch = sys.modules.get("torch") if framework == "torch" else None
    # Before torch has initialized CUDA, its current device is the first.
    is_initialized = torch is not None and torch.cuda.is_initialized()
    return torch.cuda.current_device() if torch is not None and is_initialized else 0
