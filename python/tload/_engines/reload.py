"""Checks the weights of a reload before the engine gives the old ones up. Imports no engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tload._errors import InvalidRequestError, advise

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

Entry: TypeAlias = tuple[str, tuple[int, ...]]
"""Dtype and shape of a tensor."""

FLOATS = ("F64", "F32", "F16", "BF16")
"""Dtypes that engines convert into each other. Any other is read as it is, or with scales."""
NAMES_SHOWN = 3
"""Maximum number of tensors that a message names."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The tensors that a model was loaded from."""

    entries: Mapping[str, Entry]
    """All tensors of the checkpoint by their names."""
    used: Collection[str] | None
    """Names of those that the engine copied to parameters, or `None` if that was not recorded."""

    @classmethod
    def of(cls, entries: Mapping[str, Entry], used: set[str] | None, before: Loaded | None) -> Loaded:
        """Return what a load has used, after the one before.

        A reload tells of fewer tensors than the first load: an engine may have wrapped layers since,
        whose parameters have other names.
        """
        if used is not None:
            used = (used | set(() if before is None else before.used or ())) & entries.keys()
        return cls(entries, used)


def check(before: Loaded, found: Mapping[str, Entry], shown: str) -> None:
    """Check that other weights can replace those that a model was loaded from.

    The engine's own names for its parameters differ from those in checkpoints, so the weights are
    compared with the previous ones: a tensor of the same name must have the same shape and kind of
    dtype, and none that was used may be missing.

    Raises:
        InvalidRequestError: They cannot.
    """
    hint = "reload weights of the same architecture and quantization; the model still has its old weights"
    for name, (dtype, shape) in found.items():
        old_dtype, old_shape = before.entries.get(name, (dtype, shape))
        if old_shape != shape or (old_dtype != dtype and not (old_dtype in FLOATS and dtype in FLOATS)):
            there, wanted = f"{dtype} {list(shape)}", f"{old_dtype} {list(old_shape)}"
            message = f"`{shown}`: tensor {name!r} is {there}, wanted {wanted} as in the weights before"
            raise advise(InvalidRequestError, message, hint)
    if before.used is None:
        return
    missing = [name for name in before.used if name not in found]
    if missing:
        added = [name for name in found if name not in before.entries]
        other = f"; it has {_some(added)} instead" if added else ""
        message = f"`{shown}` lacks {_some(missing)}, which the model was loaded from{other}"
        raise advise(InvalidRequestError, message, f'{hint} (to try them anyway: "missing_weights": "warn")')


def _some(names: Iterable[str]) -> str:
    names = sorted(names)
    shown = ", ".join(map(repr, names[:NAMES_SHOWN]))
    return f"{shown} and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else shown
