"""SGLang's interface to adapters that are fetched when a request names them."""

from __future__ import annotations

import asyncio
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
        known, fetched = manager.lora_ref_cache, []
        for name in await manager.lora_registry.get_unregistered_loras(names - {None}):
            if name in known and known[name].lora_path != str(adapters.directory / name):
                continue  # it was loaded from elsewhere
            path = await asyncio.to_thread(adapters.fetch, name)
            if path is not None:
                known[name] = LoRARef(lora_name=name, lora_path=str(path))
                fetched.append(name)
        try:
            await original(manager, request)
        except BaseException:
            # Known adapters are loaded on request: one that cannot be is not known.
            for name in fetched:
                known.pop(name, None)
            raise

    return resolve
