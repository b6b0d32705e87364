"""`tload.safetensors.torch`, `.numpy` and `.flax`, compared with the package's modules."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import tload
from conftest import require
from files import Content, write_file
from test_safetensors_oracle import fingerprint, outcome
from tload.safetensors import SafetensorError

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

NATIVE = {
    f"{dtype}.{index}": Content.random(dtype, shape, seed=index)
    for dtype in ("F64", "I64", "F32", "I32", "U32", "F16", "I16", "U8", "I8", "BOOL", "C64")
    for index, shape in enumerate([(), (3,), (2, 0), (4, 5)])
}


@pytest.fixture
def modules() -> tuple[ModuleType, ModuleType]:
    """tload's module and the package's, for torch."""
    require("torch")
    theirs = require("safetensors.torch")
    import tload.safetensors.torch

    return tload.safetensors.torch, theirs


@pytest.mark.parametrize("name", ["torch", "numpy"])
def test_modules_are_those_of_tload_after_the_imports_of_the_package(name: str) -> None:
    require("torch")
    require(f"safetensors.{name}")
    program = (
        f"import safetensors.{name}\nfrom tload.safetensors import {name} as found\n"
        f"assert found.__name__ == 'tload.safetensors.{name}', found"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "native.safetensors"
    write_file(path, NATIVE)
    return path


@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("name", ["torch", "numpy"])
def test_load_file(name: str, backend: str, path: Path) -> None:
    require("torch")
    theirs, ours = require(f"safetensors.{name}"), require(f"tload.safetensors.{name}")
    found = ours.load_file(path, backend=backend)
    assert fingerprint(found) == fingerprint(theirs.load_file(path, backend=backend))
    assert [key for key in found if NATIVE[key].raw] == [key for key in NATIVE if NATIVE[key].raw]
    assert fingerprint(ours.load_file(str(path))) == fingerprint(found)
    assert outcome(ours.load_file, path, backend="direct") == outcome(theirs.load_file, path, backend="direct")


@pytest.mark.parametrize("name", ["torch", "numpy"])
def test_load_takes_the_content_of_a_file(name: str, path: Path) -> None:
    require("torch")
    theirs, ours = require(f"safetensors.{name}"), require(f"tload.safetensors.{name}")
    content = path.read_bytes()
    found = ours.load(content)
    assert fingerprint(found) == fingerprint(theirs.load(content))
    assert fingerprint(ours.load(bytearray(content))) == fingerprint(found)
    # The caller owns the memory.
    found["F32.3"][:] = 0
    assert fingerprint(ours.load(content)) == fingerprint(theirs.load(content))
    for wrong in (str(path), None, 3):
        with pytest.raises(TypeError):
            theirs.load(wrong)
        with pytest.raises(TypeError, match="data: wanted bytes"):
            ours.load(wrong)


def test_load_file_takes_devices_as_the_package(modules: tuple[ModuleType, ModuleType], path: Path) -> None:
    ours, theirs = modules
    for device in ("tpu", -1, 1.5, "cpu:0"):
        assert outcome(ours.load_file, path, device) == outcome(theirs.load_file, path, device=device)
    # Torch has no such device here, and raises its own error.
    assert outcome(ours.load_file, path, "mps") == outcome(theirs.load_file, path, "mps")


def test_missing_gpu_ordinal_rejected(modules: tuple[ModuleType, ModuleType], path: Path) -> None:
    ours, _ = modules
    if require("torch").cuda.is_available():
        pytest.skip("a GPU is there")
    for device in ("cuda", "cuda:1", 0):
        with pytest.raises(SafetensorError, match="CUDA"):
            ours.load_file(path, device)


def test_load_file_to_a_gpu(torch_cuda: Any, path: Path) -> None:
    ours = require("tload.safetensors.torch")
    wanted = fingerprint(ours.load_file(path))
    for device in ("cuda", "cuda:1"):
        loaded = ours.load_file(path, device)
        on = {torch_cuda.device_of(tensor) for tensor in loaded.values() if tensor.numel()}
        assert on == {"cuda:1" if "1" in device else "cuda:0"}
        assert fingerprint(loaded) == wanted
        with ours.safe_open(path, "pt", device) as handle:
            tensor = handle.get_tensor("F32.3")
            part = handle.get_slice("F32.3")[1:3, ::2]
            assert fingerprint(tensor) == dict(wanted)["F32.3"]
            assert fingerprint(part) == fingerprint(tensor[1:3, ::2])
            assert torch_cuda.device_of(part) == torch_cuda.device_of(tensor)
        del loaded, tensor, part


def test_numpy_reads_what_ml_dtypes_has(every_dtype: tuple[Path, dict[str, Content]], tmp_path: Path) -> None:
    require("ml_dtypes")
    numpy = require("tload.safetensors.numpy")
    contents = {name: content for name, content in every_dtype[1].items() if content.dtype in {"BF16", "F8_E4M3"}}
    path = tmp_path / "floats.safetensors"
    write_file(path, contents)
    for loaded in (numpy.load_file(path), numpy.load_file(path, backend="pread"), numpy.load(path.read_bytes())):
        assert {name: array.tobytes() for name, array in loaded.items()} == {
            name: content.raw for name, content in contents.items()
        }
    with pytest.raises(SafetensorError, match=r"Dtype not understood: F4(?s:.*)hint"):
        numpy.load_file(every_dtype[0])


def test_flax(path: Path, tmp_path: Path) -> None:
    jax = require("jax")
    theirs, ours = require("safetensors.flax"), require("tload.safetensors.flax")
    with jax.enable_x64(new_val=True):
        wanted = theirs.load_file(path)
        for loaded in (
            ours.load_file(path),
            ours.load_file(path, backend="pread"),
            ours.load(path.read_bytes()),
            theirs.load(path.read_bytes()),
        ):
            assert fingerprint(
                {name: jax.numpy.asarray(array).__array__() for name, array in loaded.items()}
            ) == fingerprint({name: array.__array__() for name, array in wanted.items()})
            assert all(isinstance(array, jax.Array) for array in loaded.values())
        with ours.safe_open(path, framework="jax") as handle:
            assert isinstance(handle.get_slice("F32.3")[1:], jax.Array)
            assert handle.get_tensor("F32.3").shape == (4, 5)
    ours.save_file({"a": jax.numpy.ones(3)}, tmp_path / "saved.safetensors")
    assert ours.load_file(tmp_path / "saved.safetensors")["a"].tolist() == [1.0, 1.0, 1.0]


def test_writing_is_the_packages(modules: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    ours, theirs = modules
    torch = require("torch")
    for name in ("save", "save_file", "save_model", "storage_ptr", "storage_size", "_remove_duplicate_names"):
        assert getattr(ours, name) is getattr(theirs, name)
    state = {"a": torch.arange(6.0).reshape(2, 3)}
    ours.save_file(state, tmp_path / "a.safetensors", metadata={"format": "pt"})
    assert fingerprint(ours.load_file(tmp_path / "a.safetensors")) == fingerprint(state)
    assert fingerprint(ours.load(ours.save(state))) == fingerprint(state)


def models() -> dict[str, Any]:
    """Modules with features that files cannot express: tied parameters, and views of one memory."""
    require("torch")
    import torch

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(7, 4)
            self.head = torch.nn.Linear(4, 7, bias=False)
            self.norm = torch.nn.BatchNorm1d(4)
            self.head.weight = self.embed.weight

    class Neighbours(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.randn(6, 3)
            self.first, self.second = (torch.nn.Parameter(half) for half in (whole[:3], whole[3:]))
            buffer = torch.randn(2, 2)
            self.register_buffer("whole", buffer)
            self.register_buffer("again", buffer)
            self.register_buffer("none", torch.empty(0, 3))

    return {"plain": torch.nn.Linear(3, 2), "tied": Tied(), "neighbours": Neighbours()}


@pytest.mark.parametrize("strict", ["strict", ""])
@pytest.mark.parametrize("kind", ["plain", "tied"])
@pytest.mark.parametrize("change", ["as saved", "all names", "missing", "unexpected", "another name", "another shape"])
def test_load_model(
    kind: str, strict: str, change: str, modules: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    ours, theirs = modules
    torch = require("torch")
    saved = models()[kind]
    path = tmp_path / "model.safetensors"
    theirs.save_model(saved, path)
    state = theirs.load_file(path)
    first = next(iter(state))
    if change == "all names":
        state = {name: tensor.clone() for name, tensor in saved.state_dict().items()}
    elif change == "missing":
        del state[first]
    elif change == "unexpected":
        state["surplus"] = torch.zeros(2)
    elif change == "another name" and kind == "tied":
        state["head.weight"] = state.pop("embed.weight")
    elif change == "another shape":
        state[first] = torch.zeros(1, 1, 1)
    theirs.save_file({name: tensor.clone() for name, tensor in state.items()}, path)
    mine, original = models()[kind], models()[kind]
    original.load_state_dict(copy.deepcopy(mine.state_dict()))
    found = outcome(lambda: _names(ours.load_model(mine, path, strict=bool(strict))))
    assert found == outcome(lambda: _names(theirs.load_model(original, path, strict=bool(strict))))
    assert fingerprint(mine.state_dict()) == fingerprint(original.state_dict())
    if change == "as saved":
        assert found == (([], []),)
        assert fingerprint(mine.state_dict()) == fingerprint(saved.state_dict())


def _names(result: tuple[Any, Any]) -> tuple[list[str], list[str]]:
    missing, unexpected = result
    return sorted(missing), sorted(unexpected)


def test_load_model_fills_parts_of_a_memory(modules: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    """The package refuses modules whose parameters are parts of one memory. They cannot be saved,
    but can be filled."""
    ours, theirs = modules
    saved, mine, original = (models()["neighbours"] for _ in range(3))
    path = tmp_path / "model.safetensors"
    state = {name: tensor.clone() for name, tensor in saved.state_dict().items() if name != "again"}
    theirs.save_file(state, path)
    with pytest.raises(RuntimeError, match="None is covering the entire storage"):
        theirs.load_model(original, path)
    assert _names(ours.load_model(mine, path)) == ([], [])
    assert fingerprint(mine.state_dict()) == fingerprint(saved.state_dict())


def test_uncovered_overlaps_rejected_by_load_model(modules: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    ours, theirs = modules
    torch = require("torch")
    module = torch.nn.Module()
    whole = torch.zeros(6)
    module.register_buffer("left", whole[:4])
    module.register_buffer("right", whole[2:])
    path = tmp_path / "model.safetensors"
    theirs.save_file({"left": torch.zeros(4)}, path)
    for library in (ours, theirs):
        with pytest.raises(RuntimeError, match="found no suitable name to keep for saving amongst"):
            library.load_model(module, path)


def test_load_model_does_not_share_the_file(modules: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    ours, theirs = modules
    path = tmp_path / "model.safetensors"
    model = models()["plain"]
    theirs.save_model(model, path)
    assert ours.load_model(model, path, True, "cpu", backend="pread") == (set(), [])  # noqa: FBT003
    with pytest.raises(tload.NotFoundError, match="No such file or directory"):
        ours.load_model(model, tmp_path / "nowhere.safetensors")
