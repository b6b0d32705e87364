"""Settings from an engine's `--model-loader-extra-config`. Imports no engine."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tload._errors import Error, InvalidRequestError, advise
from tload._options import store_options
from tload._options.keywords import OptionKeywords, StoreKeywords, suggestion
from tload._options.load_options import Options, is_strict, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tload._engines.watch import MissingWeights

STATE_KEYS = ("sharded_state", "pattern")
OWN_KEYS = ("source", "store", "device", "missing_weights", "plan", *STATE_KEYS)
OPTION_KEYS = tuple(option.name for option in dataclasses.fields(Options) if option.name != "writable")
"""Fields of `Options`, except `writable`: engines copy the tensors."""
STORE_KEYS = tuple(StoreKeywords.__annotations__)
"""Keys of `store` that need no mapping."""
RUNAI_KEYS = ("distributed", "concurrency", "memory_limit")
"""Keys of vLLM's and SGLang's loaders for `runai_streamer`."""
TUNED = ("concurrency", "enable_gds", "enable_multithread_load", "max_workers", "num_threads")
"""Keys of the engines' other loaders for what tload decides by itself."""
MISSING_WEIGHTS = ("error", "warn", "off")
"""Values of `missing_weights`."""
PLAN = ("auto", "on", "off")
"""Values of `plan`."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a load."""

    source: str | tuple[str, ...] | None = field(default=None, repr=False)
    """Location of the weights, or `None` for the model's own. Not shown in the repr: a URL may be
    signed."""
    store: Mapping[str, Any] | None = field(default=None, repr=False)
    """Options of object stores, as `store=` of `tload.open`. Not shown in the repr: they may hold
    secrets."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of the loaded tensors. The engine copies them into its parameters."""
    missing_weights: MissingWeights = "error"
    """Treatment of parameters that get no weights. `"off"`: nothing looks for them."""
    plan: Literal["auto", "on", "off"] = "auto"
    """Use of load plans: by default for models in host memory, where they were measured, and with a
    directory for the cache."""
    sharded_state: bool = False
    """`True` if the files are a sharded state, not a checkpoint."""
    pattern: str | None = None
    """Pattern of the names of its files, or `None` for the engine's own."""
    options: Options = field(default_factory=Options)
    """Options of the load, including the environment's."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Keys for the engine itself."""
    ignored: tuple[str, ...] = ()
    """Keys of Run:ai Model Streamer that are ignored."""

    def for_ranks(self, ranks: int, *, together: bool = False) -> Options:
        """Return the options with which each of `ranks` processes here loads the same files.

        The default order is that of the files, as with the engine's own loaders. The default cache
        for several processes that do not load `together` is the page cache, so that a file is read
        from its disk only once.
        """
        options = self.options
        if options.order is None:
            options = dataclasses.replace(options, order="file")
        if options.cache is None and ranks > 1 and not together:
            options = dataclasses.replace(options, cache="buffered")
        return options

    def shares(self) -> bool:
        """Return whether ranks that load together read once, and share the bytes."""
        return self.options.share != "none"

    def refuse_others(self, what: str, engine: str) -> None:
        """Check that unverified bytes are allowed, before the engine's own loader reads files.

        Raises:
            InvalidRequestError: `verify` requires verification.
        """
        if is_strict(self.options):
            message = f"{what} cannot be verified, as verify= requires: {engine}'s own loader reads them"
            raise advise(InvalidRequestError, message, "use safetensors files, or set verify to auto or off")


def is_url(location: object) -> bool:
    """Return whether a location is a URL, not a path or the name of a model."""
    return isinstance(location, str) and _URL.match(location) is not None


def read(extra: object, *, engine_keys: Iterable[str] = (), runai: bool = False) -> Settings:
    """Check the extra config of an engine.

    Args:
        extra: The engine's extra config: a mapping, or `None`.
        engine_keys: Keys of the engine itself. They are passed on unread.
        runai: Accept the keys of `runai_streamer` too.

    Raises:
        InvalidRequestError: A key is unknown, or a value has the wrong type or is invalid.
    """
    if extra is None:
        extra = {}
    if not isinstance(extra, Mapping):
        message = f"model_loader_extra_config: wanted a mapping (a JSON object), found {type(extra).__qualname__}"
        raise InvalidRequestError(message)
    known = [*OWN_KEYS, *OPTION_KEYS, *STORE_KEYS, *engine_keys]
    if runai:
        known = [key for key in known if key not in STATE_KEYS]
        known += [key for key in RUNAI_KEYS if key not in known]
    for key in extra:
        if key not in known:
            raise _unknown(key, known)
    given = dict(extra)
    ignored = _take_runai(given) if runai else ()
    if given.get("memory_limit") in (-1, 0) and not isinstance(given["memory_limit"], bool):
        message = f"model_loader_extra_config: memory_limit {given['memory_limit']} is a value of runai_streamer"
        raise advise(InvalidRequestError, message, "leave it out: tload has a limit of its own")
    try:
        source, store, device = _source(given), store_options.take(_mapping(given), given), _device(given)  # type: ignore[arg-type]
        store_options.check(store)
        options = {name: given[name] for name in OPTION_KEYS if given.get(name) is not None}
        return Settings(
            source=source,
            store=store,
            device=device,
            missing_weights=_missing_weights(given),
            plan=_plan(given),
            **_sharded(given),
            options=resolve(None, OptionKeywords(**options)),  # type: ignore[typeddict-item]  # Options checks them
            engine={key: given[key] for key in engine_keys if key in given},
            ignored=ignored,
        )
    except (Error, TypeError) as error:
        # All errors are of one kind, and name the option as the user knows it.
        message = f"model_loader_extra_config: {error}"
        raise InvalidRequestError(message, hint=getattr(error, "hint", None)) from error


def replaces_runai(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether `TLOAD_REPLACE_RUNAI` asks to replace Run:ai Model Streamer.

    Raises:
        InvalidRequestError: The variable is neither 1 nor 0.
    """
    text = environment.get("TLOAD_REPLACE_RUNAI", "").strip()
    if text not in {"", "0", "1"}:
        message = f"environment variable TLOAD_REPLACE_RUNAI={text!r}: wanted 1 or 0"
        raise InvalidRequestError(message)
    return text == "1"


def _unknown(key: object, known: list[str]) -> InvalidRequestError:
    if key in TUNED:
        message = f"model_loader_extra_config: {key!r} is a key of other loaders: tload tunes this itself"
        return advise(InvalidRequestError, message, f"leave {key!r} out")
    if key == "distributed":
        message = "model_loader_extra_config: 'distributed' is a key of runai_streamer"
        return advise(InvalidRequestError, message, 'ranks of a node share by default; "share": "none" prevents it')
    message = f"model_loader_extra_config: {key!r} is not a key of tload{suggestion(str(key), known)}"
    return advise(InvalidRequestError, message, f"the keys are {', '.join(known)}")


def _source(given: Mapping[str, Any]) -> str | tuple[str, ...] | None:
    source = given.get("source")
    if source is None:
        return None
    several = isinstance(source, (list, tuple))
    for location in source if several else [source]:
        if not isinstance(location, (str, os.PathLike)):
            message = f"source: wanted a path or URL (str) or a list of them, found {type(location).__qualname__}"
            raise TypeError(message)
        if not os.fspath(location):
            message = "source: a path or URL is empty"
            raise InvalidRequestError(message)
    if several and not source:
        message = "source: the list is empty"
        raise InvalidRequestError(message)
    return tuple(map(os.fspath, source)) if several else os.fspath(source)


def _mapping(given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    store = given.get("store")
    if store is None or isinstance(store, Mapping):
        return store
    message = f"store: wanted a mapping (a JSON object), found {type(store).__qualname__}"
    raise TypeError(message)


def _device(given: Mapping[str, Any]) -> Literal["cpu", "cuda"]:
    device = given.get("device", "cpu")
    if device not in ("cpu", "cuda"):  # any object, hashable or not
        # Not "cuda:1": all ranks have the same config, and each has its own GPU.
        message = f"device {device!r}: it can be cpu, cuda (this process's own GPU)"
        raise InvalidRequestError(message)
    return "cuda" if device == "cuda" else "cpu"


def _sharded(given: Mapping[str, Any]) -> dict[str, Any]:
    sharded, pattern = given.get("sharded_state"), given.get("pattern")
    if sharded is not None and not isinstance(sharded, bool):
        message = f"sharded_state: wanted a bool, found {type(sharded).__qualname__}"
        raise TypeError(message)
    if pattern is not None and not isinstance(pattern, str):
        message = f"pattern: wanted a str, found {type(pattern).__qualname__}"
        raise TypeError(message)
    if pattern is not None and sharded is False:
        message = "pattern names the files of a sharded state, and sharded_state is false"
        raise InvalidRequestError(message)
    return {"sharded_state": bool(sharded) or pattern is not None, "pattern": pattern}


def _missing_weights(given: Mapping[str, Any]) -> MissingWeights:
    found = given.get("missing_weights")
    if found is None:
        # This setting of vLLM turns its own check of missing weights off.
        return "warn" if given.get("enable_weights_track") is False else "error"
    if found not in MISSING_WEIGHTS:  # any object, hashable or not
        message = f"missing_weights {found!r}: it can be {', '.join(MISSING_WEIGHTS)}"
        raise InvalidRequestError(message)
    return found  # type: ignore[no-any-return]


def _plan(given: Mapping[str, Any]) -> Literal["auto", "on", "off"]:
    found = given.get("plan", "auto")
    if found not in PLAN:  # any object, hashable or not
        message = f"plan {found!r}: it can be {', '.join(PLAN)}"
        raise InvalidRequestError(message)
    return found  # type: ignore[no-any-return]


def _take_runai(given: dict[str, Any]) -> tuple[str, ...]:
    """Check the keys of `runai_streamer` as its loaders do, and remove those that are ignored.

    `distributed` becomes `share`.
    """
    distributed = given.pop("distributed", None)
    if distributed is not None and not isinstance(distributed, bool):
        message = f"model_loader_extra_config: distributed must be a bool, got {distributed!r}"
        raise InvalidRequestError(message)
    if distributed is not None:
        given.setdefault("share", "node" if distributed else "none")
    concurrency = given.pop("concurrency", None)
    if concurrency is not None and (
        isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1
    ):
        message = f"model_loader_extra_config: concurrency must be a positive integer, got {concurrency!r}"
        raise InvalidRequestError(message)
    words = {"concurrency": concurrency}
    # -1 is "as much as the files", 0 "as little as works": tload's default replaces both.
    if given.get("memory_limit") in (-1, 0) and not isinstance(given["memory_limit"], bool):
        words["memory_limit"] = given.pop("memory_limit")
    return tuple(key for key, value in words.items() if value is not None)
