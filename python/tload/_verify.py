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
from tload._errors import CorruptError, InvalidRequestError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tload._checkpoint import Location
    from tload._errors import Error
    from tload._store import Store

_SIGNATURE = "model.sig"

_UNSIGNED = (_SIGNATURE, ".git", ".gitattributes", ".github", ".gitignore")
"""What model-signing itself leaves out of signatures."""


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
    """`"matches"`, `"differs"`, `"missing"`, `"extra"` (the manifest does not have it, or it is not signed),
    `"unverified"` (nobody says what it should be) or `"failed"` (it could not be read, or is no checkpoint)."""
    verified_by: tuple[str, ...]
    """Whose checksums it was compared with, the strongest first."""
    silent: tuple[str, ...]
    """Why others say nothing of it."""
    mismatches: tuple[Mismatch, ...]
    """Where it is not as expected."""
    error: str | None
    """Why it could not be compared, or should not be there."""
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
    not_written: str | None
    """Why it could not be written, though nothing is otherwise than expected."""
    notes: tuple[str, ...]
    """What else is to be known: what was not looked for, what the manifest gets in the way of."""
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

    The files that are read are those with weights, their index, and what a manifest that is compared with lists. Others
    in the folder, such as `config.json` or code, are looked at only with `signature=`.

    Known are, the strongest first: those of a manifest (`tload-manifest.json` beside the checkpoint), the store's own
    of whole objects (S3, GCS), what the Hugging Face Hub or its cache says of files, and the digests of a `model.sig`.
    What is bad is in the report, and does not keep the other files from being looked at; `report.check()` raises it.

    Args:
        location: A path or URL: see `tload.open`.
        manifest: The manifest to compare with, a path or URL. Default: the one beside the checkpoint.
        write: Where to write a manifest of weights and index, if nothing of them is otherwise than expected: a path, or
            `True` for beside the checkpoint. Beside a signed model it is a file that was not signed: write it first, or
            elsewhere. Default: nowhere.
        force: Replace a manifest that is there, which is not compared with then. Default: `False`.
        signature: Whom to trust: the options of one of model-signing's verifiers, `{"public_key": …}`,
            `{"certificate_chain": […]}` or `{"identity": …, "oidc_issuer": …}`. The signature `model.sig` is checked by
            the package `model-signing`, and what it signs is what is compared with, whatever stands in the folder by
            then: of a folder every file that is signed, and a file that is there and not signed is not as expected. As
            for model-signing, paths that were left out when it was signed may be there, and git's own; with the key
            `"ignore_paths"`, a list of paths below the folder, others too. Of a single file or an index, its files.
            Default: the digests of a `model.sig` are compared, whoever signed them.
        store: How to reach the object store: see `tload.open`.
        follow_symlinks: Whether symbolic links may lead out of the checkpoint's directory: see `tload.open`.

    Raises:
        CorruptError: The signature is not that of whom to trust.
        NotFoundError: The location is not there, or the manifest or signature that was asked for.
        FormatError: A manifest or signature cannot be read.
        InvalidRequestError: The manifest is there already, or an option makes no sense.
        UnsupportedError: The manifest is of another version, the package `model-signing` is not installed, or the
            signature is not by SHA-256 of whole files.
        PermissionDeniedError, RemoteError, LoadTimeoutError, IoError: On the way there.
    """
    pairs = _store.resolve(store, os.environ)
    is_followed = follows(follow_symlinks, os.environ)
    signed = None
    if signature is not None:
        place, content = _tload.read_signature(location, store=pairs, follow_symlinks=is_followed)
        signed = _signed(place, content, signature)
    text, error = _tload.verify(
        location,
        manifest=manifest,
        write=write,
        force=force,
        signed=signed,
        store=pairs,
        follow_symlinks=is_followed,
    )
    return _report(json.loads(text), error)


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

    not_written = fields.pop("not_written")
    return VerifyReport(
        files=tuple(file(one) for one in fields.pop("files")),
        not_written=not_written and not_written["message"],
        notes=tuple(fields.pop("notes")),
        error=error,
        **fields,
    )


class _Ours:
    """Takes the place of model-signing's own reading of all files, and keeps what it would have compared them with."""

    manifest: Any = None
    """What the signature is about, after it was found good: nothing else in the file may count."""

    def add_ignored_paths(self, **_: object) -> None:
        pass

    def hash(self, *_: object, **__: object) -> _Ours:
        return self

    def __eq__(self, manifest: object) -> bool:
        self.manifest = manifest
        return True

    def __ne__(self, manifest: object) -> bool:
        self.manifest = manifest
        return False

    __hash__ = None  # type: ignore[assignment]


def _signed(place: str, content: bytes, options: Mapping[str, Any]) -> tuple[list[tuple[str, str]], list[str]]:
    """Check a signature, and return what it is about: names with SHA-256, and paths that may be there unsigned."""
    ignored = [*_UNSIGNED, *_ignored_paths(options)]
    config = _verifier({name: value for name, value in options.items() if name != "ignore_paths"})
    ours = _Ours()
    config.set_hashing_config(ours)
    with tempfile.TemporaryDirectory(prefix="tload-") as folder:
        # These bytes, and no others: what is in the folder of the model may be another file by now.
        path = Path(folder) / _SIGNATURE
        path.write_bytes(content)
        try:
            config.verify(path.parent, path)
        except Exception as error:  # what cryptography and sigstore raise is theirs to choose
            raise CorruptError(f"{place}: the signature is not good: {error}", location=place) from error
    if ours.manifest is None:
        message = "this version of model-signing does not say what is signed; model-signing 1.1 does"
        raise UnsupportedError(message)
    serialization = ours.manifest.serialization_type
    files = [(one.identifier, one.digest) for one in ours.manifest.resource_descriptors()]
    algorithms = {digest.algorithm for _, digest in files} - {"sha256"}
    if serialization.get("method") != "files" or algorithms:
        found = ", ".join(sorted(algorithms)) or f"the method {serialization.get('method')!r}"
        message = f"{place}: wanted a signature by SHA-256 of whole files, found {found}: sign the model so"
        raise UnsupportedError(message, location=place)
    ignored += [str(path) for path in serialization.get("ignore_paths", ())]
    return [(name, digest.digest_hex) for name, digest in files], ignored


def _ignored_paths(options: Mapping[str, Any]) -> list[str]:
    paths: Sequence[Any] = options.get("ignore_paths", ())
    if isinstance(paths, (str, os.PathLike)):
        raise InvalidRequestError("signature=: ignore_paths: wanted a list of paths, found one")
    found = [os.fspath(path) for path in paths]
    if any(Path(path).is_absolute() or not path for path in found):
        raise InvalidRequestError("signature=: ignore_paths: wanted paths below the folder of the model")
    return found


def _verifier(options: Mapping[str, Any]) -> Any:
    try:
        from model_signing import verifying
    except ImportError as error:
        # model-signing 1.1 imports pyOpenSSL, which it does not ask for.
        message = f"signature= needs the package model-signing ({error}): pip install model-signing pyOpenSSL"
        raise UnsupportedError(message) from error
    config: Any = verifying.Config()  # type: ignore[no-untyped-call, unused-ignore]
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
        return use(**options)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"signature=: {error}") from error
