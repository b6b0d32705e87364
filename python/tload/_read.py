"""Reading of one tensor, or a slice of it, of an open checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tload import _devices, _frameworks, _indices, _torch
from tload._checkpoint import open_raw
from tload._imports import BackgroundImport
from tload._load import load
from tload._options import OptionKeywords, resolve

if TYPE_CHECKING:
    from tload._checkpoint import Checkpoint, Index
    from tload._frameworks import Framework
    from tload._options import Options


def read(
    checkpoint: Checkpoint,
    name: str,
    index: Index,
    framework: Framework,
    device: Any,
    *,
    options: Options | None = None,
) -> Any:
    """Read one tensor, as `Checkpoint.read` does; `options` override the environment."""
    framework = _frameworks.named(framework)
    if _devices.uses_gpu(device, None):
        slices = {name: index}
        loaded = load(checkpoint, framework=framework, names=name, slices=slices, device=device, options=options)
        return loaded[name]
    resolved = resolve(options, OptionKeywords())
    if framework == "torch":
        resolved = _torch.with_writable(resolved)
    make_converter = _frameworks.converters(framework, resolved)
    importing = None
    if _frameworks.is_missing(framework, ()):
        importing = BackgroundImport(framework, lambda: make_converter((), tuple), resolved.timeout)
    raw = open_raw(checkpoint, None)
    try:
        tensor = raw.read(name, index, resolved)
    except (IndexError, TypeError, ValueError) as error:
        _indices.raise_named(error, raw, [(name, index)])
        raise
    if importing is not None:
        importing.result()
    return make_converter([tensor.dtype], lambda: [checkpoint[name]])(tensor)
