"""safetensors 0.9 and newer: `safe_open(…).prefetch()`, one shard ahead. Option: `threads` per shard."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import timed
from safetensors import safe_open


def load(files: list[Path], device: str, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    tensors: dict[str, Any] = {}
    with ExitStack() as stack:

        def begin(file: Path) -> Any:
            opened = stack.enter_context(safe_open(file, framework="pt", device=device))
            return stack.enter_context(opened.prefetch(device=device, **options))

        running = begin(files[0])
        for following in [*files[1:], None]:
            current, running = running, begin(following) if following else None
            tensors.update(current)
    return tensors, {}


timed.run(load)
