"""Exceptions: one class for each kind of failure, by what the caller can do about it.

Each class is an `Error` and also the built-in exception that Python programmers expect.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable


class Error(Exception):
    """Base class of all errors of tload.

    `str()` is the message, its causes and a hint, one per line.

    Attributes:
        kind: The kind of failure in one word, such as `"not_found"`; the same for every error of a
            class.
        location: The file or object that the error is about, as the caller wrote it, or `None`.
        tensor: The name of the tensor that the error is about, or `None`. Names come from files:
            print them with `repr`.
        range: The byte range of the file that the error is about, `(start, end)`, or `None`.
        hint: What to do about the error, or `None`.
        errno: The operating system's error number, or `None`.
        operation: The request to an object store that failed, for example `"GET"`. Like the five
            attributes below, it is `None` if the error does not come from a store.
        status: The HTTP status of the response, or `None` if there was no response.
        code: The store's own name for the failure, for example `"SlowDown"`, or `None`.
        request_id: The store's identifier of the request, or `None`. Operators of the store find
            the request by it.
        attempts: The number of times the request was sent.
        credentials: The origin of the credentials in words, never their values; or `None`.
        expected: The expected checksum or length of bytes that differ from it. Like the two
            attributes below, it is `None` if nothing was compared.
        found: The checksum or length that was found instead.
        by: The origin of the expected value, for example `"manifest
            model_dir/tload-manifest.json"`.
        ranks: The ranks of the `tload.Group` that the error is about: those that are missing,
            disagree or failed. Empty for a load without a group.
    """

    kind: ClassVar[str] = "error"

    location: str | None
    tensor: str | None
    range: tuple[int, int] | None
    hint: str | None
    errno: int | None
    operation: str | None
    status: int | None
    code: str | None
    request_id: str | None
    attempts: int | None
    credentials: str | None
    expected: str | None
    found: str | None
    by: str | None
    ranks: tuple[int, ...]

    def __init__(
        self,
        message: str,
        *,
        location: str | None = None,
        tensor: str | None = None,
        range: tuple[int, int] | None = None,
        hint: str | None = None,
        errno: int | None = None,
        operation: str | None = None,
        status: int | None = None,
        code: str | None = None,
        request_id: str | None = None,
        attempts: int | None = None,
        credentials: str | None = None,
        expected: str | None = None,
        found: str | None = None,
        by: str | None = None,
        ranks: Iterable[int] = (),
    ) -> None:
        """Store the message and the attributes."""
        super().__init__(message)
        self.location = location
        self.tensor = tensor
        self.range = range
        self.hint = hint
        self.errno = errno
        self.operation = operation
        self.status = status
        self.code = code
        self.request_id = request_id
        self.attempts = attempts
        self.credentials = credentials
        self.expected = expected
        self.found = found
        self.by = by
        self.ranks = tuple(ranks)

    def __str__(self) -> str:
        # `KeyError` would show the message's repr, and `OSError` would put "[Errno 2]" in front of
        # it.
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        about = {
            "location": self.location,
            "tensor": self.tensor,
            "range": self.range,
            "hint": self.hint,
            "errno": self.errno,
            "operation": self.operation,
            "status": self.status,
            "code": self.code,
            "request_id": self.request_id,
            "attempts": self.attempts,
            "credentials": self.credentials,
            "expected": self.expected,
            "found": self.found,
            "by": self.by,
            "ranks": self.ranks,
        }
        return (_rebuild, (type(self), self.args[0], about))


class _SystemError(Error, OSError):
    """Adds the attributes that code that catches `OSError` reads."""

    def __init__(self, message: str, *, location: str | None = None, errno: int | None = None, **about: Any) -> None:
        super().__init__(message, location=location, errno=errno, **about)
        self.filename = location
        self.strerror = None if errno is None else os.strerror(errno)


class FormatError(Error, ValueError):
    """The bytes are not a valid checkpoint: get an intact file."""

    kind = "invalid_format"


class CorruptError(Error, ValueError):
    """The bytes do not match a digest of them (`verify`): download the file again.

    `expected`, `found` and `by` describe the comparison if it was of the bytes of one file or
    tensor.
    """

    kind = "corrupt"


class NotFoundError(_SystemError, FileNotFoundError):
    """A file, directory, shard or object does not exist: fix the path."""

    kind = "not_found"


class PermissionDeniedError(_SystemError, PermissionError):
    """A file or object exists but may not be read: fix the permissions or credentials."""

    kind = "permission_denied"


class NoSuchTensorError(Error, KeyError):
    """A name or pattern selects no tensor: fix the name."""

    kind = "no_such_tensor"


class InvalidRequestError(Error, ValueError):
    """The call asks for something contradictory or impossible: fix the call."""

    kind = "invalid_request"


class InvalidIndexError(InvalidRequestError, IndexError):
    """An index or slice does not fit to its tensor. Caught as one of its two bases."""


class UnsupportedError(Error):
    """The engine, kernel, framework or build does not support the request: choose another."""

    kind = "unsupported"


class OutOfMemoryError(Error, MemoryError):
    """A limit, the machine's memory or the disk is too small: raise the limit or ask for less."""

    kind = "out_of_memory"


class IoError(_SystemError):
    """The operating system failed a read: retry, or check the disk. `errno` says why."""

    kind = "io"


class RemoteError(_SystemError, ConnectionError):
    """An object store is unreachable or keeps failing: retry later, or check network and server."""

    kind = "remote"


class DeviceError(Error, RuntimeError):
    """The GPU or its driver failed: check the GPU, or start a new process."""

    kind = "device"


class ChangedError(_SystemError):
    """A file or object changed or shrank while it was read: load again once it is stable."""

    kind = "changed"


class LoadTimeoutError(_SystemError, TimeoutError):
    """The load's own deadline passed, or an object store did not respond in time."""

    kind = "timed_out"


class CancelledError(Error):
    """The load was cancelled."""

    kind = "cancelled"


class PeerError(Error, RuntimeError):
    """Another rank of the group did not join, disagrees, failed or is gone: look at that rank.

    `ranks` are these ranks. If they disagree, `expected` and `found` are the two values.
    """

    kind = "peer"


E = TypeVar("E", bound=Error)

# Operation, status, code, request ID, attempts, origin of the credentials.
Request: TypeAlias = tuple[str, int | None, str | None, str | None, int, str | None]

BY_KIND: dict[str, type[Error]] = {
    error.kind: error
    for error in (
        FormatError,
        CorruptError,
        NotFoundError,
        PermissionDeniedError,
        NoSuchTensorError,
        InvalidRequestError,
        UnsupportedError,
        OutOfMemoryError,
        IoError,
        RemoteError,
        DeviceError,
        ChangedError,
        LoadTimeoutError,
        CancelledError,
        PeerError,
    )
}


def make_error(  # noqa: PLR0917  # positional, as Rust calls it
    kind: str,
    message: str,
    location: str | None,
    tensor: str | None,
    range: tuple[int, int] | None,
    hint: str | None,
    errno: int | None,
    request: Request | None = None,
    comparison: tuple[str, str, str] | None = None,
    ranks: tuple[int, ...] = (),
) -> Error:
    """Make the exception for an error of the core. The extension module calls this."""
    operation, status, code, request_id, attempts, credentials = request or (None,) * 6
    expected, found, by = comparison or (None,) * 3
    return BY_KIND.get(kind, Error)(
        message,
        location=location,
        tensor=tensor,
        range=range,
        hint=hint,
        errno=errno,
        operation=operation,
        status=status,
        code=code,
        request_id=request_id,
        attempts=attempts,
        credentials=credentials,
        expected=expected,
        found=found,
        by=by,
        ranks=ranks,
    )


def advise(
    error: type[E],
    message: str,
    hint: str,
    *,
    location: str | None = None,
    tensor: str | None = None,
    ranks: Iterable[int] = (),
) -> E:
    """Make an error of the Python layer, with the hint at the same place as the core's errors."""
    return error(f"{message}\n  hint: {hint}", hint=hint, location=location, tensor=tensor, ranks=ranks)


def _rebuild(error: type[Error], message: str, about: dict[str, Any]) -> Error:
    return error(message, **about)
