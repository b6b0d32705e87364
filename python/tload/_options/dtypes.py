"""Dtypes that tensors are converted to, as callers name them."""

from __future__ import annotations

from tload._errors import InvalidRequestError
from tload._options.keywords import suggestion

TARGETS = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
"""Dtypes that tensors are converted to, with their names in torch and numpy."""


def named(dtype: object) -> str | None:
    """Return the name in `TARGETS` of a dtype that a caller passes; `None` for none.

    Raises:
        InvalidRequestError: Nothing is converted to it.
        TypeError: It is no dtype.
    """
    if dtype is None:
        return None
    text = _text(dtype)
    names = {**{name: name for name in TARGETS}, **{its: ours for ours, its in TARGETS.items()}}
    name = names.get(text.lower())
    if name is None:
        message = f"dtype {text!r} is not one that tensors are converted to; it can be {', '.join(TARGETS.values())}"
        raise InvalidRequestError(message + suggestion(text, TARGETS.values()))
    return name


def _text(dtype: object) -> str:
    if isinstance(dtype, str):
        return dtype
    kind = type(dtype)
    if kind.__module__ == "torch" and kind.__name__ == "dtype":
        return str(dtype).removeprefix("torch.")
    if kind.__module__.startswith("numpy"):
        return str(getattr(dtype, "name", dtype))
    if isinstance(dtype, type) and dtype.__module__ in {"numpy", "ml_dtypes"}:
        return dtype.__name__
    message = f"dtype: wanted a torch.dtype, a numpy dtype or a str, found {kind.__qualname__}"
    raise TypeError(message)
