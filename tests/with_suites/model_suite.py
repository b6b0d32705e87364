"""`ModelTesterMixin` of transformers' source distribution, for small models of four architectures.

transformers' own tests of models are in no registry: configurations and inputs are ours, every test
is theirs. Tests of export and of generation are left out: the mixin takes them from files that the
distribution lacks.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
import unittest
from pathlib import Path
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3MoeModel,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
)

MISSING = {"exporters.test_export": "ExportTesterMixin", "generation.test_utils": "GenerationTesterMixin"}


def mixin() -> Any:
    """Import the mixin as a module of a package, with empty classes for what is missing."""
    (tests,) = Path(os.environ["TLOAD_SUITE_ARTIFACT"]).glob("transformers-*/tests")
    package = types.ModuleType("suite")
    package.__path__ = [str(tests)]
    sys.modules["suite"] = package
    for path, name in MISSING.items():
        module = types.ModuleType(f"suite.{path}")
        setattr(module, name, type(name, (), {}))
        sys.modules[f"suite.{path.partition('.')[0]}"] = types.ModuleType(f"suite.{path.partition('.')[0]}")
        sys.modules[f"suite.{path}"] = module
    return importlib.import_module("suite.test_modeling_common").ModelTesterMixin


Mixin = mixin()

SMALL = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


class Tester:
    """Makes the configuration and inputs that the mixin requires."""

    batch_size, seq_length = 3, 7
    hidden_size, num_hidden_layers, num_attention_heads, vocab_size = 32, 2, 4, 99
    is_training = True

    def __init__(self, parent: unittest.TestCase, make: Any, *, images: bool = False) -> None:
        self.parent = parent
        self.make = make
        self.images = images
        if images:
            self.image_size, self.patch_size, self.num_channels = 16, 4, 3
            self.encoder_seq_length = self.seq_length = 17

    def get_config(self) -> Any:
        return self.make()

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, torch.Tensor]]:
        if self.images:
            return self.get_config(), {"pixel_values": torch.rand(self.batch_size, 3, 16, 16)}
        ids = torch.randint(1, 99, (self.batch_size, self.seq_length))
        return self.get_config(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


class LlamaTest(Mixin, unittest.TestCase):  # type: ignore[misc]
    all_model_classes = (LlamaModel, LlamaForCausalLM)

    def setUp(self) -> None:
        self.model_tester = Tester(self, lambda: LlamaConfig(**SMALL, num_key_value_heads=2, pad_token_id=0))


class Qwen3MoeTest(Mixin, unittest.TestCase):  # type: ignore[misc]
    all_model_classes = (Qwen3MoeModel, Qwen3MoeForCausalLM)
    test_all_params_have_gradient = False

    def setUp(self) -> None:
        experts = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
        self.model_tester = Tester(
            self, lambda: Qwen3MoeConfig(**SMALL, **experts, num_key_value_heads=2, pad_token_id=0)
        )


class BertTest(Mixin, unittest.TestCase):  # type: ignore[misc]
    all_model_classes = (BertModel, BertForMaskedLM, BertForSequenceClassification)

    def setUp(self) -> None:
        self.model_tester = Tester(self, lambda: BertConfig(**SMALL))


class ViTTest(Mixin, unittest.TestCase):  # type: ignore[misc]
    all_model_classes = (ViTModel, ViTForImageClassification)
    test_resize_embeddings = False

    def setUp(self) -> None:
        small = {name: size for name, size in SMALL.items() if name not in {"vocab_size", "max_position_embeddings"}}
        self.model_tester = Tester(self, lambda: ViTConfig(**small, image_size=16, patch_size=4), images=True)


del Mixin
