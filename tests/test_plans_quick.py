"""Views of parameters that are made past the recorder of load plans."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

import plan_models
import tload
from test_load_into import save
from test_plans import digest, normally, recorded
from tload import plans
from tload.plans import quick
from tload.plans.recorder import Recorder

if TYPE_CHECKING:
    from pathlib import Path

_ATEN = torch.ops.aten


def replaced() -> list[str]:
    """Return the attributes of tensors that are replaced."""
    return [name for name in (*quick.NAMES, "data") if name in torch.Tensor.__dict__]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Operations that the recorder sees."""
    noted: list[Any] = []
    plain = Recorder.__torch_dispatch__

    def noting(self: Recorder, func: Any, *arguments: Any, **keywords: Any) -> Any:
        noted.append(func)
        return plain(self, func, *arguments, **keywords)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(Recorder, "__torch_dispatch__", noting)
    return noted


@pytest.mark.parametrize("case", [plan_models.stacked, plan_models.experts], ids=lambda case: case.__name__)
def test_views_of_parameters_are_made_past_the_recorder(case: Any, tmp_path: Path, seen: list[Any]) -> None:
    make, tensors, _ = case()
    with tload.open(save(tmp_path / "model.safetensors", tensors)) as checkpoint:
        plan = recorded(module := make(), checkpoint)
        wanted = normally(make, checkpoint)
        assert digest(module) == wanted
        plans.run(plan, again := make(), checkpoint)
        assert digest(again) == wanted
    assert seen.count(_ATEN.copy_.default) == len(tensors)
    assert not {_ATEN.select.int, _ATEN.slice.Tensor, _ATEN.detach.default, _ATEN.alias.default} & set(seen)
    assert not replaced()


def test_tensors_as_indices_and_other_classes_are_seen(seen: list[Any]) -> None:
    class Own(torch.nn.Parameter):
        pass

    ordinary, own = torch.arange(6.0), Own(torch.arange(6.0))
    with Recorder(torch.nn.Module(), {}), quick.views():  # type: ignore[arg-type]
        assert float(ordinary.sum()) == 15
        seen.clear()
        assert ordinary.narrow(0, 1, 2).tolist() == [1, 2]
        assert ordinary[2:4].shape == (2,)
        assert ordinary[True].shape == (1, 6)
        assert ordinary[torch.tensor([3, 5])].shape == (2,)
        assert own.data.shape == own.narrow(0, 0, 6).shape
        assert ordinary.narrow(dim=0, start=2, length=1).shape == (1,)
    names = [str(func) for func in seen]
    assert "aten.index.Tensor" in names
    assert names.count("aten.slice.Tensor") == 3
    assert not replaced()


def test_replaced_methods_go_with_the_last_recording_and_are_of_its_thread(seen: list[Any]) -> None:
    tensor = torch.arange(6.0)
    before = torch.Tensor.narrow
    found: list[Any] = []

    def other() -> None:
        with Recorder(torch.nn.Module(), {}):  # type: ignore[arg-type]
            found.append(tensor.narrow(0, 0, 2))

    with quick.views():
        with quick.views():
            pass
        assert replaced()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert found
        assert _ATEN.slice.Tensor in seen
        tensor.data = torch.arange(3.0)  # the property can still be set
        assert tensor.data.tolist() == [0, 1, 2]
    assert not replaced()
    with pytest.raises(IndexError, match="start out of range"), quick.views():
        tensor.narrow(0, 7, 1)
    assert not replaced()
    assert torch.Tensor.narrow is before
