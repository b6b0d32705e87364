"""Configuration of a model that is not on this machine, for transformers to read."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from tload import _store, _tload
from tload._checkpoint import SCHEMES, open_for, show
from tload._errors import FormatError, InvalidRequestError, PermissionDeniedError, UnsupportedError, advise
from tload._options import OptionKeywords, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tload._options import Options
    from tload._store import Store

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
    pairs = _store.resolve(store, os.environ)
    limits = resolve(options, OptionKeywords(), variables=("timeout",))

    def read(name: str) -> bytes | None:
        return _tload.read_beside(location, name, bytes_max=BYTES_MAX, options=limits, store=pairs)

    config = read(CONFIG)
    if config is None:
        # A bucket or prefix that does not exist has an error of its own.
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


def named_weights(config: Any, source: Any) -> str | None:
    """Return the location of the weights that a configuration names in its directory.

    transformers loads this file, or the files of this index, whatever else is in the directory.

    Args:
        config: A configuration, or its location.
        source: Location of the model.

    Raises:
        InvalidRequestError: The name leads out of the directory.
    """
    if isinstance(config, (str, os.PathLike)):
        path = Path(config, CONFIG)
        fields = json.loads(path.read_bytes()) if path.is_file() else {}
        name = fields.get("transformers_weights") if isinstance(fields, dict) else None
    else:
        name = getattr(config, "transformers_weights", None)
    if name is None or not isinstance(source, (str, os.PathLike)):
        return None
    base, mark, query = str(source).partition("?") if is_url(source) else (str(source), "", "")
    if base.endswith((".safetensors", ".json")) and not Path(base).is_dir():
        return None  # The caller has named the weights.
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts:
        message = f"{show(source)}: transformers_weights in {CONFIG} is {name!r}, which leads out of the directory"
        raise InvalidRequestError(message)
    return f"{base.rstrip('/')}/{name}{mark}{query}"


def _check(content: bytes, location: str, cls: Any, kwargs: Mapping[str, Any]) -> None:
    """Raise an error for a configuration that transformers could not read, or only by its own code."""
    from transformers import CONFIG_MAPPING, PreTrainedModel

    try:
        fields = json.loads(content)
    except ValueError as error:
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
