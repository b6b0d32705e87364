"""Open checkpoints: their tensors, files and metadata, from headers only."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar, Union, overload

from tload import _spans, _store, _tload
from tload._errors import InvalidRequestError, NoSuchTensorError, advise
from tload._options import OptionKeywords, resolve

if TYPE_CHECKING:
    from types import EllipsisType
    from typing import Any, Literal, Self, Unpack

    import numpy.typing as npt
    import torch

    from tload._options import Duration, Options
    from tload._store import Store, StoreKeywords

Location: TypeAlias = str | os.PathLike[str]
"""A path or URL."""

Source: TypeAlias = Union[Location, Sequence[Location], "Checkpoint"]
"""A file, a directory or an index, as a path or URL; a list of files; or an open checkpoint."""

Default = TypeVar("Default")

Index: TypeAlias = "int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]"
"""Index of an array, as in the brackets after its name; steps must be positive."""

SCHEMES = frozenset(_tload.SCHEMES)
"""URL schemes that the core reads."""


VARIABLE = "TLOAD_FOLLOW_SYMLINKS"
"""Environment variable that the command reads too."""

WORDS = {
    **dict.fromkeys(("1", "y", "yes", "t", "true", "on"), True),
    **dict.fromkeys(("", "0", "n", "no", "f", "false", "off"), False),
}
"""Truth values of environment variables, as the command reads them."""


ROWS_MAX = 100
"""Most tensors that the table of a checkpoint in a notebook shows."""


class TensorInfo(NamedTuple):
    """Header entry of one tensor."""

    name: str
    """The tensor's name. It comes from a file: print it with `repr`."""
    dtype: str
    """The element type as safetensors files write it, for example `"BF16"` or `"F8_E4M3"`."""
    shape: tuple[int, ...]
    """Elements along each dimension; `()` for a scalar."""
    nbytes: int
    """Length in bytes."""
    shard: int
    """Index of the file that holds it, in `Checkpoint.shards`."""
    file_range: tuple[int, int]
    """Byte range of the tensor in that file, `(start, end)`, from the start of the file."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a checkpoint."""

    location: str
    """Its path or URL."""
    file_bytes: int
    """Length of the file, bytes."""
    header_bytes: int
    """Length of everything before the first tensor, bytes."""
    tensor_count: int
    """Number of tensors of the checkpoint in this file."""
    metadata: dict[str, str]
    """The file's `__metadata__`."""


class Opening(NamedTuple):
    """Group whose ranks open a checkpoint together, before they load it."""

    group: _tload.Group
    join_timeout: float | None

    @classmethod
    def of(cls, group: _tload.Group | None, options: Options) -> Opening | None:
        """Return the opening of a load, or `None` if each rank opens for itself."""
        if group is None or options.share == "none":
            return None
        limits = {"join_timeout": options.join_timeout, "timeout": options.timeout}
        seconds = [_tload.seconds(name, limit) for name, limit in limits.items() if limit is not None]
        return cls(group, min(seconds, default=None))


@dataclass(frozen=True, slots=True, repr=False)
class Origin:
    """Arguments of `tload.open`, to open the same checkpoint again."""

    source: Location | list[Location]
    store: list[tuple[str, str]]
    """Options that the caller passed; those of the environment are read at each opening."""
    follow_symlinks: bool
    single_file_first: bool = False
    """`True` to read `model.safetensors` even if there is an index, as in transformers."""

    def open(self, timeout: Duration | None = None, opening: Opening | None = None) -> _tload.Checkpoint:
        """Open the checkpoint within `timeout`. Default: `TLOAD_TIMEOUT`."""
        together = {} if opening is None else opening._asdict()
        if timeout is None:
            timeout = resolve(None, OptionKeywords(), variables=("timeout",)).timeout
        pairs = _store.merge(self.store, os.environ, timeout)
        with _spans.around("tload.open") as describe:
            if isinstance(self.source, list):
                opened = _tload.Checkpoint.open_all(self.source, store=pairs, **together)
            else:
                opened = _tload.Checkpoint.open(
                    self.source,
                    store=pairs,
                    follow_symlinks=self.follow_symlinks,
                    single_file_first=self.single_file_first,
                    **together,
                )
            describe("location", opened.location)
            return opened

    def elsewhere(self, raw: _tload.Checkpoint) -> tuple[Origin, bool]:
        """Return the arguments by which another process opens `raw`, and whether a URL has a secret.

        Paths are absolute, and models of a Hub are of the commit that is open.
        """
        given = self.source if isinstance(self.source, list) else [self.source]
        found = raw.locations_elsewhere(given)
        locations = [own if other is None else other for own, other in zip(given, found, strict=True)]
        source = locations if isinstance(self.source, list) else locations[0]
        return dataclasses.replace(self, source=source), None in found


class Checkpoint(Mapping[str, TensorInfo]):
    """The tensors of an open checkpoint by name, in file order. Made by `tload.open`.

    The files stay open until `close` or the end of a `with` block. Header contents remain readable
    afterwards.

    A checkpoint is equal only to itself, and is hashable: two with equal headers may hold different
    values. To compare headers, compare `dict(checkpoint)`.

    It may be used by forked processes and can be pickled, for example by a `DataLoader` with
    workers. Pickled are its location and the options that were passed to `tload.open`, not the
    contents of files: the process that unpickles it opens the files again, and raises
    `ChangedError` if they are not as they were. Secrets are not pickled: with a secret in `store`
    or in a URL, pickling raises `InvalidRequestError`. `copy.copy` and `copy.deepcopy` return a
    checkpoint that shares the open files, and is closed on its own.
    """

    __slots__ = ("_infos", "_origin", "_raw", "location", "metadata", "shards", "total_bytes")

    location: str
    """Location that was opened, as the caller wrote it."""
    metadata: dict[str, str]
    """`__metadata__` of all files merged; for a key in several files, the first file's value."""
    shards: tuple[Shard, ...]
    """The files."""
    total_bytes: int
    """Total size of all tensors, bytes."""

    def __init__(self, raw: _tload.Checkpoint, origin: Origin) -> None:
        """Wrap the checkpoint that `tload.open` opened."""
        self._raw: _tload.Checkpoint | None = raw
        self._origin = origin
        self._infos = {info[0]: TensorInfo._make(info) for info in raw.tensors()}
        self.location = raw.location
        self.metadata = raw.metadata()
        self.shards = tuple(Shard(*shard) for shard in raw.shards())
        self.total_bytes = raw.total_bytes

    # `Mapping` compares header contents, which are often equal for the files of several ranks.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __getitem__(self, name: str) -> TensorInfo:
        """Return the entry of the tensor `name`, or raise `NoSuchTensorError` (a `KeyError`)."""
        try:
            return self._infos[name]
        except KeyError:
            near = _tload.nearest_name(str(name), list(self._infos))
            hint = "list the names with list(checkpoint)" if near is None else f"did you mean {near!r}?"
            message = f"{self.location}: no tensor is named {name!r}\n  hint: {hint}"
            raise NoSuchTensorError(message, location=self.location, tensor=name, hint=hint) from None

    @overload
    def get(self, name: str, /, default: None = None) -> TensorInfo | None: ...
    @overload
    def get(self, name: str, /, default: TensorInfo | Default) -> TensorInfo | Default: ...
    def get(self, name: str, /, default: Any = None) -> Any:
        """Return the entry of the tensor `name`, or `default` if there is none."""
        # The one of `Mapping` would make the error, and search for the nearest name.
        return self._infos.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    @overload
    def read(
        self,
        name: str,
        index: Index = ...,
        *,
        framework: Literal["torch", "pt"] = "torch",
        device: str | int | torch.device = "cpu",
    ) -> torch.Tensor: ...
    @overload
    def read(
        self,
        name: str,
        index: Index = ...,
        *,
        framework: Literal["numpy", "np"],
        device: str | int | torch.device = "cpu",
    ) -> npt.NDArray[Any]: ...
    @overload
    def read(
        self,
        name: str,
        index: Index = ...,
        *,
        framework: Literal["dlpack"],
        device: str | int | torch.device = "cpu",
    ) -> _tload.Tensor: ...
    def read(
        self,
        name: str,
        index: Index = ...,
        *,
        framework: Literal["torch", "pt", "numpy", "np", "dlpack"] = "torch",
        device: str | int | torch.device = "cpu",
    ) -> Any:
        """Read one tensor, or a slice of it, synchronously.

        For many at once, `tload.stream` is faster.

        This method is thread-safe. Small tensors in local files (up to 4 MiB) are read by the
        calling thread, through the page cache; each other tensor is a load of its own.

        Args:
            name: The tensor's name.
            index: The slice to read, as in brackets behind a numpy array: an int, a slice with a
                positive step, `...`, or a tuple of them. Only the bytes of the slice are read, and
                gaps that are cheaper to read than to skip. Default: the whole tensor.
            framework: The type of the result: see `tload.stream`. Default: `"torch"`.
            device: The device of the result: see `tload.stream`. Default: `"cpu"`.

        Returns:
            The tensor, of the tensor's shape or the slice's.

        Raises:
            NoSuchTensorError: The checkpoint has no tensor of this name.
            InvalidRequestError: The index is out of range, or a step is not positive: then it is
                also an `IndexError`. The checkpoint is closed; or the slice splits a byte that
                holds several elements.
            TypeError: `index` is of another type.
            UnsupportedError: The framework lacks the dtype.
            IoError, ChangedError, RemoteError, LoadTimeoutError, CancelledError: While reading.
        """
        from tload import _read

        return _read.read(self, name, index, framework, device)

    def close(self) -> None:
        """Close the files. Running streams keep them open until they end."""
        self._raw = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __copy__(self) -> Self:
        copied = object.__new__(type(self))
        for name in Checkpoint.__slots__:
            setattr(copied, name, getattr(self, name))
        copied.metadata = dict(self.metadata)
        return copied

    def __deepcopy__(self, _memo: object) -> Self:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        raw = usable(self)
        origin, has_secret_url = self._origin.elsewhere(raw)
        secrets = _tload.store_secrets(origin.store)
        if has_secret_url or secrets:
            found = f"store= has {', '.join(secrets)}" if secrets else "a URL has a user, a password or a query"
            message = f"{self.location}: cannot pickle a checkpoint that was opened with secrets: {found}"
            hint = (
                f"set them in the environment, where the other process finds them ({_store.VARIABLE}, or the store's "
                "own variables or profile), or pass the location and open it there"
            )
            raise advise(InvalidRequestError, message, hint)
        return _reopen, (origin, raw.state())

    def _repr_html_(self) -> str:
        # Shown by notebooks. Names come from files, and may contain markup.
        import html

        rows = [
            f"<tr><td>{html.escape(info.name)}</td><td>{html.escape(info.dtype)}</td>"
            f"<td>{list(info.shape)}</td><td>{_tload.format_bytes(info.nbytes)}</td></tr>"
            for info in islice(self._infos.values(), ROWS_MAX)
        ]
        if len(self) > ROWS_MAX:
            rows.append(f'<tr><td colspan="4">… and {len(self) - ROWS_MAX} more</td></tr>')
        head = "<tr><th>name</th><th>dtype</th><th>shape</th><th>size</th></tr>"
        return f"<p>{html.escape(repr(self))}</p><table>{head}{''.join(rows)}</table>"

    def __repr__(self) -> str:
        shards = len(self.shards)
        files = "1 file" if shards == 1 else f"{shards} files"
        size = _tload.format_bytes(self.total_bytes)
        closed = ", closed" if self._raw is None else ""
        return f"<tload.Checkpoint {self.location!r}: {len(self)} tensors, {size} in {files}{closed}>"


@_store.takes_keywords
def open(
    source: Location | Sequence[Location],
    *,
    store: Store | None = None,
    follow_symlinks: bool | None = None,
    **keywords: Unpack[StoreKeywords],
) -> Checkpoint:
    """Open a checkpoint and read its headers. No tensor is read.

    The variable `TLOAD_TIMEOUT` bounds the time that this takes, unless `open_timeout` in `store` does.

    Args:
        source: A safetensors file, a directory (the files that its index file lists, or without one
            the files of one model, chosen by their names), an index file, or a list of files, which
            may be local and remote. An index comes before a `model.safetensors` beside it; a note
            in the report names what is left out. Of a tensor in two listed files, the copy is read
            that the index beside them names. A `str` is a path or a URL: `s3://bucket/key`, `gs://bucket/key`,
            `az://container/key`, `abfss://container@account.dfs.core.windows.net/key`,
            `https://host/path`, `http://host/path` or `file:///path`, or a model of a Hub:
            `hf://org/name`, `hf://org/name@revision`, or of an OCI registry:
            `oci://registry/repository:tag`, `oci://registry/repository@sha256:…`, each optionally
            with a path in it. A prefix of objects is a directory. HTTP has no listing: a directory there is read by its
            `model.safetensors.index.json`, or else its `model.safetensors`. A model of a Hub is
            read from the cache of the package huggingface_hub (`HF_HUB_CACHE`, `HF_HOME`) if all
            its weights are there, without asking whether its branch has moved on; else from the Hub
            (`HF_ENDPOINT`), by ranges, and nothing is written to the cache. All files are read from
            one commit. `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_HUB_OFFLINE`, `HF_HUB_DISABLE_XET` and
            `HF_HUB_DISABLE_IMPLICIT_TOKEN` have the same meaning as in that package.
        store: Options of object stores: a mapping with the keys below. It overrides, key by key,
            the variable `TLOAD_STORE` (`KEY=VALUE` pairs, one per line), which overrides the
            stores' own variables (`AWS_ACCESS_KEY_ID`, `GOOGLE_APPLICATION_CREDENTIALS`,
            `AZURE_STORAGE_ACCOUNT_NAME`, …). One mapping may serve several stores: each ignores the
            keys of the others. Values are text, numbers, `True`, `False`, or paths; durations are
            seconds, text such as `"500ms"` or `"2m"`, or a `datetime.timedelta`.

            - `endpoint`: URL of the server, for example http://127.0.0.1:9000. Default: the cloud's
              own, or from the environment.
            - `region` (S3): Region of the bucket. Default: from the environment or the profile,
              else us-east-1.
            - `profile` (S3): Profile of the AWS configuration files to take credentials and region
              from. Default: none.
            - `access_key_id` (S3): Access key; needs secret_access_key. Default: from the
              environment.
            - `secret_access_key` (S3): Secret of the access key. Default: from the environment.
            - `session_token` (S3): Token of temporary credentials. Default: from the environment.
            - `anonymous`: Send requests without credentials, as public buckets allow. Default:
              false.
            - `addressing` (S3): Where the bucket's name goes: path (in the path) or virtual (in the
              host name). Default: path if an endpoint is given, else virtual.
            - `request_payer` (S3): Agree to pay for the requests. Default: false.
            - `express` (S3): The bucket is one of S3 Express One Zone. Default: true for names that
              end with --x-s3.
            - `account` (Azure): Storage account. Default: from the URL or the environment.
            - `account_key` (Azure): Access key of the storage account. Default: from the
              environment.
            - `sas` (Azure): Shared access signature. Default: from the environment.
            - `token` (GCS, Azure, hf:// and oci://): Bearer token. Default: from the environment.
            - `tenant_id` (Azure): Tenant of the application. Default: from the environment.
            - `client_id` (Azure): Application, or the managed identity to use. Default: from the
              environment.
            - `client_secret` (Azure): Secret of the application. Default: from the environment.
            - `service_account` (GCS): Path of the key file of a service account, or of an external
              account's file. Default: from the environment.
            - `ca_file`: Path of a PEM file of certificates to trust in addition to the system's.
              Default: from AWS_CA_BUNDLE, the AWS profile, REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE.
            - `tls_verify`: Verify the server's certificate; if false, anyone can impersonate the
              server. Default: true.
            - `proxy`: URL of a proxy for HTTP. Default: from https_proxy, http_proxy and all_proxy,
              also in capitals.
            - `connect_timeout`: Time that connecting may take. Default: 5.
            - `read_timeout`: Time that may pass without a byte arriving. Default: 30.
            - `open_timeout`: Time that opening may take, with lists, headers and retries.
              Default: none.
            - `retries`: Maximum number of retries of a failed request. Default: 8.
            - `allow_unversioned`: Read objects that have neither ETag nor Last-Modified; a replaced
              one may go unnoticed. Default: false.
            - `cache_dir`: Directory of a read-through cache: a second load reads from there.
              Default: none: nothing is cached.
            - `cache_limit`: Size of the cache, for example 500GiB: least recently used objects are
              evicted. Default: none.
            - `cache_check`: always: each opening asks whether objects have changed; never: only what
              the cache lacks is requested; offline: nothing is requested. Default: always.
            - `cache_wait`: Wait for the cache's disk instead of dropping bytes when it is slower
              than the store. Default: false.
            - `cache_shared`: Use a cache (cache_dir, hf_cache) that other users own or may write to:
              they can change the weights. Default: false.
            - `mirrors`: URLs with the same files as the location, separated by commas: ranges are
              spread over them and the location by speed. Default: none.
            - `peers`: URL with the same files, http://NAME:PORT/…; each address of NAME serves its
              own parts of the files. Default: none.
            - `mirror_token`: Bearer token for mirrors and peers. Default: none.
            - `hf_cache` (Hugging Face Hub): Download models into the cache of huggingface_hub
              first, with the small files beside them. Default: false.
            - `environment`: Read the store's own environment variables and configuration files.
              Default: true.
            - `headers`: Headers to send with every request: a mapping of name to value. Default:
              none.

            Names of the crate object_store that begin with `aws_`, `azure_` and `google_` are
            accepted too.
        follow_symlinks: Allow symbolic links that lead out of the checkpoint's directory. Always
            allowed are files that are listed explicitly; links that stay in the directory; links to
            it, or to a directory above it; links in the cache of a Hub, from a snapshot to the
            blobs of the same repository or to those that all share; and all links in the cache that
            the Hub's tools are set to. Default: `TLOAD_FOLLOW_SYMLINKS` (`1` or `0`), else
            `False`.
        **keywords: The keys `cache_dir`, `cache_limit`, `cache_check`, `mirrors`, `peers` and
            `hf_cache` of `store`. All functions with `store` take them, but not those that call
            transformers, which has a `cache_dir` of its own.

    Returns:
        The checkpoint, a mapping of names to `TensorInfo`.

    Raises:
        NotFoundError: A file, bucket or object does not exist; or with `HF_HUB_OFFLINE`, the cache
            does not hold the whole model.
        PermissionDeniedError: A file may not be read, a symbolic link leads out of the directory,
            or a store refuses the credentials.
        FormatError: A file is not a valid checkpoint.
        InvalidRequestError: The list is empty; a location is invalid: empty text, a NUL character,
            a `file://` URL of another host, or a URL in a `pathlib.Path`, which removes a slash; or
            a key of `store` is unknown, its value is malformed, or a keyword has another one.
        UnsupportedError: A URL has a scheme that this build cannot read, such as `ftp://`.
        RemoteError: A store is unreachable, or requests still failed after all retries.
        LoadTimeoutError: A store did not respond in time.
        IoError: The operating system failed a read.
        TypeError: The source is neither a str, an `os.PathLike` of str, nor a list of them; or
            `store` is not a mapping, or a key or value of it has the wrong type.

    Examples:
        >>> store = {"endpoint": "http://127.0.0.1:9000", "anonymous": True, "headers": {"X-Team": "weights"}}
        >>> with tload.open("s3://bucket/model", store=store) as checkpoint:
        ...     print(checkpoint.total_bytes)
    """
    return open_for(source, _store.take(store, keywords), None, follow_symlinks=follow_symlinks)


def open_for(
    source: Source,
    store: Store | None,
    options: Options | None,
    *,
    follow_symlinks: bool | None = None,
    single_file_first: bool = False,
    opening: Opening | None = None,
) -> Checkpoint:
    """Open a checkpoint for loads with these options, within their timeout.

    In a directory, an index comes before `model.safetensors` unless `single_file_first`.
    """
    timeout = resolve(options, OptionKeywords(), variables=()).timeout
    if isinstance(source, Checkpoint):
        raw = open_raw(source, store, timeout, follow_symlinks=follow_symlinks)
        return Checkpoint(raw, source._origin)  # noqa: SLF001
    origin = _origin(source, store, follow_symlinks=follow_symlinks)
    origin = dataclasses.replace(origin, single_file_first=single_file_first)
    return Checkpoint(origin.open(timeout, opening), origin)


def open_raw(
    source: Source,
    store: Store | None,
    timeout: Duration | None = None,
    *,
    follow_symlinks: bool | None = None,
    opening: Opening | None = None,
) -> _tload.Checkpoint:
    """Open a source within `timeout`. An open `Checkpoint` is used as it is."""
    if isinstance(source, Checkpoint):
        follows(follow_symlinks, os.environ)
        _store.check(store)
        if store:
            hint = "pass store= to tload.open, or pass the location instead of the checkpoint"
            raise advise(InvalidRequestError, f"{source.location}: store= has no effect on an open checkpoint", hint)
        return usable(source, timeout)
    return _origin(source, store, follow_symlinks=follow_symlinks).open(timeout, opening)


def usable(checkpoint: Checkpoint, timeout: Duration | None = None) -> _tload.Checkpoint:
    """Return the checkpoint to load from. Opening it may take `timeout`.

    A fork has none of the threads that send requests to object stores, so there it is opened again.

    Raises:
        InvalidRequestError: It is closed.
        ChangedError: It has to be opened again, and its files have changed.
    """
    raw = checkpoint._raw  # noqa: SLF001
    if raw is None:
        hint = "stream inside the with block, or pass the location instead"
        raise advise(InvalidRequestError, f"{checkpoint.location}: the checkpoint is closed", hint)
    if raw.is_cut_off():
        origin, _ = checkpoint._origin.elsewhere(raw)  # noqa: SLF001
        opened = origin.open(timeout)
        opened.require_state(raw.state())
        checkpoint._raw = raw = opened  # noqa: SLF001
    return raw


def opened_with(checkpoint: Checkpoint) -> tuple[Location | list[Location], dict[str, str]]:
    """Return the source and the store options that the checkpoint was opened with, secrets included.

    Paths are absolute, and models of a Hub are of the commit that is open.
    """
    origin, _ = checkpoint._origin.elsewhere(usable(checkpoint))  # noqa: SLF001
    return origin.source, dict(origin.store)


def _reopen(origin: Origin, state: list[str]) -> Checkpoint:
    """Open a checkpoint that was pickled."""
    raw = origin.open()
    raw.require_state(state)
    return Checkpoint(raw, origin)


def _origin(source: Location | Sequence[Location], store: Store | None, *, follow_symlinks: bool | None) -> Origin:
    """Check the arguments of `tload.open`."""
    follows_links = follows(follow_symlinks, os.environ)
    if isinstance(source, (str, os.PathLike)):
        check_location("source", source)
        return Origin(source, _store.read(store), follows_links)
    if isinstance(source, (bytes, Mapping)) or not isinstance(source, Sequence):
        message = f"source: wanted a str, an os.PathLike, or a list of them, found {type(source).__qualname__}"
        raise TypeError(message)
    locations = list(source)
    for index, location in enumerate(locations):
        check_location(f"source[{index}]", location)
    return Origin(locations, _store.read(store), follows_links)


def follows(follow_symlinks: object, environment: Mapping[str, str]) -> bool:
    """Return whether to follow symbolic links, from the caller or else the environment."""
    if follow_symlinks is None:
        text = environment.get(VARIABLE, "").strip()
        if text.lower() not in WORDS:
            message = f"environment variable {VARIABLE}: {text!r} is neither yes nor no"
            raise advise(InvalidRequestError, message, "set it to 1 or 0, or unset it")
        return WORDS[text.lower()]
    if not isinstance(follow_symlinks, bool):
        # Truthiness is not enough: the text "no" would be true.
        message = f"follow_symlinks: wanted a bool, found {type(follow_symlinks).__qualname__}"
        raise TypeError(message)
    return follow_symlinks


def show(source: Source) -> str:
    """Return the name of a source in messages: its location without secrets."""
    if isinstance(source, Checkpoint):
        return source.location
    if isinstance(source, (str, os.PathLike)):
        return _tload.show_location(source)
    shown = [_tload.show_location(location) for location in source]
    return shown[0] if len(shown) == 1 else f"{shown[0]} and {len(shown) - 1} more" if shown else "nothing"


def check_location(name: str, location: object) -> None:
    """Raise `TypeError` if an argument is not a path or URL."""
    if not isinstance(location, (str, os.PathLike)):
        message = f"{name}: wanted a str or os.PathLike, found {type(location).__qualname__}"
        raise TypeError(message)
    path = os.fspath(location)
    if not isinstance(path, str):
        message = f"{name}: wanted a str or an os.PathLike of one, found one of bytes"
        raise TypeError(message)
    scheme = path.partition(":/")[0].lower()
    if not isinstance(location, str) and scheme in SCHEMES and len(scheme) < len(path):
        # The message omits the path: a URL may carry credentials.
        kind = type(location).__qualname__
        message = f"{name}: a {kind} that begins with {scheme}:/ is not a URL: path classes remove one of the slashes"
        raise advise(InvalidRequestError, message, f'pass the URL as a str: "{scheme}://…"')
