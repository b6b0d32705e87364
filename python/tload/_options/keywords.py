"""Keyword arguments that several functions take, each defined once, with what `help` and errors say of them."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar

from tload import _tload

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Mapping

    import numpy as np
    import torch

    from tload._load.sharding import Sharding
    from tload._options.load_options import Options
    from tload._ranks.group import Group
    from tload.typing import (
        Cache,
        CacheCheck,
        Duration,
        Engine,
        Index,
        Key,
        Names,
        OnPeerLoss,
        Order,
        Patterns,
        ProgressCallback,
        Share,
        Size,
        Store,
    )

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound="Callable[..., object]")


class OptionKeywords(TypedDict, total=False):
    """Keyword arguments with the names and types of the fields of `Options`."""

    engine: Engine | None
    cache: Cache | None
    writable: bool | None
    order: Order | None
    depth: int | None
    in_flight_bytes: Size | None
    extent_bytes: Size | None
    align: Size | None
    dtype: str | torch.dtype | np.dtype[Any] | type[np.generic] | None
    lanes: int | None
    memory_limit: Size | None
    device_memory_limit: Size | None
    region_bytes: Size | None
    verify: bool | str | os.PathLike[str] | None
    retries: int | None
    hedge: bool | None
    timeout: Duration | None
    share: Share | None
    join_timeout: Duration | None
    on_peer_loss: OnPeerLoss | None
    private: bool | None


class StoreKeywords(TypedDict, total=False):
    """Keys of `store` that functions with that argument also take as keywords: where else bytes are."""

    cache_dir: str | os.PathLike[str] | None
    cache_limit: Size | None
    cache_check: CacheCheck | None
    mirrors: str | list[str] | tuple[str, ...] | None
    peers: str | list[str] | tuple[str, ...] | None
    hf_cache: bool | None


class CallKeywords(TypedDict, total=False):
    """Keyword arguments of all loads that concern the one call."""

    names: Names | None
    glob: Names | None
    regex: Patterns | None
    slices: Mapping[str, Index] | Sharding | None
    group: Group | None
    store: Store | None
    follow_symlinks: bool | None
    key: Key | None
    progress: bool | ProgressCallback | None
    options: Options | None


class DeviceKeywords(TypedDict, total=False):
    """Keyword arguments that say where a load makes tensors."""

    device: str | int | torch.device
    device_map: Mapping[str, str | int | torch.device] | None


class IntoKeywords(CallKeywords, StoreKeywords, OptionKeywords, total=False):
    """Keyword arguments of `load_into`, except `strict` and `cast`."""


class LoadKeywords(DeviceKeywords, CallKeywords, StoreKeywords, OptionKeywords, total=False):
    """Keyword arguments of `stream` and `load`, except `framework`."""


def lists(kind: type, **defaults: object) -> Callable[[F], F]:
    """Return a decorator that replaces `**keywords` in a function's signature by those of a `TypedDict`.

    `help` and notebooks show the signature. Keywords without one of the `defaults` are `None`.
    """
    keywords = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=annotation.__forward_arg__
        )
        for name, annotation in kind.__annotations__.items()
    ]

    def replace(function: F) -> F:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        function.__signature__ = signature.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        return function

    return replace


def refuse_unknown(function: str, keywords: Mapping[str, object], known: frozenset[str]) -> None:
    """Raise `TypeError`, as Python does, for a keyword that `function` does not take."""
    for name in keywords:
        if name not in known:
            of_stores = "store" in known and any(name == key for key, *_ in _tload.STORE_KEYS)
            advice = "; options of stores are passed as store={...}" if of_stores else suggestion(name, known)
            message = f"{function}() got an unexpected keyword argument {name!r}{advice}"
            raise TypeError(message)


def suggests_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function whose `TypeError` for an unknown keyword is to suggest the nearest one."""
    known = frozenset(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        refuse_unknown(function.__qualname__, kwargs, known)
        return function(*args, **kwargs)

    return call


def suggestion(wanted: str, names: Collection[str]) -> str:
    """Return the end of a message that suggests the name in `names` that `wanted` stands for, if one is near."""
    near = _tload.nearest_name(wanted, sorted(names))
    return "" if near is None else f"; did you mean {near!r}?"
