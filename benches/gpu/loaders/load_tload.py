"""tload: `tload.stream` into torch's memory on the device, all kept. Options are those of
`tload.stream`; with `call`, which is `"load"`, `tload.load` in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import timed

import tload


def load(files: list[Path], device: str, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    if options.pop("call", "stream") == "load":
        return tload.load(files[0].parent, device=device, **options), {}
    stream = tload.stream(files[0].parent, device=device, **options)
    tensors = dict(stream)
    return tensors, {"report": stream.report.to_dict()}


timed.run(load)
