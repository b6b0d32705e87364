"""Variants of tload that are measured beside each other: values of `TLOAD_TRY`, each with one decision more than the
one before it."""

from __future__ import annotations

from dataclasses import dataclass

#: All flags, for the check of right bytes.
EVERY_FLAG = "regions=64MiB,align=16,chunk=1MiB,slot=8MiB,ring=32MiB,batch,early,nice,register,numa,unified"
SLOTS = "chunk=1MiB,slot=8MiB,ring=32MiB"


@dataclass(frozen=True)
class Variant:
    name: str
    #: Value of `TLOAD_TRY`; None for today's defaults.
    flags: str | None
    #: Name of the variant that it is compared with.
    base: str | None = None
    #: Flags that the comparison decides.
    decides: str = ""
    #: Fewer calls and allocations are counted without a GPU, so it becomes a default unless it is slower.
    is_proved: bool = False
    #: Judged by first loads rather than later ones.
    by_first: bool = False
    #: Function of tload that loads: `stream` or `load`.
    call: str = "stream"


VARIANTS = [
    Variant("defaults", None),
    Variant("before", "regions=1MiB,align=64"),
    Variant("regions", "regions=64MiB,align=64", "before", "regions", is_proved=True),
    Variant("align", "regions=64MiB,align=16", "regions", "align", is_proved=True),
    Variant("slots", f"regions=64MiB,align=16,{SLOTS}", "align", "chunk, slot, ring"),
    Variant("batch", f"regions=64MiB,align=16,{SLOTS},batch", "slots", "batch"),
    Variant(
        "early", f"regions=64MiB,align=16,{SLOTS},batch,early", "batch", "early", is_proved=True, by_first=True
    ),
    Variant("all", f"regions=64MiB,align=16,{SLOTS},batch,early,nice,numa", "early", "nice, numa"),
    Variant(
        "all, tload.load", f"regions=64MiB,align=16,{SLOTS},batch,early,nice,numa", "all", call="load"
    ),
]
