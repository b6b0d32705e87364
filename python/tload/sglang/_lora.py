"""SGLang's interface to adapters that are fetched when a request names them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from tload.vllm._lora import Adapters

TARGET = "sglang.srt.managers.tokenizer_manager.TokenizerManager._resolve_lora_path"
"""Method that SGLang calls for each request with adapters. It loads those that `lora_ref_cache`
knows and that are not loaded."""


def before_resolving(adapters: Adapters) -> Callable[..., Coroutine[Any, Any, None]]:
    """Return a hook around `TARGET` that first copies the adapters that are not loaded.

    Those that were loaded before are only copied again if they have changed.
    """

    async def resolve(original: Callable[..., Awaitable[None]], manager: Any, request: Any) -> None:
        from sglang.srt.lora.lora_registry import LoRARef

        names = {request.lora_path} if isinstance(request.lora_path, str) else set(request.lora_path)
        known, fetched = manager.lora_ref_cache, {}
        try:
            for name in await manager.lora_registry.get_unregistered_loras(names - {None}):
                if name in known and Path(known[name].lora_path).parent != adapters.directory / name:
                    continue  # it was loaded from elsewhere
                path = await adapters.fetch_soon(name)
                if path is not None:
                    fetched[name] = path
                    known[name] = LoRARef(lora_name=name, lora_path=str(path))
                else:
                    # Nothing keeps its copy from removal.
                    known.pop(name, None)
            await original(manager, request)
        except BaseException:
            # Known adapters are loaded on request: one that cannot be is not known.
            for name in fetched:
                known.pop(name, None)
            raise
        finally:
            # SGLang has loaded them, and fetches them again before it loads them again.
            for path in fetched.values():
                adapters.release(path)

    return resolve
