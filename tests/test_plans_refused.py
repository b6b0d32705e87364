"""Loads that no plan can repeat: they are refused, and the engine's loader still loads the module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import tload
from test_load_into import save
from test_plans import digest, recorded
from tload import plans

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def one_of(copy: Callable[[Any, dict[str, torch.Tensor]], object], **parameters: torch.Tensor) -> Any:
    """Return a module whose loader gets all tensors at once."""

    class All(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, tensor in parameters.items():
                self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))
            self.register_buffer("count", torch.zeros(4))

        def load_weights(self, weights: Any) -> object:
            return copy(self, dict(weights))

    return All()


def twice(self: Any, w: dict[str, torch.Tensor]) -> None:
    self.a.data.copy_(w["x"])
    self.a.data[1:].copy_(w["y"][1:])


def no_owner(_: Any, w: dict[str, torch.Tensor]) -> None:
    torch.empty(4, 4).copy_(w["x"])


def reads_parameter(self: Any, w: dict[str, torch.Tensor]) -> None:
    self.a.data.copy_(w["x"])
    self.b.data.copy_(self.a.data * 2)


def copies_parameter(self: Any, w: dict[str, torch.Tensor]) -> None:
    self.a.data.copy_(w["x"])
    self.b.data.copy_(self.a.data)


def adds(self: Any, w: dict[str, torch.Tensor]) -> None:
    self.a.data.add_(w["x"])


def repeats(self: Any, w: dict[str, torch.Tensor]) -> None:
    self.a.data.copy_(w["x"][0])


def expands(self: Any, w: dict[str, torch.Tensor]) -> None:
    self.a.data.copy_(w["x"][:1].expand(4, 4))


def changes_source(self: Any, w: dict[str, torch.Tensor]) -> None:
    self.a.data.copy_(w["x"].clone().mul_(2))


def replaces(self: Any, w: dict[str, torch.Tensor]) -> None:
    self.a = nn.Parameter(torch.zeros(4, 4))
    self.b.data.copy_(w["x"])


def replaces_with_stand_in(self: Any, w: dict[str, torch.Tensor]) -> None:
    self.a = nn.Parameter(w["x"], requires_grad=False)


def replaces_data(self: Any, w: dict[str, torch.Tensor]) -> None:
    self.b.data.copy_(w["x"])
    self.b.data = torch.ones(4, 4)


def zeroes_and_copies(self: Any, w: dict[str, torch.Tensor]) -> None:
    self.a.data.zero_()
    self.a.data[2:].copy_(w["x"][2:])


def copies_and_fills(self: Any, w: dict[str, torch.Tensor]) -> None:
    self.a.data.copy_(w["x"])
    self.a.data[0].fill_(3)


def computes_and_copies(self: Any, w: dict[str, torch.Tensor]) -> None:
    self.a.data.copy_(w["x"] + 1)
    self.a.data[1].copy_(w["y"][1])


def of_no_tensor(self: Any, w: dict[str, torch.Tensor]) -> None:
    self.a.data.copy_(w["x"])
    self.b.data.copy_(torch.ones(4, 4))


def constant_after_number(self: Any, w: dict[str, torch.Tensor]) -> None:
    scale = w["scale"].item() if "scale" in w else 2.0
    if "x" in w:
        self.a.data.copy_(w["x"])
        self.b.data.fill_(scale)


def depends_on_others(self: Any, w: dict[str, torch.Tensor]) -> None:
    if "x" in w:
        self.a.data.copy_(w["x"])
    factor = 2 if "x" in w else 3
    self.b.data.copy_(w["y"] * factor)


def counts(self: Any, w: dict[str, torch.Tensor]) -> None:
    self.count[0] += 1
    self.a.data.copy_(w["x"])


def buffer_is_read_and_written(self: Any, w: dict[str, torch.Tensor]) -> None:
    row = int(self.count[0])
    self.a.data[row].copy_(w["x"][0])
    self.count.copy_(w["x"][1])


def beyond(self: Any, w: dict[str, torch.Tensor]) -> None:
    self.a.data[:2].as_strided((4, 4), (4, 1), 8).copy_(w["x"])


def self_overlap(self: Any, w: dict[str, torch.Tensor]) -> None:
    self.a.data.as_strided((4, 4), (1, 1)).copy_(w["x"])


def claims(self: Any, w: dict[str, torch.Tensor]) -> set[str]:
    self.a.data.copy_(w["x"])
    return {"a", "b"}


def numpy(self: Any, w: dict[str, torch.Tensor]) -> None:
    self.a.data.copy_(torch.from_numpy(w["x"].numpy()))


def mismatch(self: Any, w: dict[str, torch.Tensor]) -> None:
    self.a.data[:3].copy_(w["x"])


def caught(self: Any, w: dict[str, torch.Tensor]) -> None:
    try:
        self.a.data.add_(w["x"])
    except Exception:  # noqa: BLE001  # as loaders do
        self.a.data.copy_(w["y"])


def decides(self: Any, w: dict[str, torch.Tensor]) -> None:
    if w["y"][0, 0].item() > 0:
        self.a.data.copy_(w["x"])
    else:
        self.a.data.copy_(w["x"].t())


def compares(self: Any, w: dict[str, torch.Tensor]) -> None:
    if not torch.equal(w["x"], w["y"]):
        self.a.data.copy_(w["x"])


def finds(self: Any, w: dict[str, torch.Tensor]) -> None:
    found = w["y"].abs().flatten().nonzero()
    self.a.data[: len(found) // 4].copy_(w["x"])


def index_copy(self: Any, w: dict[str, torch.Tensor]) -> None:
    self.a.data.copy_(w["x"])
    self.b.data.index_copy_(0, torch.tensor([0, 1, 2, 3]), w["y"])


REFUSED = [
    (twice, "boxes overlap in parameter 'a'"),
    (no_owner, "tensor 'x' is copied to memory of no parameter"),
    (reads_parameter, "reads or changes parameter 'a'"),
    (copies_parameter, "reads or changes parameter 'a'"),
    (adds, "reads or changes parameter 'a'"),
    (repeats, "tensor 'x' is repeated in parameter 'a'"),
    (expands, "tensor 'x' is repeated in parameter 'a'"),
    (changes_source, "changes the tensor 'x' of the checkpoint"),
    (replaces, "parameter 'a' was made or replaced"),
    (replaces_with_stand_in, "parameter 'a' was made or replaced"),
    (replaces_data, "parameter 'b' was made or replaced"),
    (zeroes_and_copies, "boxes overlap in parameter 'a'"),
    (copies_and_fills, "boxes overlap in parameter 'a'"),
    (computes_and_copies, "a part of parameter 'a' is written to in two ways"),
    (of_no_tensor, "parameter 'b' is written to with values that are of no tensor"),
    (constant_after_number, "may depend on values"),
    (depends_on_others, "parameter 'b' gets other values"),
    (counts, "reads or changes parameter 'count'"),
    (buffer_is_read_and_written, "'count' is read, and written to"),
    (beyond, "memory beside parameter 'a' is used"),
    (self_overlap, "boxes overlap in parameter 'a'"),
    (claims, "it has loaded 'b', and nothing was written"),
    (numpy, "the loader failed"),
    (mismatch, "the loader failed: RuntimeError: The expanded size"),
    (caught, "reads or changes parameter 'a'"),
    (decides, "may depend on values"),
    (compares, "may depend on values"),
    (finds, "may depend on values"),
    (index_copy, "reads or changes parameter 'b'"),
]


@pytest.mark.parametrize(("copy", "reason"), REFUSED, ids=lambda it: getattr(it, "__name__", ""))
def test_loads_that_no_plan_can_repeat_are_refused(copy: Any, reason: str, tmp_path: Path) -> None:
    tensors = {"x": torch.randn(4, 4), "y": torch.randn(4, 4), "scale": torch.tensor([5.0])}
    module = one_of(copy, a=torch.zeros(8, 4)[:4], b=torch.zeros(4, 4))
    with tload.open(save(tmp_path / "model.safetensors", tensors)) as checkpoint:
        with pytest.raises(plans.RefusedError) as refused:
            recorded(module, checkpoint)
        assert reason in str(refused.value)
        # The normal way still works, or fails as it did.
        if copy not in (beyond, mismatch, self_overlap):
            wanted = one_of(copy, a=torch.zeros(4, 4), b=torch.zeros(4, 4))
            for each in (module, wanted):
                for name in ("a", "b"):
                    nn.init.zeros_(each.get_parameter(name))
                each.count.zero_()
                with tload.stream(checkpoint) as weights:
                    each.load_weights(weights)
            assert digest(module) == digest(wanted)
