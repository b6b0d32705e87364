"""Configuration of a model that is not on this machine, for transformers to read."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from tload import _tload
from tload._checkpoint.opening import open_for
from tload._errors import FormatError, InvalidRequestError, PermissionDeniedError, UnsupportedError, advise
from tload._options import store_options
from tload._options.keywords import OptionKeywords
from tload._options.load_options import resolve
from tload._sources.locations import SCHEMES, follows
from tload._sources.opened import show
from tload.transformers._classes import HUB

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tload._options.load_options import Options
    from tload.typing import Store

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"

BYTES_MAX = 16 << 20
"""Maximum length of a file, bytes. Those of large models have some KiB."""


def is_url(location: object) -> bool:
    """Return whether a location is a URL."""
    return isinstance(location, str) and location.partition("://")[0].lower() in SCHEMES and "://" in location


@contextmanager
def fetched(
    location: str, cls: Any, kwargs: Mapping[str, Any], *, store: Store | None, options: Options | None
) -> Iterator[Path]:
    """Yield a temporary directory with the configuration files beside a checkpoint.

    Files with code are not fetched, so that none is run.

    Raises:
        InvalidRequestError: There is no configuration.
        FormatError: It is too long, or not JSON.
        UnsupportedError: It needs code that comes with the checkpoint.
        Error: It cannot be read.
    """
    pairs = store_options.resolve(location, store, os.environ)
    limits = resolve(options, OptionKeywords(), variables=("timeout",))

    def read(name: str) -> bytes | None:
        return _tload.read_beside(location, name, bytes_max=BYTES_MAX, options=limits, store=pairs)

    config = read(CONFIG)
    if config is None:
        # A bucket or prefix that does not exist has its own error.
        open_for(location, store, options, follow_symlinks=None).close()
        message = f"{show(location)}: there is no {CONFIG}, so config= is needed"
        hint = "pass config=: a configuration, or a local directory or Hub id that has one"
        raise advise(InvalidRequestError, message, hint)
    _check(config, location, cls, kwargs)
    try:
        generation = read(GENERATION_CONFIG)
    except PermissionDeniedError:
        # Stores that forbid listing answer so for missing files. The configuration could be read.
        generation = None
    with tempfile.TemporaryDirectory(prefix="tload-") as folder:
        Path(folder, CONFIG).write_bytes(config)
        if generation is not None:
            Path(folder, GENERATION_CONFIG).write_bytes(generation)
        yield Path(folder)


def named_weights(config: Any, source: Any, kwargs: Mapping[str, Any], *, follow_symlinks: bool | None) -> str | None:
    """Return the location of the weights that a configuration names in its directory.

    transformers loads this file, or the files of this index, whatever else is in the directory.

    Args:
        config: A configuration, or its location.
        source: Location of the model.
        kwargs: Arguments of transformers, of which some control how it finds files on the Hub.
        follow_symlinks: Allow symbolic links that lead out of the directory: see `tload.open`.

    Raises:
        InvalidRequestError: The name leads out of the directory.
        PermissionDeniedError: A symbolic link at this place does.
        OSError: transformers cannot read the configuration.
    """
    if not isinstance(source, (str, os.PathLike)):
        return None
    if isinstance(config, (str, os.PathLike)):
        from transformers import PreTrainedConfig

        of_hub = {name: kwargs[name] for name in HUB if name in kwargs}
        name = PreTrainedConfig.get_config_dict(config, **of_hub)[0].get("transformers_weights")
    else:
        name = getattr(config, "transformers_weights", None)
    if name is None:
        return None
    scheme = str(source).partition("://")[0].lower() if is_url(source) else ""
    base, mark, query = str(source).partition("?") if scheme else (str(source), "", "")
    if scheme == "file":
        base, mark, query = unquote(urlsplit(str(source)).path), "", ""
    if base.endswith((".safetensors", ".json")) and not Path(base).is_dir():
        return None  # The caller has named the weights.
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts:
        message = f"{show(source)}: transformers_weights in {CONFIG} is {name!r}, which leads out of the directory"
        raise InvalidRequestError(message)
    if scheme in ("", "file") and not follows(follow_symlinks, os.environ):
        _check_links(Path(base), name)
    name = quote(name) if scheme in ("http", "https") else name
    return f"{base.rstrip('/')}/{name}{mark}{query}"


def _check_links(folder: Path, name: str) -> None:
    """Raise `PermissionDeniedError` if a file is outside of its directory, by the rule of `tload.open`.

    The core allows all links for a file that the caller names, but its author named this one.
    """
    # Unlike `Path.resolve`, it takes links that lead to themselves.
    real, file = (Path(os.path.realpath(path)) for path in (folder, folder / name))
    if any(file.is_relative_to(place) for place in (real, *_blobs(real))) or _is_in_cache(folder):
        return
    message = f"{show(folder / name)}: a symbolic link leads out of the checkpoint's directory {show(folder)!r}"
    message += f", to {show(file)!r}"
    hint = "if you trust the author of the directory, set follow_symlinks=True, or TLOAD_FOLLOW_SYMLINKS=1"
    raise advise(PermissionDeniedError, f"{message}; transformers_weights in {CONFIG} names it", hint)


def _blobs(folder: Path) -> list[Path]:
    """Return the directories that the links of a snapshot in a cache of a Hub lead to."""
    snapshots = next((place for place in folder.parents if place.name == "snapshots"), None)
    if snapshots is None or not snapshots.parent.name.startswith("models--"):
        return []
    shared = snapshots.parent.parent / "blobs"
    is_shared = (shared / ".huggingface-shared-blobs").is_file()
    return [snapshots.parent / "blobs", *([shared] if is_shared else [])]


def _is_in_cache(folder: Path) -> bool:
    """Return whether a directory is a snapshot in the cache that the Hub's tools are set to."""
    from huggingface_hub.constants import HF_HUB_CACHE

    cache = Path(HF_HUB_CACHE)
    for place, top in ((folder.absolute(), cache.absolute()), (folder.resolve(), cache.resolve())):
        parts = place.relative_to(top).parts if place.is_relative_to(top) else ()
        if parts[1:2] == ("snapshots",) and parts[0].startswith("models--") and ".." not in parts:
            return True
    return False


def _check(content: bytes, location: str, cls: Any, kwargs: Mapping[str, Any]) -> None:
    """Raise an error for a configuration that transformers could not read, or only by its own code."""
    from transformers import CONFIG_MAPPING, PreTrainedModel

    try:
        fields = json.loads(content)
    except (RecursionError, ValueError) as error:
        message = f"{show(location)}: {CONFIG} is not valid JSON: {error}"
        raise FormatError(message, location=show(location)) from error
    code = fields.get("auto_map") if isinstance(fields, dict) else None
    code = code.get("AutoConfig") if isinstance(code, dict) else None
    # "org/name--module.Class" is code of the Hub, which transformers fetches if it is trusted.
    if code is None or "--" in str(code) or (isinstance(cls, type) and issubclass(cls, PreTrainedModel)):
        return
    if kwargs.get("trust_remote_code") or fields.get("model_type") not in CONFIG_MAPPING:
        message = f"{show(location)}: {CONFIG} needs the code of {code}, which is not fetched from there"
        hint = "copy the directory (tload cp), read the code, and pass the copy as config="
        raise advise(UnsupportedError, message, hint)
