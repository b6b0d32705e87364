"""`tload.open`, and the same for loads: from a location or an open checkpoint."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tload._checkpoint.checkpoint import Checkpoint
from tload._options import store_options
from tload._options.keywords import OptionKeywords
from tload._options.load_options import resolve
from tload._sources.opened import open_raw
from tload._sources.origin import origin_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from tload._options.keywords import StoreKeywords
    from tload._options.load_options import Options
    from tload._sources.origin import Opening
    from tload.typing import Key, Location, Source, Store


@store_options.takes_keywords
def open(
    source: Location | Sequence[Location],
    *,
    store: Store | None = None,
    follow_symlinks: bool | None = None,
    key: Key | None = None,
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
        store: Options of object stores: a `tload.S3`, `tload.GCS`, `tload.Azure`, `tload.HTTP`,
            `tload.HuggingFace` or `tload.OCI`, which list the options, or a mapping of the same
            keys. It overrides, key by key, the variable `TLOAD_STORE` (`KEY=VALUE` pairs, one per
            line), which overrides the stores' own variables (`AWS_ACCESS_KEY_ID`,
            `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME`, …). One mapping may
            serve several stores: each ignores the keys of the others. Values are text, numbers,
            `True`, `False`, or paths; durations are seconds, text such as `"500ms"` or `"2m"`, or a
            `datetime.timedelta`. Names of the crate object_store that begin with `aws_`, `azure_`
            and `google_` are accepted in mappings too.
        follow_symlinks: Allow symbolic links that lead out of the checkpoint's directory. Always
            allowed are files that are listed explicitly; links that stay in the directory; links to
            it, or to a directory above it; links in the cache of a Hub, from a snapshot to the
            blobs of the same repository or to those that all share; and all links in the cache that
            the Hub's tools are set to. Default: `TLOAD_FOLLOW_SYMLINKS` (`1` or `0`), else
            `False`.
        key: Key of a sealed checkpoint: the text of identities of age, of a private key of SSH or
            of a keyset of Tink; a `pathlib.Path` of a file with it; or a function that returns it.
            For an encrypted `.tensors` file the key of Tensorizer, as bytes or 64 hexadecimal
            digits, or its passphrase. A checkpoint that is neither is an error then. Default:
            `TLOAD_KEY`, `TLOAD_KEY_FILE` or `TLOAD_KEY_COMMAND`, a command that prints it, else
            none.
        **keywords: The keys `cache_dir`, `cache_limit`, `cache_check`, `mirrors`, `peers` and
            `hf_cache` of `store`. All functions with `store` take them, but not those that call
            transformers, which has a `cache_dir` of its own.

    Returns:
        The checkpoint, a mapping of names to `TensorInfo`.

    Raises:
        NotFoundError: A file, bucket or object does not exist; or with `HF_HUB_OFFLINE`, the cache
            does not hold the whole model.
        PermissionDeniedError: A file may not be read, a symbolic link leads out of the directory,
            a store refuses the credentials, or the checkpoint is sealed and the key is missing or
            wrong.
        CorruptError: A sealed file is damaged, or another one than was sealed.
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
        >>> store = tload.S3(endpoint="http://127.0.0.1:9000", anonymous=True)
        >>> with tload.open("s3://bucket/model", store=store) as checkpoint:
        ...     print(checkpoint.total_bytes)
    """
    return open_for(source, store_options.take(store, keywords), None, follow_symlinks=follow_symlinks, key=key)


@store_options.takes_keywords
async def open_async(
    source: Location | Sequence[Location],
    *,
    store: Store | None = None,
    follow_symlinks: bool | None = None,
    key: Key | None = None,
    **keywords: Unpack[StoreKeywords],
) -> Checkpoint:
    """Open a checkpoint as `tload.open` does, without blocking the event loop.

    A thread reads the headers. A task that is cancelled ends at once; its thread goes on until the
    storage responds or the time for opening is over, and then closes what it opened.

    Args:
        source: As in `tload.open`.
        store: As in `tload.open`.
        follow_symlinks: As in `tload.open`.
        key: As in `tload.open`.
        **keywords: As in `tload.open`.

    Returns:
        The checkpoint, a mapping of names to `TensorInfo`. A plain `with` closes it.

    Raises:
        Error: Any failure: see `tload.open`.

    Examples:
        >>> with await tload.open_async("s3://bucket/model") as checkpoint:
        ...     async with tload.stream(checkpoint) as tensors:
        ...         names = [name async for name, _ in tensors]
    """
    from tload._load import in_thread  # imports asyncio, which `import tload` does not

    taken = store_options.take(store, keywords)
    return await in_thread.run(
        lambda: open_for(source, taken, None, follow_symlinks=follow_symlinks, key=key),
        lambda checkpoint: checkpoint.close(),
    )


def open_for(
    source: Source,
    store: Store | None,
    options: Options | None,
    *,
    follow_symlinks: bool | None = None,
    key: Key | None = None,
    single_file_first: bool = False,
    opening: Opening | None = None,
) -> Checkpoint:
    """Open a checkpoint for loads with these options, within their timeout.

    In a directory, an index comes before `model.safetensors` unless `single_file_first`.
    """
    timeout = resolve(options, OptionKeywords(), variables=()).timeout
    if isinstance(source, Checkpoint):
        raw = open_raw(source, store, timeout, follow_symlinks=follow_symlinks, key=key)
        return Checkpoint(raw, source._origin)  # noqa: SLF001
    origin = origin_of(source, store, follow_symlinks=follow_symlinks, key=key)
    origin = dataclasses.replace(origin, single_file_first=single_file_first)
    return Checkpoint(origin.open(timeout, opening), origin)
