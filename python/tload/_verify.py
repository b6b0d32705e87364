"""Verification of whole checkpoints: everything is read once and compared with all that is known of it."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tload import _store, _tload
from tload._checkpoint import follows
from tload._copy import copy
from tload._errors import CorruptError, InvalidRequestError, NotFoundError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tload._checkpoint import Location
    from tload._errors import Error
    from tload._store import Store

_SIGNATURE = "model.sig"

_SIGNED = "digests in "
"""What the core begins with when it says that digests are those of a signature."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Bytes that are not as expected."""

    tensor: str | None
    """Whose bytes; `None` if they are no tensor's, or it is not known which."""
    range: tuple[int, int]
    """Which, from the start of the file: what differs lies within."""
    by: str
    """Who expects it."""
    expected: str
    """What was expected: a checksum, or a length."""
    found: str
    """What was found."""


@dataclass(frozen=True, slots=True)
class FileReport:
    """What came of one file."""

    name: str
    """Path below the folder of the checkpoint."""
    bytes: int | None
    """Length; `None` if it could not be opened."""
    outcome: str
    """`"matches"`, `"differs"`, `"missing"`, `"extra"` (the manifest does not have it), `"unverified"` (nobody says
    what it should be) or `"failed"` (it could not be read, or is no checkpoint)."""
    verified_by: tuple[str, ...]
    """Whose checksums it was compared with, the strongest first."""
    silent: tuple[str, ...]
    """Why others say nothing of it."""
    mismatches: tuple[Mismatch, ...]
    """Where it is not as expected."""
    error: str | None
    """Why it could not be compared."""
    is_shard: bool
    """Whether tensors are in it; an index has none."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `tload.verify` found."""

    location: str
    """The checkpoint, without secrets."""
    files: tuple[FileReport, ...]
    """The files, by name; what belongs to the checkpoint and is not there, too."""
    bytes: int
    """Bytes that were read."""
    seconds: float
    """Seconds from the call to the last comparison."""
    written: str | None
    """The manifest that was written."""
    error: Error | None
    """Why it is not `ok`."""

    @property
    def ok(self) -> bool:
        """Whether every shard was compared with something and nothing is otherwise than expected."""
        return self.error is None

    def check(self) -> None:
        """Raise `error`, if there is one.

        Raises:
            CorruptError: Bytes or files are not as expected.
            UnsupportedError: There was nothing to compare a shard with.
            Error: A file could not be read, or is no checkpoint: the class says why.
        """
        if self.error is not None:
            raise self.error


def verify(
    location: Location,
    *,
    manifest: Location | None = None,
    write: bool | str | os.PathLike[str] | None = None,
    force: bool = False,
    signature: Mapping[str, Any] | None = None,
    store: Store | None = None,
    follow_symlinks: bool | None = None,
) -> VerifyReport:
    """Read a checkpoint once and compare it with every checksum that is known of it, as `tload verify` does.

    Known are, the strongest first: those of a manifest (`tload-manifest.json` beside the checkpoint), the store's own
    of whole objects (S3, GCS), what the Hugging Face Hub or its cache says of files, and the digests of a `model.sig`.
    What is bad is in the report, and does not keep the other files from being looked at; `report.check()` raises it.

    Args:
        location: A path or URL: see `tload.open`.
        manifest: The manifest to compare with, a path or URL. Default: the one beside the checkpoint.
        write: Where to write a manifest of what was read, if nothing of it is otherwise than expected: a path, or
            `True` for beside the checkpoint. Default: nowhere.
        force: Replace a manifest that is there, which is not compared with then. Default: `False`.
        signature: Whom to trust: the options of one of model-signing's verifiers, `{"public_key": …}`,
            `{"certificate_chain": […]}` or `{"identity": …, "oidc_issuer": …}`. The signature `model.sig` is checked by
            the package `model-signing` before anything else is read, and every shard must be compared with its digests.
            Default: the digests of a `model.sig` are compared, whoever signed them.
        store: How to reach the object store: see `tload.open`.
        follow_symlinks: Whether symbolic links may lead out of the checkpoint's directory: see `tload.open`.

    Raises:
        CorruptError: The signature is not that of whom to trust, or not about every shard.
        NotFoundError: The location is not there, or the manifest or signature that was asked for.
        FormatError: A manifest or signature cannot be read.
        InvalidRequestError: The manifest is there already, or an option makes no sense.
        UnsupportedError: The manifest is of another version, or the package `model-signing` is not installed.
        PermissionDeniedError, RemoteError, LoadTimeoutError, IoError: On the way there.
    """
    if signature is not None:
        _check_signature(location, signature, store)
    text, error = _tload.verify(
        location,
        manifest=manifest,
        write=write,
        force=force,
        store=_store.resolve(store, os.environ),
        follow_symlinks=follows(follow_symlinks, os.environ),
    )
    report = _report(json.loads(text), error)
    if signature is not None:
        _require_signed(report)
    return report


def _report(fields: dict[str, Any], error: Error | None) -> VerifyReport:
    def mismatch(fields: dict[str, Any]) -> Mismatch:
        begin, end = fields.pop("range")
        return Mismatch(range=(begin, end), **fields)

    def file(fields: dict[str, Any]) -> FileReport:
        failed = fields.pop("error")
        return FileReport(
            mismatches=tuple(mismatch(one) for one in fields.pop("mismatches")),
            verified_by=tuple(fields.pop("verified_by")),
            silent=tuple(fields.pop("silent")),
            error=failed and failed["message"],
            **fields,
        )

    return VerifyReport(files=tuple(file(one) for one in fields.pop("files")), error=error, **fields)


def _require_signed(report: VerifyReport) -> None:
    for file in report.files:
        compared = file.outcome in {"missing", "failed"} or any(by.startswith(_SIGNED) for by in file.verified_by)
        if file.is_shard and not compared:
            raise CorruptError(f"{report.location}: the signature {_SIGNATURE} is not about {file.name!r}")


class _Ours:
    """Takes the place of model-signing's own reading of all files: tload compares them."""

    def add_ignored_paths(self, **_: object) -> None:
        pass

    def hash(self, *_: object, **__: object) -> _Ours:
        return self

    def __eq__(self, _: object) -> bool:
        return True

    def __ne__(self, _: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def _check_signature(location: Location, options: Mapping[str, Any], store: Store | None) -> None:
    try:
        from model_signing import verifying
    except ImportError as error:
        message = "signature= needs the package model-signing: pip install model-signing"
        raise UnsupportedError(message) from error
    config = verifying.Config()
    if "public_key" in options:
        use = config.use_elliptic_key_verifier
    elif "certificate_chain" in options:
        use = config.use_certificate_verifier
    elif "identity" in options:
        use = config.use_sigstore_verifier
    else:
        message = "signature= names nobody to trust: give public_key, certificate_chain, or identity and oidc_issuer"
        raise InvalidRequestError(message)
    try:
        config = use(**options)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"signature=: {error}") from error
    config.set_hashing_config(_Ours())
    with tempfile.TemporaryDirectory(prefix="tload-") as folder:
        path = _fetch(location, Path(folder), store)
        try:
            config.verify(path.parent, path)
        except Exception as error:  # what cryptography and sigstore raise is theirs to choose
            raise CorruptError(
                f"{_tload.show_location(location)}: the signature {_SIGNATURE} is not good: {error}"
            ) from error


def _fetch(location: Location, folder: Path, store: Store | None) -> Path:
    """Return where the signature is on this machine."""
    if "://" in os.fspath(location):
        copy(location, folder, names=[_SIGNATURE], store=store)
        return folder / _SIGNATURE
    place = Path(location)
    path = (place if place.is_dir() else place.parent) / _SIGNATURE
    if not path.exists():
        raise NotFoundError(f"{path}: there is no signature")
    return path
