"""Reads with fio and io_uring, direct unless the page cache holds the files, and discards the bytes.

Options: `depth`, `bs` (bytes of one read), and `jobs`: 1 reads all files with one queue of that
depth, any other number gives each file a job with a queue of its own. `force_async` makes the
kernel queue reads that FUSE may serve in turn. The CPU time is that of fio's own threads, without
the kernel threads that serve such reads.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import measure


def escaped(file: Path) -> str:
    """Return the escaped file name without its directory: fio takes at most 4096 characters for all names."""
    return file.name.replace("\\", "\\\\").replace(":", "\\:")


def command(job: measure.Job) -> list[str]:
    options = job.options
    found = [
        "fio",
        "--readonly",
        "--rw=read",
        "--ioengine=io_uring",
        f"--direct={int(job.state == 'cold')}",
        # The page cache is already in the wanted state.
        "--invalidate=0",
        "--thread",
        "--group_reporting",
        "--output-format=json",
        f"--bs={options['bs']}",
        f"--iodepth={options['depth']}",
    ]
    if options.get("force_async"):
        found.append("--force_async=1")
    # fio refuses files shorter than one read.
    files = [file for file in job.files if file.stat().st_size >= options["bs"]]
    if options.get("jobs", 1) == 1:
        return [*found, "--name=all", f"--filename={':'.join(escaped(file) for file in files)}"]
    for index, file in enumerate(files):
        found += [f"--name=file{index}", f"--filename={escaped(file)}"]
    return found


def result(job: measure.Job) -> dict[str, Any]:
    residency = measure.prepare(job)
    done = subprocess.run(command(job), cwd=job.files[0].parent, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"fio: {done.stderr.strip()[:200]}")
    found = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    read, jobs = found["read"], len(job.files) if job.options.get("jobs", 1) > 1 else 1
    # Times are in milliseconds; `job_runtime` is the sum over the jobs of a group, and CPU shares
    # refer to it.
    spent = found.get("job_runtime", read["runtime"] * jobs) / 1e3
    return {
        "seconds": read["runtime"] / 1e3,
        "cpu_seconds": (found["usr_cpu"] + found["sys_cpu"]) / 100 * spent,
        "bytes": read["io_bytes"],
        "residency": residency,
    }


if shutil.which("fio") is None:
    measure.skip("fio is not installed")
measure.finish(result(measure.arguments()))
