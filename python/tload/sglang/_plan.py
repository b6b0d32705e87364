"""Facts that a load plan for a model of SGLang depends on, and reasons against one."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import sglang
import torch
from sglang.srt import runtime_context

from tload._engines.planned import About

if TYPE_CHECKING:
    from sglang.srt.configs.load_config import LoadConfig

FIELDS = ("dtype", "quantization", "attention_arch", "is_draft_model")
"""Fields of the model's configuration that the layout of weights may depend on."""

PARALLEL = tuple(f"{kind}_{what}" for kind in ("tp", "pp", "dp", "attn_tp", "attn_dp", "moe_ep", "moe_tp", "moe_dp")
    for what in ("size", "rank"))  # fmt: skip
"""Attributes that say which part of the model a rank has."""

EXPERTS = ("experts", "moe", "Moe", "MoE")
"""Words in the names of modules with experts."""


def about(model: torch.nn.Module, model_config: Any, load_config: LoadConfig) -> About:
    """Return what the plan depends on besides the form of the model."""
    engine = f"sglang {sglang.__version__}"
    if model_config is None:
        return About(engine=engine, facts={}, against="these are not the model's own weights")
    own: dict[str, Any] = model_config.hf_config.to_dict()
    distributed = torch.distributed.is_initialized()
    facts = {
        # Where the configuration came from says nothing about it.
        "config": {name: value for name, value in own.items() if not name.startswith("_")},
        "model": {name: str(getattr(model_config, name, None)) for name in FIELDS},
        "parallel": _parallel(),
        "rank": (torch.distributed.get_rank(), torch.distributed.get_world_size()) if distributed else None,
    }
    return About(engine=engine, facts=facts, against=_against(model, model_config, load_config))


def _against(model: torch.nn.Module, model_config: Any, load_config: LoadConfig) -> str | None:
    if getattr(model_config, "is_draft_model", False) or getattr(load_config, "draft_model_idx", None) is not None:
        return "draft models take weights from their target model"
    if any(type(module).__name__.endswith(EXPERTS) for module in model.modules()) and _moves_experts():
        return "experts move between ranks"
    quantization = getattr(model, "quant_config", None)
    if quantization is not None and _online(quantization):
        return "weights are quantized while they load"
    return None


def _online(quantization: Any) -> bool:
    """Return whether the checkpoint has other weights than the quantized model."""
    # Names differ from quantization to quantization.
    found = [value for name, value in vars(quantization).items() if "serialized" in name and isinstance(value, bool)]
    return not all(found) or bool(getattr(quantization, "is_nvfp4_online", False))


def _parallel() -> dict[str, str]:
    """Return the sizes and ranks of this process, as far as they are set."""
    context: Any = runtime_context.get_parallel()
    found: dict[str, str] = {}
    for name in PARALLEL:
        # Names differ from version to version. Those that are not set raise errors of many types.
        with contextlib.suppress(Exception):
            found[name] = str(getattr(context, name))
    return found


def _moves_experts() -> bool:
    """Return whether experts move between ranks, or are in other places than those of their numbers."""
    try:
        moe = runtime_context.get_exec().moe
        return bool(moe.enable_eplb) or getattr(moe, "init_expert_location", "trivial") != "trivial"
    except Exception:  # noqa: BLE001  # as above: only a version that says no is believed
        return True
