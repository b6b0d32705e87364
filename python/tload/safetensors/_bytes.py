"""Files that are in memory already, as `bytes`."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tload.safetensors._errors import SafetensorError
from tload.safetensors._open import safe_open

if TYPE_CHECKING:
    from collections.abc import Iterator


def load_bytes(content: bytes, framework: str) -> dict[str, Any]:
    """Return the tensors of a file's content, in memory of their own.

    Raises:
        SafetensorError: It is no valid file.
        TypeError: It is no bytes.
    """
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise TypeError(f"data: wanted bytes, found {type(content).__qualname__}")
    with _as_file(content) as path:
        try:
            with safe_open(path, framework, backend="pread") as file:
                return file.get_tensors()
        except SafetensorError as error:
            # The path is nobody's.
            message = str(error).replace(path, "the bytes").replace("deserializing header:", "deserializing:")
            raise SafetensorError(message) from error


@contextmanager
def _as_file(content: bytes | bytearray | memoryview) -> Iterator[str]:
    """Give the core a file to read, in memory where the system has such."""
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
