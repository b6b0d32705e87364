"""Contenders: ceilings, tload and its peers, each with the settings to search for its best."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from cases import MIB, Case


@dataclass(frozen=True)
class Setting:
    #: Empty for the defaults.
    label: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


DEFAULTS = Setting()
Settings = Callable[[Case], list[Setting]]


def only_defaults(_: Case) -> list[Setting]:
    return [DEFAULTS]


def everywhere(_: Case) -> bool:
    return True


@dataclass(frozen=True)
class Family:
    name: str
    script: str
    role: Literal["ours", "peer", "ceiling"] = "peer"
    settings: Settings = only_defaults
    suits: Callable[[Case], bool] = everywhere
    #: The tensors lie in the page cache, without memory of their own.
    is_mapped: bool = False
    #: Reads a converted copy of the checkpoint, which is written before.
    has_own_format: bool = False


def is_warm(case: Case) -> bool:
    return case.state == "warm"


def is_cold(case: Case) -> bool:
    return case.state == "cold"


def is_on_disk(case: Case) -> bool:
    return is_cold(case) and case.where in ("disk", "throttled")


def keeps_in_page_cache(case: Case) -> bool:
    return is_warm(case) and case.mode == "keep"


def mib(size: int) -> str:
    return f"{size // MIB} MiB"


def fio(case: Case) -> list[Setting]:
    if case.where == "slow":
        # FUSE serves reads one after another unless they are queued.
        each = [(64, depth, MIB) for depth in (2, 8, 32)]
        together = [(1, depth, MIB) for depth in (64, 512)]
        return [
            Setting(
                f"{jobs} × depth {depth} × {mib(bs)}" if jobs > 1 else f"depth {depth} × {mib(bs)}",
                {"jobs": jobs, "depth": depth, "bs": bs, "force_async": True},
            )
            for jobs, depth, bs in [*each, *together]
        ]
    return [
        Setting(f"depth {depth} × {mib(bs)}", {"depth": depth, "bs": bs})
        for depth, bs in itertools.product((4, 8, 16, 32), (MIB, 4 * MIB))
    ]


def raw_reads(case: Case) -> list[Setting]:
    sizes = [("uring", depth, size) for depth, size in itertools.product((4, 8, 16, 32), (1, 4))]
    if case.where == "slow":
        sizes = [("uring", depth, 1) for depth in (64, 256, 1024)]
    elif case.mode == "keep":
        sizes += [("uring", 32, 8)]
    sizes += [("pread", 8, 1), ("pread", 64, 1)] if case.where == "slow" else [("pread", 4, 1), ("pread", 8, 1)]
    sizes += [("tokio-uring", 8, 1)]
    return [
        Setting(f"{engine}, depth {depth} × {size} MiB", {"engine": engine, "depth": depth, "extent": f"{size}MiB"})
        for engine, depth, size in sizes
    ]


def copies(_: Case) -> list[Setting]:
    return [Setting(f"{threads} threads", {"threads": threads, "piece": 4 * MIB}) for threads in (1, 2, 4, 8)]


def tload_sweep(case: Case) -> list[Setting]:
    """Return a grid of manual settings, to compare the defaults with."""
    grid: Iterable[dict[str, Any]]
    if case.where == "slow":
        grid = [
            {"depth": depth, "extent_bytes": f"{size} MiB"}
            for depth, size in itertools.product((64, 256, 1024), (1, 4))
        ]
        grid = [*grid, {"engine": "pread", "depth": 64, "extent_bytes": "1 MiB"}]
    elif is_warm(case):
        grid = [
            {
                "cache": "buffered",
                "engine": engine,
                "lanes": lanes,
                "depth": depth * lanes,
                "extent_bytes": f"{size} MiB",
            }
            for engine, lanes, depth, size in itertools.product(("uring", "pread"), (1, 2), (2, 4), (1, 4))
        ]
    else:
        sizes = itertools.product((4, 8, 16, 32), (1, 4))
        grid = [{"engine": "uring", "depth": depth, "extent_bytes": f"{size} MiB"} for depth, size in sizes]
        grid += [{"engine": "uring", "lanes": 2, "depth": depth, "extent_bytes": "1 MiB"} for depth in (8, 16)]
        grid += [{"engine": "pread", "depth": depth, "extent_bytes": "1 MiB"} for depth in (4, 8)]
    return [Setting(", ".join(f"{key}={value}" for key, value in options.items()), options) for options in grid]


def always(label: str, **options: Any) -> Settings:
    return lambda _: [Setting(label, options)]


#: Otherwise torch copies one tensor with all cores, which is slower where threads wait for a core.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def clones(_: Case) -> list[Setting]:
    return [
        Setting("mmap", {"clone": True}),
        Setting("mmap, OMP_NUM_THREADS=1", {"clone": True}, ONE_THREAD),
        Setting("pread", {"clone": True, "backend": "pread"}),
    ]


def thread_pools(_: Case) -> list[Setting]:
    tried = ((4, "worker", {}), (8, "worker", {}), (8, "worker", ONE_THREAD), (8, "main", {}), (8, "main", ONE_THREAD))
    return [
        Setting(
            f"{workers} workers, clone in the {clone}{', OMP_NUM_THREADS=1' if variables else ''}",
            {"workers": workers, "clone": clone},
            variables,
        )
        for workers, clone, variables in tried
    ]


def runai(_: Case) -> list[Setting]:
    """Return its strategies. One number sets its threads and the depth of its queue, if any (see its documentation)."""
    tried = {
        "io_uring_direct": (1, 2, 4, 8, 16, 32),
        "io_uring_buffered": (4, 16),
        "libaio_direct": (8, 32),
        "sync_buffered": (1, 2, 4, 8, 16, 32),
    }
    return [
        DEFAULTS,
        *(
            Setting(
                f"{strategy}, concurrency {number}",
                environment={"RUNAI_STREAMER_FS_STRATEGY": strategy, "RUNAI_STREAMER_CONCURRENCY": str(number)},
            )
            for strategy, numbers in tried.items()
            for number in numbers
        ),
    ]


def fastsafetensors(_: Case) -> list[Setting]:
    found = [DEFAULTS]
    for threads, size_kb, buffered in (
        (4, 16384, False),
        (32, 16384, False),
        (4, 16384, True),
        (16, 16384, True),
        (16, 1024, True),
    ):
        label = f"{threads} threads × {size_kb // 1024} MiB{', buffered' if buffered else ''}"
        environment = {"FASTSAFETENSORS_ODIRECT": "0"} if buffered else {}
        found.append(Setting(label, {"max_threads": threads, "bbuf_size_kb": size_kb}, environment))
    return found


def tensorizer(_: Case) -> list[Setting]:
    return [DEFAULTS, *(Setting(f"{readers} readers", {"num_readers": readers}) for readers in (1, 2, 4, 8))]


FIO = Family("ceiling: fio", "ceiling_fio.py", "ceiling", fio, is_cold)
RAW = Family("ceiling: raw reads", "ceiling_tload.py", "ceiling", raw_reads, is_cold)
COPY = Family("ceiling: pread into huge pages", "ceiling_copy.py", "ceiling", copies, keeps_in_page_cache)
TLOAD = Family("tload", "load_tload.py", "ours")
MAP = Family(
    "tload, cache=map",
    "load_tload.py",
    "ours",
    always("", cache="map"),
    keeps_in_page_cache,
    is_mapped=True,
)
TOKIO = Family("tload, tokio-uring", "load_tload.py", "ours", always("", engine="tokio-uring"), is_on_disk)
SWEPT = Family("tload, best of a sweep", "load_tload.py", "ours", tload_sweep)
LOAD_FILE = Family("safetensors load_file", "load_safetensors.py", is_mapped=True)
CLONE = Family("safetensors safe_open, copied", "load_safetensors.py", settings=clones)
THREADS = Family("load_file in threads, copied", "load_threads.py", settings=thread_pools)
RUNAI = Family("Run:ai", "load_runai.py", settings=runai)
FAST = Family("fastsafetensors", "load_fastsafetensors.py", settings=fastsafetensors)
# Everything is in memory before the first tensor is returned, so there is nothing to stream.
TENSORIZER = Family("Tensorizer (own format)", "load_tensorizer.py", settings=tensorizer, has_own_format=True)

FAMILIES = [FIO, RAW, COPY, TLOAD, MAP, TOKIO, SWEPT, LOAD_FILE, CLONE, THREADS, RUNAI, FAST, TENSORIZER]


def thinned(settings: list[Setting]) -> list[Setting]:
    """Return two of the settings, for a run that only tries the programs."""
    return [settings[0], settings[-1]]
