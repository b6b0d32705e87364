"""Decides which parameters of a model a load left without weights. Knows no engine and no torch.

Memory is a range of addresses. Tensors of the checkpoint are numbers: positions in the list of those
that were handed over. `recorder.py` records both.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

Gaps: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges without weights, relative to their unit. Those of columns are relative to the row."""

NAMES_SHOWN = 4
"""Maximum number of parameters that a message names, and of tensors for each."""

_NUMBER = re.compile(r"(?:(?<=\.)|^)(\d+)(?=\.|$)")
"""Numbers of layers and experts: a whole part of a name."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the model and its memory."""

    name: str
    start: int
    """Address of its first byte."""
    nbytes: int
    experts: int = 1
    """Number of experts that it stacks. Each has a unit of its own."""
    needed: int | None = None
    """Bytes that checkpoints have for it, if the engine says so: the rest is padding."""
    excuse: str | None = None
    """Why it may be without weights: engines have parameters that few checkpoints fill."""

    @property
    def unit(self) -> int:
        """Bytes of one expert, or of the parameter if it stacks none."""
        return self.nbytes // self.experts


@dataclass(frozen=True, slots=True)
class Columns:
    """A write of equally long runs at equal distances."""

    start: int
    run: int
    pitch: int
    """Distance from the start of one run to that of the next."""
    count: int
    tensor: int

    @property
    def stop(self) -> int:
        """End of the last run."""
        return self.start + self.pitch * (self.count - 1) + self.run


@dataclass(slots=True)
class Writes:
    """All writes of a load, in any order."""

    starts: list[int]
    """First addresses of contiguous writes."""
    sizes: list[int]
    """Their lengths."""
    tensors: list[int]
    """The tensors that were written."""
    columns: list[Columns] = field(default_factory=list)

    def add(self, others: Writes) -> None:
        """Add other writes."""
        self.starts += others.starts
        self.sizes += others.sizes
        self.tensors += others.tensors
        self.columns += others.columns


@dataclass(frozen=True, slots=True)
class Missing:
    """A parameter with bytes that were not written."""

    name: str
    written: int
    nbytes: int
    tensors: tuple[str, ...]
    """Names of the tensors that would probably have filled it."""


@dataclass(slots=True)
class Verdict:
    """Result of `judge`."""

    missing: list[Missing] = field(default_factory=list)
    excused: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Parameters without weights that may be so, by the reason."""


def judge(
    parameters: Iterable[Parameter],
    writes: Writes,
    handed: Sequence[str],
    *,
    present: Collection[str] = (),
    loaded: Collection[str] = (),
    parts: Mapping[str, Sequence[str]] | None = None,
) -> Verdict:
    """Find the parameters that were not written, or not completely.

    Args:
        parameters: The parameters of the model.
        writes: What was written during the load.
        handed: Names of the tensors that were handed over, in that order.
        present: Names of all tensors of the checkpoint.
        loaded: Parameters that the engine says to have loaded. That is believed of those for which
            no write was recorded, as it may have happened in another way; engines also say it of
            stacked parameters that got only one of their parts.
        parts: Names of the modules that a stacked module replaces, by its name.
    """
    known = sorted((one for one in parameters if one.nbytes), key=lambda one: one.start)
    memory = _Memory(known, writes)
    verdict = Verdict()
    incomplete: dict[str, tuple[Parameter, list[Gaps], int]] = {}
    full: set[tuple[str, int, int]] = set()
    for one in known:
        if memory.is_full(one):
            full.add(_pattern(one))
            continue
        gaps, written = memory.gaps(one)
        if one.needed is not None and written >= one.needed:
            continue
        if not any(gaps):
            full.add(_pattern(one))
        elif written or one.name not in loaded:
            incomplete[one.name] = one, gaps, written
    alike = _by_pattern(known)
    namer = _Namer(memory, handed, present, parts or {})
    for one, gaps, written in incomplete.values():
        # A checkpoint that fills it in another layer should do so in all.
        if one.excuse is not None and _pattern(one) not in full:
            verdict.excused[one.excuse].append(one.name)
            continue
        siblings = alike[_pattern(one)]
        same = one.experts > 1 and len(set(gaps)) == 1 and _pattern(one) not in full
        if same and 2 * written > one.nbytes:
            verdict.excused["padding of experts"].append(one.name)
        else:
            verdict.missing.append(Missing(one.name, written, one.nbytes, namer.tensors(one, gaps, siblings)))
    return verdict


class _Memory:
    """The written ranges."""

    def __init__(self, known: Sequence[Parameter], writes: Writes) -> None:
        order = sorted(range(len(writes.starts)), key=writes.starts.__getitem__)
        self.starts = [writes.starts[at] for at in order]
        self.sizes = [writes.sizes[at] for at in order]
        self.tensors = [writes.tensors[at] for at in order]
        self.columns: dict[tuple[int, int], list[Columns]] = defaultdict(list)
        """Writes of columns by the address of their parameter and the number of their unit."""
        firsts = [one.start for one in known]
        for write in writes.columns:
            at = bisect_right(firsts, write.start) - 1
            owner = known[at] if at >= 0 else None
            if owner is not None and write.stop <= owner.start + owner.nbytes:
                self.columns[owner.start, (write.start - owner.start) // owner.unit].append(write)
        self._join()

    def _join(self) -> None:
        self.joined_starts: list[int] = []
        self.joined_stops: list[int] = []
        for start, size in zip(self.starts, self.sizes, strict=True):
            if self.joined_stops and start <= self.joined_stops[-1]:
                self.joined_stops[-1] = max(self.joined_stops[-1], start + size)
            else:
                self.joined_starts.append(start)
                self.joined_stops.append(start + size)

    def is_full(self, one: Parameter) -> bool:
        at = bisect_right(self.joined_starts, one.start) - 1
        return at >= 0 and self.joined_stops[at] >= one.start + one.nbytes

    def gaps(self, one: Parameter) -> tuple[list[Gaps], int]:
        """Return the gaps of each unit, and the number of bytes that were written."""
        gaps, written = [], 0
        for unit in range(one.experts):
            start = one.start + unit * one.unit
            whole = self._between(start, start + one.unit)
            columns = self.columns.get((one.start, unit), [])
            pitch = columns[0].pitch if columns else 0
            aligned = all(write.pitch == pitch and write.count * pitch == one.unit for write in columns)
            if columns and aligned and not whole:
                row = [((write.start - start) % pitch, write.run) for write in columns]
                left = _complement([(first, first + run) for first, run in row], pitch)
                lost = sum(stop - first for first, stop in left) * (one.unit // pitch)
            else:
                left = _complement([*whole, *_runs(columns, start)], one.unit)
                lost = sum(stop - first for first, stop in left)
            gaps.append(left)
            written += one.unit - lost
        return gaps, written

    def _between(self, start: int, stop: int) -> list[tuple[int, int]]:
        at = max(0, bisect_right(self.joined_starts, start) - 1)
        found = []
        while at < len(self.joined_starts) and self.joined_starts[at] < stop:
            if self.joined_stops[at] > start:
                found.append((max(self.joined_starts[at], start) - start, min(self.joined_stops[at], stop) - start))
            at += 1
        return found

    def sources(self, one: Parameter, unit: int) -> list[tuple[int, int]]:
        """Return the first bytes of the writes of a unit, relative to it, and their tensors."""
        start = one.start + unit * one.unit
        first, last = bisect_left(self.starts, start), bisect_left(self.starts, start + one.unit)
        found = [(self.starts[at] - start, self.tensors[at]) for at in range(first, last)]
        return found + [(write.start - start, write.tensor) for write in self.columns.get((one.start, unit), [])]

    def is_of_columns(self, one: Parameter, unit: int) -> int:
        """Return the distance of the rows if the writes of a unit are columns, else 0."""
        columns = self.columns.get((one.start, unit), [])
        return columns[0].pitch if columns else 0


class _Namer:
    """Finds the names of the tensors that a parameter lacks, by what filled parameters like it."""

    def __init__(
        self, memory: _Memory, handed: Sequence[str], present: Collection[str], parts: Mapping[str, Sequence[str]]
    ) -> None:
        self._memory = memory
        self._handed = handed
        self._present = frozenset(present) | frozenset(handed)
        self._parts = parts

    def tensors(self, one: Parameter, gaps: Sequence[Gaps], siblings: Sequence[Parameter]) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for unit, left in enumerate(gaps):
            if left and len(found) <= NAMES_SHOWN:
                names = self._from_siblings(one, unit, left, siblings) or self._from_experts(one, unit, left, gaps)
                found.update(dict.fromkeys(names))
        return tuple(found) or self._from_parts(one)

    def _from_siblings(self, one: Parameter, unit: int, left: Gaps, siblings: Sequence[Parameter]) -> list[str]:
        for other in siblings:
            if other is not one:
                names = self._in_gap(other, unit, left)
                found = [_renumber(name, _numbers(other.name), _numbers(one.name)) for name in names]
                absent = [name for name in found if name is not None and name not in self._present]
                if absent:
                    return absent
        return []

    def _from_experts(self, one: Parameter, unit: int, left: Gaps, gaps: Sequence[Gaps]) -> list[str]:
        if one.experts == 1:
            return []
        for other in sorted(range(one.experts), key=lambda at: abs(at - unit)):
            if gaps[other] != left:
                own = _numbers(one.name)
                names = self._in_gap(one, other, left)
                found = [_renumber(name, own, own, shift=unit - other) for name in names]
                absent = [name for name in found if name is not None and name not in self._present]
                if absent:
                    return absent
        return []

    def _from_parts(self, one: Parameter) -> tuple[str, ...]:
        modules = one.name.split(".")
        for at, module in enumerate(modules):
            if module in self._parts:
                names = [".".join([*modules[:at], part, *modules[at + 1 :]]) for part in self._parts[module]]
                return tuple(name for name in names if name not in self._present)
        return () if one.name in self._present else (one.name,)

    def _in_gap(self, one: Parameter, unit: int, left: Gaps) -> list[str]:
        """Return the names of the tensors that filled, in another parameter, what is missing here."""
        pitch = self._memory.is_of_columns(one, unit)
        found = []
        for at, tensor in self._memory.sources(one, unit):
            place = at % pitch if pitch else at
            if tensor >= 0 and any(first <= place < stop for first, stop in left):
                found.append(self._handed[tensor])
        return list(dict.fromkeys(found))


def describe(verdict: Verdict, shown: str, model: str) -> str:
    """Return the line that names the missing parameters."""
    names = []
    for one in verdict.missing[:NAMES_SHOWN]:
        how = "nothing was written" if not one.written else f"{one.written} of {one.nbytes} bytes were written"
        tensors = ", ".join(map(repr, one.tensors[:NAMES_SHOWN])) + (", …" if len(one.tensors) > NAMES_SHOWN else "")
        names.append(f"{one.name!r} ({how}{f'; no tensor {tensors}' if tensors else ''})")
    count = len(verdict.missing)
    more = f" and {count - NAMES_SHOWN} more" if count > NAMES_SHOWN else ""
    what = "1 parameter" if count == 1 else f"{count} parameters"
    return f"`{shown}` leaves {what} of {model} without weights: {', '.join(names)}{more}"


def _complement(ranges: Iterable[tuple[int, int]], size: int) -> Gaps:
    left, reached = [], 0
    for start, stop in sorted(ranges):
        if start > reached:
            left.append((reached, start))
        reached = max(reached, stop)
    if reached < size:
        left.append((reached, size))
    return tuple(left)


def _runs(columns: Iterable[Columns], start: int) -> Iterable[tuple[int, int]]:
    for write in columns:
        for at in range(write.count):
            first = write.start - start + at * write.pitch
            yield first, first + write.run


def _pattern(one: Parameter) -> tuple[str, int, int]:
    return _NUMBER.sub("#", one.name), one.nbytes, one.experts


def _by_pattern(known: Iterable[Parameter]) -> dict[tuple[str, int, int], list[Parameter]]:
    alike: dict[tuple[str, int, int], list[Parameter]] = defaultdict(list)
    for one in known:
        alike[_pattern(one)].append(one)
    return alike


def _numbers(name: str) -> list[str]:
    return _NUMBER.findall(name)


def _renumber(name: str, before: Sequence[str], after: Sequence[str], *, shift: int = 0) -> str | None:
    """Return the name with other numbers of layers, and the expert that follows moved by `shift`.

    `None` if the name does not have those numbers.
    """
    tokens = _NUMBER.split(name)
    at = 1
    for old, new in zip(before, after, strict=True):
        while at < len(tokens) and tokens[at] != old:
            at += 2
        if at >= len(tokens):
            return None
        tokens[at] = new
        at += 2
    if shift:
        if at >= len(tokens) or int(tokens[at]) + shift < 0:
            return None
        tokens[at] = str(int(tokens[at]) + shift)
    return "".join(tokens)
