"""Keys of plans: everything that a plan may depend on, as a digest."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import torch

import tload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tload._sources.entries import TensorInfo

FORMAT = 2
"""Version of the format and of what a recording understands. A plan of another one is not used."""


def key(engine: str, *, headers: str, **facts: object) -> str:
    """Return the key of a plan, which changes with everything that the plan may depend on.

    Args:
        engine: Name and version of the engine.
        headers: Digest of the headers: see `headers_of`.
        **facts: Everything else, as values that JSON has: the hash of `config.json`, parallel and
            quantisation configuration, the rank. Values of other types enter by their `repr`, which
            must not change from process to process.
    """
    versions = {"engine": engine, "torch": torch.__version__, "tload": tload.__version__, "format": FORMAT}
    text = json.dumps({**versions, "headers": headers, "facts": facts}, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


def headers_of(infos: Mapping[str, TensorInfo]) -> str:
    """Return a digest of the names, dtypes and shapes of a checkpoint, whatever files they are in."""
    quoted = json.encoder.encode_basestring_ascii
    shapes: dict[tuple[int, ...], str] = {}
    lines = []
    for name in sorted(infos):
        info = infos[name]
        shape = shapes.get(info.shape)
        if shape is None:
            shape = shapes[info.shape] = str(list(info.shape))
        lines.append(f"{quoted(name)} {info.dtype} {shape}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()
