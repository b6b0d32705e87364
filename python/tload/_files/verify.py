"""Verification of whole checkpoints: each file is read once and compared with its digests."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tload import _tload
from tload._errors import CorruptError, InvalidRequestError, UnsupportedError
from tload._options import store_options
from tload._options.keywords import OptionKeywords
from tload._options.load_options import resolve
from tload._report.progress import shown
from tload._sources.keys import read_key
from tload._sources.locations import check_location, follows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from tload._errors import Error
    from tload._options.keywords import StoreKeywords
    from tload.typing import Duration, Key, Location, ProgressCallback, Store

_SIGNATURE = "model.sig"

_UNSIGNED = (_SIGNATURE, ".git", ".gitattributes", ".github", ".gitignore")
"""Names that model-signing itself leaves out of signatures."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Bytes that differ from a digest."""

    tensor: str | None
    """Tensor that the bytes belong to; `None` if they belong to none, or it is unknown which."""
    range: tuple[int, int]
    """Byte range `(start, end)` from the start of the file that contains the difference."""
    by: str
    """Origin of the expected value."""
    expected: str
    """Expected checksum or length."""
    found: str
    """Checksum or length that was found."""


@dataclass(frozen=True, slots=True)
class FileReport:
    """Result of verifying one file."""

    name: str
    """Path below the checkpoint's directory."""
    bytes: int | None
    """Length in bytes; `None` if the file could not be opened."""
    outcome: str
    """`"matches"`, `"differs"`, `"missing"`, `"extra"` (not in the manifest, or not signed),
    `"unverified"` (no digest is known) or `"failed"` (unreadable, or not a checkpoint)."""
    verified_by: tuple[str, ...]
    """Origins of the checksums it was compared with, the strongest first."""
    silent: tuple[str, ...]
    """Reasons why other origins have no checksum of it."""
    mismatches: tuple[Mismatch, ...]
    """Byte ranges that differ."""
    error: str | None
    """Reason why the file could not be compared, or should not be there, or `None`."""
    is_shard: bool
    """`True` if the file holds tensors; an index does not."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Result of `tload.verify`.

    It is false if something is wrong, as `ok`: `if not tload.verify("model_dir"): ...`. `str()` is
    a table of the files with the differences, and `repr()` one line.
    """

    location: str
    """The checkpoint, without secrets."""
    files: tuple[FileReport, ...]
    """The files, by name, including missing files of the checkpoint."""
    bytes: int
    """Number of bytes that were read."""
    seconds: float
    """Seconds from the call to the last comparison."""
    written: str | None
    """Path or URL of the manifest that was written, or `None`."""
    not_written: str | None
    """Reason why the manifest could not be written although everything matches, or `None`."""
    notes: tuple[str, ...]
    """Further notes: origins that were not searched, checks that the manifest prevents."""
    error: Error | None
    """Error that makes the result not `ok`, or `None`."""
    text: str = field(default="", repr=False, compare=False)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        outcomes = Counter(file.outcome for file in self.files)
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        return f"<tload.VerifyReport of {self.location}: {'ok' if self.ok else 'not ok'}; files: {counts or 'none'}>"

    def _repr_html_(self) -> str:
        # Shown by notebooks.
        known = (one.name for one in dataclasses.fields(self))
        shown: dict[str, Any] = {name: getattr(self, name) for name in known if name not in ("error", "text")}
        shown["files"] = [dataclasses.asdict(file) for file in self.files]
        return _tload.verified_fragment(json.dumps({**shown, "ok": self.ok}))

    @property
    def ok(self) -> bool:
        """`True` if every shard was compared with a digest, and nothing differs."""
        return self.error is None

    def check(self) -> None:
        """Raise `error`, if there is one.

        Raises:
            CorruptError: Bytes or files do not match.
            UnsupportedError: A shard could not be compared with any digest.
            Error: A file could not be read, or is not a checkpoint, according to the class.
        """
        if self.error is not None:
            raise self.error


@store_options.takes_keywords
def verify(
    location: Location,
    *,
    manifest: Location | None = None,
    write: bool | str | os.PathLike[str] | None = None,
    force: bool = False,
    signature: Mapping[str, Any] | None = None,
    timeout: Duration | None = None,
    progress: bool | ProgressCallback | None = None,
    store: Store | None = None,
    follow_symlinks: bool | None = None,
    key: Key | None = None,
    **keywords: Unpack[StoreKeywords],
) -> VerifyReport:
    """Read a checkpoint once and compare it with all known digests, as `tload verify` does.

    The files that are read are those with weights, their index, and those listed in the manifest.
    Others in the directory, such as `config.json` or code, are only read with `signature=`.

    Known digests are, the strongest first: those of a manifest (`tload-manifest.json` beside the
    checkpoint), the store's own digests of whole objects (S3, GCS), those that the Hugging Face Hub,
    its cache or an OCI registry has of files, and those of a `model.sig`. A failure of one file is recorded in the
    report, and the other files are still verified: the report is then false, and `report.check()`
    raises the error.

    Args:
        location: A path or URL: see `tload.open`.
        manifest: Path or URL of the manifest to compare with. Default: the one beside the
            checkpoint.
        write: Path, or URL in S3, GCS or Azure, of a manifest of weights and index to write if all of
            them match, or `True` to write it beside the checkpoint. Beside a signed model it is an
            unsigned file: write it before signing, or elsewhere. Default: write none.
        force: Replace an existing manifest, which is then not compared with. Default: `False`.
        signature: Trusted signer: the options of one of model-signing's verifiers, `{"public_key":
            …}`, `{"certificate_chain": […]}` or `{"identity": …, "oidc_issuer": …}`. The package
            `model-signing` checks the signature `model.sig`, and the signed digests are compared
            with, even if the file in the directory changes later. In a directory, every signed file
            is compared, and a file that is not signed is a mismatch. As in model-signing, paths that
            were left out at signing, and git's own, may be unsigned; so may the paths of the key
            `"ignore_paths"`, a list of paths below the directory. For a single file or an index,
            only its files are compared. Default: the digests of a `model.sig` are compared, whatever
            its signer.
        timeout: Time that the verification may take, as for loads. Default: `TLOAD_TIMEOUT`,
            else no limit.
        progress: `True` draws a progress bar, and a callable is called with a `Progress`, as in
            `tload.stream`. An exception that it raises stops the verification. Default: no
            progress.
        store: Options of the object store: see `tload.open`.
        follow_symlinks: Allow symbolic links that lead out of the checkpoint's directory: see
            `tload.open`.
        key: Key of a sealed checkpoint: see `tload.open`. Its files are compared with its sealed
            manifest, and `write` is refused, which would show the names of its tensors.
        **keywords: Keys of `store`: see `tload.open`.

    Returns:
        The report of the verification, which is false if something is wrong.

    Raises:
        LoadTimeoutError: It took longer than `timeout`. A manifest whose writing has begun may
            still appear.
        CorruptError: The signature is not by the trusted signer.
        NotFoundError: The location, or a manifest or signature that was requested, does not exist.
        FormatError: A manifest or signature is malformed.
        InvalidRequestError: The manifest already exists, or an option is invalid.
        UnsupportedError: The manifest has another version, the package `model-signing` is not
            installed, or the signature is not by SHA-256 of whole files.
        PermissionDeniedError, RemoteError, IoError: While opening the checkpoint or its manifest.

    Examples:
        >>> report = tload.verify("model_dir")
        >>> if not report:
        ...     print(report)
    """
    check_location("location", location)
    store = store_options.take(store, keywords)
    limits = OptionKeywords(timeout=timeout)
    options = resolve(None, limits, variables=limits)
    pairs = store_options.resolve(location, store, os.environ)
    is_followed = follows(follow_symlinks, os.environ)
    signed = None
    if signature is not None:
        began = time.monotonic()
        bounded = store_options.merge(location, store_options.read(store), os.environ, options.timeout)
        place, content = _tload.read_signature(location, store=bounded, follow_symlinks=is_followed)
        signed = _signed(place, content, signature)
        if options.timeout is not None:
            # The verification gets the rest of the time, and a moment to say that there is none.
            left = _tload.seconds("timeout", options.timeout) - (time.monotonic() - began)
            options = dataclasses.replace(options, timeout=max(left, 0.001))
    with shown(progress) as show:
        document, text, error = _tload.verify(
            location,
            manifest=manifest,
            write=write,
            force=force,
            signed=signed,
            options=options,
            store=pairs,
            follow_symlinks=is_followed,
            key=read_key(key, os.environ),
            progress=show,
        )
    return _report(json.loads(document), text, error)


def _report(fields: dict[str, Any], text: str, error: Error | None) -> VerifyReport:
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
        text=text,
        **fields,
    )


class _Ours:
    """Replaces model-signing's reading of all files, and keeps the manifest to compare with."""

    manifest: Any = None
    """Content of a valid signature: only what is signed counts, not the rest of the file."""

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
    """Check a signature. Return its names with SHA-256, and paths that may be unsigned."""
    # Both import a dozen modules, which `import tload` does without.
    import tempfile
    from pathlib import Path

    if not isinstance(options, Mapping):
        message = f"signature: wanted a mapping such as {{'public_key': PATH}}, found {type(options).__qualname__}"
        raise TypeError(message)
    ignored = [*_UNSIGNED, *_ignored_paths(options)]
    config = _verifier({name: value for name, value in options.items() if name != "ignore_paths"})
    ours = _Ours()
    config.set_hashing_config(ours)
    with tempfile.TemporaryDirectory(prefix="tload-") as folder:
        # Exactly these bytes are checked: the file in the model's directory may have been replaced
        # since.
        path = Path(folder) / _SIGNATURE
        path.write_bytes(content)
        try:
            config.verify(path.parent, path)
        except Exception as error:  # cryptography and sigstore raise their own exceptions
            raise CorruptError(f"{place}: the signature is not valid: {error}", location=place) from error
    if ours.manifest is None:
        message = "this version of model-signing does not report what is signed; version 1.1 does"
        raise UnsupportedError(message)
    serialization = ours.manifest.serialization_type
    files = [(one.identifier, one.digest) for one in ours.manifest.resource_descriptors()]
    algorithms = {digest.algorithm for _, digest in files} - {"sha256"}
    if serialization.get("method") != "files" or algorithms:
        found = ", ".join(sorted(algorithms)) or f"the method {serialization.get('method')!r}"
        message = f"{place}: wanted a signature by SHA-256 of whole files, found {found}: sign the model that way"
        raise UnsupportedError(message, location=place)
    ignored += [str(path) for path in serialization.get("ignore_paths", ())]
    return [(name, digest.digest_hex) for name, digest in files], ignored


def _ignored_paths(options: Mapping[str, Any]) -> list[str]:
    paths: Sequence[Any] = options.get("ignore_paths", ())
    if isinstance(paths, (str, os.PathLike)):
        raise InvalidRequestError("signature=: ignore_paths: wanted a list of paths, found a single path")
    found = [os.fspath(path) for path in paths]
    if any(path.startswith(os.sep) or not path for path in found):
        raise InvalidRequestError("signature=: ignore_paths: wanted paths below the directory of the model")
    return found


def _verifier(options: Mapping[str, Any]) -> Any:
    try:
        from model_signing import verifying
    except ImportError as error:
        # model-signing 1.1 imports pyOpenSSL, but does not declare it as a dependency.
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
        message = "signature= names no trusted signer: pass public_key, certificate_chain, or identity and oidc_issuer"
        raise InvalidRequestError(message)
    known = inspect.signature(use).parameters
    if unknown := [name for name in options if name not in known]:
        message = f"signature=: {unknown[0]!r} is not an option of this verifier, which takes {', '.join(known)}"
        raise InvalidRequestError(message)
    try:
        return use(**options)
    except (OSError, TypeError, ValueError) as error:
        raise InvalidRequestError(f"signature=: {error}") from error
