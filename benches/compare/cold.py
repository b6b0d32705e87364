"""Times `import tload`, opening and the first tensor, beyond the interpreter's own start."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import processes
from processes import LOADERS, SHARED, Tools

sys.path.append(str(SHARED))
import page_cache

#: Number of starts. They are quick, so enough of them for a median.
STARTS = 11


def cold_start(folder: Path, tools: Tools) -> dict[str, Any]:
    """Return timings with a cold checkpoint. The program's own files are warm from the second start on."""
    variables = processes.environment(tools, {})
    starts, bare = [], []
    for _ in range(1 + STARTS):
        began = time.perf_counter()
        processes.run([tools.python, "-c", "print('{}')"], variables, tools.seconds_max)
        bare.append(time.perf_counter() - began)
        state = page_cache.prepare(sorted(folder.glob("*.safetensors")), "cold")
        found = processes.run([tools.python, str(LOADERS / "cold_start.py"), str(folder)], variables, tools.seconds_max)
        if "error" in found:
            raise SystemExit(f"cold start: {found['error']}")
        starts.append(found | {"residency": state})
    # The first start reads the program's own files from the disk.
    counted = [it for it in starts[1:] if it["residency"]["found"] == "cold"]
    seconds = [it["seconds"] for it in counted]
    return {
        "median_seconds": statistics.median(seconds),
        "min_seconds": min(seconds),
        "max_seconds": max(seconds),
        "import_median_seconds": statistics.median(it["import_seconds"] for it in counted),
        "interpreter_median_seconds": statistics.median(bare[1:]),
        "torch": any(it["torch"] for it in starts),
        "starts": starts,
    }
