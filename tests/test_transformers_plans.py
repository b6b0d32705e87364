"""Load plans of transformers' own loader: the same models as from it, bit for bit."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

import models
import tload
from conftest import require
from tload import plans

if TYPE_CHECKING:
    from pathlib import Path

MAKERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaConfig", {**models.SMALL, "num_hidden_layers": 2}),
    "Gemma 3": ("Gemma3TextConfig", {**models.SMALL, "num_hidden_layers": 2, "head_dim": 8}),
    "GPT-2": ("GPT2Config", {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "Qwen2-VL": (
        "Qwen2VLConfig",
        {
            "text_config": {
                **models.SMALL,
                "num_hidden_layers": 2,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
            },
            "vision_config": {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4},
        },
    ),
    "Qwen3-MoE": (
        "Qwen3MoeConfig",
        {**models.SMALL, "num_hidden_layers": 2, "moe_intermediate_size": 16, "num_experts": 4, "head_dim": 8},
    ),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_plans_of_its_loader_give_its_model(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch, transformers = require("torch"), require("transformers")
    # It would read tensors in threads of its own, where a recording sees nothing.
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")
    torch.manual_seed(0)
    name, fields = MAKERS[kind]
    config = getattr(transformers, name)(**fields)
    auto = transformers.AutoModelForImageTextToText if "vision_config" in fields else transformers.AutoModelForCausalLM
    made = auto.from_config(config)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    folder = models.save(made, tmp_path / "model")
    its = type(made)
    wanted = its.from_pretrained(folder)

    class Loading:
        """Gives a model what its own loader makes of the tensors."""

        def __init__(self) -> None:
            self.model = copy.deepcopy(wanted)
            for tensor in models.all_tensors(self.model).values():
                tensor.zero_()
            self.calls = 0

        def __call__(self, weights: Any) -> None:
            self.calls += 1
            loaded, said = its.from_pretrained(
                None, config=wanted.config, state_dict=dict(weights), output_loading_info=True
            )
            with torch.no_grad():
                for name, parameter in self.model.named_parameters():
                    # A second call, with the joined tensors alone, makes up those that they lack.
                    if name not in said["missing_keys"]:
                        parameter.copy_(loaded.get_parameter(name))

    with tload.open(folder) as checkpoint:
        first = Loading()
        plan = plans.record(first.model, checkpoint, first)
        assert digest(first.model) == digest(wanted)
        # It joins experts, which are computed.
        assert bool(plan.normal) == (kind == "Qwen3-MoE")
        module = Loading()
        plans.run(plan, module.model, checkpoint, module)
        assert digest(module.model) == digest(wanted)
        assert module.calls == int(bool(plan.normal))


def digest(model: Any) -> dict[str, bytes]:
    return {name: tensor.detach().numpy().tobytes() for name, tensor in model.named_parameters()}
