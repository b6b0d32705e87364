"""Ceiling measured by `tload bench`: the reads of a load, with its engine, without tensors.

Streamed: into reused memory; kept: into fresh memory of huge pages. Options: `engine`, `depth`,
`extent`. TLOAD_COMMAND is the command, as a JSON list. It prepares the page cache and the memory
itself, and runs a load beside the ceiling, which is reported as `beside`.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import measure


def result(job: measure.Job) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tload-ceiling-") as scratch:
        out = Path(scratch) / "out.json"
        command = [*json.loads(os.environ["TLOAD_COMMAND"]), "bench", job.locations[0], "--no-fio", "--rounds", "1"]
        command += ["--mode", "keep" if job.keep else "stream", "--cache-state", job.state or "cold"]
        for option, value in job.options.items():
            command += [f"--{option}", str(value)]
        done = subprocess.run([*command, "--json", str(out)], capture_output=True, text=True, check=False)
        if done.returncode != 0 or not out.exists():
            said = [line for line in done.stderr.splitlines() if line.strip()]
            measure.skip(f"tload bench: {said[0] if said else f'status {done.returncode}'}")
        samples = {it["contender"]: it for it in json.loads(out.read_text())["cells"][0]["samples"]}
    ceiling = samples["ceiling"]
    kept = ("seconds", "cpu_seconds", "bytes", "peak_rss_bytes")
    found = {key: ceiling[key] for key in kept}
    found["residency"] = ceiling["residency"] | {"wanted": job.state or "cold"}
    found["beside"] = {key: samples["tload"][key] for key in kept} if "tload" in samples else None
    return found


measure.finish(result(measure.arguments()))
