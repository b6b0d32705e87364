"""Small models of transformers with random weights, saved by it, to load without a network."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from conftest import require

if TYPE_CHECKING:
    from pathlib import Path

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}

LAYERS = 11
"""Number of layers: more than ten, so that numeric order differs from text order."""


def dense(**changes: Any) -> Any:
    """Make a Llama."""
    transformers = require("transformers")
    require("torch").manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": LAYERS, "dtype": "float32", **changes})
    )


def experts(**changes: Any) -> Any:
    """Make a Qwen3 with experts that have tensors of their own in files, but are merged in the
    model."""
    transformers = require("transformers")
    require("torch").manual_seed(1)
    of_experts = {"moe_intermediate_size": 16, "num_experts": 12, "num_experts_per_tok": 2, "head_dim": 8}
    return transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(**{**SMALL, **of_experts, "num_hidden_layers": 3, "dtype": "float32", **changes})
    )


def unet() -> Any:
    """Make a U-Net of diffusers."""
    diffusers = require("diffusers")
    require("torch").manual_seed(4)
    return diffusers.UNet2DModel(
        sample_size=8,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )


def save(model: Any, folder: Path, shard_size: str = "100KB") -> Path:
    """Save a model in shards of a size, as users get it."""
    model.save_pretrained(folder, max_shard_size=shard_size)
    return folder


def logits(model: Any) -> Any:
    """Return the logits of a model for a prompt."""
    torch = require("torch")
    with torch.no_grad():
        return model(torch.arange(12)[None]).logits


def assert_close(output: Any, other: Any) -> None:
    """Fail unless two outputs in single precision differ by no more than rounding.

    Equal weights need not give equal bits: kernels add in an order that depends on the processor,
    its threads and the alignment of the weights. Each output is the result of a few hundred
    roundings of 6e-8; a wrong weight or buffer shows in the first digits.
    """
    torch = require("torch")
    assert output.dtype == other.dtype == torch.float32
    torch.testing.assert_close(output, other, rtol=1e-4, atol=1e-5)


def assert_same(model: Any, other: Any) -> None:
    """Fail unless both have the same weights and buffers, bit for bit, and the same logits."""
    torch = require("torch")
    assert list(model.state_dict()) == list(other.state_dict())
    tensors, others = all_tensors(model), all_tensors(other)
    assert list(tensors) == list(others)
    for name, tensor in others.items():
        assert tensors[name].dtype == tensor.dtype, name
        assert torch.equal(tensors[name], tensor), name
    # Single precision throughout: half precision rounds too coarsely for a comparison.
    assert_close(logits(copy.deepcopy(model).float()), logits(copy.deepcopy(other).float()))


def all_tensors(model: Any) -> dict[str, Any]:
    """Return the state of a model and the buffers that are not part of it."""
    return {**model.state_dict(), **dict(model.named_buffers())}
