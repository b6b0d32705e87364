"""Patches that are applied to parameters by a plan: the weights of the new checkpoint, or no change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import plan_models
import tload
from test_load_into import save
from test_plans import digest, normally, recorded
from tload import plans
from tload.plans.places import bits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REFUSED = {
    "bloom": "which the plan does not copy",
    "casts": "bfloat16, and float32 in the module",
    "collected": "which the plan does not copy",
    "mamba": "which the plan does not copy",
    "phi3": "only in part",
    "ranks": "only in part",
    "scalars": "which the plan does not copy",
    "tied": "which the plan does not copy",
    "views": "only in part",
    "zeroed": "which the plan does not copy",
}
"""Forms of which the parameters do not have the bytes of every tensor."""


def changed(tensors: dict[str, torch.Tensor], share: int) -> dict[str, torch.Tensor]:
    """Return the tensors of a later step: in each, every so many elements differ."""
    others = {name: it.clone() for name, it in tensors.items()}
    for it in others.values():
        some = bits(it).reshape(-1)[::share]
        some.logical_not_() if it.dtype is torch.bool else some.bitwise_xor_(1)
    return others


def patched(folder: Path, tensors: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> tuple[Path, Path, Path]:
    """Write two checkpoints, and the patch between them."""
    base, new, patch = (folder / f"{name}.safetensors" for name in ("base", "new", "patch"))
    save(base, tensors)
    save(new, others)
    tload.diff(base, new, patch)
    return base, new, patch


@pytest.mark.parametrize("share", [1, 50])
@pytest.mark.parametrize("case", plan_models.CASES, ids=lambda case: case.__name__)
def test_parameters_become_those_of_the_new_checkpoint(
    case: Callable[[], plan_models.Case], share: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    make, tensors, _ = case()
    base, new, patch = patched(tmp_path, tensors, changed(tensors, share))
    module = make()
    with tload.open(base) as checkpoint:
        plan = recorded(module, checkpoint)
    before = digest(module)
    if case.__name__ in REFUSED:
        with pytest.raises(plans.RefusedError, match=REFUSED[case.__name__]):
            plans.apply_into(plan, module, patch)
        assert digest(module) == before
        return
    report = plans.apply_into(plan, module, patch)
    assert report.tensors == len(tensors)
    with tload.open(new) as checkpoint:
        assert digest(module) == normally(make, checkpoint) != before
    # It is no longer what the patch was made for.
    with pytest.raises(tload.CorruptError):
        plans.apply_into(plan, module, patch)
    with tload.open(new) as checkpoint:
        assert digest(module) == normally(make, checkpoint)


def twice() -> Any:
    def one(self: Any, name: str, tensor: torch.Tensor) -> str:
        self.a.data.copy_(tensor)
        self.b.data.copy_(tensor)
        return name

    return plan_models.Model({"a": plan_models.empty(4, 8), "b": plan_models.empty(4, 8)}, one)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    torch.manual_seed(0)
    tensors = {"t": plan_models.rand(4, 8)}
    return patched(tmp_path, tensors, changed(tensors, 3))


def test_a_tensor_in_two_parameters_is_changed_in_both(files: tuple[Path, Path, Path]) -> None:
    base, new, patch = files
    module = twice()
    with tload.open(base) as checkpoint:
        plan = recorded(module, checkpoint)
    with tload.open(patch) as opened:
        plans.apply_into(plan, module, opened)
    with tload.open(new) as checkpoint:
        assert digest(module) == normally(twice, checkpoint)
    module.b.data[0, 0] += 1
    before = digest(module)
    with pytest.raises(plans.RefusedError, match="several times in the module, with different values"):
        plans.apply_into(plan, module, patch)
    assert digest(module) == before


def test_nothing_is_written_of_other_patches_or_to_other_modules(files: tuple[Path, Path, Path]) -> None:
    base, new, patch = files
    module = twice()
    with tload.open(base) as checkpoint:
        plan = recorded(module, checkpoint)
    before = digest(module)
    with pytest.raises(tload.FormatError):
        plans.apply_into(plan, module, new)
    with pytest.raises(tload.NotFoundError):
        plans.apply_into(plan, module, patch.with_name("absent.safetensors"))
    damaged = bytearray(patch.read_bytes())
    with tload.open(patch) as opened:
        damaged[opened["t"].file_range[0]] ^= 1
    patch.write_bytes(damaged)
    with pytest.raises(tload.CorruptError):
        plans.apply_into(plan, module, patch)
    assert digest(module) == before
    other = plan_models.Model({"a": plan_models.empty(4, 8)}, lambda *_: "a")
    with pytest.raises(plans.RefusedError, match="'b' is not as it was recorded"):
        plans.apply_into(plan, other, patch)
