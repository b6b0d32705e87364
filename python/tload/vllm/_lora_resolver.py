"""vLLM's interface to adapters that are fetched when a request names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.lora.request import LoRARequest
from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry

if TYPE_CHECKING:
    from tload.vllm._lora import Adapters


class TloadLoRAResolver(LoRAResolver):  # type: ignore[misc]  # vLLM need not be installed
    """Resolver of adapters below `TLOAD_LORA_SOURCE`."""

    def __init__(self, adapters: Adapters) -> None:
        self._adapters = adapters

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
        """Return the request for an adapter, or `None` if there is none of this name."""
        del base_model_name  # vLLM compares the shapes
        # vLLM may read it again at any time: it stays until the end of this process.
        path = await self._adapters.fetch_soon(lora_name)
        # vLLM replaces the id.
        return path and LoRARequest(lora_name=lora_name, lora_int_id=1, lora_path=str(path))


def provide(adapters: Adapters) -> None:
    """Register the resolver."""
    LoRAResolverRegistry.register_resolver("tload", TloadLoRAResolver(adapters))
