"""Counterpart of `runai_model_streamer.s3_utils`: kinds of paths, patterns, S3 credentials."""

from __future__ import annotations

import enum
import fnmatch
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tload.compat.runai.errors import RunaiStreamerInvalidInputException

if TYPE_CHECKING:
    from collections.abc import Iterable

S3_PROTOCOL_PREFIX = "s3://"
GCS_PROTOCOL_PREFIX = "gs://"
AZURE_PROTOCOL_PREFIX = "az://"

# Constants of runai_model_streamer, which programs import. Nothing here uses them.
AWS_EC2_METADATA_DISABLED_ENV = "AWS_EC2_METADATA_DISABLED"
AWS_ENDPOINT_URL_ENV = "AWS_ENDPOINT_URL"
DEFAULT_AWS_EC2_METADATA_DISABLED = "true"
DEFAULT_GCS_ENDPOINT_URL = "https://storage.googleapis.com"


class Kind(enum.Enum):
    """Kind of storage of a path."""

    FILE = "file"
    S3 = "s3"
    GCS = "gs"
    AZURE = "az"


@dataclass
class S3Credentials:
    """Options of S3. `None` means the value from the environment."""

    access_key_id: str | None = None
    """Access key."""
    secret_access_key: str | None = field(default=None, repr=False)
    """Secret of the access key."""
    session_token: str | None = field(default=None, repr=False)
    """Token of temporary credentials."""
    region_name: str | None = None
    """Region of the bucket."""
    endpoint: str | None = None
    """URL of the server."""


def is_s3_path(path: str) -> bool:
    """Return whether a path is a URL of S3."""
    return path.startswith(S3_PROTOCOL_PREFIX)


def is_gs_path(path: str) -> bool:
    """Return whether a path is a URL of Google Cloud Storage."""
    return path.startswith(GCS_PROTOCOL_PREFIX)


def is_azure_path(path: str) -> bool:
    """Return whether a path is a URL of Azure Blob Storage."""
    return path.startswith(AZURE_PROTOCOL_PREFIX)


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Return whether one of the patterns matches the whole path; `*` matches `/`, too."""
    return any(fnmatch.fnmatch(path, pattern) for pattern in patterns)


def filter_allow(paths: list[str], patterns: list[str]) -> list[str]:
    """Return the paths that match one of the patterns."""
    return [path for path in paths if matches(path, patterns)]


def filter_ignore(paths: list[str], patterns: list[str]) -> list[str]:
    """Return the paths that match none of the patterns."""
    return [path for path in paths if not matches(path, patterns)]


def removeprefix(s: str, prefix: str) -> str:
    """Return `s` without the prefix, if it begins with it."""
    return s.removeprefix(prefix)


def kind_of(path: str) -> Kind:
    """Return the kind of storage of a path.

    A path that is not a URL of one of the stores is a file.
    """
    if is_s3_path(path):
        return Kind.S3
    if is_gs_path(path):
        return Kind.GCS
    return Kind.AZURE if is_azure_path(path) else Kind.FILE


def folder_url(url: str) -> str:
    """Return the URL of a prefix with one `/` at its end.

    It denotes the objects below the prefix, never an object of its name.
    """
    scheme, _, place = url.partition("://")
    return f"{scheme}://{place.rstrip('/')}/"


def kind_of_all(paths: Iterable[str]) -> Kind:
    """Return the kind of storage of the paths, which must be the same for all.

    Options apply to one kind of store.
    """
    kinds = {kind_of(path): path for path in paths}
    if len(kinds) > 1:
        (_, first), (_, second), *_ = kinds.items()
        message = f"files and different stores cannot be streamed together: {first!r} and {second!r}"
        raise RunaiStreamerInvalidInputException(message)
    return next(iter(kinds), Kind.FILE)
