"""`tload.patch`: libraries that use the safetensors package read with tload until the block
ends."""

from __future__ import annotations

import dataclasses
import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

import tload
import tload.metrics
from conftest import require
from files import Content, tile, write_file
from tload._patch import patch

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """Stand-ins for the libraries, which have imported the package in every possible way."""
    require("torch")
    theirs, in_torch = require("safetensors"), require("safetensors.torch")
    contents: dict[str, dict[str, Any]] = {
        "transformers": {},
        "transformers.modeling_utils": {"safe_open": theirs.safe_open, "_safe_load_bytes": in_torch.load},
        "transformers.trainer": {"safetensors": theirs},
        "accelerate": {},
        "accelerate.utils": {},
        "accelerate.utils.modeling": {"safe_open": theirs.safe_open, "safe_load_file": in_torch.load_file},
        "accelerate.checkpointing": {"load_model": in_torch.load_model, "save_file": in_torch.save_file},
        "diffusers": {},
        "diffusers.loaders": {"safetensors": theirs, "st": in_torch, "safe_open": theirs.safe_open},
        "other": {"safe_open": theirs.safe_open, "safetensors": theirs},
        "transformersx": {"safe_open": theirs.safe_open},
    }
    made = {}
    for name, content in contents.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
        made[name] = module
    return made


def state(modules: dict[str, ModuleType]) -> dict[str, Any]:
    return {
        f"{name}.{key}": value
        for name, module in modules.items()
        for key, value in vars(module).items()
        if not key.startswith("__")
    }


REPLACED = {
    "transformers.modeling_utils.safe_open",
    "transformers.modeling_utils._safe_load_bytes",
    "transformers.trainer.safetensors",
    "accelerate.utils.modeling.safe_open",
    "accelerate.utils.modeling.safe_load_file",
    "accelerate.checkpointing.load_model",
    "diffusers.loaders.safetensors",
    "diffusers.loaders.st",
    "diffusers.loaders.safe_open",
}


def test_patch_replaces_only_readers(modules: dict[str, ModuleType]) -> None:
    import tload.safetensors.torch

    before = state(modules)
    with patch() as replaced:
        during = state(modules)
        assert {name for name in replaced if name in before} == REPLACED
        assert {name for name in before if during[name] is not before[name]} == REPLACED
        assert during["transformers.modeling_utils.safe_open"] is tload.safetensors.safe_open
        assert during["accelerate.utils.modeling.safe_load_file"] is tload.safetensors.torch.load_file
        assert during["diffusers.loaders.safetensors"].torch.load_file is tload.safetensors.torch.load_file
        # Functions for writing remain the package's own.
        package = sys.modules["safetensors.torch"]
        assert during["diffusers.loaders.safetensors"].torch.save_file is package.save_file
        assert during["diffusers.loaders.st"].save_model is package.save_model
    assert state(modules) == before


def test_report_counts_what_was_opened_inside(tmp_path: Path) -> None:
    require("torch")
    from tload.safetensors import safe_open

    contents = {"a": Content("F32", (6, 4), tile(0, 96)), "b": Content("U8", (8,), tile(1, 8))}
    write_file(tmp_path / "a.safetensors", contents)
    path = str(tmp_path / "a.safetensors")

    def metric(name: str) -> int:
        line = next(line for line in tload.metrics.text().splitlines() if line.startswith(f"tload_safetensors_{name} "))
        return int(line.rpartition(" ")[2])

    names = ["files_total", 'tensors_total{how="view"}', 'bytes_total{how="view"}', 'bytes_total{how="read"}']
    before = [metric(name) for name in names]
    with safe_open(path, "pt") as file:
        file.get_tensor("b")
    with patch():
        with safe_open(path, "pt") as file:
            file.get_tensor("b")
            file.get_slice("a")[1:3]
        with patch():
            assert patch.report().viewed_bytes == 8 + 32
        with safe_open(path, "np", backend="pread") as file:
            file.get_tensor("a")
            file.get_slice("b")[:2]
            assert len(file.get_tensors()) == 2
        seen = patch.report()
    report = patch.report()
    assert report.replaced == seen.replaced
    assert (report.files, report.opened) == ((path,), 2)
    assert (report.viewed_tensors, report.viewed_bytes) == (2, 40)
    assert (report.read_tensors, report.read_bytes) == (4, 96 + 2 + 96 + 8)
    assert str(report) == "2 files opened, 6 tensors: 40 B as views of mapped files, 202 B read"
    # Outside of the block, only the counters go on.
    with safe_open(path, "pt") as file:
        file.get_tensor("b")
    assert patch.report() == report
    assert [metric(name) for name in names] == [now + more for now, more in zip(before, [4, 4, 56, 202], strict=True)]
    with patch():
        assert (patch.report().files, patch.report().opened) == ((), 0)


def test_report_says_why_nothing_was_opened(
    tmp_path: Path, modules: dict[str, ModuleType], caplog: pytest.LogCaptureFixture
) -> None:
    require("torch")
    from safetensors import safe_open

    caplog.set_level("INFO", "tload")
    write_file(tmp_path / "a.safetensors", {"a": Content("U8", (8,), tile(0, 8))})
    with patch() as replaced, safe_open(str(tmp_path / "a.safetensors"), "np") as file:
        file.get_tensor("a")
    assert replaced
    report = patch.report()
    assert modules
    assert str(report) == (
        "no file was opened by tload: only what transformers, accelerate and diffusers read is patched. In your "
        "own code, import from tload.safetensors instead of safetensors"
    )
    assert caplog.messages[-1] == f"patch: {report}"
    unused = "is patched; no imported module of theirs uses safetensors. In your own code"
    assert unused in str(dataclasses.replace(report, replaced=()))


def test_patch_is_undone_after_error(modules: dict[str, ModuleType]) -> None:
    before = state(modules)

    def fail() -> None:
        with patch():
            assert state(modules) != before
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert state(modules) == before


def test_blocks_within_blocks(modules: dict[str, ModuleType]) -> None:
    before = state(modules)
    with patch() as outer:
        during = state(modules)
        with patch() as inner:
            assert inner == outer
        assert state(modules) == during
        # Another import during the block.
        modules["transformers"].safe_open = modules["other"].safe_open  # type: ignore[attr-defined]
        with patch() as inner:
            assert {*inner} - {*outer} == {"transformers.safe_open"}
        assert state(modules) == {**during, "transformers.safe_open": modules["transformers"].safe_open}
        assert modules["transformers"].safe_open is not modules["other"].safe_open
    assert state(modules) == {**before, "transformers.safe_open": modules["other"].safe_open}


def test_overlapping_patch_blocks(modules: dict[str, ModuleType]) -> None:
    before = state(modules)
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with patch():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with patch():
        thread.start()
        assert entered.wait(60)
        during = state(modules)
    assert state(modules) == during
    leave.set()
    thread.join()
    assert state(modules) == before


def test_foreign_replacement_survives_unpatch(modules: dict[str, ModuleType]) -> None:
    with patch():
        modules["accelerate.utils.modeling"].safe_open = "theirs"  # type: ignore[attr-defined]
        del modules["accelerate.checkpointing"].load_model
    assert modules["accelerate.utils.modeling"].safe_open == "theirs"
    assert not hasattr(modules["accelerate.checkpointing"], "load_model")


def test_unimportable_library(monkeypatch: pytest.MonkeyPatch, modules: dict[str, ModuleType]) -> None:
    monkeypatch.setitem(sys.modules, "transformers.modeling_utils", None)
    with patch() as replaced:
        assert "transformers.modeling_utils.safe_open" not in replaced
        assert "accelerate.utils.modeling.safe_open" in replaced
    assert modules["accelerate.utils.modeling"].safe_open is sys.modules["safetensors"].safe_open


def test_failed_patch_is_undone(monkeypatch: pytest.MonkeyPatch, modules: dict[str, ModuleType]) -> None:
    class Stubborn(ModuleType):
        def __setattr__(self, name: str, value: object) -> None:
            message = f"{name}: no"
            raise AttributeError(message)

    stubborn = Stubborn("diffusers.zzz")
    vars(stubborn)["safe_open"] = modules["other"].safe_open
    monkeypatch.setitem(sys.modules, "diffusers.zzz", stubborn)
    before = state(modules)
    with pytest.raises(AttributeError, match="safe_open: no"), patch():
        pass
    monkeypatch.delitem(sys.modules, "diffusers.zzz")
    assert state(modules) == before
    with patch() as replaced:
        assert {*replaced} >= REPLACED
    assert state(modules) == before
