r"""Plans on disk, which are untrusted input.

```text
"tload plan 2\n"   length of the JSON, 8 bytes   JSON   rows, 8 bytes a number   SHA-256 of all before
```

Numbers are little endian. A file is used only if it and its directory belong to this process's user
or to root, and no other user may write to them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import stat
import sys
from pathlib import Path
from typing import Any

import torch

from tload import _tload
from tload.plans.plan import DIMS_MAX, ELEMENTS_MAX, FIXED, Fill, Place, Plan, Source

_logger = logging.getLogger("tload")

_MAGIC = b"tload plan 2\n"
_REFUSED = b"tload plan 2 refused\n"
_SUM_BYTES = 32
_BYTES_MAX = 1 << 30
"""Longest file that is read: a million boxes take 70 MB."""


def save(plan: Plan, path: str | os.PathLike[str]) -> bool:
    """Write a plan to a file, which appears whole. Return whether that worked; why not is logged.

    Missing directories are made, for this user only.
    """
    return _save(Path(path), _to_bytes(plan))


def _save(path: Path, data: bytes) -> bool:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_trusted(path.parent, path.parent.stat())
        # Processes in containers may have the same number.
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o600)
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123
                file.write(data)
            temporary.rename(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except (OSError, ValueError) as error:
        _logger.warning("cannot keep the load plan %s: %s", _tload.show_location(path), _reason(error))
        return False
    return True


def save_refusal(path: str | os.PathLike[str], key: str, reason: str) -> bool:
    """Keep in a file that there is no plan for this key, in place of the plan.

    Recording again would cost time, and end the same. Returns whether that worked.
    """
    return _save(Path(path), _REFUSED + json.dumps([key, reason]).encode())


def refusal(path: str | os.PathLike[str], key: str) -> str | None:
    """Return why there is no plan for this key, if a file says so."""
    try:
        data = _read(Path(path))
        if data is None or not data.startswith(_REFUSED):
            return None
        found = json.loads(data[len(_REFUSED) :])
    except (OSError, ValueError, RecursionError):
        return None
    return str(found[1]) if isinstance(found, list) and len(found) == 2 and found[0] == key else None  # noqa: PLR2004


def restore(path: str | os.PathLike[str], key: str) -> Plan | None:
    """Return the plan in a file; `None` if there is none, or not for this key.

    A file that is damaged, or that another user could have changed, is logged and not used.
    """
    path = Path(path)
    try:
        data = _read(path)
        if data is None or data.startswith(_REFUSED):
            return None
        plan = _from_bytes(data)
    except (OSError, ValueError) as error:
        _logger.warning("load plan %s is not used: %s", _tload.show_location(path), _reason(error))
        return None
    return plan if plan.key == key else None


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def _read(path: Path) -> bytes | None:
    try:
        # A pipe must not block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:  # noqa: PTH123  # of a descriptor
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        _require_trusted(path, status)
        _require_trusted(path.parent, path.parent.stat())
        if status.st_size > _BYTES_MAX:
            message = f"it has {status.st_size} bytes, more than {_BYTES_MAX}"
            raise ValueError(message)
        return file.read(_BYTES_MAX + 1)


def _require_trusted(path: Path, status: os.stat_result) -> None:
    """Require that only this process's user and root own and can change what has this status.

    Raises:
        ValueError: Others do, or can.
    """
    user, shown = os.geteuid(), _tload.show_location(path)
    if status.st_uid not in (user, 0):
        message = f"{shown} belongs to another user: uid {status.st_uid}, wanted {user}"
        raise ValueError(message)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        message = f"{shown} can be changed by other users: mode {status.st_mode & 0o7777:o}"
        raise ValueError(message)


def _to_bytes(plan: Plan) -> bytes:
    names = [source.name for source in plan.sources]
    forms: dict[tuple[str, tuple[int, ...]], int] = {}
    of_form = [forms.setdefault((source.dtype, source.shape), len(forms)) for source in plan.sources]
    described = {
        "key": plan.key,
        "headers": plan.headers,
        "names": names,
        "forms": [*forms],
        "of_form": of_form,
        "places": plan.places,
        "dtypes": plan.dtypes,
        "fills": plan.fills,
        "normal": plan.normal,
        "loaded": plan.loaded,
        "rows": list(plan.rows.shape),
    }
    text = json.dumps(described, separators=(",", ":")).encode()
    data = b"".join([_MAGIC, len(text).to_bytes(8, "little"), text, _packed(plan.rows)])
    return data + hashlib.sha256(data).digest()


def _from_bytes(data: bytes) -> Plan:
    """Return the plan that these bytes stand for, after every check that needs no module.

    Raises:
        ValueError: They are damaged.
    """
    start = len(_MAGIC) + 8
    if not data.startswith(_MAGIC) or len(data) < start + _SUM_BYTES:
        raise ValueError("it is no load plan of this version")
    body, digest = data[:-_SUM_BYTES], data[-_SUM_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("its bytes are damaged")
    length = int.from_bytes(body[len(_MAGIC) : start], "little")
    if start + length > len(body):
        raise ValueError("it is cut off")
    try:
        described = json.loads(body[start : start + length])
        plan = _plan(described, body[start + length :])
        plan.check()
    # Numbers of another meaning fail within torch, or want memory that there is not.
    except (TypeError, KeyError, ArithmeticError, RuntimeError, MemoryError) as error:
        message = f"it has another form: {type(error).__name__}"
        raise ValueError(message) from error
    return plan


def _plan(described: dict[str, Any], packed: bytes) -> Plan:
    number, width = _numbers(described["rows"])
    if width > FIXED + 3 * DIMS_MAX or number * width * 8 != len(packed):
        raise ValueError("its boxes are cut off")
    loaded = described["loaded"]
    return Plan(
        _text(described["key"]),
        _text(described["headers"]),
        _sources(described["names"], described["forms"], described["of_form"]),
        tuple(
            Place(_text(name), _text(dtype), _numbers(shape), _numbers(stride))
            for name, dtype, shape, stride in _list(described["places"])
        ),
        _texts(described["dtypes"]),
        _unpacked(packed, number, width),
        tuple(
            Fill(_number(place), _text(dtype), _number(offset), _numbers(shape), _numbers(stride), _constant(value))
            for place, dtype, offset, shape, stride, value in _list(described["fills"])
        ),
        _texts(described["normal"]),
        None if loaded is None else _texts(loaded),
    )


def _sources(names: object, forms: object, of_form: object) -> tuple[Source, ...]:
    """Return the tensors: many, of few dtypes and shapes."""
    known = [(_text(dtype), _numbers(shape)) for dtype, shape in _list(forms)]
    names, of_form = _list(names), _list(of_form)
    for wanted, values in ((str, names), (int, of_form)):
        others = {*map(type, values)} - {wanted}
        if others:
            message = f"found {', '.join(sorted(kind.__name__ for kind in others))}"
            raise TypeError(message)
    if len(names) != len(of_form):
        raise ValueError("a tensor has no form")
    if not names:
        return ()
    if not 0 <= min(of_form) <= max(of_form) < len(known):
        raise ValueError("a form of a tensor is out of range")
    dtypes, shapes = zip(*map(known.__getitem__, of_form), strict=True)
    return tuple(map(Source, names, dtypes, shapes))


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise _mistyped(value)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _mistyped(value)
    return value


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(_text, _list(value)))


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _mistyped(value)
    if not 0 <= value <= ELEMENTS_MAX:
        raise ValueError("a number is out of range")
    return value


def _numbers(value: object) -> tuple[int, ...]:
    return tuple(map(_number, _list(value)))


def _constant(value: object) -> float | int | bool:
    if not isinstance(value, (bool, int, float)):
        raise _mistyped(value)
    return value


def _mistyped(value: object) -> TypeError:
    return TypeError(f"found {type(value).__name__}")


def _packed(rows: torch.Tensor) -> bytes:
    """Return the numbers of a table as bytes."""
    import ctypes

    rows = rows.contiguous()
    data = (ctypes.c_char * (rows.numel() * 8)).from_address(rows.data_ptr()).raw if rows.numel() else b""
    return _swapped(data)


def _unpacked(packed: bytes, number: int, width: int) -> torch.Tensor:
    """Return the table that these bytes are."""
    if not packed:
        return torch.zeros((number, width), dtype=torch.int64, device="cpu")
    return torch.frombuffer(bytearray(_swapped(packed)), dtype=torch.int64).reshape(number, width)


def _swapped(data: bytes) -> bytes:
    if sys.byteorder == "little":
        return data
    import array

    numbers = array.array("q", data)
    numbers.byteswap()
    return numbers.tobytes()
