"""Small modules whose loaders do what engines' do, each with the tensors of its checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Weights = Iterable[tuple[str, torch.Tensor]]

BF16 = torch.bfloat16


class Model(nn.Module):
    """A module with parameters by name, and a loader that maps one tensor at a time."""

    def __init__(self, parameters: dict[str, torch.Tensor], one: Callable[[Any, str, torch.Tensor], str]) -> None:
        super().__init__()
        for name, tensor in parameters.items():
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=tensor.is_floating_point()))
        self._one = one

    def load_weights(self, weights: Weights) -> set[str]:
        return {self._one(self, name, tensor) for name, tensor in weights}


def rand(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def empty(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


Case: TypeAlias = "tuple[Callable[[], Any], dict[str, torch.Tensor], set[str]]"
"""Maker of a module, the tensors of its checkpoint, and those that need the normal way."""


def stacked() -> Case:
    """Llama: queries, keys and values in one parameter, and so the two halves of the MLP."""
    rows = {"q": (0, 8), "k": (8, 4), "v": (12, 4)}

    def one(self: Any, name: str, tensor: torch.Tensor) -> str:
        if name in rows:
            start, count = rows[name]
            self.qkv.data.narrow(0, start, count).copy_(tensor)
            return "qkv"
        if name in ("gate", "up"):
            shard = 0 if name == "gate" else 1
            self.gate_up.data.narrow(0, shard * 6, 6).copy_(tensor)
            return "gate_up"
        parameter = self.get_parameter(name)
        assert parameter.shape == tensor.shape
        parameter.data.copy_(tensor)
        return name

    checkpoint = {name: rand(count, 8) for name, (_, count) in rows.items()}
    checkpoint |= {"gate": rand(6, 8), "up": rand(6, 8), "norm": rand(8), "one": rand(1)}
    parameters = {"qkv": empty(16, 8), "gate_up": empty(12, 8), "norm": empty(8), "one": empty(1)}
    return lambda: Model({name: tensor.clone() for name, tensor in parameters.items()}, one), checkpoint, set()


def experts() -> Case:
    """Mixtral and Qwen3-MoE: matrices of experts, by their number, into two parameters."""

    def one(self: Any, name: str, tensor: torch.Tensor) -> str:
        expert, kind = name.removeprefix("experts.").split(".")
        if kind == "down":
            self.w2.data[int(expert)].copy_(tensor)
            return "w2"
        data = self.w13.data[int(expert)]
        data.narrow(0, 0 if kind == "gate" else 6, 6).copy_(tensor)
        return "w13"

    checkpoint: dict[str, torch.Tensor] = {}
    for expert in range(5):
        checkpoint |= {f"experts.{expert}.gate": rand(6, 8), f"experts.{expert}.up": rand(6, 8)}
        checkpoint |= {f"experts.{expert}.down": rand(8, 6)}
    return lambda: Model({"w13": empty(5, 12, 8), "w2": empty(5, 8, 6)}, one), checkpoint, set()


def fused_experts() -> Case:
    """GPT-OSS: experts in one tensor, transposed, made contiguous, and taken apart."""

    def one(self: Any, name: str, tensor: torch.Tensor) -> str:
        if name == "gate_up":
            self.w13.data.copy_(tensor.permute(0, 2, 1).contiguous())
            return "w13"
        for expert, matrix in enumerate(tensor.unbind(0)):
            self.w2.data[expert].copy_(matrix.t())
        return "w2"

    checkpoint = {"gate_up": rand(3, 8, 12), "down": rand(3, 6, 8)}
    return lambda: Model({"w13": empty(3, 12, 8), "w2": empty(3, 8, 6)}, one), checkpoint, set()


def conv1d() -> Case:
    """GPT-2: matrices are the other way round in the file."""

    def one(self: Any, name: str, tensor: torch.Tensor) -> str:
        self.get_parameter(name).data.copy_(tensor.t() if tensor.dim() == 2 else tensor)
        return name

    return lambda: Model({"w": empty(12, 8), "b": empty(12)}, one), {"w": rand(8, 12), "b": rand(12)}, set()


def bloom() -> Case:
    """BLOOM: queries, keys and values of each head are next to each other, and are put in order."""

    def one(self: Any, name: str, tensor: torch.Tensor) -> str:
        if name == "qkv":
            tensor = tensor.view(4, 3, 2, 8).permute(1, 0, 2, 3).reshape(24, 8)
        parameter = self.get_parameter(name)
        parameter.data.narrow(0, 0, len(parameter)).copy_(tensor)
        return name

    return lambda: Model({"qkv": empty(24, 8), "norm": empty(8)}, one), {"qkv": rand(24, 8), "norm": rand(8)}, {"qkv"}


def casts() -> Case:
    """DeepSeek: a bias in twice the precision; GPTQ: scales in another half precision."""

    def one(self: Any, name: str, tensor: torch.Tensor) -> str:
        parameter = self.get_parameter(name)
        if name == "scales":
            tensor = tensor.to(parameter.dtype)[1:3]
        parameter.data.copy_(tensor)
        return name

    parameters = {"bias": empty(9, dtype=torch.float32), "scales": empty(2, 4), "w": empty(4, 4)}
    checkpoint = {"bias": rand(9), "scales": rand(4, 4, dtype=torch.float16), "w": rand(4, 4)}
    return lambda: Model({name: tensor.clone() for name, tensor in parameters.items()}, one), checkpoint, set()


class Tied(nn.Module):
    """Output and input embeddings are one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8, dtype=BF16)
        self.head = nn.Linear(8, 10, bias=False, dtype=BF16)
        self.head.weight = self.embed.weight
        self.register_buffer("rope", torch.arange(4.0))
        self.register_buffer("mean", torch.zeros(4))

    def load_weights(self, weights: Weights) -> set[str]:
        known = dict(self.named_parameters()) | dict(self.named_buffers())
        with torch.no_grad():
            for name, tensor in weights:
                if name in known:
                    known[name].copy_(tensor)
        return {"embed.weight", "mean"}


def tied() -> Case:
    checkpoint = {"embed.weight": rand(10, 8), "mean": rand(4, dtype=torch.float32), "rotary.inv_freq": rand(4)}
    return Tied, checkpoint, set()


def phi3() -> Case:
    """Phi-3 at two ranks: boxes of tensors that are fused in the file."""

    def one(self: Any, _: str, tensor: torch.Tensor) -> str:
        rank = 1
        start = 0
        for rows, place in ((16, 0), (8, 8), (8, 12)):
            part = tensor.narrow(0, start, rows).narrow(0, rank * rows // 2, rows // 2)
            self.qkv.data.narrow(0, place, rows // 2).copy_(part)
            start += rows
        return "qkv"

    return lambda: Model({"qkv": empty(16, 8)}, one), {"qkv_proj": rand(32, 8)}, set()


def ranks() -> Case:
    """Tensor parallelism: the second half of rows, and of columns, of a matrix."""

    def one(self: Any, name: str, tensor: torch.Tensor) -> str:
        parameter = self.get_parameter(name)
        dim = 0 if name == "column" else 1
        half = parameter.shape[dim]
        parameter.data.copy_(tensor.narrow(dim, half, half))
        return name

    checkpoint = {"column": rand(12, 8), "row": rand(8, 12)}
    return lambda: Model({"column": empty(6, 8), "row": empty(8, 6)}, one), checkpoint, set()


def packed() -> Case:
    """GPTQ and AWQ: integers that are merged column by column, and group indices that no file has."""

    def one(self: Any, name: str, tensor: torch.Tensor) -> str:
        columns = {"q": (0, 8), "k": (8, 4), "v": (12, 4)}
        start, count = columns[name]
        self.qweight.data.narrow(1, start, count).copy_(tensor)
        return "qweight"

    checkpoint = {
        name: torch.randint(-(2**31), 2**31 - 1, (4, n), dtype=torch.int32)
        for name, n in (("q", 8), ("k", 4), ("v", 4))
    }
    parameters = {"qweight": empty(4, 16, dtype=torch.int32), "g_idx": torch.arange(7, dtype=torch.int32)}
    return lambda: Model({name: tensor.clone() for name, tensor in parameters.items()}, one), checkpoint, set()


def mamba() -> Case:
    """Mamba: a parameter that is computed."""

    def one(self: Any, name: str, tensor: torch.Tensor) -> str:
        if name == "A_log":
            self.A.data.copy_(-torch.exp(tensor.float()))
            return "A"
        self.get_parameter(name).data.copy_(tensor.view(4, 1, 3).squeeze(1) if name == "conv" else tensor)
        return name

    parameters = {"A": empty(4, 4, dtype=torch.float32), "conv": empty(4, 3), "D": empty(4)}
    checkpoint = {"A_log": rand(4, 4), "conv": rand(4, 3), "D": rand(4)}
    return lambda: Model({name: tensor.clone() for name, tensor in parameters.items()}, one), checkpoint, {"A_log"}


def scalars() -> Case:
    """Scales of 8-bit floats: filled with a number, and set by index."""

    def one(self: Any, name: str, tensor: torch.Tensor) -> str:
        if name.startswith("scale."):
            self.scales.data[int(name[-1])] = tensor
            return "scales"
        if name == "input_scale":
            self.input_scale.data.fill_(tensor.item())
            return name
        self.get_parameter(name).data.copy_(tensor.view(8, 8))
        return name

    parameters = {
        "scales": empty(3, dtype=torch.float32),
        "input_scale": empty(1, dtype=torch.float32),
        "w": empty(8, 8, dtype=torch.float8_e4m3fn),
        "k_scale": torch.tensor(-1.0),
    }
    checkpoint = {f"scale.{index}": torch.randn(()) for index in range(3)}
    checkpoint |= {"input_scale": torch.randn(1), "w": torch.randn(64).to(torch.float8_e4m3fn)}
    return (
        lambda: Model({name: tensor.clone() for name, tensor in parameters.items()}, one),
        checkpoint,
        {"input_scale"},
    )


def padded() -> Case:
    """Embeddings: rows that the vocabulary does not have are zero."""

    def one(self: Any, name: str, tensor: torch.Tensor) -> str:
        self.embed.data[: len(tensor)].copy_(tensor)
        self.embed.data[len(tensor) :].fill_(0)
        return name

    return lambda: Model({"embed": torch.ones(12, 8, dtype=BF16)}, one), {"embed": rand(10, 8)}, set()


def bytes_() -> Case:
    """Bytes and truth values, in which any pattern occurs; rows in another order."""

    def one(self: Any, name: str, tensor: torch.Tensor) -> str:
        parameter = self.get_parameter(name)
        if name == "odd":
            parameter.data.view(torch.uint8).copy_(tensor.view(torch.uint8))
        else:
            for index, row in enumerate(tensor):
                parameter.data[len(tensor) - 1 - index].copy_(row)
        return name

    parameters = {
        "codes": empty(64, 64, dtype=torch.uint8),
        "mask": empty(4, 4, dtype=torch.bool),
        "odd": empty(4, 4, dtype=torch.float8_e5m2),
    }
    checkpoint = {
        "codes": torch.arange(4096).reshape(64, 64).to(torch.uint8),
        "mask": torch.arange(16).reshape(4, 4) % 3 == 0,
        "odd": rand(4, 2),
    }
    return lambda: Model({name: tensor.clone() for name, tensor in parameters.items()}, one), checkpoint, set()


def transposed() -> Case:
    """A parameter that is a matrix the other way round; a tensor that is needed in two places."""

    def one(self: Any, _: str, tensor: torch.Tensor) -> str:
        self.w.data.copy_(tensor)
        self.copy.data.copy_(tensor[1])
        return "w"

    return lambda: Model({"w": empty(12, 8).t(), "copy": empty(12)}, one), {"w": rand(8, 12)}, set()


def zeroed() -> Case:
    """GPT-OSS on the second rank: a bias that only the first one adds."""

    def one(self: Any, name: str, tensor: torch.Tensor) -> str:
        if name == "bias":
            self.first.data.copy_(tensor[0])
            tensor[1].zero_()
            self.bias.data.copy_(tensor)
        else:
            self.w.data.copy_(tensor)
        return name

    parameters = {"bias": torch.ones(2, 4).to(BF16), "first": empty(4), "w": empty(4, 4)}
    checkpoint = {"bias": rand(2, 4), "w": rand(4, 4)}
    return lambda: Model({name: tensor.clone() for name, tensor in parameters.items()}, one), checkpoint, {"bias"}


def collected() -> Case:
    """A loader that takes all tensors first, joins two of them, and reads a buffer."""

    class Collected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(empty(6, 4))
            self.b = nn.Parameter(empty(4))
            self.map: torch.Tensor
            self.register_buffer("map", torch.tensor([1, 0]))

        def load_weights(self, weights: Weights) -> set[str]:
            known = dict(weights)
            if "q" in known:
                self.w.data.copy_(torch.cat([known["q"], known["k"]]))
            if "b" in known:
                halves = known["b"].chunk(2)
                for index, half in enumerate(halves):
                    self.b.data.view(2, 2)[int(self.map[index])].copy_(half)
            return set()

    return Collected, {"q": rand(2, 4), "k": rand(4, 4), "b": rand(4)}, {"q", "k"}


def views() -> Case:
    """Tensors of one form, of which each gives another part by the same methods."""

    def one(self: Any, name: str, tensor: torch.Tensor) -> str:
        number, way = int(name), int(name) % 6
        parts = (
            lambda: tensor.narrow(0, number // 6, 2),
            lambda: tensor.narrow(0, number // 6, 2).t(),
            lambda: tensor.unbind(1)[number // 6].view(2, 6),
            lambda: tensor.transpose(0, 1).chunk(3)[number // 6],
            lambda: tensor.select(1, number // 6).unsqueeze(0).squeeze().view(2, 6),
            lambda: tensor.view(2, 6, 6).permute(2, 0, 1)[number // 6],
        )
        target = self.get_parameter(f"w{number}").data
        target.copy_(parts[way]())
        return f"w{number}"

    sizes = ((2, 6), (6, 2), (2, 6), (2, 12), (2, 6), (2, 6))
    parameters = {f"w{number}": empty(*sizes[number % 6]) for number in range(18)}
    checkpoint = {str(number): rand(12, 6) for number in range(18)}
    return lambda: Model({name: tensor.clone() for name, tensor in parameters.items()}, one), checkpoint, set()


CASES = [
    stacked,
    experts,
    fused_experts,
    conv1d,
    bloom,
    casts,
    tied,
    phi3,
    ranks,
    packed,
    mamba,
    scalars,
    padded,
    bytes_,
    transposed,
    zeroed,
    collected,
    views,
]
