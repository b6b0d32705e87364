"""tload as a plugin of SGLang: `--load-format tload`, or `load_format=tload.sglang.TloadModelLoader`.

Installing tload is enough for the first; SGLang finds the plugin by itself (entry point group `sglang.srt.plugins`).
The second needs no plugin:

```py
config = sglang.srt.configs.load_config.LoadConfig(load_format=tload.sglang.TloadModelLoader)
```

The files to read are chosen as `--load-format auto` chooses them, and what is not safetensors is left to SGLang's own
loader, or refused if `verify` is strict. The keys of `--model-loader-extra-config` are those of the plugin for vLLM,
but for `enable_weights_track`,
which SGLang does not have: see `tload.vllm`. Each process reads every tensor, as with SGLang's own loader.

SGLang takes a URL as the model with its own formats only. Give it as `source`, with configuration and tokenizer from
the model. Quantisations that SGLang loads with loaders of their own (ModelOpt's and AutoRound's) are not for this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["register"]  # and TloadModelLoader, where SGLang is: see `__getattr__`

LOAD_FORMAT = "tload"
TARGET = "sglang.srt.configs.load_config.LoadConfig._verify_load_format"


def register() -> None:
    """Register tload with SGLang, which calls this in each of its processes.

    Raises:
        ImportError: There is no SGLang, or one that this does not fit.
    """
    from sglang.srt.arg_groups.choices import LOAD_FORMAT_CHOICES, add_load_format_choices
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if LOAD_FORMAT in LOAD_FORMAT_CHOICES:
        return
    add_load_format_choices([LOAD_FORMAT])
    # SGLang's formats are a closed list, but a class is taken for one.
    HookRegistry.register(TARGET, _name_to_class, HookType.AROUND)


def _name_to_class(verify: Callable[..., None], config: Any) -> None:
    if isinstance(config.load_format, str) and config.load_format.lower() == LOAD_FORMAT:
        from tload.sglang._loader import TloadModelLoader

        config.load_format = TloadModelLoader
    verify(config)


def __getattr__(name: str) -> Any:
    # Here and not above: SGLang asks for the plugin before it can import its loaders.
    if name == "TloadModelLoader":
        from tload.sglang._loader import TloadModelLoader

        return TloadModelLoader
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
