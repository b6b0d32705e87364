"""Reads what `experiments.c` prints."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

#: Columns of the first section: streams, copies of a batch, and one stream with an event behind each copy.
STREAMS, BATCHES, EVENTS = (1, 2, 4), (8, 16, 64), "events"


@dataclass(frozen=True)
class Rate:
    gbs: float
    cpu_per_gib: float


@dataclass(frozen=True)
class Ring:
    """Staging memory of the third section."""

    slot_mib: int
    chunk_kib: int
    slots: int
    streams: int

    def __str__(self) -> str:
        return f"slots of {self.slot_mib} MiB × {self.slots} in chunks of {self.chunk_kib} KiB"


@dataclass
class File:
    """One file that bytes come from."""

    path: str
    #: By threads.
    rings: dict[Ring, dict[int, Rate]] = field(default_factory=dict)
    #: By kind of mapping: rates by threads and window; None where the driver refused it.
    registered: dict[str, list[Rate] | None] = field(default_factory=dict)


@dataclass
class Experiments:
    #: GB/s by KiB of a copy and column; None where the driver refused it.
    copies: dict[int, dict[object, float | None]] = field(default_factory=dict)
    #: Microseconds of a copy of 176 bytes, alone and in a batch of 64.
    small: tuple[float, float | None] | None = None
    files: list[File] = field(default_factory=list)
    #: Milliseconds per GiB by MiB of an allocation.
    allocations: dict[int, float] = field(default_factory=dict)

    @property
    def bus(self) -> float | None:
        """The fastest rate of one stream."""
        return max((row[1] for row in self.copies.values() if row.get(1)), default=None)


CELL = re.compile(r"\|\s*(-?[\d.]+) @ (-?[\d.]+)")


def parse(text: str) -> Experiments:
    found = Experiments()
    threads: list[int] = []
    for line in text.splitlines():
        if match := re.match(r"== 2\. threads that copy (.+) into a ring", line):
            found.files.append(File(match[1]))
        elif line.startswith("slot, chunk, slots, streams"):
            threads = [int(number) for number in re.findall(r"\| +(\d+) threads", line)]
        elif match := re.match(r" *(\d+) KiB((?: +-?[\d.]+){7})$", line):
            rates = [float(rate) if float(rate) > 0 else None for rate in match[2].split()]
            found.copies[int(match[1])] = dict(zip((*STREAMS, *BATCHES, EVENTS), rates, strict=True))
        elif match := re.match(r".*176 bytes, us each: one stream ([\d.]+), batches of 64 (-?[\d.]+)", line):
            batched = float(match[2])
            found.small = (float(match[1]), batched if batched > 0 else None)
        elif found.files and (match := re.match(r" *(\d+)M +(\d+)K x +(\d+), (\d) ", line)):
            ring = Ring(*(int(number) for number in match.groups()))
            rates = [Rate(float(gbs), float(cpu)) for gbs, cpu in CELL.findall(line)]
            # A program that was stopped leaves a part of a row.
            found.files[-1].rings[ring] = dict(zip(threads, rates, strict=False))
        elif found.files and (match := re.match(r"(.+?)  +\d+ MiB x \d+: +([\d.]+) GB/s @ ([\d.]+) CPU", line)):
            known = found.files[-1].registered.setdefault(match[1].strip(), [])
            if known is not None:
                known.append(Rate(float(match[2]), float(match[3])))
        elif found.files and (match := re.match(r"(.+?)  +refused: error", line)):
            found.files[-1].registered[match[1].strip()] = None
        elif match := re.match(r" *(\d+) MiB: +[\d.]+ us, +([\d.]+) ms per GiB", line):
            found.allocations[int(match[1])] = float(match[2])
    return found
