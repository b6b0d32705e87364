"""The loader inside vLLM, compared with vLLM's own: the same tensors, the same errors. Needs vLLM:
`make test-engines` runs it.

The models are stand-ins that keep the weights that they get; `vllm_tokens.py` runs real ones.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.config.load import LoadConfig
from vllm.lora.resolver import LoRAResolverRegistry
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.plugins import load_general_plugins

import tload
from files import Content, tile, write_checkpoint, write_file
from ranks import start_ranks
from tload.vllm import _lora, _lora_resolver

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from servers import S3, Web

load_general_plugins()

EXPERTS = {
    f"layers.0.experts.{index}.w.{part}": Content.random("BF16", (4, 8), index)
    for index in range(4)
    for part in ("weight", "scale")
}
DENSE = {f"layers.{index}.norm.weight": Content.random("F32", (5,), index) for index in range(12)}


class Model(torch.nn.Module):
    """Has a parameter for each tensor of the checkpoint, and copies as models of vLLM do."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        super().__init__()
        self.names = list(names)
        self.got: dict[str, torch.Tensor] = {}
        self.place = torch.nn.Parameter(torch.zeros(1))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        for name, tensor in weights:
            self.got[name] = tensor
        return {"place"} if set(self.names) <= set(self.got) else set()


def config(model: Path | str, **fields: Any) -> Any:
    settings = {"revision": None, "model_weights": "", "quantization": None, "is_moe": False, "multimodal_config": None}
    return SimpleNamespace(model=str(model), **(settings | fields))


def loader(extra: dict[str, Any] | None = None, **fields: Any) -> Any:
    return get_model_loader(LoadConfig(load_format="tload", model_loader_extra_config=extra or {}, **fields))


def default() -> Any:
    return get_model_loader(LoadConfig(load_format="auto"))


def same(got: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    assert set(got) == set(wanted)
    return all(
        (got[name].dtype, got[name].shape) == (wanted[name].dtype, wanted[name].shape)
        and torch.equal(got[name].reshape(-1).view(torch.uint8), wanted[name].reshape(-1).view(torch.uint8))
        for name in wanted
    )


def weights_of(which: Any, model_config: Any, model: torch.nn.Module | None = None) -> dict[str, torch.Tensor]:
    found = list(which.get_all_weights(model_config, model or Model()))
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.fixture(autouse=True)
def _plans_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def _within_a_config() -> Iterator[None]:
    with set_current_vllm_config(VllmConfig()):
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    names = list(DENSE)
    shards: list[Any] = [{name: DENSE[name]} for name in names[:-1]]
    write_checkpoint(folder, [*shards, {names[-1]: DENSE[names[-1]]} | EXPERTS])
    write_file(folder / "stray.safetensors", {"stray": Content.random("F32", (2,), 0)})
    return folder


def test_the_plugin_is_found_by_its_entry_point() -> None:
    from tload.vllm._loader import TloadModelLoader

    assert type(loader()) is TloadModelLoader
    assert isinstance(loader(), DefaultModelLoader)


def test_a_folder_brings_what_the_default_loader_brings(folder: Path) -> None:
    got = weights_of(loader(), config(folder))
    assert same(got, weights_of(default(), config(folder)))
    assert set(got) == {*DENSE, *EXPERTS}


@pytest.mark.parametrize("index", [True, False])
def test_a_second_copy_is_treated_as_by_the_default_loader(folder: Path, index: bool) -> None:  # noqa: FBT001
    write_file(folder / "consolidated-00001-of-00002.safetensors", {"a": Content.random("F32", (2,), 0)})
    write_file(folder / "consolidated-00002-of-00002.safetensors", {"b": Content.random("F32", (2,), 1)})
    write_file(folder / "consolidated-00009-of-00002.safetensors", {"c": Content.random("F32", (2,), 1)})
    if index:
        map_ = {"a": "consolidated-00001-of-00002.safetensors", "b": "consolidated-00002-of-00002.safetensors"}
        (folder / "consolidated.safetensors.index.json").write_text(json.dumps({"weight_map": map_}))
    got = weights_of(loader(), config(folder))
    assert same(got, weights_of(default(), config(folder)))
    assert set(got) == ({"a", "b"} if index else {"a", "b", "c"})


def test_a_model_in_the_cache_of_hugging_face(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--org--name"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / commit
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    for path in folder.iterdir():
        shutil.copy(path, blobs / path.name)
        (snapshot / path.name).symlink_to(os.path.relpath(blobs / path.name, snapshot))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    from vllm.model_executor.model_loader import weight_utils

    monkeypatch.setattr(weight_utils.huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    place = {"download_dir": str(tmp_path / "hub")}
    got = weights_of(loader(**place), config("org/name"))
    wanted = get_model_loader(LoadConfig(load_format="auto", **place))
    assert same(got, weights_of(wanted, config("org/name")))
    assert set(got) == {*DENSE, *EXPERTS}


def test_experts_of_other_ranks_are_skipped_as_by_the_default_loader(folder: Path) -> None:
    ours, theirs = loader(), default()
    ours.local_expert_ids = theirs.local_expert_ids = {1, 2}
    got = weights_of(ours, config(folder))
    assert same(got, weights_of(theirs, config(folder)))
    assert {name for name in got if "experts" in name and name.endswith("weight")} == {
        "layers.0.experts.1.w.weight",
        "layers.0.experts.2.w.weight",
    }
    assert sum(name.endswith("scale") for name in got) == 4


def test_weights_beside_the_models_own_have_their_prefix(folder: Path, tmp_path: Path) -> None:
    tower = tmp_path / "tower"
    tower.mkdir()
    write_file(tower / "model.safetensors", {"w": Content.random("F16", (3,), 5)})
    torch.save({"sparse.weight": torch.arange(3)}, tower / "sparse.pt")
    model = Model()
    model.secondary_weights = [
        DefaultModelLoader.Source(str(tower), None, prefix="tower."),
        # BGE-M3 has such files: tload does not read them; vLLM's own reader does.
        DefaultModelLoader.Source(str(tower), None, prefix="pt.", allow_patterns_overrides=["*.pt"]),
    ]
    got = weights_of(loader(), config(folder), model)
    assert same(got, weights_of(default(), config(folder), model))
    assert {"tower.w", "pt.sparse.weight"} < set(got)
    elsewhere = weights_of(loader({"source": str(folder)}), config(tower), model)
    assert same(elsewhere, got)
    files = weights_of(loader({"source": [str(path) for path in sorted(folder.glob("model-*"))]}), config(tower), model)
    assert same(files, got)
    verified = Model()
    verified.secondary_weights = model.secondary_weights[1:]
    tload.verify(folder, write=True).check()
    with pytest.raises(tload.InvalidRequestError, match="cannot be verified"):
        weights_of(loader({"verify": "require"}), config(folder), verified)


def test_unused_tensors_are_not_read(folder: Path) -> None:
    model = Model()
    model.is_unused_checkpoint_weight = lambda name: "experts" in name
    assert set(weights_of(loader(), config(folder), model)) == set(DENSE)


def test_progress_is_shown_as_vllm_shows_it(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    weights_of(loader(), config(folder))
    shown = capfd.readouterr().err
    assert re.search(r"Loading safetensors using tload: 100% Completed \| \d+/\d+", shown)
    weights_of(loader(use_tqdm_on_load=False), config(folder))
    assert "Loading safetensors" not in capfd.readouterr().err


def test_all_parameters_must_be_loaded(folder: Path) -> None:
    loader().load_weights(Model(DENSE), config(folder))
    with pytest.raises(ValueError, match=r"Following weights were not initialized from checkpoint: \{'place'\}"):
        default().load_weights(Model([*DENSE, "missing"]), config(folder))
    for quantization in (None, "fp8"):
        with pytest.raises(
            ValueError, match=rf"`{folder}` leaves 1 parameter of Model without weights: 'place' \(nothing"
        ):
            loader().load_weights(Model([*DENSE, "missing"]), config(folder, quantization=quantization))
    loader({"enable_weights_track": False}).load_weights(Model([*DENSE, "missing"]), config(folder))
    loader({"missing_weights": "warn"}).load_weights(Model([*DENSE, "missing"]), config(folder, quantization="fp8"))
    # vLLM's own check remains.
    with pytest.raises(ValueError, match="Following weights were not initialized"):
        loader({"missing_weights": "off"}).load_weights(Model([*DENSE, "missing"]), config(folder))


@pytest.mark.parametrize("fields", [{"safetensors_load_strategy": "eager"}, {"model_loader_extra_config": {"x": 1}}])
def test_a_wrong_config_is_an_error_of_the_same_kind(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        get_model_loader(LoadConfig(load_format="tload", **fields))
    if "model_loader_extra_config" in fields:
        with pytest.raises(ValueError):  # noqa: PT011
            get_model_loader(LoadConfig(load_format="auto", **fields))


@pytest.mark.parametrize("harm", ["a missing shard", "an empty folder", "no such folder"])
def test_what_is_not_there_is_vllms_own_error(folder: Path, harm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = config(folder)
    if harm == "a missing shard":
        (folder / "model-00003-of-00012.safetensors").unlink()
    elif harm == "an empty folder":
        shutil.rmtree(folder)
        folder.mkdir()
    else:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        model = config("org/nowhere")
    errors = []
    for which in (loader(), default()):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            weights_of(which, model)
        errors.append(caught.value)
    assert type(errors[0]) is type(errors[1])
    assert str(errors[0]) == str(errors[1])


@pytest.mark.parametrize("harm", ["truncated", "garbage"])
def test_a_bad_shard_is_an_error_that_says_where(folder: Path, harm: str) -> None:
    shard = folder / "model-00003-of-00012.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] if harm == "truncated" else b"\xff" * 64)
    model = Model(DENSE)
    with pytest.raises(
        RuntimeError, match=rf"tload cannot load the model weights of `{folder}`: .*{shard.name}"
    ) as caught:
        loader().load_weights(model, config(folder))
    assert isinstance(caught.value.__cause__, tload.FormatError)
    # Headers are read first: the model has not received half of the weights.
    assert model.got == {}


def test_a_model_that_fails_half_way_leaves_nothing_running(folder: Path) -> None:
    class Failing(Model):
        def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
            next(iter(weights))
            message = "no such parameter"
            raise KeyError(message)

    with pytest.raises(KeyError, match="no such parameter"):
        loader().load_weights(Failing(), config(folder))
    assert same(weights_of(loader(), config(folder)), weights_of(default(), config(folder)))


def test_from_a_bucket(s3: S3, folder: Path, tmp_path: Path) -> None:
    url = s3.put_folder("models", "m", folder)
    extra = {"source": url, "store": s3.store}
    got = weights_of(loader(extra), config(tmp_path))
    assert same(got, weights_of(default(), config(folder)))
    loader(extra).download_model(config(tmp_path))
    with pytest.raises(RuntimeError, match="tload cannot load the model weights of `s3://models/nowhere`") as caught:
        weights_of(loader(extra | {"source": "s3://models/nowhere"}), config(tmp_path))
    assert isinstance(caught.value.__cause__, tload.NotFoundError)
    patterned = Model()
    patterned.allow_patterns_overrides = ["*er/*.safetensors"]
    with pytest.raises(ValueError, match="Model chooses files by its own patterns"):
        weights_of(loader(extra), config(tmp_path), patterned)


def test_draft_model_ignores_source(folder: Path, tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    write_file(draft / "model.safetensors", {"draft": Content.random("F32", (2,), 0)})
    target = config(tmp_path / "target")
    current = SimpleNamespace(
        model_config=config(draft),
        speculative_config=SimpleNamespace(target_model_config=target),
        parallel_config=one(),
    )
    which = loader({"source": str(folder)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tload.vllm._loader.get_current_vllm_config_or_none", lambda: current)
        assert set(weights_of(which, config(draft))) == {"draft"}
        assert set(weights_of(which, target)) == {*DENSE, *EXPERTS}  # as do MTP layers in the target's files


def one() -> Any:
    return SimpleNamespace(local_world_size=1, data_parallel_size_local=1)


def test_a_reload_from_elsewhere_is_from_elsewhere(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_file(other / "model.safetensors", {"other": Content.random("F32", (2,), 0)})
    model, model_config = Model(DENSE), config(tmp_path)
    which = loader({"source": str(folder)})
    which.load_weights(model, model_config)
    assert set(weights_of(loader({"source": str(folder)}), model_config, model)) == {*DENSE, *EXPERTS}
    model_config.model = str(other)  # as `reload_weights(weights_path=...)` does
    assert set(weights_of(loader({"source": str(folder)}), model_config, model)) == {"other"}


def test_ranks_of_a_machine_go_through_the_page_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tload.vllm import _loader, _weights

    asked = []
    monkeypatch.setattr(_weights, "stream", lambda *_, **how: asked.append(how["ranks"]) or iter(()))
    for local, data in [(1, 1), (4, 1), (2, 0), (2, 3)]:
        parallel = SimpleNamespace(local_world_size=local, data_parallel_size_local=data)
        current = SimpleNamespace(parallel_config=parallel, model_config=None, speculative_config=None)
        monkeypatch.setattr(_loader, "get_current_vllm_config_or_none", lambda current=current: current)
        weights_of(loader(), config(folder))
    assert asked == [1, 4, 2, 6]
    # The counted attributes exist in this version of vLLM.
    parallel = VllmConfig().parallel_config
    assert (parallel.local_world_size, max(1, parallel.data_parallel_size_local)) == (1, 1)


LARGE = {
    f"layers.{index}.w.weight": Content("U8", (size,), tile(index, size)) for index, size in enumerate([3 << 20, 99])
}


def test_ranks_that_load_together_read_once(web: Web, tmp_path: Path) -> None:
    write_file(tmp_path / "model.safetensors", LARGE)
    total = sum(len(content.raw) for content in LARGE.values())
    phases = ("start", "draft", "reload", "runai")
    for phase in phases:
        web.files[f"bucket/{phase}/model.safetensors"] = (tmp_path / "model.safetensors").read_bytes()
    # vLLM fails if its shared memory exists, and a killed run leaves it behind.
    name = f"tests-{os.getpid()}"
    try:
        start_ranks(4, two_stages_of_two, web.url, str(tmp_path), name)
    finally:
        for left in Path("/dev/shm").glob(f"{name}-*"):
            left.unlink()
    for phase in phases:
        assert total <= web.bytes_requested(f"bucket/{phase}/") < 1.001 * total, phase


def two_stages_of_two(rank: int, endpoint: str, nowhere: str, name: str) -> None:
    """Four ranks, one start of processes for all that they do, as it takes a minute."""
    import torch.distributed
    from vllm.distributed import parallel_state
    from vllm.model_executor.model_loader import weight_utils

    from tload.compat import runai

    def source(phase: str) -> dict[str, Any]:
        url = f"s3://bucket/{phase}/model.safetensors"
        return {"source": url, "store": {"endpoint": endpoint, "anonymous": True, "region": "us-east-1"}}

    def check(got: dict[str, torch.Tensor]) -> None:
        assert {name: tensor.numpy().tobytes() for name, tensor in got.items()} == {
            name: content.raw for name, content in LARGE.items()
        }

    os.environ["VLLM_DIST_IDENT"] = name  # of vLLM's own shared memory
    with set_current_vllm_config(VllmConfig()):
        parallel_state.init_distributed_environment(4, rank, backend="gloo")
        parallel_state.initialize_model_parallel(2, 2, backend="gloo")
        model = Model()
        loader(source("start")).load_weights(model, config(nowhere, runner_type="generate"))
        check(model.got)
        if parallel_state.get_pp_group().is_last_rank:
            model = Model()
            loader(source("draft")).load_weights(model, config(nowhere, runner_type="draft"))
            check(model.got)
        else:
            check(weights_of(loader(source("reload")), config(nowhere)))
        # vLLM's own loader of Run:ai Model Streamer, with tload in place of its package.
        weight_utils.SafetensorsStreamer = runai.SafetensorsStreamer
        os.environ |= {"RUNAI_STREAMER_S3_ENDPOINT": endpoint, "RUNAI_STREAMER_S3_UNSIGNED": "1", "AWS_REGION": "x"}
        check(dict(weight_utils.runai_safetensors_weights_iterator([source("runai")["source"]], False, True)))  # noqa: FBT003
        torch.distributed.barrier()
        parallel_state.destroy_model_parallel()


def test_adapters_resolve_by_name(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TLOAD_STORE", "\n".join(f"{key}={value}" for key, value in s3.store.items()))
    s3.put("adapters", "lora/sql/adapter_config.json", b'{"peft_type": "LORA"}')
    s3.put("adapters", "lora/sql/adapter_model.safetensors", b"weights")
    _lora_resolver.provide(_lora.Adapters("s3://adapters/lora", tmp_path))
    resolver = LoRAResolverRegistry.get_resolver("tload")
    request = asyncio.run(resolver.resolve_lora("base", "sql"))
    assert request is not None
    assert (request.lora_name, request.lora_path) == ("sql", str(tmp_path / "sql/@1"))
    assert asyncio.run(resolver.resolve_lora("base", "none")) is None
