"""Reading of one tensor, or a slice of it, of an open checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tload._load import indices
from tload._load.load import load
from tload._options.keywords import OptionKeywords
from tload._options.load_options import resolve
from tload._sources.opened import open_raw
from tload._tensors import devices, frameworks, torch_tensors
from tload._tensors.imports import BackgroundImport

if TYPE_CHECKING:
    from tload._checkpoint.checkpoint import Checkpoint
    from tload._options.load_options import Options
    from tload.typing import Framework, Index


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
    framework = frameworks.named(framework)
    if devices.uses_gpu(device, None):
        slices = {name: index}
        loaded = load(checkpoint, framework=framework, names=name, slices=slices, device=device, options=options)
        return loaded[name]
    resolved = resolve(options, OptionKeywords())
    if framework == "torch":
        resolved = torch_tensors.with_writable(resolved)
    make_converter = frameworks.converters(framework, resolved)
    importing = None
    if frameworks.is_missing(framework, ()):
        importing = BackgroundImport(framework, lambda: make_converter((), tuple), resolved.timeout)
    raw = open_raw(checkpoint, None)
    try:
        tensor = raw.read(name, index, resolved)
    except (IndexError, TypeError, ValueError) as error:
        indices.raise_named(error, raw, [(name, index)])
        raise
    if importing is not None:
        importing.result()
    return make_converter([tensor.dtype], lambda: [checkpoint[name]])(tensor)
