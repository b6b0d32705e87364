"""`tload.transformers.from_pretrained` on two ranks that share a model: each reads its part of each
tensor."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import models
from conftest import require
from ranks import start_ranks

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    import tload


def test_two_ranks_load_model_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("torch", "transformers", "accelerate"):
        require(name)
    folder = models.save(models.experts(), tmp_path)
    start_ranks(2, two_ranks, folder)


def two_ranks(_: int, folder: Path) -> None:
    """Run on each rank: with experts shared by columns, and with everything shared by rows."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig

    import tload._load.read_one
    import tload.transformers

    indices: dict[str, Any] = {}
    read = tload._load.read_one.read

    def spy(checkpoint: tload.Checkpoint, name: str, *arguments: Any, **keywords: Any) -> Any:
        tensor = read(checkpoint, name, *arguments, **keywords)
        indices[name] = math.prod(tensor.shape) / math.prod(checkpoint[name].shape)
        return tensor

    vars(tload._load.read_one)["read"] = spy
    prompt = torch.arange(12)[None]
    for kind in ("tp_size", "fsdp_size"):
        indices.clear()
        stock = AutoModelForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(**{kind: 2}))
        model = tload.transformers.from_pretrained(
            AutoModelForCausalLM, folder, distributed_config=DistributedConfig(**{kind: 2})
        )
        state = {name: local(tensor) for name, tensor in model.state_dict().items()}
        for name, tensor in stock.state_dict().items():
            assert torch.equal(state[name], local(tensor)), name
        with torch.no_grad():
            models.assert_close(model(prompt).logits, stock(prompt).logits)
        assert indices["lm_head.weight"] == 0.5
        # Either half of each expert, or half of the experts.
        own = [name for name in indices if ".experts." in name]
        assert len(own) == 3 * 12 * 3 // (1 if kind == "tp_size" else 2)
        assert {indices[name] for name in own} == {0.5 if kind == "tp_size" else 1.0}


def local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
