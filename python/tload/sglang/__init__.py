"""Plugin for SGLang: `--load-format tload`, or `load_format=tload.sglang.TloadModelLoader`.

The first only requires that tload is installed: SGLang finds the plugin by itself (entry point
group `sglang.srt.plugins`). The second needs no plugin:

```py
config = sglang.srt.configs.load_config.LoadConfig(load_format=tload.sglang.TloadModelLoader)
```

Files are chosen as `--load-format auto` chooses them. Files other than safetensors are left to
SGLang's own loader, or refused if `verify` is strict. The keys of `--model-loader-extra-config` are
those of the plugin for vLLM, except `enable_weights_track`, which SGLang does not have: see
`tload.vllm`. With `presharded`, weights are read from SGLang's presharded layout, and
`verify_on_load` verifies them by its checksums. Of the processes that SGLang lets load together,
one of each node reads for all of them, unless `share` is `"none"`.

For `update_weights_from_disk`, weights are opened and compared with those of the model before SGLang
replaces these. What a quantized model lacks after an update is logged, and no error.

With `TLOAD_LORA_SOURCE` and `TLOAD_LORA_DIR`, LoRA adapters are loaded on request, as with vLLM.

SGLang accepts a URL as the model only with its own formats. Pass the URL as `source`, with
configuration and tokenizer from the model. Quantizations that SGLang loads with loaders of their
own (ModelOpt's and AutoRound's) are not supported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tload.sglang import _lora
from tload.vllm._lora import adapters

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["register"]  # and TloadModelLoader, if SGLang is installed: see `__getattr__`

LOAD_FORMAT = "tload"
TARGET = "sglang.srt.configs.load_config.LoadConfig._verify_load_format"


def register() -> None:
    """Register tload with SGLang, which calls this function in each of its processes.

    Raises:
        InvalidRequestError: `TLOAD_LORA_SOURCE` is set without `TLOAD_LORA_DIR`, or
            `TLOAD_LORA_LIMIT` is no size.
        ImportError: SGLang is not installed, or its version is not supported.
    """
    from sglang.srt.arg_groups.choices import LOAD_FORMAT_CHOICES, add_load_format_choices
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if LOAD_FORMAT in LOAD_FORMAT_CHOICES:
        return
    found = adapters()
    add_load_format_choices([LOAD_FORMAT])
    # SGLang's formats are a closed list, but it accepts a class as one.
    HookRegistry.register(TARGET, _name_to_class, HookType.AROUND)
    if found is not None:
        HookRegistry.register(_lora.TARGET, _lora.before_resolving(found), HookType.AROUND)


def _name_to_class(verify: Callable[..., None], config: Any) -> None:
    if isinstance(config.load_format, str) and config.load_format.lower() == LOAD_FORMAT:
        from tload.sglang._loader import TloadModelLoader

        config.load_format = TloadModelLoader
    verify(config)


def __getattr__(name: str) -> Any:
    # Not at the top: SGLang imports the plugin before its loaders can be imported.
    if name == "TloadModelLoader":
        from tload.sglang._loader import TloadModelLoader

        return TloadModelLoader
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
