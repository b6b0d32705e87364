"""Storage of checkpoints: a disk, memory, a slow file system. Everything created is removed again."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import processes
from cases import SLOW_FILE_MB_S, SLOW_LATENCY_MS, THROTTLE, Case, Checkpoint
from processes import Tools, say

BLKIO = Path("/sys/fs/cgroup/blkio")
#: Name of the converted copy beside each checkpoint; other loaders only look at `*.safetensors`.
CONVERTED = "model.tensors"
#: Room for a checkpoint, its copy in Tensorizer's format, and headers, as a multiple of its size.
ROOM = 2.1
MOUNT_SECONDS = 10.0


class UnavailableError(Exception):
    """A case that cannot run on this machine, and the reason."""


def available_bytes() -> int:
    """Return the memory that is free, or would be if caches were dropped, in bytes."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


@dataclass
class Made:
    folder: Path
    digest: str
    #: Reason why there is no copy in Tensorizer's format.
    unconverted: str | None


@dataclass
class Places:
    disk: Path
    memory: Path
    slowfs: str
    #: Size of the large checkpoints in bytes.
    size: int
    tools: Tools
    made: dict[tuple[str, str], Made] = field(default_factory=dict)

    def _make(self, checkpoint: Checkpoint, where: str) -> Made:
        size = int(self.size * checkpoint.share)
        parent = self.memory if where == "memory" else self.disk
        parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(parent).free
        if where == "memory":
            # Loaders need memory too: for their tensors, and for buffers.
            free = min(free, available_bytes() - 2 * size)
        if free < size * ROOM:
            raise UnavailableError(f"{where} has no room for {size * ROOM / 1e9:.1f} GB ({free / 1e9:.1f} GB free)")
        folder = Path(tempfile.mkdtemp(prefix=f"tload-compare-{checkpoint.name}-", dir=parent))
        # Registered before it is complete, so that it is removed even if the rest fails.
        made = self.made[checkpoint.name, where] = Made(folder, "", None)
        command = [*self.tools.tload, "synth", str(folder), "--size", str(size), "--preset", checkpoint.preset]
        done = subprocess.run(
            [*command, "--shards", str(checkpoint.shards)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"tload synth: {processes.last_words(done.stderr, done.returncode)}")
        made.unconverted = processes.convert(folder, folder / CONVERTED, self.tools)
        made.digest = processes.digest_of(folder, self.tools)
        return made

    def _checkpoint(self, case: Case) -> Made:
        where = "memory" if case.where in ("tmpfs", "slow") else "disk"
        return self.made.get((case.checkpoint.name, where)) or self._make(case.checkpoint, where)

    @contextlib.contextmanager
    def of(self, case: Case) -> Iterator[tuple[Made, Path | None]]:
        """Provide the checkpoint, and the control group that its readers have to be in."""
        if case.where == "throttled":
            made = self._checkpoint(case)
            with throttled(made.folder) as cgroup:
                yield made, cgroup
        elif case.where == "slow":
            if shutil.which(self.slowfs) is None:
                raise UnavailableError("the slow file system is not built, or --slowfs does not name it")
            made = self._checkpoint(case)
            with mounted(self.slowfs, made.folder) as folder:
                yield Made(folder, made.digest, made.unconverted), None
        else:
            yield self._checkpoint(case), None

    def forget(self, later: list[Case]) -> None:
        """Remove what no later case needs."""
        needed = {(case.checkpoint.name, case.where in ("tmpfs", "slow")) for case in later}
        for name, where in list(self.made):
            if (name, where == "memory") not in needed:
                shutil.rmtree(self.made.pop((name, where)).folder, ignore_errors=True)

    def remove(self) -> None:
        self.forget([])


@contextlib.contextmanager
def throttled(folder: Path) -> Iterator[Path]:
    """Provide a control group (version 1) that throttles reads from the directory's disk."""
    if os.geteuid() != 0 or not (BLKIO / "blkio.throttle.read_bps_device").exists():
        raise UnavailableError("throttling a disk needs root and the controller blkio of cgroup v1")
    device = folder.stat().st_dev
    entry = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    # A partition is throttled through its disk.
    disk = (entry.parent if (entry / "partition").exists() else entry) / "dev"
    if not disk.exists():
        raise UnavailableError("the directory is not on a single disk")
    cgroup = BLKIO / f"tload-compare-{os.getpid()}"
    try:
        cgroup.mkdir()
        (cgroup / "blkio.throttle.read_bps_device").write_text(f"{disk.read_text().strip()} {THROTTLE}")
    except OSError as error:
        with contextlib.suppress(OSError):
            cgroup.rmdir()
        raise UnavailableError(f"cannot throttle: {error.strerror}") from error
    try:
        yield cgroup
    finally:
        # The group cannot be removed before its members have ended.
        with contextlib.suppress(OSError):
            cgroup.rmdir()


@contextlib.contextmanager
def mounted(slowfs: str, backing: Path) -> Iterator[Path]:
    """Mount the slow file system over a directory."""
    mount = Path(tempfile.mkdtemp(prefix="tload-compare-mount-"))
    limits = ["--latency-ms", str(SLOW_LATENCY_MS), "--file-mb-s", str(SLOW_FILE_MB_S)]
    command = [slowfs, str(backing), str(mount), *limits]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + MOUNT_SECONDS
        while not mount.is_mount():
            if server.poll() is not None or time.monotonic() > deadline:
                server.kill()
                _, errors = server.communicate()
                raise UnavailableError(f"cannot mount the slow file system: {processes.last_words(errors or '', 1)}")
            time.sleep(0.05)
        yield mount
    finally:
        unmount = shutil.which("fusermount3") or shutil.which("fusermount")
        command = [unmount, "-u", "-z", str(mount)] if unmount else ["umount", "-l", str(mount)]
        if mount.is_mount() and subprocess.run(command, capture_output=True, check=False).returncode != 0:
            say(f"NOTE: cannot unmount the slow file system: {' '.join(command)}")
        server.terminate()
        try:
            server.wait(MOUNT_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
        with contextlib.suppress(OSError):
            mount.rmdir()
