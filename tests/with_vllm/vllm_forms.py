"""Tiny checkpoints of random numbers, in the forms that vLLM loads in different ways."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors.torch import load_file, save_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHAPE: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
GROUP = 32
"""Elements that share a scale in 4-bit forms."""

# By name: class of the configuration in transformers, and its fields.
PLAIN: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaConfig", SHAPE),
    "tied Llama": ("LlamaConfig", SHAPE | {"tie_word_embeddings": True}),
    "Qwen2": ("Qwen2Config", SHAPE),
    "Gemma 3": ("Gemma3TextConfig", SHAPE | {"head_dim": 32}),
    "OPT": ("OPTConfig", SHAPE | {"ffn_dim": 256, "word_embed_proj_dim": 128}),
    "GPT-NeoX": ("GPTNeoXConfig", SHAPE),
    "Phi-3": ("Phi3Config", SHAPE | {"pad_token_id": 0}),
    "GPT-2": ("GPT2Config", {"vocab_size": 256, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "BLOOM": ("BloomConfig", {"vocab_size": 256, "hidden_size": 128, "n_layer": 2, "n_head": 4}),
    "Mixtral": ("MixtralConfig", SHAPE | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "Qwen3-MoE": ("Qwen3MoeConfig", SHAPE | MOE | {"head_dim": 32, "decoder_sparse_step": 1}),
    "GPT-OSS": (
        "GptOssConfig",
        SHAPE | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 32, "intermediate_size": 128},
    ),
    "Qwen3-Next": (
        "Qwen3NextConfig",
        SHAPE
        | MOE
        | {
            "head_dim": 32,
            "shared_expert_intermediate_size": 64,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    "DeepSeek-V3": (
        "DeepseekV3Config",
        SHAPE
        | {
            "num_key_value_heads": 4,
            "moe_intermediate_size": 64,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "noaux_tc",
            "first_k_dense_replace": 1,
            "kv_lora_rank": 32,
            "q_lora_rank": 32,
            "qk_rope_head_dim": 16,
            "qk_nope_head_dim": 16,
            "v_head_dim": 32,
            "num_nextn_predict_layers": 0,
        },
    ),
    "Qwen2-VL": (
        "Qwen2VLConfig",
        {
            "text_config": SHAPE
            | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}},
            "vision_config": {"depth": 2, "embed_dim": 64, "hidden_size": 128, "num_heads": 2},
        },
    ),
    "Mamba": ("MambaConfig", {"vocab_size": 256, "hidden_size": 128, "num_hidden_layers": 2, "state_size": 16}),
}


def _linear(name: str, tensor: torch.Tensor) -> bool:
    return name.endswith("_proj.weight") and tensor.dim() == 2


def _integers(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32)


def _gptq(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    out, into = tensor.shape
    base = name.removesuffix("weight")
    return {
        base + "qweight": _integers(into // 8, out),
        base + "qzeros": _integers(into // GROUP, out // 8),
        base + "scales": torch.rand(into // GROUP, out).half(),
        base + "g_idx": torch.arange(into, dtype=torch.int32) // GROUP,
    }


def _awq(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    out, into = tensor.shape
    base = name.removesuffix("weight")
    return {
        base + "qweight": _integers(into, out // 8),
        base + "qzeros": _integers(into // GROUP, out // 8),
        base + "scales": torch.rand(into // GROUP, out).half(),
    }


def _fp8(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        name: tensor.to(torch.float8_e4m3fn),
        name + "_scale": torch.rand(1),
        name.removesuffix("weight") + "input_scale": torch.rand(1),
    }


def _int8(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        name: torch.randint(-127, 127, tensor.shape, dtype=torch.int8),
        name + "_scale": torch.rand(tensor.shape[0], 1).bfloat16(),
    }


_INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}

# By name: the tensors of a linear layer, and the configuration.
QUANTIZED: dict[str, tuple[Callable[[str, torch.Tensor], dict[str, torch.Tensor]], dict[str, Any]]] = {
    "GPTQ": (_gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}),
    "AWQ": (_awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}),
    "static fp8": (_fp8, {"quant_method": "fp8", "activation_scheme": "static"}),
    "int8 of compressed-tensors": (_int8, _INT8),
}
PREDICTS = "DeepSeek-V3 that predicts more tokens"
"""A form with one more layer, which a draft model has."""
FORMS = (*PLAIN, *QUANTIZED, PREDICTS)


def _predict(folder: Path) -> None:
    """Add a layer that predicts the token after the next, as the checkpoints of DeepSeek-V3 have it."""
    own = {name: it for path in folder.glob("*.safetensors") for name, it in load_file(path).items()}
    count, width = SHAPE["num_hidden_layers"], SHAPE["hidden_size"]
    last, added = f"model.layers.{count - 1}.", f"model.layers.{count}."
    tensors = {added + name.removeprefix(last): it + 1 for name, it in own.items() if name.startswith(last)}
    for name, shape in (("enorm", (width,)), ("hnorm", (width,)), ("eh_proj", (width, 2 * width))):
        tensors[f"{added}{name}.weight"] = torch.randn(shape).bfloat16()
    tensors[f"{added}shared_head.norm.weight"] = torch.randn(width).bfloat16()
    for name in ("embed_tokens", "shared_head.head"):
        tensors[f"{added}{name}.weight"] = torch.randn(SHAPE["vocab_size"], width).bfloat16()
    file = "model-predicts.safetensors"
    save_file(tensors, folder / file)
    index = folder / "model.safetensors.index.json"
    known = json.loads(index.read_text())
    known["weight_map"] |= dict.fromkeys(tensors, file)
    index.write_text(json.dumps(known))
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_nextn_predict_layers": 1}))


def write(form: str, folder: Path) -> Path:
    """Write a checkpoint of a form."""
    torch.manual_seed(len(form))
    kind, fields = PLAIN.get("DeepSeek-V3" if form == PREDICTS else form, PLAIN["Llama"])
    config = getattr(transformers, kind)(**fields)
    sees = "vision_config" in fields
    auto = transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM
    model = auto.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="200KB")
    if form == PREDICTS:
        _predict(folder)
    if form not in QUANTIZED:
        return folder
    make, quantization = QUANTIZED[form]
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            tensors |= make(name, tensor) if _linear(name, tensor) else {name: tensor}
        path.unlink()
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    save_file(tensors, folder / "model.safetensors")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": quantization}))
    return folder
