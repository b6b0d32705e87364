"""Loading of file contents that are already in memory, as `bytes`."""

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
        SafetensorError: The content is not a valid file.
        TypeError: The content is not `bytes`.
    """
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise TypeError(f"data: wanted bytes, found {type(content).__qualname__}")
    with _as_file(content) as path:
        try:
            with safe_open(path, framework, backend="pread") as file:
                return file.get_tensors()
        except SafetensorError as error:
            # The path is internal: errors call it "the bytes".
            message = str(error).replace(path, "the bytes").replace("deserializing header:", "deserializing:")
            raise SafetensorError(message) from error


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
