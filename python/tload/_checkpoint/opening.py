"""`tload.open`, and the same for loads: from a location or an open checkpoint."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias, Union

from tload import _tload
from tload._checkpoint.locations import Location, follows
from tload._checkpoint.mapping import Checkpoint, usable
from tload._checkpoint.origin import origin_of
from tload._errors import InvalidRequestError, advise
from tload._options import store_options
from tload._options.load_options import OptionKeywords, resolve

if TYPE_CHECKING:
    from typing import Unpack

    from tload._checkpoint.origin import Opening
    from tload._options.load_options import Duration, Options
    from tload._options.store_options import Store, StoreKeywords

Source: TypeAlias = Union[Location, Sequence[Location], "Checkpoint"]
"""A file, a directory or an index, as a path or URL; a list of files; or an open checkpoint."""


@store_options.takes_keywords
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
    return open_for(source, store_options.take(store, keywords), None, follow_symlinks=follow_symlinks)


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
    origin = origin_of(source, store, follow_symlinks=follow_symlinks)
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
        store_options.check(store)
        if store:
            hint = "pass store= to tload.open, or pass the location instead of the checkpoint"
            raise advise(InvalidRequestError, f"{source.location}: store= has no effect on an open checkpoint", hint)
        return usable(source, timeout)
    return origin_of(source, store, follow_symlinks=follow_symlinks).open(timeout, opening)


def show(source: Source) -> str:
    """Return the name of a source in messages: its location without secrets."""
    if isinstance(source, Checkpoint):
        return source.location
    if isinstance(source, (str, os.PathLike)):
        return _tload.show_location(source)
    shown = [_tload.show_location(location) for location in source]
    return shown[0] if len(shown) == 1 else f"{shown[0]} and {len(shown) - 1} more" if shown else "nothing"
