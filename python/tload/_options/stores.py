"""Typed options of object stores, one class for each kind: mappings that `store=` takes as it takes dicts."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from tload import _tload
from tload._errors import InvalidRequestError, advise
from tload._options import store_options
from tload._options.docs import documents_fields
from tload._options.keywords import suggests_keywords

if TYPE_CHECKING:
    import os

    from tload.typing import CacheCheck, Duration, Size

C = TypeVar("C", bound="type[CommonOptions]")


def explains(cls: C) -> C:
    """Decorate a class whose `help` lists its own options first, and whose errors suggest names."""
    signature = inspect.signature(cls.__init__)
    _, *parameters = signature.parameters.values()
    ordered = sorted(parameters, key=lambda each: each.name not in cls.__annotations__)
    cls.__init__ = suggests_keywords(cls.__init__)  # type: ignore[method-assign]
    cls.__signature__ = signature.replace(parameters=ordered)
    return documents_fields(cls)


@explains
@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class CommonOptions(Mapping[str, Any]):
    """Options that all object stores have. `None` stands for the default.

    Two are equal if they are of one class and have the same values. They can be pickled, unless they
    contain a secret; a plain dict of them can always be.

    Raises:
        InvalidRequestError: A value is malformed.
        TypeError: A keyword is unknown, or a value is of the wrong type.
    """

    __signature__: ClassVar[inspect.Signature]

    ca_file: str | os.PathLike[str] | None = None
    """Path of a PEM file of certificates to trust in addition to the system's. Default: from
    AWS_CA_BUNDLE, the AWS profile, REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE."""
    tls_verify: bool | None = None
    """Verify the server's certificate; if false, anyone can impersonate the server. Default:
    true."""
    proxy: str | None = None
    """URL of a proxy for HTTP. Default: from https_proxy, http_proxy and all_proxy, also in
    capitals."""
    connect_timeout: Duration | None = None
    """Time that connecting may take. Default: 5."""
    read_timeout: Duration | None = None
    """Time that may pass without a byte arriving. Default: 30."""
    open_timeout: Duration | None = None
    """Time that opening may take, with lists, headers and retries. Default: none."""
    retries: int | None = None
    """Maximum number of retries of a failed request. Default: 8."""
    allow_unversioned: bool | None = None
    """Read objects that have neither ETag nor Last-Modified; a replaced one may go unnoticed.
    Default: false."""
    cache_dir: str | os.PathLike[str] | None = None
    """Directory of a read-through cache: a second load reads from there. Default: none: nothing is
    cached."""
    cache_limit: Size | None = None
    """Size of the cache, for example 500GiB: least recently used objects are evicted. Default:
    none."""
    cache_check: CacheCheck | None = None
    """always: each opening asks whether objects have changed; never: only what the cache lacks is
    requested; offline: nothing is requested. Default: always."""
    cache_wait: bool | None = None
    """Wait for the cache's disk instead of dropping bytes when it is slower than the store.
    Default: false."""
    cache_shared: bool | None = None
    """Use a cache (cache_dir, hf_cache) that other users own or may write to: they can change the
    weights. Default: false."""
    mirrors: str | list[str] | tuple[str, ...] | None = None
    """URLs with the same files as the location, as a list or separated by commas: ranges are spread
    over them and the location by speed. Default: none."""
    peers: str | list[str] | tuple[str, ...] | None = None
    """URL with the same files, http://NAME:PORT/…; each address of NAME serves its own parts of the
    files. Default: none."""
    mirror_token: str | None = None
    """Bearer token for mirrors and peers. Default: none."""
    environment: bool | None = None
    """Read the store's own environment variables and configuration files. Default: true."""
    headers: Mapping[str, str] | None = None
    """Headers to send with every request: a mapping of name to value. Default: none."""

    def __post_init__(self) -> None:
        _tload.check_store(self._pairs())

    def __getitem__(self, key: str) -> Any:
        value = getattr(self, key) if key in self.__signature__.parameters else None
        if value is None:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[str]:
        return (key for key in self.__signature__.parameters if getattr(self, key) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __eq__(self, other: object) -> bool:
        return dict(self) == dict(other) if isinstance(other, type(self)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as of a dict: values may be lists

    def __copy__(self) -> CommonOptions:
        return self

    def __deepcopy__(self, _memo: object) -> CommonOptions:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        secrets = _tload.store_secrets(self._pairs())
        if secrets:
            message = f"cannot pickle a tload.{type(self).__name__} with secrets: it has {', '.join(secrets)}"
            hint = (
                f"set them in the environment, where the other process finds them ({store_options.VARIABLE}, or the "
                "store's own variables or profile), or make it in that process"
            )
            raise advise(InvalidRequestError, message, hint)
        return _restore, (type(self), dict(self))

    def __repr__(self) -> str:
        secrets = _tload.store_secrets(self._pairs())
        shown = {key: "***" if key in secrets else value for key, value in self.items()}
        if self.headers is not None:
            # Their contents are unknown.
            shown["headers"] = dict.fromkeys(self.headers, "***")
        return f"tload.{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in shown.items())})"

    def _pairs(self) -> list[tuple[str, str]]:
        return store_options.read(self, "{}")


def _restore(cls: type[CommonOptions], options: dict[str, Any]) -> CommonOptions:
    return cls(**options)


@explains
@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class ServerOptions(CommonOptions):
    """Options of object stores whose URLs do not name a server."""

    endpoint: str | None = None
    """URL of the server, for example http://127.0.0.1:9000. Default: the cloud's own, or from the
    environment."""
    anonymous: bool | None = None
    """Send requests without credentials, as public buckets allow. Default: false."""


@explains
@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class TokenOptions(ServerOptions):
    """Options of object stores that take a bearer token."""

    token: str | None = None
    """Bearer token. Default: from the environment."""


@explains
@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class S3(ServerOptions):
    """Options of Amazon S3 and of servers that speak its protocol: `s3://bucket/key`.

    Examples:
        >>> store = tload.S3(endpoint="http://127.0.0.1:9000", anonymous=True)
        >>> state = tload.load("s3://bucket/model", store=store)
    """

    region: str | None = None
    """Region of the bucket. Default: from the environment or the profile, else us-east-1."""
    profile: str | None = None
    """Profile of the AWS configuration files to take credentials and region from. Default: none."""
    access_key_id: str | None = None
    """Access key; needs secret_access_key. Default: from the environment."""
    secret_access_key: str | None = None
    """Secret of the access key. Default: from the environment."""
    session_token: str | None = None
    """Token of temporary credentials. Default: from the environment."""
    addressing: Literal["path", "virtual"] | None = None
    """Place of the bucket's name: path (in the path) or virtual (in the host name). Default: path
    if an endpoint is given, else virtual."""
    request_payer: bool | None = None
    """Agree to pay for the requests. Default: false."""
    express: bool | None = None
    """The bucket is one of S3 Express One Zone. Default: true for names that end with --x-s3."""


@explains
@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class GCS(TokenOptions):
    """Options of Google Cloud Storage: `gs://bucket/key`.

    Examples:
        >>> store = tload.GCS(service_account="/etc/keys/reader.json")
        >>> state = tload.load("gs://bucket/model", store=store)
    """

    service_account: str | os.PathLike[str] | None = None
    """Path of the key file of a service account, or of an external account's file. Default: from
    the environment."""


@explains
@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Azure(TokenOptions):
    """Options of Azure Blob Storage: `az://container/key`, and `abfss://` URLs.

    Examples:
        >>> store = tload.Azure(account="weights", sas=sas)
        >>> state = tload.load("az://container/model", store=store)
    """

    account: str | None = None
    """Storage account. Default: from the URL or the environment."""
    account_key: str | None = None
    """Access key of the storage account. Default: from the environment."""
    sas: str | None = None
    """Shared access signature. Default: from the environment."""
    tenant_id: str | None = None
    """Tenant of the application. Default: from the environment."""
    client_id: str | None = None
    """Application, or the managed identity to use. Default: from the environment."""
    client_secret: str | None = None
    """Secret of the application. Default: from the environment."""


@explains
@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class HTTP(CommonOptions):
    """Options of web servers: `https://host/path` and `http://host/path`.

    Examples:
        >>> store = tload.HTTP(headers={"Authorization": f"Bearer {token}"})
        >>> state = tload.load("https://host/model", store=store)
    """


@explains
@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class HuggingFace(TokenOptions):
    """Options of the Hugging Face Hub, and of servers with the same API: `hf://org/name`.

    Examples:
        >>> state = tload.load("hf://org/name", store=tload.HuggingFace(hf_cache=True))
    """

    hf_cache: bool | None = None
    """Download models into the cache of huggingface_hub first, with the small files beside them.
    Default: false."""


@explains
@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class OCI(TokenOptions):
    """Options of OCI registries: `oci://registry/repository:tag`.

    Examples:
        >>> store = tload.OCI(token=token)
        >>> state = tload.load("oci://registry.example/models/llama:v1", store=store)
    """
