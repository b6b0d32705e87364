"""Reports of loads: volume, speed, engine, limits and where the time went."""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass, field
from typing import Any

from tload import _tload

__all__ = [
    "CacheReport",
    "DepthReport",
    "DeviceReport",
    "EngineReport",
    "GroupReport",
    "MirrorReport",
    "PatchReport",
    "PhaseReport",
    "Report",
    "StageTimes",
    "StagingReport",
    "Unverified",
    "VerificationReport",
    "VerifiedBy",
]


@dataclass(frozen=True, slots=True)
class EngineReport:
    """The engine that read the files or objects."""

    name: str
    """`"uring"`, `"pread"`, `"tokio-uring"`, `"map"` or `"object"`, and `"shared"` or `"remote"` for
    parts that other ranks read; several are joined, as in `"uring + object"`; `"none"` when there
    was nothing to read."""
    requested: str
    """The engine that the caller chose: `"auto"`, `"uring"`, `"pread"` or `"tokio-uring"`."""
    reason: str
    """Reason for the choice of the engine."""
    features: tuple[str, ...]
    """Features that the kernel granted, for example `"registered_buffers"`."""


@dataclass(frozen=True, slots=True)
class StagingReport:
    """Staging memory for GPUs or for the caller's memory. It is part of `memory_limit`."""

    bytes: int
    """Size in bytes."""
    slots: int
    """Number of slots that it was cut into, one per read."""
    pinned_bytes: int
    """Bytes that GPUs copy from directly; the driver copies the others once more."""
    reused: bool
    """`True` if the memory was left by an earlier load of the process."""
    refusal: str | None
    """Reason why not all of it was pinned, or `None`."""


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """Memory and copies of one GPU."""

    device: str
    """The device, for example `"cuda:0"`."""
    memory_limit: int
    """Budget of the load on this GPU, bytes; 0 if everything went into the caller's memory."""
    memory_peak: int
    """Peak of the bytes that counted against the budget."""
    copies: int
    """Number of copies to the GPU."""
    copied_bytes: int
    """Bytes of these copies."""
    copy_seconds: float
    """Seconds in which a copy was running or waiting for the GPU's copy engine, sum of all
    lanes; extrapolated, by bytes, from the copies that were timed."""


@dataclass(frozen=True, slots=True)
class DepthReport:
    """Read depth of one file system or object store, and the reason why it is not greater."""

    sources: str
    """The file system or store, for example `"ext4 (8:1)"` or `"s3"`."""
    in_flight_bytes: int
    """Limit of the bytes in flight at the end of the load."""
    changes: int
    """Number of times that the limit changed."""
    changed_seconds: float
    """Seconds from the call until the last change."""
    best_bytes_per_second: int
    """Highest throughput measured; 0 if the load was too short to measure."""
    reason: str
    """Reason why the depth is not greater, for example `"fixed"` or `"throughput plateaued"`."""


@dataclass(frozen=True, slots=True)
class PhaseReport:
    """Phase of the opening or of the load. Phases overlap."""

    phase: str
    """Name, for example `"headers"`, `"connect"` or `"first tensor"`. Each connection is one."""
    start_seconds: float
    """Seconds from the beginning of the opening until the phase began."""
    seconds: float
    """Duration in seconds."""


@dataclass(frozen=True, slots=True)
class VerifiedBy:
    """Origin of the digests of some files."""

    by: str
    """The origin, for example `"manifest /m/tload-manifest.json"`."""
    algorithm: str
    """Algorithm: `"crc64nvme"`, `"crc32c"`, `"crc32"`, `"blake3"` or `"sha256"`; several are joined
    by `" and "`. CRCs detect damage but not deliberate changes."""
    files: int
    """Number of files of the load."""


@dataclass(frozen=True, slots=True)
class Unverified:
    """A file that was not compared, or not completely."""

    location: str
    """Location of the file."""
    why: str
    """Reason."""


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """Result of comparing bytes with existing digests of them."""

    choice: str
    """Requested verification: `"auto"`, `"require"`, `"sha256"`, or the manifest."""
    bytes: int
    """Bytes that were compared and match. A tensor with a digest of its own counts once all of it
    has been read, a file once all of the file has."""
    by: tuple[VerifiedBy, ...]
    """Origins of the digests."""
    unverified: tuple[Unverified, ...]
    """The first few files that were not compared, or not completely."""
    unverified_files: int
    """Total number of such files."""


@dataclass(frozen=True, slots=True)
class CacheReport:
    """Cache of objects (store option `cache_dir`), since the checkpoint was opened.

    `Report.cached_bytes` counts what the load read from it.
    """

    directory: str
    """Its directory."""
    written_bytes: int
    """Bytes written to it so far. Writing goes on after the load."""
    dropped_bytes: int
    """Bytes that were not written because the disk was slower than the store."""
    damaged_bytes: int
    """Bytes that were found damaged, and were requested again."""
    reason: str | None
    """Reason why nothing more is written, or why an object is not cached, or `None`."""


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """Mirror of the checkpoint (store options `mirrors` and `peers`), since it was opened."""

    location: str
    """Its URL, without secrets."""
    read_bytes: int
    """Bytes received from it."""
    failure: str | None
    """Last failure: an error, other bytes than the origin's, or too little speed. If nothing was
    received, also the error about a file that it does not have."""
    is_dropped: bool
    """True if it is not used any more: it has other bytes, or failed several times."""


@dataclass(frozen=True, slots=True)
class GroupReport:
    """Statistics of one rank of a load with a `Group`."""

    rank: int
    """This rank."""
    size: int
    """Number of ranks of the group."""
    node_ranks: tuple[int, ...]
    """Ranks of this rank's node that share their reads, this one included."""
    leader: int
    """Rank that reads the shared bytes of the node."""
    share: str
    """Scope of the sharing: `"node"`, `"cluster"` or `"none"`."""
    reason: str | None
    """Reason why less is shared than was requested, or `None`."""
    unique_bytes: int
    """Distinct bytes of the checkpoint that the ranks of the node want."""
    read_bytes: int
    """Bytes that this rank read from storage, for itself and for others."""
    node_received_bytes: int
    """Bytes that this rank received from other nodes, for the ranks of its own: if it leads the
    node and nodes share with each other."""
    reread_bytes: int
    """Bytes that this rank read itself because it had fallen behind or had lost the leader; or
    another node, if it leads its own."""
    amplification: float | None
    """Bytes that all ranks of the node read, divided by `unique_bytes`; below 1 where other nodes
    read for this one. The leader knows what the others have read once they have finished; before
    that, and on other ranks, these are the bytes that the ranks planned to read, and what this rank
    read again. `None` if nothing is shared."""
    join_seconds: float
    """Seconds that this rank waited for the other ranks before its first read."""
    slowest_rank: int | None
    """Rank whose part of the load was the last to be taken over; `None` on every rank but the
    leader, and there while one of the others has not finished."""


@dataclass(frozen=True, slots=True)
class PatchReport:
    """Files and tensors that libraries read in a block of `tload.patch`. `str()` is one line."""

    replaced: tuple[str, ...]
    """Attributes of the libraries that were replaced, as `module.name`."""
    files: tuple[str, ...]
    """Locations that were opened, without repetition: the first 1000."""
    opened: int
    """Number of files that were opened, with repetition."""
    viewed_tensors: int
    """Tensors handed out as views of mapped files: nothing is read before they are used."""
    viewed_bytes: int
    """Bytes of these."""
    read_tensors: int
    """Tensors, or parts of them, that were read."""
    read_bytes: int
    """Bytes of these."""

    def __str__(self) -> str:
        if not self.opened:
            nothing = "" if self.replaced else "; no imported module of theirs uses safetensors"
            return (
                "no file was opened by tload: only what transformers, accelerate and diffusers read is "
                f"patched{nothing}. In your own code, import from tload.safetensors instead of safetensors"
            )
        tensors = self.viewed_tensors + self.read_tensors
        line = f"{_counted(self.opened, 'file')} opened, {_counted(tensors, 'tensor')}"
        sizes = [(self.viewed_bytes, "as views of mapped files"), (self.read_bytes, "read")]
        shown = [f"{_tload.format_bytes(size)} {how}" for size, how in sizes if size]
        return f"{line}: {', '.join(shown)}" if shown else line


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds that the lanes spent in each stage, sum of all lanes."""

    submit: float
    """Submitting reads to the engine, and touching fresh memory."""
    storage_wait: float
    """Waiting for storage."""
    memory_wait: float
    """Waiting for the budget, because the caller was slower than storage: `budget wait`."""
    copy_wait: float
    """Waiting for copies to a GPU while no read was in flight, or none could begin until a copy had
    finished."""
    deliver: float
    """Completing tensors and handing them over."""
    verify: float
    """Comparing bytes with digests. CRCs of files in the page cache are computed while they are
    read.
    """
    consumer_wait: float
    """Time that the caller waited for the next tensor. Not part of the lanes' time."""


@dataclass(frozen=True, slots=True)
class Report:
    """Statistics of a load.

    `str()` is a short text for people. Final once the stream has ended, a snapshot before.
    """

    location: str
    """Location of the checkpoint."""
    tensors: int
    """Number of tensors received."""
    tensor_bytes: int
    """Bytes of the tensors received."""
    read_bytes: int
    """Bytes read, including bytes beyond the edges of tensors that direct I/O reads: the sum of
    `direct_bytes`, `buffered_bytes`, `mapped_bytes`, `remote_bytes` and `cached_bytes`. With
    `group=`, what the ranks of a node share is counted where it is read: on the leader."""
    extents: int
    """Number of reads."""
    seconds: float
    """Seconds from the call until the last tensor was received."""
    open_seconds: float
    """Seconds spent on reading the headers."""
    first_tensor_seconds: float | None
    """Seconds from the call until the first tensor was ready, or `None`."""
    ready_seconds: float | None
    """Seconds from the call until the latest tensor was ready: in a complete load the last one,
    whenever the caller took it."""
    verdict: str | None
    """Sentence that names what limited the load, for example `"the disk was the limit: …"`; `None`
    if the counters do not tell."""
    engine: EngineReport
    """The engine that read."""
    direct_bytes: int
    """Bytes read with direct I/O."""
    buffered_bytes: int
    """Bytes read through the page cache."""
    mapped_bytes: int
    """Bytes of files that tensors are views of (`cache="map"`)."""
    remote_bytes: int
    """Bytes received from object stores."""
    cached_bytes: int
    """Bytes of objects that were read from the cache (store option `cache_dir`)."""
    received_bytes: int
    """Bytes received from another rank of a `Group`, in shared memory. Not included in
    `read_bytes`."""
    requests: int
    """Requests to object stores for tensor data."""
    copied_bytes: int
    """Bytes copied in memory after reading: those of `load_into` on the CPU, of slices that are not
    contiguous in their file, and of tensors at offsets that are not a multiple of their dtype's
    alignment; otherwise 0. The printed report calls them "copied in memory"."""
    converted_tensors: int
    """Number of tensors that were converted to another dtype (`dtype=`)."""
    converted_bytes: int
    """Bytes of these tensors after the conversion. `tensor_bytes` has them as in the file."""
    short_reads: int
    """Reads that returned fewer bytes than requested and were continued."""
    retries: int
    """Reads and requests that were repeated for any reason: `read_retries`, `request_retries`, and
    reads that the system interrupted or refused with direct I/O."""
    read_retries: int
    """Reads of files that were retried after a transient failure."""
    request_retries: int
    """Requests to object stores that were retried."""
    opening_retries: int
    """Retries outside the data path (open, header, list, stat) since the checkpoint was opened, by
    this load and by others of the checkpoint. Not included in `retries`."""
    last_retry: str | None
    """The last retry, in the data path or outside of it, and its cause, or `None`."""
    group: GroupReport | None
    """Sharing with other ranks, or `None` for a load without a `Group`."""
    stalls: int
    """Reads and requests that took much longer than others of this load."""
    hedges: int
    """Requests that were sent a second time because the first one stalled."""
    hedges_won: int
    """Hedged requests whose second response arrived first."""
    parked_bytes: int
    """Orphaned memory, bytes: memory of reads that cannot be cancelled, which storage may still
    write to after the end of the load. It is freed when storage responds."""
    parked_reads: int
    """Number of reads that hold orphaned memory."""
    memory_limit: int
    """Budget of the load in host memory, bytes."""
    memory_peak: int
    """Peak of the bytes that counted against the budget."""
    staging: StagingReport | None
    """Staging memory, or `None` if everything was read in place."""
    devices: tuple[DeviceReport, ...]
    """GPUs that tensors were loaded to."""
    recycled_regions: int
    """Memory regions that were reused."""
    fresh_regions: int
    """Memory regions that were allocated from the system."""
    stages: StageTimes
    """Time spent in each stage."""
    phases: tuple[PhaseReport, ...]
    """Phases of the opening and the load, in the order in which they began."""
    lanes: int
    """Number of reader threads."""
    depth: int
    """Limit of the reads in flight at the end of the load, in reads of the largest size."""
    in_flight_bytes: int
    """Limit of the bytes in flight at the end of the load."""
    depths: tuple[DepthReport, ...]
    """Limits of each file system and each object store, and the reasons for them."""
    extent_bytes: int
    """Maximum bytes of one read."""
    outcome: str
    """Outcome: `"complete"`, `"running"`, or the kind of the error that ended the load, for example
    `"cancelled"`. A load that is closed after its last tensor is complete."""
    verification: VerificationReport | None
    """Result of verification, or `None` with `verify="off"`."""
    cache: CacheReport | None
    """Cache of objects, or `None` without one."""
    mirrors: tuple[MirrorReport, ...]
    """Mirrors and peers, in the order of the option."""
    notes: tuple[str, ...]
    """Notes for the user, for example why a slower engine was used."""
    import_seconds: float = 0.0
    """Seconds that importing the framework took (torch, numpy), or has taken so far; 0 if it was
    imported before. The load reads meanwhile, unless it is to a GPU, so this overlaps `seconds`,
    and may exceed it."""
    import_wait_seconds: float = 0.0
    """Part of `seconds` in which the load waited for the import: nothing could be handed over."""
    text: str = field(default="", repr=False, compare=False)

    @property
    def bytes_per_second(self) -> float:
        """Throughput: bytes of tensors received per second, without `import_wait_seconds`."""
        seconds = self.seconds - self.import_wait_seconds
        return self.tensor_bytes / seconds if seconds > 0 else 0.0

    @property
    def summary(self) -> str:
        """One line for people: location, volume, throughput, outcome and engine."""
        return f"{self.location}: {self.text.partition(chr(10))[0]}, {self.engine.name}"

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain dicts, lists, numbers and text, ready for JSON."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        del plain["text"]
        return {**plain, "bytes_per_second": self.bytes_per_second}

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<tload.Report of {self.summary}>"

    def html(self) -> str:
        """Return the report as a page of HTML, as `tload load --html` writes it.

        The page is complete: it has no script, and loads nothing from elsewhere. It shows the phases
        of the start, where the time went, reads and memory. What only the command knows, such as
        the machine, is not in it.

        Returns:
            The text of a file.

        Examples:
            >>> from pathlib import Path
            >>> stream = tload.stream("model_dir")
            >>> tensors = dict(stream)
            >>> size = Path("load.html").write_text(stream.report.html(), encoding="utf-8")
        """
        return _tload.report_page(json.dumps(self.to_dict()), self.text, int(time.time()))

    def _repr_html_(self) -> str:
        # Shown by notebooks.
        return _tload.report_fragment(json.dumps(self.to_dict()), self.text)
