"""The exceptions: one class for each kind of failure, chosen by what the caller can do about it.

Each class is an `Error` and also the built-in exception that a Python programmer expects.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar, TypeAlias, TypeVar


class Error(Exception):
    """Any failure of a load. `str()` is the message, its causes and a hint, one per line.

    Attributes:
        kind: What went wrong, in one word such as `"not_found"`; the same for every error of a class.
        location: The file that it is about, as the caller wrote it, or `None`.
        tensor: The name of the tensor that it is about, or `None`. Names come from files: print them with `repr`.
        range: The bytes of the file that it is about, `(start, end)`, or `None`.
        hint: What to do about it, or `None`.
        errno: The operating system's error number, or `None`.
        operation: The request to an object store that failed, for example `"GET"`, or `None`: like the five below, it
            is `None` when the error is no store's.
        status: The HTTP status of the answer, or `None` if none came.
        code: The store's own name for the failure, for example `"SlowDown"`, or `None`.
        request_id: What the store calls the request, or `None`: its operators find it by that.
        attempts: How often the request was tried.
        credentials: Where the credentials came from, in words, never what they are; or `None`.
        expected: Of bytes that are not as expected, what was: a checksum or a length; or `None`, as are the two below
            when nothing was compared.
        found: What was found instead.
        by: Who expects it, for example `"manifest model_dir/tload-manifest.json"`.
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
    ) -> None:
        """Keep the message and everything that it is about."""
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

    def __str__(self) -> str:
        # KeyError would show the message's repr, and OSError would put "[Errno 2]" in front of it.
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
        }
        return (_rebuild, (type(self), self.args[0], about))


class _SystemError(Error, OSError):
    """Adds what code that catches `OSError` looks at."""

    def __init__(self, message: str, *, location: str | None = None, errno: int | None = None, **about: Any) -> None:
        super().__init__(message, location=location, errno=errno, **about)
        self.filename = location
        self.strerror = None if errno is None else os.strerror(errno)


class FormatError(Error, ValueError):
    """The bytes are not a valid checkpoint: get a good file."""

    kind = "invalid_format"


class CorruptError(Error, ValueError):
    """The bytes are not those that a digest was made of (`verify`): fetch the file again.

    `expected`, `found` and `by` say what was compared, where it was the bytes of one file or tensor.
    """

    kind = "corrupt"


class NotFoundError(_SystemError, FileNotFoundError):
    """A file, folder, shard or object is not there: fix the path."""

    kind = "not_found"


class PermissionDeniedError(_SystemError, PermissionError):
    """It is there and may not be read: fix the permissions or credentials."""

    kind = "permission_denied"


class NoSuchTensorError(Error, KeyError):
    """A name or pattern selects no tensor: fix the name."""

    kind = "no_such_tensor"


class InvalidRequestError(Error, ValueError):
    """The call asks for something contradictory or impossible: fix the call."""

    kind = "invalid_request"


class UnsupportedError(Error):
    """An engine, kernel, framework or build cannot do it: choose another."""

    kind = "unsupported"


class OutOfMemoryError(Error, MemoryError):
    """A limit or the machine's memory is too small: raise the limit or ask for less."""

    kind = "out_of_memory"


class IoError(_SystemError):
    """The operating system failed a read: try again, or look at the disk. `errno` says why."""

    kind = "io"


class RemoteError(_SystemError, ConnectionError):
    """An object store cannot be reached, or failed again and again: try again later, or look at network and server."""

    kind = "remote"


class DeviceError(Error, RuntimeError):
    """The GPU or its driver failed: look at the GPU, or start a new process."""

    kind = "device"


class ChangedError(_SystemError):
    """A file or object changed or shrank while it was read: load again when nobody writes to it."""

    kind = "changed"


class LoadTimeoutError(_SystemError, TimeoutError):
    """The load's own deadline passed, or an object store did not answer in time."""

    kind = "timed_out"


class CancelledError(Error):
    """The load was cancelled."""

    kind = "cancelled"


E = TypeVar("E", bound=Error)

# Operation, status, code, request id, attempts, origin of the credentials.
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
) -> Error:
    """Make the exception for an error of the core, which calls this."""
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
    )


def advise(error: type[E], message: str, hint: str, *, tensor: str | None = None) -> E:
    """Make an error of the Python layer, with the hint where the core puts it."""
    return error(f"{message}\n  hint: {hint}", hint=hint, tensor=tensor)


def _rebuild(error: type[Error], message: str, about: dict[str, Any]) -> Error:
    return error(message, **about)
