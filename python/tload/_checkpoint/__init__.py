"""Checkpoints, and how they are opened. Other modules import these names from here."""

from tload._checkpoint.locations import SCHEMES, Location, check_location, follows
from tload._checkpoint.mapping import Checkpoint, Index, Shard, TensorInfo, opened_with, usable
from tload._checkpoint.opening import Source, open, open_for, open_raw, show  # noqa: A004
from tload._checkpoint.origin import Opening, Origin

__all__ = [
    "SCHEMES",
    "Checkpoint",
    "Index",
    "Location",
    "Opening",
    "Origin",
    "Shard",
    "Source",
    "TensorInfo",
    "check_location",
    "follows",
    "open",
    "open_for",
    "open_raw",
    "opened_with",
    "show",
    "usable",
]
