"""`tload.patch` with the real packages: they load the same through it as without."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

import models
import tload
from conftest import require

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module", autouse=True)
def _packages() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        for name in ("torch", "safetensors.torch", "transformers.modeling_utils", "accelerate"):
            require(name)
        yield


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.save(models.dense(), tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.save(models.experts(), tmp_path_factory.mktemp("experts"))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files that tload opens."""
    paths: list[str] = []
    native = tload._tload.Checkpoint

    class Spy:
        def open(self, location: Any, **keywords: Any) -> Any:
            paths.append(str(location))
            return native.open(location, **keywords)

        def open_all(self, locations: Any, **keywords: Any) -> Any:
            paths.extend(map(str, locations))
            return native.open_all(locations, **keywords)

    monkeypatch.setattr(tload._tload, "Checkpoint", Spy())
    return paths


def auto() -> Any:
    return require("transformers").AutoModelForCausalLM


def assert_opened(opened: list[str], folder: Path) -> None:
    """Fail unless each file of weights was opened by tload, perhaps more than once."""
    paths = {str(path) for path in folder.glob("*.safetensors")}
    assert paths
    assert paths <= set(opened)


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_transformers(
    kind: str, request: pytest.FixtureRequest, opened: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "tload")
    folder: Path = request.getfixturevalue(kind)
    stock = auto().from_pretrained(folder)
    assert opened == []
    with tload.patch():
        model = auto().from_pretrained(folder)
    assert_opened(opened, folder)
    models.assert_same(model, stock)
    report = tload.patch.report()
    assert set(report.files) == {str(path) for path in folder.glob("*.safetensors")}
    assert "transformers.modeling_utils.safe_open" in report.replaced
    weights = sum(tload.open(folder)[name].nbytes for name in tload.open(folder))
    # Views of mapped files, all of which are used.
    assert (report.viewed_bytes, report.read_tensors, report.read_bytes) == (weights, 0, 0)
    assert str(report).startswith(f"{report.opened} file")
    assert caplog.messages[-1] == f"patch: {report}"
    assert any("opened by tload.safetensors, mapped" in message for message in caplog.messages)


@pytest.mark.parametrize("dtype", ["bfloat16", "auto"])
def test_transformers_with_dtypes(dtype: str, experts: Path) -> None:
    stock = auto().from_pretrained(experts, dtype=dtype)
    with tload.patch():
        models.assert_same(auto().from_pretrained(experts, dtype=dtype), stock)


def test_transformers_with_weights_on_disk(experts: Path, tmp_path: Path, opened: list[str]) -> None:
    device_map = {"model.embed_tokens": "cpu", "model.layers.0": "disk", "model.layers.1": "cpu"}
    device_map |= {"model.layers.2": "disk", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "disk"}
    with tload.patch():
        model = auto().from_pretrained(experts, device_map=device_map, offload_folder=tmp_path)
        said = models.logits(model)
    assert_opened(opened, experts)
    models.assert_close(said, models.logits(auto().from_pretrained(experts)))


def test_models_saved_inside_patch_are_identical(dense: Path, tmp_path: Path) -> None:
    models.save(auto().from_pretrained(dense), tmp_path / "expected")
    with tload.patch():
        models.save(auto().from_pretrained(dense), tmp_path / "saved")
    for path in (tmp_path / "expected").iterdir():
        assert (tmp_path / "saved" / path.name).read_bytes() == path.read_bytes(), path.name


def failure(folder: Path) -> str:
    """Return the kind of error that transformers raises for a folder."""
    try:
        auto().from_pretrained(folder)
    except Exception as error:  # noqa: BLE001  # of any kind
        return type(error).__name__
    return "none"


def test_broken_file_raises_error_of_same_name(dense: Path, tmp_path: Path) -> None:
    folder = models.save(auto().from_pretrained(dense), tmp_path)
    path = min(folder.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-10])
    expected = failure(folder)
    assert expected != "none"
    with tload.patch():
        assert failure(folder) == expected


def module() -> Any:
    """A module with parts that can be placed one by one."""
    torch = require("torch")
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))


@pytest.fixture
def plain(tmp_path: Path) -> tuple[Path, Any]:
    """A checkpoint saved by accelerate in several files."""
    require("torch").manual_seed(3)
    saved = module()
    require("accelerate").Accelerator().save_model(saved, tmp_path, max_shard_size=500)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    return tmp_path, saved


@pytest.mark.parametrize("device_map", [None, {"": "cpu"}, {"0": "cpu", "1": "cpu", "2": "disk"}])
def test_accelerate(device_map: Any, plain: tuple[Path, Any], tmp_path: Path, opened: list[str]) -> None:
    torch, accelerate = require("torch"), require("accelerate")
    folder, saved = plain
    with accelerate.init_empty_weights():
        empty = module()
    target = module() if device_map is None else empty
    with tload.patch():
        loaded = accelerate.load_checkpoint_and_dispatch(
            target, folder, device_map=device_map, offload_folder=tmp_path / "offload", strict=True
        ).eval()
        given = torch.rand(5, 8)
        models.assert_close(loaded(given), saved.eval()(given))
    assert_opened(opened, folder)
    for name, tensor in loaded.state_dict().items():
        assert tensor.is_meta or torch.equal(tensor, saved.state_dict()[name]), name


@pytest.mark.parametrize("shard_size", ["10GB", "100KB"])
@pytest.mark.parametrize("low_cpu_mem_usage", [True, False])
def test_diffusers(shard_size: str, low_cpu_mem_usage: Any, tmp_path: Path, opened: list[str]) -> None:
    torch, diffusers = require("torch"), require("diffusers")
    unet = models.unet()
    unet.save_pretrained(tmp_path, max_shard_size=shard_size)
    stock = diffusers.UNet2DModel.from_pretrained(tmp_path, low_cpu_mem_usage=low_cpu_mem_usage)
    assert opened == []
    with tload.patch():
        loaded = diffusers.UNet2DModel.from_pretrained(tmp_path, low_cpu_mem_usage=low_cpu_mem_usage)
    assert_opened(opened, tmp_path)
    assert list(loaded.state_dict()) == list(stock.state_dict()) == list(unet.state_dict())
    tensors, others = models.all_tensors(loaded), models.all_tensors(stock)
    assert list(tensors) == list(others)
    assert all(torch.equal(tensors[name], tensor) for name, tensor in others.items())
    assert all(torch.equal(tensors[name], tensor) for name, tensor in unet.state_dict().items())
    noise = torch.rand(1, 3, 8, 8)
    with torch.no_grad():
        models.assert_close(loaded(noise, 1).sample, stock(noise, 1).sample)


def replaced() -> set[str]:
    """Return the attributes of the three packages' modules that are tload's, as `module.name`."""
    return {
        f"{module.__name__}.{key}"
        for name, module in [*sys.modules.items()]
        if module is not None and name.partition(".")[0] in {"transformers", "accelerate", "diffusers"}
        for key, value in [*vars(module).items()]
        if str(getattr(value, "__module__", getattr(value, "__name__", ""))).partition(".")[0] == "tload"
    }


def test_nothing_is_left_behind(dense: Path) -> None:
    modeling = require("transformers.modeling_utils")
    offload = require("accelerate.utils.offload")
    before = (modeling.safe_open, offload.safe_open)
    with tload.patch() as names:
        assert {"transformers.modeling_utils.safe_open", "accelerate.utils.offload.safe_open"} <= set(names)
        assert set(names) == replaced()
    assert (modeling.safe_open, offload.safe_open) == before
    with pytest.raises(OSError, match="no_such_folder"), tload.patch():
        auto().from_pretrained(dense / "no_such_folder")
    assert (modeling.safe_open, offload.safe_open) == before
    assert not replaced()
