"""The loader inside SGLang, compared with SGLang's own: the same tensors. `make test-sglang` runs
it.

Only the Python part of SGLang is needed.

SGLang's engine needs a GPU or kernels built for the processor. Its loaders do not; the models here
are stand-ins.
"""

from __future__ import annotations

import subprocess
import sys
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
from tload.sglang import TloadModelLoader

if TYPE_CHECKING:
    from pathlib import Path

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


def config(path: Path, *, draft: bool = False) -> Any:
    hf_config = SimpleNamespace(architectures=["LlamaForCausalLM"])
    return SimpleNamespace(model_path=str(path), revision=None, hf_config=hf_config, is_draft_model=draft)


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
def _published(monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(ValueError, match="'enable_multithread_load' is not a key of tload"):
        loader({"enable_multithread_load": True})
    shard = folder / "model-00003-of-00012.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(RuntimeError, match=f"tload cannot load the model weights of `{folder}`") as caught:
        weights_of(loader(), config(folder))
    assert isinstance(caught.value.__cause__, tload.FormatError)
    with pytest.raises(RuntimeError, match="tload cannot load the model weights of `/nowhere`"):
        weights_of(loader({"source": "/nowhere"}), config(folder))


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
