"""Facts that a load plan for a model of vLLM depends on, and reasons against one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import vllm
from vllm.config import get_current_vllm_config_or_none
from vllm.distributed import parallel_state

from tload._engines import form
from tload._engines.planned import About

if TYPE_CHECKING:
    import torch
    from vllm.config import ModelConfig

GROUPS = ("get_world_group", "get_tp_group", "get_pp_group", "get_dp_group", "get_ep_group")
"""Functions that return the groups of ranks, with the number of this one."""

FIELDS = ("dtype", "quantization", "model_impl", "runner_type", "convert_type", "use_mla")
"""Fields of the model's configuration that the layout of weights may depend on."""

VOLATILE = {"address", "addr", "host", "id", "ip", "port", "ports", "uuid"}
"""Words in the names of fields that differ from start to start."""


def about(model: torch.nn.Module, model_config: ModelConfig) -> About:
    """Return what the plan depends on besides the form of the model."""
    engine = f"vllm {vllm.__version__}"
    config = get_current_vllm_config_or_none()
    if config is None:
        return About(engine=engine, facts={}, against="vLLM has set no configuration")
    parallel = config.parallel_config
    facts = {
        "config": _of_model(model_config),
        "model": {name: str(getattr(model_config, name, None)) for name in FIELDS},
        "parallel": _plain(parallel),
        "ranks": [_rank(name) for name in GROUPS],
    }
    return About(engine=engine, facts=facts, against=_against(model, model_config, parallel))


def _against(model: torch.nn.Module, model_config: ModelConfig, parallel: Any) -> str | None:
    if getattr(model_config, "runner_type", None) == "draft":
        return "draft models take weights from their target model"
    if getattr(parallel, "enable_eplb", False) or getattr(parallel, "enable_elastic_ep", False):
        return "experts move between ranks"
    for module in model.modules():
        # As vLLM tells online quantization.
        if getattr(getattr(module, "quant_method", None), "uses_meta_device", False):
            return "weights are quantized while they load"
    return None


def _of_model(model_config: ModelConfig) -> dict[str, Any]:
    """Return the content of `config.json` as it is used."""
    found: dict[str, Any] = model_config.hf_config.to_dict()
    # Where it came from says nothing about it.
    return {name: value for name, value in found.items() if not name.startswith("_")}


def _plain(config: Any) -> dict[str, object]:
    """Return the plain fields of a configuration, except those that differ from start to start."""
    own = {name: value for name, value in vars(config).items() if not {*name.split("_")} & VOLATILE}
    return form.plain(own)


def _rank(name: str) -> tuple[int, int] | None:
    try:
        group = getattr(parallel_state, name)()
    except (AssertionError, AttributeError):  # there is no such group
        return None
    return int(group.rank_in_group), int(group.world_size)
