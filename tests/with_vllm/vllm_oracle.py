"""Load plans beside vLLM's own recorder, which it has for weights that trainers send: every element
of every parameter comes from the same element of the same tensor. Needs vLLM: `make test-engines`
runs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_forms
from vllm.distributed.weight_transfer.sharded_rdt_fake import BakeSink, FakeRDTTensor
from vllm_plans import Model

import tload
from tload.plans import disk
from tload.plans.plan import FIXED, PLACE, PLACE_OFFSET, SOURCE_OFFSET, TENSOR, torch_form

if TYPE_CHECKING:
    from pathlib import Path

    from tload.plans import Plan

FORMS = ("Llama", "tied Llama", "Qwen2", "Gemma 3", "Phi-3", "GPT-2", "Mixtral", "Qwen3-MoE", "GPTQ", "AWQ")
"""Forms whose loaders use only views, which is all that vLLM's recorder knows."""


class Origins:
    """Where each element of the parameters of a model comes from."""

    def __init__(self, model: torch.nn.Module, shapes: dict[str, tuple[int, ...]]) -> None:
        self.numbers = {name: number for number, name in enumerate(sorted(shapes))}
        self.shapes = shapes
        self.owners = {it.untyped_storage()._cdata: name for name, it in model.named_parameters()}
        self.found = {name: torch.full((it.numel(),), -1) for name, it in model.named_parameters()}
        self.starts = {name: int(it.storage_offset()) for name, it in model.named_parameters()}

    def elements(self, name: str) -> torch.Tensor:
        """Return a number for each element of a tensor of the checkpoint."""
        shape = self.shapes[name]
        count = torch.Size(shape).numel()
        return torch.arange(count).reshape(shape) + (self.numbers[name] << 40)

    def note(self, place: str, shape: Any, stride: Any, offset: int, elements: torch.Tensor) -> None:
        """Note what is copied to a part of a parameter."""
        self.found[place].as_strided(tuple(shape), tuple(stride), offset).copy_(elements.reshape(tuple(shape)))

    def note_plan(self, plan: Plan) -> None:
        """Note the copies of a plan."""
        dims = plan.dims
        for row in plan.rows.tolist():
            shape, source, place = (row[FIXED + at * dims : FIXED + (at + 1) * dims] for at in range(3))
            whole = self.elements(plan.sources[row[TENSOR]].name).reshape(-1)
            box = whole.as_strided(shape, source, row[SOURCE_OFFSET])
            self.note(plan.places[row[PLACE]].name, shape, place, row[PLACE_OFFSET], box)


class Sink(BakeSink):  # type: ignore[misc]  # type checks run without vLLM
    """Notes what vLLM's recorder sees."""

    origins: Origins

    def accept_copy(self, dest: torch.Tensor, src: FakeRDTTensor) -> torch.Tensor:
        assert dest.numel() == src.numel()
        name, chain = src._key()
        elements: Any = self.origins.elements(name)
        for method, positional, keywords in chain:
            elements = getattr(elements, method)(*positional, **dict(keywords))
        place = self.origins.owners[dest.untyped_storage()._cdata]
        start = int(dest.storage_offset()) - self.origins.starts[place]
        self.origins.note(place, dest.shape, dest.stride(), start, elements)
        return dest


@pytest.mark.parametrize("form", FORMS)
def test_plans_copy_what_the_recorder_of_vllm_records(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = vllm_forms.write(form, tmp_path / "model")
    made = Model(folder, {"plan": "on"})
    [path] = (tmp_path / "cache" / "tload" / "plans").glob("*.plan")
    with tload.open(folder) as checkpoint:
        forms = {name: torch_form(info.dtype, info.shape) for name, info in checkpoint.items()}
    shapes = {name: shape for name, (_, shape) in forms.items()}
    ours, theirs = Origins(made.model, shapes), Origins(made.model, shapes)
    ours.note_plan(disk._from_bytes(path.read_bytes()))
    sink = Sink()
    sink.origins = theirs
    device = torch.device("cpu")
    with made.within():
        made.model.load_weights(
            (name, FakeRDTTensor(name, torch.Size(shape), dtype, device, sink=sink))
            for name, (dtype, shape) in forms.items()
        )
    assert any(bool((each >= 0).any()) for each in theirs.found.values())
    for name, found in theirs.found.items():
        assert torch.equal(ours.found[name], found), name
