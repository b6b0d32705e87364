"""Facts about engines' parameters, for the search of those without weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

EXPERTS = ("local_num_experts", "num_local_experts", "num_experts")
"""Attributes of modules that stack experts: their number."""

EXCUSES = {
    **dict.fromkeys(
        ("k_scale", "v_scale", "q_scale", "prob_scale", "k_zero_point", "v_zero_point", "q_zero_point"),
        "scales of the KV cache, which are optional",
    ),
    **dict.fromkeys(
        ("g_idx", "w13_g_idx", "w2_g_idx", "g_idx_sort_indices", "w13_g_idx_sort_indices", "w2_g_idx_sort_indices"),
        "orders of groups, which only checkpoints with act-order have",
    ),
    "input_scale_ub": "bounds that the configuration sets",
}
"""Parameters that may be without weights in all layers, by their last name."""


def describer(model: torch.nn.Module) -> Callable[[str, torch.Tensor], dict[str, Any]]:
    """Return a function that describes a parameter of the model by its name."""

    def describe(name: str, parameter: torch.Tensor) -> dict[str, Any]:
        path, _, last = name.rpartition(".")
        try:
            module = model.get_submodule(path)
        except AttributeError:
            return {"excuse": EXCUSES.get(last)}
        needed = getattr(parameter, "weight_loader_numel", None)
        first = parameter.shape[0] if parameter.dim() else 0
        stacks = first > 1 and any(getattr(module, attribute, None) == first for attribute in EXPERTS)
        return {
            "experts": first if stacks else 1,
            "needed": None if needed is None else int(needed) * parameter.itemsize,
            "excuse": EXCUSES.get(last),
        }

    return describe
