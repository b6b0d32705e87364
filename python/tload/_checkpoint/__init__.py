"""Checkpoints, and how they are opened. Other modules import these names from here."""

from tload._checkpoint.mapping import (
    SCHEMES,
    Checkpoint,
    Index,
    Location,
    Opening,
    Origin,
    Shard,
    Source,
    TensorInfo,
    check_location,
    follows,
    open,  # noqa: A004
    open_for,
    open_raw,
    opened_with,
    show,
    usable,
)

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
