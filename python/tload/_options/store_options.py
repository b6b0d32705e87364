"""Options of object stores: `store=` and the variable `TLOAD_STORE`, as text for the core."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tload import _tload
from tload._errors import InvalidRequestError, advise
from tload._exit import at_exit
from tload._options import variables
from tload._options.keywords import StoreKeywords, lists, suggests_keywords

if TYPE_CHECKING:
    from collections.abc import Callable

    from tload.typing import Duration, Location, Store

P = ParamSpec("P")
R = TypeVar("R")

LISTS = ("mirrors", "peers")
"""Options whose value may be a list."""


VARIABLE = "TLOAD_STORE"
"""Environment variable that the command reads too: `KEY=VALUE` pairs, one per line."""


CACHE_VARIABLES = {
    "cache_dir": "TLOAD_CACHE_DIR",
    "cache_limit": "TLOAD_CACHE_LIMIT",
    "cache_check": "TLOAD_CACHE_CHECK",
    "hf_cache": "TLOAD_HF_CACHE",
}
"""Environment variables of single options, which the command reads too."""

EXIT_SECONDS = 10.0
"""Time that the end of a process waits for the cache of object stores."""


def resolve(
    source: Location | list[Location], store: Store | None, environment: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Merge the options of a call for `source` with the environment; the call wins, key by key."""
    return merge(source, read(store), environment)


def merge(
    source: Location | list[Location],
    given: list[tuple[str, str]],
    environment: Mapping[str, str],
    timeout: Duration | None = None,
) -> list[tuple[str, str]]:
    """Merge options that `read` returned with the environment, and with the configuration file.

    The `timeout` of a load bounds opening too.
    """
    variables.warn_of_unknown(environment)
    known = {_normal(key) for key, _ in given}
    bounds = [] if timeout is None else [("open_timeout", str(_tload.seconds("timeout", timeout)))]
    configured = _tload.configured_store(source if isinstance(source, list) else [source])
    ambient = [*_read_variable(environment, known), *_read_cache_variables(environment, known)]
    # If a key is repeated, the last value counts.
    return [*bounds, *configured, *ambient, *given]


def takes_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function with `store=` and `**keywords` that takes the keys in `StoreKeywords`."""
    return suggests_keywords(lists(StoreKeywords)(function))


def take(store: Store | None, keywords: StoreKeywords) -> Store | None:
    """Remove the keys in `StoreKeywords` from keywords, and return the options of a store with them.

    Raises:
        InvalidRequestError: `store` has another value of a key.
        TypeError: A value is of the wrong type.
    """
    others: Any = keywords
    taken = {name: others.pop(name, None) for name in StoreKeywords.__annotations__}
    given = {key: value for key, value in taken.items() if value is not None}
    if not given or not (store is None or isinstance(store, Mapping)):
        return store
    known = dict(read(store))
    for key, text in read(given, "{}"):
        if any(_normal(other) == key and found != text for other, found in known.items()):
            message = f"{key}= and the key {key!r} of store= differ"
            raise advise(InvalidRequestError, message, "pass one of them")
    return {**(store or {}), **given}


def check(store: Store | None) -> None:
    """Raise the `TypeError` or `InvalidRequestError` that opening with these options raises."""
    _tload.check_store(read(store))


def read(store: object, name: str = "store[{!r}]") -> list[tuple[str, str]]:
    """Return the options of a call as text, with their types checked.

    `name` is the form in which errors name a key.
    """
    if store is None:
        return []
    if not isinstance(store, Mapping):
        message = f"store: wanted a mapping, found {type(store).__qualname__}"
        raise TypeError(message)
    pairs = []
    for key, value in store.items():
        if not isinstance(key, str):
            message = f"store: wanted keys of type str, found {type(key).__qualname__}"
            raise TypeError(message)
        if _normal(key) == "headers":
            pairs += _read_headers(name.format("headers"), value)
        else:
            pairs.append((_text("a key of store", key), _text(name.format(key), _value(name.format(key), key, value))))
    return pairs


def _read_headers(name: str, headers: object) -> list[tuple[str, str]]:
    if not isinstance(headers, Mapping):
        message = f"{name}: wanted a mapping of str to str, found {type(headers).__qualname__}"
        raise TypeError(message)
    pairs = []
    for header, value in headers.items():
        if not isinstance(header, str):
            message = f"{name}: wanted names of type str, found {type(header).__qualname__}"
            raise TypeError(message)
        if not isinstance(value, str):
            message = f"{name}[{header!r}]: wanted a str, found {type(value).__qualname__}"
            raise TypeError(message)
        pairs.append((_text(f"a name in {name}", f"header.{header}"), _text(f"{name}[{header!r}]", value)))
    return pairs


def _value(name: str, key: str, value: object) -> str:
    # An error shows only the type of a wrong value: the value may be a secret.
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, timedelta):
        return str(value.total_seconds())
    if key in LISTS and isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value):
        return ",".join(value)
    path = os.fspath(value) if isinstance(value, os.PathLike) else None
    if isinstance(path, str):
        return path
    wanted = "a str, int, float, bool, timedelta or os.PathLike of str"
    message = f"{name}: wanted {wanted}, found {type(value).__qualname__}"
    raise TypeError(message)


def _text(name: str, text: str) -> str:
    # The extension module would raise a `UnicodeEncodeError`, which carries the text.
    if any("\ud800" <= character <= "\udfff" for character in text):
        message = f"{name} is not Unicode"
        raise InvalidRequestError(message)
    return text


def _read_variable(environment: Mapping[str, str], known: set[str]) -> list[tuple[str, str]]:
    pairs = []
    for line in _text(f"environment variable {VARIABLE}", environment.get(VARIABLE, "")).split("\n"):
        pair = line.removesuffix("\r")
        if not pair.strip():
            continue
        try:
            key, value = _tload.parse_store_option(pair)
            if _normal(key) in known:
                continue
            _tload.check_store([(key, value)])
        except InvalidRequestError as error:
            message = f"environment variable {VARIABLE}: {error}"
            raise InvalidRequestError(message, hint=error.hint) from None
        pairs.append((key, value))
    return pairs


def _read_cache_variables(environment: Mapping[str, str], known: set[str]) -> list[tuple[str, str]]:
    pairs = []
    for key, variable in CACHE_VARIABLES.items():
        value = _text(f"environment variable {variable}", environment.get(variable, "")).strip()
        if not value or key in known:
            continue
        try:
            _tload.check_store([(key, value)])
        except InvalidRequestError as error:
            message = f"environment variable {variable}: {error}"
            raise InvalidRequestError(message, hint=error.hint) from None
        pairs.append((key, value))
    return pairs


def _normal(key: str) -> str:
    # Normalizes keys as the core does.
    return key.strip().lower()


def _finish_caching() -> None:
    _tload.finish_caching(EXIT_SECONDS)


# Loads do not wait for the cache; what it has not written by then would be fetched again. Events
# that wait are logged then, too.
at_exit(_finish_caching)
