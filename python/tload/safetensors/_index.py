"""Indices of `get_slice(...)[index]`, by the rules of the package.

They are stricter than torch's and numpy's.
"""

from __future__ import annotations

import operator
from types import EllipsisType
from typing import TYPE_CHECKING, TypeAlias, cast

from tload.safetensors._errors import SafetensorError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Basic: TypeAlias = tuple[int | slice, ...]
"""Index of the leading dimensions, within bounds: no negative number, no slice that ends before it
starts."""


def strict(index: object, shape: Sequence[int]) -> Basic:
    """Check an index by the package's rules and return it in the simplest form.

    The rules: ints, slices with positive steps, one ellipsis, and an empty list, which selects no
    rows. An index beyond the end of a dimension is an error, also in a slice.

    The package fails needlessly on negative bounds of slices (`OverflowError`), on slices that end
    before they start (`SystemError`), and on `[:]` of a dimension without elements. Here they have
    the same meaning as in Python.

    Raises:
        SafetensorError: The index breaks the rules, or is out of range.
        TypeError: A slice has bounds that are not ints.
    """
    if isinstance(index, list):
        if index:
            raise SafetensorError("Non empty lists are not implemented")
        index = slice(0, 0)
    elements = _expand(index if isinstance(index, tuple) else (index,), len(shape))
    sizes = (*shape, *[0] * (len(elements) - len(shape)))
    for dimension, (element, size) in enumerate(zip(elements, sizes, strict=False)):
        if isinstance(element, int) and element < -size:
            raise SafetensorError(f"Invalid index {element} for dimension {dimension} of size {size}")

    def fail(reason: str) -> SafetensorError:
        return SafetensorError(f"Error during slicing {show(elements)} with shape {[*shape]}: {reason}")

    if len(elements) > len(shape):
        raise fail("more slicing indexes than dimensions in tensor")
    found: list[int | slice] = []
    for dimension, (element, size) in enumerate(zip(elements, shape, strict=False)):
        simple, asked = _fit(element, size)
        if asked is not None:
            raise fail(f"index {asked} out of bounds for tensor dimension #{dimension} of size {size}")
        found.append(simple)
    return tuple(found)


def clamped(index: object, shape: Sequence[int]) -> Basic | None:
    """Return an index that torch has accepted in the simplest form.

    `None` if it contains anything but ints and slices.
    """
    elements = index if isinstance(index, tuple) else (index,)
    if not all(isinstance(element, (slice, EllipsisType)) or _is_int(element) for element in elements):
        return None
    if sum(element is Ellipsis for element in elements) > 1:
        return None
    expanded = _expand(elements, len(shape))
    return tuple(
        slice(*element.indices(size)) if isinstance(element, slice) else element % size
        for element, size in zip(expanded, shape, strict=False)
    )


def packed(index: Basic, shape: Sequence[int]) -> Basic:
    """Convert an index of an F4 tensor to torch's: pairs, half as many along the last dimension.

    Raises:
        SafetensorError: The index splits a pair.
    """
    if len(index) < len(shape):
        return index
    last = index[-1]
    if isinstance(last, int) or last.step != 1 or last.start % 2 or last.stop % 2:
        raise SafetensorError(
            f"Error during slicing {show(index)} with shape {[*shape]}: The slice is slicing for subbytes dtypes, and "
            "the slice does not end up at a byte boundary, this is invalid."
        )
    return (*index[:-1], slice(last.start // 2, last.stop // 2, 1))


def show(elements: Iterable[int | slice]) -> str:
    """Return an index in Python's syntax."""
    return f"[{', '.join(map(_show, elements))}]"


def _show(element: int | slice) -> str:
    if isinstance(element, int):
        return str(element)
    start, stop, step = ("" if bound is None else bound for bound in (element.start, element.stop, element.step))
    return f"{start}:{stop}" if step in {"", 1} else f"{start}:{stop}:{step}"


def _expand(elements: tuple[object, ...], dimensions: int) -> Basic:
    if sum(element is Ellipsis for element in elements) > 1:
        raise SafetensorError("Only one ellipsis (...) is allowed in slice index")
    expanded: list[int | slice] = []
    for position, element in enumerate(elements):
        if element is Ellipsis:
            expanded += [slice(None)] * (dimensions - len(elements) + 1)
        elif isinstance(element, slice):
            bounds = (element.start, element.stop, element.step)
            start, stop, step = (None if bound is None else operator.index(bound) for bound in bounds)
            if step is not None and step < 1:
                raise SafetensorError(f"Slice step must be a positive integer, got {step}")
            expanded.append(slice(start, stop, step))
        elif _is_int(element) or isinstance(element, bool):
            expanded.append(operator.index(cast("int", element)))
        else:
            raise SafetensorError(f"Unsupported slice index at position {position}: expected slice, int, or ellipsis")
    return tuple(expanded)


def _fit(element: int | slice, size: int) -> tuple[int | slice, int | None]:
    """Return an index without negative numbers, and a position out of range, or `None`."""
    if isinstance(element, int):
        position = element + size if element < 0 else element
        return position, position if position >= size else None
    start = 0 if element.start is None else element.start
    stop = size if element.stop is None else element.stop
    step = 1 if element.step is None else element.step
    start, stop = (bound + size if bound < 0 else bound for bound in (start, stop))
    if start < 0 or stop < 0:
        return element, min(start, stop) - size
    if stop > size or (start >= size and (start, size) != (0, 0)):
        return element, start if start >= size else stop - 1
    return slice(start, max(start, stop), step), None


def _is_int(element: object) -> bool:
    """Return whether Python accepts an object as an index, except bools.

    Numbers of numpy and torch are accepted; both libraries have bools, which are not.
    """
    if isinstance(element, bool) or not hasattr(element, "__index__"):
        return False
    try:
        operator.index(cast("int", element))
    except TypeError:  # an array of several elements
        return False
    return getattr(element, "dtype", None) is None or not str(getattr(element, "dtype")).endswith("bool")  # noqa: B009
