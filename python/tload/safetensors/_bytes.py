"""Loading of file contents that are already in memory, as `bytes`."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tload import _tload
from tload._checkpoint.checkpoint import Checkpoint
from tload._errors import Error
from tload._sources.origin import Origin
from tload.safetensors._errors import SafetensorError, as_safetensors
from tload.safetensors._source import Opened

if TYPE_CHECKING:
    from collections.abc import Iterator


def load_bytes(content: bytes, framework: str) -> dict[str, Any]:
    """Return the tensors of a file's content, in memory of their own.

    Raises:
        SafetensorError: The content is not a valid file.
        TypeError: The content is not `bytes`.
    """
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise TypeError(f"data: wanted bytes, found {type(content).__qualname__}")
    with _as_file(content) as path:
        try:
            with _opened(path) as checkpoint:
                return Opened(checkpoint, framework, "cpu", "pread", None, cache="buffered").tensors()
        except SafetensorError as error:
            # The path is internal: errors call it "the bytes".
            message = str(error).replace(path, "the bytes").replace("deserializing header:", "deserializing:")
            raise SafetensorError(message) from error
        except Error as error:
            error.args = (str(error).replace(path, "the bytes"),)
            error.location = None
            if isinstance(error, OSError):
                error.filename = None
            raise


def _opened(path: str) -> Checkpoint:
    """Open the file, which is never sealed: keys and stores of the environment are not for it."""
    with as_safetensors():
        raw = _tload.Checkpoint.open(path, store=[], key=None, follow_symlinks=False, single_file_first=False)
        return Checkpoint(raw, Origin(path, [], follow_symlinks=False))


@contextmanager
def _as_file(content: bytes | bytearray | memoryview) -> Iterator[str]:
    """Provide a path of the content for the core to read; the file is in memory if possible."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("safetensors")
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
    else:
        with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
            file.write(content)
            file.flush()
            yield file.name
