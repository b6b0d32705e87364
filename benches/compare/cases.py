"""Cases: checkpoints, their storage, and the state of the page cache. Neighbours share files."""

from __future__ import annotations

from dataclasses import dataclass

MIB, GIB = 1 << 20, 1 << 30

#: Bandwidth of each file on the slow file system, MB/s, and minimum latency of a read,
#: milliseconds.
SLOW_FILE_MB_S, SLOW_LATENCY_MS = 100, 5
#: Bandwidth of the throttled disk, bytes per second.
THROTTLE = 500_000_000


@dataclass(frozen=True)
class Checkpoint:
    name: str
    preset: str
    shards: int
    #: Size as a share of `--size`.
    share: float = 1.0


LLAMA4 = Checkpoint("llama-4", "llama", 4)
LLAMA16 = Checkpoint("llama-16", "llama", 16)
SINGLE = Checkpoint("single", "llama", 1)
SMALL = Checkpoint("small", "moe", 2, share=0.5)
SLOW = Checkpoint("slow-64", "moe", 64, share=0.5)


@dataclass(frozen=True)
class Case:
    name: str
    title: str
    checkpoint: Checkpoint
    #: `disk`, `tmpfs`, `slow` (FUSE) or `throttled`.
    where: str
    #: State of the page cache: `cold` (no page of the files) or `warm` (all of them).
    state: str
    #: `stream` drops each tensor as it comes, `keep` keeps all of them to the end.
    mode: str
    #: Case whose best settings are reused here, if it was measured before, which saves the sweep.
    settings_of: str | None = None


CASES = [
    Case("disk-stream", "4 shards on disk, cold, dropped as they come", LLAMA4, "disk", "cold", "stream"),
    Case("disk-keep", "4 shards on disk, cold, all kept", LLAMA4, "disk", "cold", "keep"),
    Case("disk-warm", "4 shards in the page cache, all kept", LLAMA4, "disk", "warm", "keep"),
    Case(
        "throttled",
        f"4 shards on a disk of {THROTTLE // 1_000_000} MB/s, cold, dropped as they come",
        LLAMA4,
        "throttled",
        "cold",
        "stream",
        "disk-stream",
    ),
    Case("tmpfs", "4 shards in tmpfs, all kept", LLAMA4, "tmpfs", "warm", "keep"),
    Case(
        "shards16-stream",
        "16 shards on disk, cold, dropped as they come",
        LLAMA16,
        "disk",
        "cold",
        "stream",
        "disk-stream",
    ),
    Case("shards16-keep", "16 shards on disk, cold, all kept", LLAMA16, "disk", "cold", "keep", "disk-keep"),
    Case(
        "single-stream", "One file on disk, cold, dropped as they come", SINGLE, "disk", "cold", "stream", "disk-stream"
    ),
    Case("single-keep", "One file on disk, cold, all kept", SINGLE, "disk", "cold", "keep", "disk-keep"),
    Case(
        "small-stream",
        "Many small tensors on disk, cold, dropped as they come",
        SMALL,
        "disk",
        "cold",
        "stream",
        "disk-stream",
    ),
    Case("small-keep", "Many small tensors on disk, cold, all kept", SMALL, "disk", "cold", "keep", "disk-keep"),
    Case("small-warm", "Many small tensors in the page cache, all kept", SMALL, "disk", "warm", "keep"),
    Case("tmpfs-small", "Many small tensors in tmpfs, all kept", SMALL, "tmpfs", "warm", "keep"),
    Case(
        "slow",
        f"64 files of {SLOW_LATENCY_MS} ms and {SLOW_FILE_MB_S} MB/s each (FUSE), cold, dropped as they come",
        SLOW,
        "slow",
        "cold",
        "stream",
    ),
]
#: Measured apart: no other loader takes part.
COLD_START = "cold-start"
NAMES = [*(case.name for case in CASES), COLD_START]
