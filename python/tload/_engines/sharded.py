"""Names of the files of a sharded state: the state of each rank, in one file or several.

Engines write these files: their tensors have the names, shapes and layouts of the parameters of a
model, not those of a checkpoint. Imports no engine.
"""

from __future__ import annotations

import itertools
import re
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tload._errors import InvalidRequestError, NotFoundError, advise

if TYPE_CHECKING:
    from collections.abc import Iterable

TENSORS_ONLY = "model-rank-{rank}-part-{part}.safetensors"
"""Pattern of SGLang, and of vLLM without pipelines."""
WITH_PIPELINE = "model-pp-{pp_rank}-tp-{tp_rank}-part-{part}.safetensors"
"""Pattern of vLLM with pipelines."""

KINDS = {"rank": "tp", "tp_rank": "tp", "pp_rank": "pp", "part": "part"}
"""Kinds of numbers, by the fields of a pattern."""
TRIED = 112
"""Numbers that are tried as values of two fields, to name a file that both could mean."""
SAME_SIZE = "load it with the parallel sizes that it was saved with, or save it again"


class Ranks(NamedTuple):
    """Position of a rank among those that have different weights."""

    tp: int = 0
    tp_size: int = 1
    pp: int = 0
    pp_size: int = 1


class Numbers(NamedTuple):
    """Numbers in the name of a file."""

    pp: int
    tp: int
    part: int


@dataclass(frozen=True, slots=True)
class _Field:
    before: str
    kind: str


class Pattern:
    """A pattern of names, such as `model-rank-{rank}-part-{part}.safetensors`.

    The names of two ranks always differ.
    """

    def __init__(self, text: str | None, ranks: Ranks) -> None:
        """Parse a pattern.

        Args:
            text: Text with the fields `{rank}` or `{tp_rank}`, `{pp_rank}` and `{part}`. Default:
                that of vLLM for these ranks.
            ranks: This rank, and how many there are.

        Raises:
            InvalidRequestError: It is no pattern, or two ranks would share a file.
        """
        self.text = text or (WITH_PIPELINE if ranks.pp_size > 1 else TENSORS_ONLY)
        self.ranks = ranks
        self._fields, self._end = self._parse()
        self._check_path()
        self._check_fields()
        self._check_distance()
        self._name = re.compile(self._expression())

    def render(self, numbers: Numbers) -> str:
        """Return the name of a file."""
        values = numbers._asdict()
        return "".join(f"{field.before}{values[field.kind]}" for field in self._fields) + self._end

    def first(self) -> str:
        """Return the name of this rank's first file."""
        return self.render(Numbers(self.ranks.pp, self.ranks.tp, 0))

    def numbers(self, name: str) -> Numbers | None:
        """Return the numbers in a name, or `None` if it is not of this pattern."""
        found = self._name.fullmatch(name)
        return None if found is None else Numbers(**dict.fromkeys(Numbers._fields, 0) | _integers(found))

    def choose(self, names: Iterable[str], shown: str) -> list[str]:
        """Return the names of this rank's files, in the order of their numbers.

        Args:
            names: Names of all files below the source.
            shown: Name of the source in messages.

        Raises:
            NotFoundError: A file is missing.
            InvalidRequestError: The state was saved by other ranks.
        """
        names = list(names)
        found = {numbers: name for name in names if (numbers := self.numbers(name)) is not None}
        ranks = self.ranks
        if not found:
            others = sorted(name for name in names if name.endswith(".safetensors"))
            instead = f"; it has {others[0]!r}" if others else ""
            message = f"`{shown}` has no file of a sharded state: none is named as {self.first()!r}{instead}"
            hint = "for files of other names, set pattern; for a checkpoint, leave sharded_state out"
            raise advise(NotFoundError, message, hint)
        self._check_ranks(found, shown)
        # The files of all ranks are checked, so that each of them fails.
        for numbers in sorted(found):
            before = numbers._replace(part=numbers.part - 1)
            if numbers.part > 0 and before not in found:
                message = f"`{shown}` lacks {self.render(before)!r}, but has {found[numbers]!r}"
                raise advise(NotFoundError, message, "complete the state")
        return [found[numbers] for numbers in sorted(found) if numbers[:2] == (ranks.pp, ranks.tp)]

    def _check_ranks(self, found: dict[Numbers, str], shown: str) -> None:
        ranks = self.ranks
        for numbers in sorted(found):
            if numbers.tp >= ranks.tp_size or numbers.pp >= ranks.pp_size:
                saved = f"{found[numbers]!r} is of none of {_sizes(ranks)}"
                message = f"`{shown}` was saved by more ranks than load it: {saved}"
                raise advise(InvalidRequestError, message, SAME_SIZE)
        there = {numbers[:2] for numbers in found}
        for pp, tp in itertools.product(range(ranks.pp_size), range(ranks.tp_size)):
            if (pp, tp) not in there:
                message = f"`{shown}` lacks {self.render(Numbers(pp, tp, 0))!r}, for {_sizes(ranks)}"
                raise advise(NotFoundError, message, f"complete the state, or {SAME_SIZE}")

    def _parse(self) -> tuple[list[_Field], str]:
        fields: list[_Field] = []
        text = ""
        try:
            for before, name, spec, conversion in string.Formatter().parse(self.text):
                text += before
                if name is None:
                    continue
                if name not in KINDS or spec or conversion:
                    shown = name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
                    raise self._wrong(f"{{{shown}}} is no field of it")
                fields.append(_Field(text, KINDS[name]))
                text = ""
        except ValueError as error:
            if isinstance(error, InvalidRequestError):
                raise
            raise self._wrong(str(error)) from None
        return fields, text

    def _wrong(self, why: str) -> InvalidRequestError:
        fields = "its fields are {rank} or {tp_rank}, {pp_rank}, {part}"
        return advise(InvalidRequestError, f"pattern {self.text!r}: {why}", fields)

    def _check_path(self) -> None:
        if not self.text or {"", ".", ".."} & set(self.render(Numbers(0, 0, 0)).split("/")):
            raise self._wrong("it is no path below the source")

    def _check_fields(self) -> None:
        ranks, kinds = self.ranks, {field.kind for field in self._fields}
        for kind, field, size in (("tp", "{rank}", ranks.tp_size), ("pp", "{pp_rank}", ranks.pp_size)):
            if size > 1 and kind not in kinds:
                name = self.render(Numbers(0, 0, 0))
                raise self._wrong(f"it has no {field}: {size} ranks would share {name!r}")

    def _check_distance(self) -> None:
        """Check that no name has two readings: one needs something else than digits between numbers."""
        for one, other in itertools.pairwise(self._fields):
            if one.kind == other.kind or re.search(r"\D", other.before):
                continue
            seen: dict[str, int] = {}
            for first, second in itertools.product(range(TRIED), repeat=2):
                name = self.render(Numbers(0, 0, 0)._replace(**{one.kind: first, other.kind: second}))
                if seen.setdefault(name, first) != first:
                    raise self._wrong(f"{name!r} would be a file of two ranks, since numbers follow each other")
            raise self._wrong("there are only digits between two numbers")

    def _expression(self) -> str:
        text, seen = "", set[str]()
        for field in self._fields:
            text += re.escape(field.before)
            text += f"(?P={field.kind})" if field.kind in seen else f"(?P<{field.kind}>0|[1-9][0-9]*)"
            seen.add(field.kind)
        return text + re.escape(self._end)


def _integers(found: re.Match[str]) -> dict[str, int]:
    return {kind: int(digits) for kind, digits in found.groupdict().items()}


def _sizes(ranks: Ranks) -> str:
    tensor = f"{ranks.tp_size} ranks of tensor parallelism"
    return f"{tensor} and {ranks.pp_size} of pipeline parallelism" if ranks.pp_size > 1 else tensor
