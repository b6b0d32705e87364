"""What a load did: how much, how fast, with what."""

from __future__ import annotations

import dataclasses
import html
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class EngineReport:
    """The engine that read, and why it was this one."""

    name: str
    """`"uring"`, `"pread"`, `"tokio-uring"`, `"map"` or `"object"`; two of them, as in `"uring + object"`, when some
    files are local and some remote; `"none"` when there was nothing to read."""
    requested: str
    """What the caller asked for: `"auto"`, `"uring"`, `"pread"` or `"tokio-uring"`."""
    reason: str
    """Why this one."""
    features: tuple[str, ...]
    """What the kernel granted, for example `"registered_buffers"`."""


@dataclass(frozen=True, slots=True)
class StagingReport:
    """Staging memory on the way to GPUs or into memory of the caller's. It is part of `memory_limit`."""

    bytes: int
    """Bytes."""
    slots: int
    """Pieces that it was cut into, one for each read."""
    pinned_bytes: int
    """Bytes that GPUs read by themselves; the driver copies the others once more."""
    reused: bool
    """Whether an earlier load of the process had left it."""
    refusal: str | None
    """Why not all of it was pinned, or `None`."""


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What went to one GPU."""

    device: str
    """For example `"cuda:0"`."""
    memory_limit: int
    """Bytes that the load was allowed to hold there for the caller; 0 when all went into memory of the caller's."""
    memory_peak: int
    """Bytes that it held at most."""
    copies: int
    """Copies to it."""
    copied_bytes: int
    """Their bytes."""
    copy_seconds: float
    """In which a copy was running or waiting for the GPU's copy engine, all lanes added up."""


@dataclass(frozen=True, slots=True)
class DepthReport:
    """How deep one file system or one object store was read, and why not deeper."""

    sources: str
    """For example `"ext4 (8:1)"` or `"s3"`."""
    in_flight_bytes: int
    """Bytes that may be in flight, as the limit was last."""
    changes: int
    """How often it changed."""
    changed_seconds: float
    """Seconds from the call until it changed last."""
    best_bytes_per_second: int
    """The fastest that was measured meanwhile; 0 if the load was too short to measure."""
    reason: str
    """Why it is not deeper: `"fixed"`, `"throughput plateaued"`, …"""


@dataclass(frozen=True, slots=True)
class VerifiedBy:
    """Who says what the bytes of some files should be."""

    by: str
    """For example `"manifest /m/tload-manifest.json"`."""
    algorithm: str
    """By which algorithm: `"crc64nvme"`, `"crc32c"` or `"sha256"`; several with `" and "` between them. CRCs find
    damage, and do not stop whoever changes bytes on purpose."""
    files: int
    """Files of the load."""


@dataclass(frozen=True, slots=True)
class Unverified:
    """A file of which something was not compared."""

    location: str
    """The file."""
    why: str
    """Why."""


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """What was compared with digests that somebody had made of it."""

    choice: str
    """What was asked for: `"auto"`, `"require"`, `"sha256"`, or the manifest."""
    bytes: int
    """Bytes that were compared, and are right: of tensors with a digest of their own when all of one has come, of files
    when all of the file has."""
    by: tuple[VerifiedBy, ...]
    """Who says what the bytes should be."""
    unverified: tuple[Unverified, ...]
    """Files of which something was not compared; the first few."""
    unverified_files: int
    """How many there are."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds that the lanes spent, all lanes added up."""

    submit: float
    """Handing reads to the engine, and touching fresh memory."""
    storage_wait: float
    """Waiting for storage."""
    memory_wait: float
    """Waiting for memory, because the caller was slower than storage."""
    copy_wait: float
    """Waiting for copies to a GPU, with nothing being read."""
    deliver: float
    """Completing tensors and handing them over."""
    verify: float
    """Comparing bytes with digests."""
    consumer_wait: float
    """The caller waiting for the next tensor. Not of the lanes."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a load did. `str()` is a short text for people. Final once the stream has ended, a snapshot before."""

    location: str
    """What was loaded."""
    tensors: int
    """Tensors received."""
    tensor_bytes: int
    """Their bytes."""
    read_bytes: int
    """Bytes read, with what direct I/O reads beyond the edges of tensors: `direct_bytes`, `buffered_bytes`,
    `mapped_bytes` and `remote_bytes` together."""
    extents: int
    """Reads."""
    seconds: float
    """From the call until the last tensor was received."""
    open_seconds: float
    """Reading the headers."""
    first_tensor_seconds: float | None
    """From the call until the first tensor was ready, or `None`."""
    engine: EngineReport
    """Which engine read."""
    direct_bytes: int
    """Bytes read past the page cache."""
    buffered_bytes: int
    """Bytes read through the page cache."""
    mapped_bytes: int
    """Bytes of files that tensors are views of (`cache="map"`)."""
    remote_bytes: int
    """Bytes received from object stores."""
    requests: int
    """Requests to object stores for the bytes of tensors."""
    copied_bytes: int
    """Bytes copied in memory after they were read: only tensors at offsets that are no multiple of their dtype's
    alignment; otherwise 0."""
    short_reads: int
    """Reads that had to be continued."""
    retries: int
    """Reads and requests that had to be repeated for any reason: `read_retries`, `request_retries`, and reads that
    the system had interrupted or did not want past the page cache."""
    read_retries: int
    """Reads of files that were tried again after a failure that may pass."""
    request_retries: int
    """Requests to object stores that were tried again."""
    opening_retries: int
    """What else was tried again since the checkpoint was opened: opening, headers, lists and the state of files, by
    this load and by others of it. Not among `retries`."""
    last_retry: str | None
    """What of these was tried again last, and why."""
    stalls: int
    """Reads and requests that took much longer than others of this load."""
    hedges: int
    """Requests sent a second time because the first one stalled."""
    hedges_won: int
    """Those of them whose answer was the first."""
    parked_bytes: int
    """Memory that storage may still write to though the load is over, bytes: reads that cannot be taken back. Freed
    when it answers."""
    parked_reads: int
    """How many reads these are."""
    memory_limit: int
    """Bytes that the load was allowed to hold for the caller."""
    memory_peak: int
    """Bytes that it held at most."""
    staging: StagingReport | None
    """Staging memory, or `None` when everything was read into its place."""
    devices: tuple[DeviceReport, ...]
    """GPUs that tensors went to."""
    recycled_regions: int
    """Pieces of memory that were used again."""
    fresh_regions: int
    """Pieces of memory that came from the system."""
    stages: StageTimes
    """Where the time went."""
    lanes: int
    """Threads that read."""
    depth: int
    """Reads of the largest size that may be in flight, as the limit was last."""
    in_flight_bytes: int
    """Bytes that may be in flight, as the limit was last."""
    depths: tuple[DepthReport, ...]
    """The same for each file system and each object store, and why it is so."""
    extent_bytes: int
    """Bytes of one read at most."""
    outcome: str
    """`"complete"`, `"running"`, or the kind of the error that ended it, for example `"cancelled"`."""
    verification: VerificationReport | None
    """What was compared with digests of it, or `None` with `verify="off"`."""
    notes: tuple[str, ...]
    """What a user should know, for example why a slower engine was used."""
    text: str = field(default="", repr=False, compare=False)

    @property
    def bytes_per_second(self) -> float:
        """Bytes of tensors received per second."""
        return self.tensor_bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def summary(self) -> str:
        """One line for people: what was loaded, how much, how fast, how it ended, with what."""
        return f"{self.location}: {self.text.partition(chr(10))[0]}, {self.engine.name}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain dicts, lists, numbers and text, ready for JSON."""
        plain = dataclasses.asdict(self)
        del plain["text"]
        plain["notes"] = list(self.notes)
        plain["depths"] = list(plain["depths"])
        plain["devices"] = list(plain["devices"])
        plain["engine"]["features"] = list(self.engine.features)
        if plain["verification"] is not None:
            plain["verification"]["by"] = list(plain["verification"]["by"])
            plain["verification"]["unverified"] = list(plain["verification"]["unverified"])
        plain["bytes_per_second"] = self.bytes_per_second
        return plain

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<tload.Report of {self.summary}>"

    def _repr_html_(self) -> str:
        # What notebooks show. Locations and notes may hold anything.
        return f"<pre>{html.escape(self.text)}</pre>"


def read_report(document: str, text: str) -> Report:
    """Make a report of the core's JSON."""
    fields = json.loads(document)
    engine = fields.pop("engine")
    engine["features"] = tuple(engine["features"])
    staging = fields.pop("staging")
    verification = fields.pop("verification")
    if verification is not None:
        verification["by"] = tuple(VerifiedBy(**by) for by in verification["by"])
        verification["unverified"] = tuple(Unverified(**file) for file in verification["unverified"])
    fields["notes"] = tuple(fields["notes"])
    fields["depths"] = tuple(DepthReport(**depth) for depth in fields["depths"])
    fields["devices"] = tuple(DeviceReport(**device) for device in fields["devices"])
    return Report(
        engine=EngineReport(**engine),
        staging=None if staging is None else StagingReport(**staging),
        verification=None if verification is None else VerificationReport(**verification),
        stages=StageTimes(**fields.pop("stages")),
        text=text,
        **fields,
    )
