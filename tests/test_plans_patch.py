"""Patches that are applied to parameters by a plan: the weights of the new checkpoint, or no change."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import numpy as np
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


def rewritten(patch: Path, record: str) -> Path:
    """Give a patch another record."""
    raw = patch.read_bytes()
    size = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:size])
    header["__metadata__"]["delta"] = record
    text = json.dumps(header).encode()
    other = patch.with_name("other.safetensors")
    other.write_bytes(len(text).to_bytes(8, "little") + text + raw[size:])
    return other


@pytest.mark.parametrize("record", ["[" * 200_000, "{}", '{"tensors": [{"name": ["t"], "change": "whole"}]}', "5"])
def test_records_of_patches_are_refused_as_by_name(files: tuple[Path, Path, Path], record: str) -> None:
    base, _, patch = files
    module = twice()
    with tload.open(base) as checkpoint:
        plan = recorded(module, checkpoint)
    with pytest.raises(tload.FormatError):
        plans.apply_into(plan, module, rewritten(patch, record))


def test_options_are_checked_as_by_name(files: tuple[Path, Path, Path]) -> None:
    base, _, patch = files
    module = twice()
    with tload.open(base) as checkpoint:
        plan = recorded(module, checkpoint)
    for options in ({"store": {"nonsense": 1}}, {"cache_dir": "/x"}, {"bogus": 3}):
        with tload.open(patch) as opened:
            wanted: list[str] = []
            for apply in (tload.apply_into, lambda *given, **more: plans.apply_into(plan, *given, **more)):
                with pytest.raises((tload.Error, TypeError)) as caught:
                    apply(module, opened, **options)
                wanted.append(str(caught.value))
            assert wanted[0] == wanted[1]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store: Any = {"endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}", "anonymous": True}
        # Any stage of the opening may be the one that it ends.
        with pytest.raises(tload.LoadTimeoutError):
            plans.apply_into(plan, module, "s3://bucket/patch.safetensors", timeout=0.5, store=store)


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
def test_an_exception_says_which_tensors_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
) -> None:
    tensors = {name: plan_models.rand(4, 8) for name in "abc"}
    base, _, patch = patched(tmp_path, tensors, changed(tensors, 3))

    def own(self: Any, name: str, tensor: torch.Tensor) -> str:
        getattr(self, name).data.copy_(tensor)
        return name

    module = plan_models.Model({name: plan_models.empty(4, 8) for name in tensors}, own)
    with tload.open(base) as checkpoint:
        plan = recorded(module, checkpoint)
    before = digest(module)
    with pytest.raises(tload.CorruptError) as caught:
        plans.apply_into(plan, module, rewritten(patch, damaged(patch)))
    assert caught.value.__notes__[-1] == "no parameter was written"
    assert digest(module) == before

    from tload.plans import patch as module_of_patches
    from tload.plans.run import copy

    calls: list[int] = []

    def failing(*given: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise failure
        copy(*given)

    monkeypatch.setattr(module_of_patches, "copy", failing)
    with pytest.raises(failure) as interrupted:
        plans.apply_into(plan, module, patch)
    assert interrupted.value.__notes__ == ["1 of 3 tensors were written: load the parameters again"]


def damaged(patch: Path) -> str:
    """Return the record of a patch with the digests of other tensors."""
    with tload.open(patch) as opened:
        record = json.loads(opened.metadata["delta"])
    for one in record["tensors"]:
        one["sha256"] = "0" * 64
    return json.dumps(record)


def test_memory_that_two_storages_share_is_refused(tmp_path: Path) -> None:
    tensors = {name: torch.zeros(4, 8) for name in "ab"}
    others = {"a": torch.full((4, 8), 1.0), "b": torch.full((4, 8), 2.0)}
    base, _, patch = patched(tmp_path, tensors, others)

    def own(self: Any, name: str, tensor: torch.Tensor) -> str:
        getattr(self, name).data.copy_(tensor)
        return name

    with tload.open(base) as checkpoint:
        plan = recorded(plan_models.Model({name: torch.empty(4, 8) for name in "ab"}, own), checkpoint)
    buffer = np.zeros((4, 8), dtype=np.float32)
    module = plan_models.Model({name: torch.from_numpy(buffer) for name in "ab"}, own)
    with pytest.raises(plans.RefusedError, match="'a' and 'b' share memory"):
        plans.apply_into(plan, module, patch)
    assert not buffer.any()


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_plans_work_under_any_default_device(files: tuple[Path, Path, Path], device: str) -> None:
    base, new, patch = files
    module = twice()
    with torch.device(device):
        with tload.open(base) as checkpoint:
            plan = recorded(module, checkpoint)
            plans.run(plan, module, checkpoint)
        plans.apply_into(plan, module, patch)
    with tload.open(new) as checkpoint:
        assert digest(module) == normally(twice, checkpoint)
