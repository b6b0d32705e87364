"""Translates the variables of runai_model_streamer; the table is in the package's docstring."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from tload import InvalidRequestError
from tload._options.keywords import OptionKeywords
from tload._options.load_options import resolve
from tload.compat.runai.errors import RunaiStreamerMemoryLimitException
from tload.compat.runai.stores import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tload.compat.runai.stores import S3Credentials

MEMORY_LIMIT = "RUNAI_STREAMER_MEMORY_LIMIT"
DISTRIBUTED = "RUNAI_STREAMER_DIST"

JOIN_SECONDS = 600
"""Time in which all processes of a group must have come, as in runai_model_streamer. Engines start
their processes at different speeds, and end them all if one fails."""

DEPTH_MAX = 4096
"""Maximum that tload accepts."""

FILE_EXTENT_BYTES_MIN = 2 << 20
OBJECT_EXTENT_BYTES_MIN = 5 << 20
"""Minimum chunk size; smaller ones are raised to it, as in runai_model_streamer."""

EXTENT_BYTES_MAX = 1 << 30
"""Maximum that tload accepts."""

REGION_BYTES = 2 << 20
"""Memory that a load needs beside its largest tensor: small neighbours share up to about 1 MiB (on
a GPU an eighth of the limit), and sizes are rounded up to pages. runai_model_streamer takes 4 MiB
per buffer for the same reason."""

STAGING_BYTES = 64 << 20
"""Minimum host memory on the way to a GPU: a few reads of the largest size."""


def options(kind: Kind) -> OptionKeywords:
    """Return the read options of the environment, for `tload.stream`."""
    found = OptionKeywords()
    if kind is Kind.FILE:
        depth = _queue_depth() or _positive("RUNAI_STREAMER_CONCURRENCY")
        if depth:
            found["depth"] = min(depth, DEPTH_MAX)
    # For files, the first variable is for their asynchronous readers, the second for the others.
    extent = _positive("RUNAI_STREAMER_FS_CHUNK_BYTESIZE") if kind is Kind.FILE else None
    extent = extent or _positive("RUNAI_STREAMER_CHUNK_BYTESIZE")
    if extent:
        least = FILE_EXTENT_BYTES_MIN if kind is Kind.FILE else OBJECT_EXTENT_BYTES_MIN
        found["extent_bytes"] = min(max(extent, least), EXTENT_BYTES_MAX)
    return found


def is_shared() -> bool:
    """Return whether the processes of a group may share what they read.

    Raises:
        InvalidRequestError: RUNAI_STREAMER_DIST is neither 0, 1 nor auto.
    """
    wanted = os.environ.get(DISTRIBUTED, "auto")
    if wanted not in {"0", "1", "auto"}:
        message = f"environment variable {DISTRIBUTED}={wanted!r}: wanted 0, 1 or auto"
        raise InvalidRequestError(message)
    return wanted != "0"


def group_options() -> OptionKeywords:
    """Return the options of a load by the processes of a group, for `tload.stream`."""
    found = OptionKeywords()
    if _positive("RUNAI_STREAMER_DIST_GLOBAL"):
        found["share"] = "cluster"
    timeout = _positive("RUNAI_STREAMER_DIST_TIMEOUT")
    if timeout or resolve(None, OptionKeywords()).join_timeout is None:
        found["join_timeout"] = timeout or JOIN_SECONDS
    return found


def memory_limit(sizes: Sequence[int], given: int | None = None) -> int | None:
    """Return the maximum bytes that may wait for the caller, for tensors or ranges of these sizes.

    `given` takes precedence over the environment. `None` means that neither is set.

    Raises:
        RunaiStreamerMemoryLimitException: The limit is smaller than the largest size.
    """
    text = os.environ.get(MEMORY_LIMIT)
    if given is not None:
        limit, origin = given, f"memory_limit={given}"
    elif text is not None:
        limit, origin = _integer(MEMORY_LIMIT, text), f"environment variable {MEMORY_LIMIT}={text}"
    else:
        return None
    largest = max(sizes, default=0)
    if limit == -1:
        return sum(sizes)
    if limit == 0:
        return largest
    if limit < largest:
        message = f"{origin}: the largest tensor or range has {largest} bytes, which must fit"
        hint = "raise it, set it to 0 (as little as possible), or leave it out"
        raise RunaiStreamerMemoryLimitException(f"{message}\n  hint: {hint}")
    return limit


def store(kind: Kind, credentials: S3Credentials | None) -> dict[str, Any]:
    """Return the options of a store, for `store=`, except those that tload reads itself."""
    found: dict[str, Any] = {}
    if kind is Kind.S3:
        found |= _s3(credentials)
    elif kind is Kind.GCS:
        found["service_account"] = _text("RUNAI_STREAMER_GCS_CREDENTIAL_FILE")
        found["anonymous"] = _text("RUNAI_STREAMER_GCS_USE_ANONYMOUS_CREDENTIALS").lower() in {"1", "true"} or None
        found["endpoint"] = _text("CLOUD_STORAGE_EMULATOR_ENDPOINT")
    elif kind is Kind.AZURE:
        account, suffix = _text("AZURE_STORAGE_ACCOUNT_NAME"), _text("AZURE_STORAGE_ENDPOINT_SUFFIX")
        if account and suffix and not _text("AZURE_STORAGE_CONNECTION_STRING"):
            found["endpoint"] = f"https://{account}.{suffix}"
    if kind is not Kind.FILE:
        if not (credentials and credentials.endpoint):
            found["endpoint"] = _text("RUNAI_STREAMER_OVERRIDE_ENDPOINT_URL") or found.get("endpoint")
        found["retries"] = _positive("RUNAI_STREAMER_S3_MAX_RETRIES")
        milliseconds = _positive("RUNAI_STREAMER_S3_REQUEST_TIMEOUT_MS")
        found["read_timeout"] = milliseconds / 1000 if milliseconds else None
    return {key: value for key, value in found.items() if value not in {None, ""}}


def _s3(credentials: S3Credentials | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    # tload reads these two itself; programs derive the third from them for old versions of
    # runai_model_streamer.
    if not (_text("AWS_ENDPOINT_URL") or _text("AWS_ENDPOINT_URL_S3")):
        found["endpoint"] = _text("RUNAI_STREAMER_S3_ENDPOINT")
    addressing = _text("RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING")
    found["addressing"] = {"0": "path", "1": "virtual"}.get(addressing)
    found["anonymous"] = True if _text("RUNAI_STREAMER_S3_UNSIGNED") == "1" else None
    if credentials is not None:
        given = {
            "access_key_id": credentials.access_key_id,
            "secret_access_key": credentials.secret_access_key,
            "session_token": credentials.session_token,
            "region": credentials.region_name,
            "endpoint": credentials.endpoint,
        }
        found |= {key: value for key, value in given.items() if value is not None}
    return found


def _text(name: str) -> str:
    return os.environ.get(name, "").strip()


def _integer(name: str, text: str) -> int:
    if not re.fullmatch(r"\s*[+-]?[0-9]+\s*", text):
        message = f"environment variable {name}={text!r}: wanted an int"
        raise InvalidRequestError(message)
    return int(text)


def _positive(name: str) -> int | None:
    text = _text(name)
    number = _integer(name, text) if text else 0
    if number < 0:
        message = f"environment variable {name}={text!r}: wanted a positive int"
        raise InvalidRequestError(message)
    return number or None


def _queue_depth() -> int | None:
    """Return the first number of a text such as `512,nfs=64`.

    tload tunes the depth of each file system itself.
    """
    name = "RUNAI_STREAMER_FS_QUEUE_DEPTH"
    text = _text(name).partition(",")[0]
    if not text:
        return None
    number = _integer(name, text)
    if number <= 0:
        message = f"environment variable {name}={_text(name)!r}: wanted a positive int first"
        raise InvalidRequestError(message)
    return number
