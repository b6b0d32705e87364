"""The loader inside SGLang, compared with SGLang's own: the same tensors. `make test-engines` runs
it.

Only the Python part of SGLang is needed.

SGLang's engine needs a GPU or kernels built for the processor. Its loaders do not; the models here
are stand-ins.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from sglang.srt import runtime_context
from sglang.srt.arg_groups.choices import LOAD_FORMAT_CHOICES
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.model_loader import loader as loaders
from sglang.srt.model_loader.loader import DefaultModelLoader, get_model_loader
from sglang.srt.plugins import load_plugins

import tload
from files import Content, tile, write_checkpoint, write_file
from ranks import start_ranks
from resident import evict
from tload._engines.watch import GONE
from tload.sglang import TloadModelLoader

if TYPE_CHECKING:
    from servers import S3, Web

load_plugins()

WEIGHTS = {f"layers.{index}.norm.weight": Content.random("F32", (5,), index) for index in range(12)}
# Global state that the engine sets and its loaders read.
PUBLISHED = SimpleNamespace(
    model_path="",
    model_checksum=None,
    weight_loader_disable_mmap=False,
    weight_loader_prefetch_checkpoints=False,
    weight_loader_prefetch_num_threads=1,
    weight_loader_drop_cache_after_load=False,
)


class Model(torch.nn.Module):
    """Keeps the weights that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.got: dict[str, torch.Tensor] = {}

    def load_weights(self, weights: Any) -> None:
        self.got.update(weights)


class Config(SimpleNamespace):
    """Stand-in for SGLang's, which is hashable too."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


def config(path: Path, *, draft: bool = False) -> Any:
    hf_config = SimpleNamespace(architectures=["LlamaForCausalLM"])
    return Config(model_path=str(path), revision=None, hf_config=hf_config, is_draft_model=draft, dtype=torch.float32)


def loader(extra: dict[str, Any] | None = None, **fields: Any) -> Any:
    return get_model_loader(LoadConfig(load_format="tload", model_loader_extra_config=extra or {}, **fields))


def weights_of(which: Any, model_config: Any, model: Model | None = None) -> dict[str, torch.Tensor]:
    model = model or Model()
    model.load_weights(which._get_all_weights(model_config, model))
    return model.got


def same(got: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    assert set(got) == set(wanted)
    return all(torch.equal(got[name].view(torch.uint8), wanted[name].view(torch.uint8)) for name in wanted)


@pytest.fixture(autouse=True)
def _published(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for module in (loaders, sys.modules[TloadModelLoader.__module__]):
        monkeypatch.setattr(module, "get_model", lambda: PUBLISHED)
    monkeypatch.setattr(loaders, "get_server_args", lambda: None)
    # If these were renamed, this test would prove nothing.
    assert callable(runtime_context.get_model)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    write_checkpoint(folder, [{name: content} for name, content in WEIGHTS.items()])
    write_file(folder / "stray.safetensors", {"stray": Content.random("F32", (2,), 0)})
    write_file(folder / "consolidated.safetensors", {"second": Content.random("F32", (2,), 0)})
    return folder


def test_the_plugin_is_found_by_its_entry_point() -> None:
    assert LOAD_FORMAT_CHOICES.count("tload") == 1
    assert type(loader()) is TloadModelLoader
    assert isinstance(loader(), DefaultModelLoader)


def test_other_formats_are_what_they_were() -> None:
    assert type(get_model_loader(LoadConfig(load_format="auto"))) is DefaultModelLoader
    with pytest.raises(ValueError, match="tlod"):
        LoadConfig(load_format="tlod")


def test_the_class_is_a_load_format_without_the_plugin() -> None:
    program = (
        "from sglang.srt.configs.load_config import LoadConfig\n"
        "from sglang.srt.model_loader.loader import get_model_loader\n"
        "from tload.sglang import TloadModelLoader\n"
        "assert type(get_model_loader(LoadConfig(load_format=TloadModelLoader))) is TloadModelLoader"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_folder_brings_what_the_default_loader_brings(folder: Path) -> None:
    got = weights_of(loader(), config(folder))
    assert same(got, weights_of(get_model_loader(LoadConfig(load_format="auto")), config(folder)))
    assert set(got) == set(WEIGHTS)


def test_resolved_files_are_used(folder: Path) -> None:
    which, model = loader(), Model()
    [resolved] = which.resolve_model_weights(config(folder), model)
    got = dict(which._get_weights_iterator(resolved.source, resolved_source=resolved, startup_prefetch_started=True))
    assert set(got) == set(WEIGHTS)


def test_layers_of_multi_token_prediction_are_renamed_as_there(folder: Path) -> None:
    names = {f"model.mtp.layers.{index}.w": Content.random("F32", (2,), index) for index in range(2)}
    write_file(folder / "stray.safetensors", names)
    (folder / "model.safetensors.index.json").unlink()
    (folder / "consolidated.safetensors").unlink()
    ours, theirs = loader(draft_model_idx=1), get_model_loader(LoadConfig(load_format="auto", draft_model_idx=1))
    got = weights_of(ours, config(folder))
    assert same(got, weights_of(theirs, config(folder)))
    assert set(got) == {*WEIGHTS, "model.mtp.layers.0.w"}


def test_what_is_not_safetensors_is_left_to_sglang(tmp_path: Path) -> None:
    torch.save({"a.weight": torch.arange(3)}, tmp_path / "pytorch_model.bin")
    assert weights_of(loader(), config(tmp_path))["a.weight"].tolist() == [0, 1, 2]
    with pytest.raises(tload.InvalidRequestError, match="cannot be verified"):
        weights_of(loader({"verify": "require"}), config(tmp_path))


def test_from_elsewhere(s3: S3, folder: Path, tmp_path: Path) -> None:
    bare, draft = tmp_path / "bare", tmp_path / "draft"
    bare.mkdir()
    draft.mkdir()
    write_file(draft / "model.safetensors", {"draft": Content.random("F32", (2,), 0)})
    url = s3.put_folder("models", "sgl", folder)
    wanted = weights_of(loader(), config(folder))
    for source in (url, str(folder), [str(path) for path in sorted(folder.glob("model-*"))]):
        which = loader({"source": source, "store": s3.store})
        assert same(weights_of(which, config(bare)), wanted)
        assert set(weights_of(which, config(draft, draft=True))) == {"draft"}


def test_errors(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"'enable_multithread_load' is a key of .* tload tunes this itself"):
        loader({"enable_multithread_load": True})
    shard = folder / "model-00003-of-00012.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(RuntimeError, match=f"tload cannot load the model weights of `{folder}`") as caught:
        weights_of(loader(), config(folder))
    assert isinstance(caught.value.__cause__, tload.FormatError)
    with pytest.raises(RuntimeError, match="tload cannot load the model weights of `/nowhere`"):
        weights_of(loader({"source": "/nowhere"}), config(folder))


class Filled(torch.nn.Module):
    """Copies its weights to parameters, as models of SGLang do."""

    PARTS = ("gate", "up")

    def __init__(self) -> None:
        super().__init__()
        self.gate_up = torch.nn.Parameter(torch.full((8, 4), -1.0), requires_grad=False)
        self.norm = torch.nn.Parameter(torch.full((5,), -1.0), requires_grad=False)

    def load_weights(self, weights: Any) -> None:
        for name, tensor in weights:
            if name in self.PARTS:
                self.gate_up.data.narrow(0, 4 * self.PARTS.index(name), 4).copy_(tensor)
            elif name == "norm":
                self.norm.data.copy_(tensor)

    def answer(self) -> torch.Tensor:
        return torch.cat([self.gate_up.flatten(), self.norm]).view(torch.uint8)  # random bytes: some are NaN


def filling(seed: int) -> dict[str, Content]:
    shapes = {"gate": (4, 4), "up": (4, 4), "norm": (5,)}
    return {name: Content.random("F32", shape, seed + at) for at, (name, shape) in enumerate(shapes.items())}


def write(folder: Path, tensors: dict[str, Content]) -> Path:
    folder.mkdir(exist_ok=True)
    write_file(folder / "model.safetensors", tensors)
    return folder


def start(model: Filled, path: Path, extra: dict[str, Any] | None = None) -> Any:
    model_config, which = config(path), loader(extra)
    which.load_weights_and_postprocess(model, which._get_all_weights(model_config, model), torch.device("cpu"))
    return model_config


def update(model: Filled, model_config: Any, path: Path | str, keep: Any = None) -> tuple[bool, str]:
    """Update weights from disk with SGLang's own code, without an engine around it."""
    from sglang.srt.model_executor.model_runner_components import weight_updater

    updater = SimpleNamespace(
        _assert_weight_cache_inactive=lambda _: None,
        get_model=lambda: model,
        device="cpu",
        gpu_id=0,
        model_config=model_config,
        update_model_fields=lambda *_, **__: None,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_updater, "get_available_gpu_memory", lambda *_, **__: 0.0)
        patch.setattr(weight_updater, "get_pp_stage_load_group", lambda: None)
        return weight_updater.WeightUpdater.update_weights_from_disk(updater, str(path), "tload", keep)


@pytest.mark.parametrize("absent", ["gate", "up", "norm"])
def test_parameters_without_weights_are_an_error(tmp_path: Path, absent: str, caplog: pytest.LogCaptureFixture) -> None:
    tensors = filling(0)
    path = write(tmp_path / "m", tensors)
    start(Filled(), path)
    del tensors[absent]
    write(path, tensors)
    parameter = "norm" if absent == "norm" else "gate_up"
    with pytest.raises(ValueError, match=f"`{path}` leaves 1 parameter of Filled without weights: '{parameter}'"):
        start(Filled(), path)
    start(Filled(), path, {"missing_weights": "warn"})
    assert "they have arbitrary values" in caplog.text
    caplog.clear()
    start(Filled(), path, {"missing_weights": "off"})
    assert "arbitrary" not in caplog.text


def cut(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


FAULTS: dict[str, tuple[Any, str]] = {
    "no such folder": (shutil.rmtree, "there is no such directory"),
    "empty folder": (lambda path: (path / "model.safetensors").unlink(), "Cannot find any model weights"),
    "file ends early": (cut, "file ends too early"),
    "empty file": (lambda path: (path / "model.safetensors").write_bytes(b""), "model.safetensors"),
    "garbage": (lambda path: (path / "model.safetensors").write_bytes(b"\xff" * 64), "model.safetensors"),
    "another architecture": (lambda path: write(path, WEIGHTS), "lacks 'gate', 'norm', 'up'.* instead"),
    "a tensor is missing": (lambda path: write(path, {"gate": filling(9)["gate"]}), "lacks 'norm', 'up', which"),
    "a tensor has another shape": (
        lambda path: write(path, filling(9) | {"norm": Content.random("F32", (6,), 1)}),
        r"tensor 'norm' is F32 \[6\], wanted F32 \[5\]",
    ),
    "another quantization": (
        lambda path: write(path, filling(9) | {"norm": Content.random("I8", (5,), 1)}),
        r"tensor 'norm' is I8 \[5\], wanted F32 \[5\]",
    ),
    "sharded state": (
        lambda path: (path / "model.safetensors").rename(path / "model-rank-0-part-0.safetensors"),
        "is part of a sharded state",
    ),
    "GGUF": (lambda path: (path / "model.safetensors").rename(path / "model.gguf"), "GGUF files only"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_updates_are_refused_while_the_old_weights_serve(tmp_path: Path, fault: str) -> None:
    model, old = Filled(), write(tmp_path / "old", filling(0))
    model_config = start(model, old)
    before, new = model.answer(), write(tmp_path / "new", filling(9))
    harm, said = FAULTS[fault]
    harm(new)
    done, message = update(model, model_config, new)
    assert not done
    assert message.startswith("Failed to get weights iterator: ")
    assert re.search(said, message), message
    assert torch.equal(model.answer(), before)
    assert model_config.model_path == str(old)
    good = write(tmp_path / "good", filling(5))
    assert update(model, model_config, good) == (True, "Succeeded to update model weights.")
    fresh = Filled()
    start(fresh, good)
    assert torch.equal(model.answer(), fresh.answer())


def test_faulty_locations_are_refused_while_the_old_weights_serve(tmp_path: Path) -> None:
    model = Filled()
    model_config = start(model, write(tmp_path / "old", filling(0)))
    before = model.answer()
    for url in ("http://127.0.0.1:9/m", "ftp://host/m", "s3:///m"):
        done, message = update(model, model_config, url)
        assert not done
        assert message.startswith("Failed to get weights iterator: tload cannot load"), message
        assert torch.equal(model.answer(), before)


def test_tensors_that_sglang_picks_are_updated_alone(tmp_path: Path) -> None:
    model, new = Filled(), filling(9)
    model_config = start(model, write(tmp_path / "old", filling(0)))
    wanted = model.answer().clone()
    assert update(model, model_config, write(tmp_path / "new", new), lambda name: name == "up")[0]
    wanted[64:128] = torch.frombuffer(bytearray(new["up"].raw), dtype=torch.uint8)
    assert torch.equal(model.answer(), wanted)
    # A whole update has to have every tensor that the first load used.
    del new["norm"]
    assert not update(model, model_config, write(tmp_path / "part", new))[0]
    assert torch.equal(model.answer(), wanted)


def test_errors_while_updating_say_what_is_lost(tmp_path: Path) -> None:
    class Failing(Filled):
        fails = False

        def load_weights(self, weights: Any) -> None:
            for at, one in enumerate(weights):
                super().load_weights([one])
                if self.fails and at == 1:
                    message = "broken"
                    raise ValueError(message)

    model = Failing()
    model_config = start(model, write(tmp_path / "old", filling(0)))
    model.fails = True
    new = write(tmp_path / "new", filling(9))
    # SGLang loads the same weights once more to roll back.
    with pytest.raises(ValueError, match=f"while loading '.*' from `{new}`: broken; {re.escape(GONE)}"):
        update(model, model_config, new)


# Waits for what is read ahead, as imports do that take long, and loads. The test's timeout ends waits.
UNDER_EXEC = """
import sys
import time
from pathlib import Path

import sglang_loader as suite
from resident import resident_bytes

for module in (suite.loaders, sys.modules[suite.TloadModelLoader.__module__]):
    module.get_model = lambda: suite.PUBLISHED
suite.loaders.get_server_args = lambda: None
folder = Path(sys.argv[1])
files = sorted(folder.glob("model-*.safetensors"))
while any(resident_bytes(file) < file.stat().st_size / 2 for file in files):
    time.sleep(0.01)
got = suite.weights_of(suite.loader(), suite.config(folder))
assert {name: tensor.numpy().tobytes() for name, tensor in got.items()} == {
    name: content.raw for name, content in suite.WEIGHTS.items()
}
sys.exit(9)
"""


def test_files_are_in_the_page_cache_when_sglang_loads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in folder.glob("model-*.safetensors"):
        evict(file)
    paths = [str(Path(__file__).parent), *sys.path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    ahead = [sys.executable, "-m", "tload", "exec", "--prefetch", str(folder), "--"]
    program = [sys.executable, "-c", UNDER_EXEC, str(folder)]
    done = subprocess.run([*ahead, *program], capture_output=True, text=True, check=False)
    assert done.returncode == 9, done.stderr
    assert re.search(r"note: tload exec: read .* ahead into the page cache", done.stderr), done.stderr


LARGE = {
    f"layers.{index}.w.weight": Content("U8", (size,), tile(index, size)) for index, size in enumerate([3 << 20, 99])
}


def test_ranks_read_once(web: Web, tmp_path: Path) -> None:
    write_file(tmp_path / "model.safetensors", LARGE)
    total = sum(len(content.raw) for content in LARGE.values())
    for phase in ("start", "alone"):
        web.files[f"bucket/{phase}/model.safetensors"] = (tmp_path / "model.safetensors").read_bytes()
    start_ranks(2, two_ranks, web.url, tmp_path)
    assert total <= web.bytes_requested("bucket/start/") < 1.001 * total
    assert 2 * total <= web.bytes_requested("bucket/alone/") < 2.001 * total


def two_ranks(rank: int, endpoint: str, nowhere: Path) -> None:
    from sglang.srt.distributed import parallel_state

    world = parallel_state.init_world_group([0, 1], rank, "gloo")
    module = sys.modules[TloadModelLoader.__module__]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "get_parallel", lambda: SimpleNamespace(world_group=world))
        patch.setattr(module, "get_model", lambda: PUBLISHED)
        patch.setattr(loaders, "get_model", lambda: PUBLISHED)
        patch.setattr(loaders, "get_server_args", lambda: None)
        store = {"endpoint": endpoint, "anonymous": True, "region": "us-east-1"}
        # SGLang names no group for loads of one rank; other groups are passed in the same field.
        for phase, fields in (("start", {}), ("alone", {"load_group": None})):
            extra = {"source": f"s3://bucket/{phase}/model.safetensors", "store": store}
            got = weights_of(loader(extra, **fields), config(nowhere))
            assert {name: tensor.numpy().tobytes() for name, tensor in got.items()} == {
                name: content.raw for name, content in LARGE.items()
            }
