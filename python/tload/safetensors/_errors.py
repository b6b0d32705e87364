"""Exception of the safetensors package, and conversion of tload's errors to it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tload._errors import FormatError, NoSuchTensorError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    class SafetensorError(Exception):
        """A file is damaged, a name or an index is wrong, or a handle is closed."""

else:
    try:
        # The package's own class, so that code that catches its errors catches these.
        from safetensors import SafetensorError
    except ImportError:

        class SafetensorError(Exception):
            """A file is damaged, a name or an index is wrong, or a handle is closed."""


@contextmanager
def as_safetensors(doing: str = "Error while deserializing header: ") -> Iterator[None]:
    """Raise a `SafetensorError` where the package would, with tload's own error as its cause.

    Errors of the system are unchanged: tload's derive from `FileNotFoundError`, `OSError`,
    `MemoryError` and so on.
    """
    try:
        yield
    except FormatError as error:
        raise SafetensorError(f"{doing}{error}") from error
    except NoSuchTensorError as error:
        raise no_such_tensor(error.tensor or "") from error
    except UnsupportedError as error:
        raise SafetensorError(str(error)) from error


def no_such_tensor(name: str) -> SafetensorError:
    """Make the error for a name that is not in the file, with the package's message."""
    return SafetensorError(f"File does not contain tensor {name}")
