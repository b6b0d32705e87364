"""`tload.transformers.from_pretrained`: the same models as from transformers itself, bit for
bit."""

from __future__ import annotations

import copy
import gc
import json
import os
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

import hub
import models
import tload
import tload._load.read_one
from conftest import require
from tload.transformers import _feed, _pretrained, from_pretrained
from tload.transformers._lazy import in_order_of_use

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import servers

ASYNC = "HF_DEACTIVATE_ASYNC_LOAD"


@pytest.fixture(scope="module", autouse=True)
def _packages() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        for name in ("torch", "transformers", "accelerate"):
            require(name)
        yield


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.save(models.dense(), tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.save(models.experts(), tmp_path_factory.mktemp("experts"))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Names that transformers requests, in its order, and the addresses of the tensors that it
    got."""
    addresses: dict[str, int] = {}
    take = _feed.Feed.take

    def spy(feed: _feed.Feed, name: str) -> Any:
        tensor = take(feed, name)
        addresses[name] = tensor.data_ptr()
        return tensor

    monkeypatch.setattr(_feed.Feed, "take", spy)
    return addresses


@pytest.fixture
def read_again(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of tensors that are read individually."""
    names: list[str] = []
    read = tload._load.read_one.read

    def spy(checkpoint: tload.Checkpoint, name: str, *arguments: Any, **keywords: Any) -> Any:
        names.append(name)
        return read(checkpoint, name, *arguments, **keywords)

    monkeypatch.setattr(tload._load.read_one, "read", spy)
    return names


def auto() -> Any:
    return require("transformers").AutoModelForCausalLM


@pytest.fixture
def linked(dense: Path, tmp_path: Path) -> Path:
    """A model of which one shard is a symbolic link to a file elsewhere."""
    folder = shutil.copytree(dense, tmp_path / "linked")
    shard = min(folder.glob("*.safetensors"))
    shard.rename(tmp_path / "elsewhere.safetensors")
    shard.symlink_to("../elsewhere.safetensors")
    return folder


def test_links_out_of_the_directory_need_permission(linked: Path, dense: Path) -> None:
    with pytest.raises(tload.PermissionDeniedError) as raised:
        from_pretrained(auto(), linked)
    assert "follow_symlinks=True" in str(raised.value.hint)
    model = from_pretrained(auto(), linked, follow_symlinks=True)
    models.assert_same(model, auto().from_pretrained(dense))


def test_links_are_followed_as_by_safetensors_when_patched(linked: Path, dense: Path) -> None:
    # transformers opens each shard by its path, and files that are listed are always allowed.
    with tload.patch():
        model = auto().from_pretrained(linked)
    models.assert_same(model, auto().from_pretrained(dense))


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_model_equals_that_of_transformers(kind: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(kind)
    assert len(list(folder.glob("*.safetensors"))) > 2
    stock = auto().from_pretrained(folder)
    model, said = from_pretrained(auto(), folder, output_loading_info=True)
    models.assert_same(model, stock)
    assert type(model) is type(stock)
    assert not model.training
    assert said == {"missing_keys": set(), "unexpected_keys": set(), "mismatched_keys": set(), "error_msgs": []}
    assert model.config.to_dict() == stock.config.to_dict()
    assert model.generation_config.to_dict() == stock.generation_config.to_dict()
    assert (model.name_or_path, model.config.name_or_path) == (stock.name_or_path, stock.config.name_or_path)
    assert os.environ.get(ASYNC) is None


@pytest.mark.parametrize("kind", ["dense", "unet"])
def test_aligned_weights_give_the_same_bits_as_those_of_safetensors(kind: str, tmp_path: Path) -> None:
    torch, safetensors = require("torch"), require("safetensors.torch")
    model = models.dense() if kind == "dense" else models.unet()
    path = tmp_path / "m.safetensors"
    noise = torch.rand(1, 3, 8, 8)

    def forward(state: dict[str, Any], *, assign: bool) -> Any:
        loaded = copy.deepcopy(model)
        loaded.load_state_dict(state, assign=assign)
        with torch.no_grad():
            return models.logits(loaded) if kind == "dense" else loaded(noise, 1).sample

    def is_aligned(state: dict[str, Any]) -> bool:
        return not any(tensor.data_ptr() % 64 for tensor in state.values())

    are_aligned = []
    # Tensors of one of these files, at least, do not begin on multiples of 64 bytes.
    for padding in (0, 8):
        safetensors.save_model(model, path, metadata={"padding": padding * "x"})
        # Copied into parameters that torch has allocated, which do.
        stock = forward(safetensors.load_file(path), assign=False)
        aligned = tload.load(path, align=64)
        assert is_aligned(aligned)
        assert torch.equal(forward(aligned, assign=True), stock)
        are_aligned.append(is_aligned(tload.load(path)))
    assert not all(are_aligned)


def test_weights_are_not_copied(dense: Path, taken: dict[str, int]) -> None:
    model = from_pretrained(require("transformers").LlamaForCausalLM, dense)
    assert {name: parameter.data_ptr() for name, parameter in model.named_parameters()} == taken


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_weights_arrive_in_requested_order(
    kind: str,
    request: pytest.FixtureRequest,
    taken: dict[str, int],
    read_again: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_feed, "WINDOW_BYTES", 20_000)
    monkeypatch.setattr(_feed, "WAITING_BYTES_MAX", 40_000)
    folder: Path = request.getfixturevalue(kind)
    model = from_pretrained(auto(), folder)
    with tload.open(folder) as checkpoint:
        assert list(taken) == in_order_of_use(checkpoint)
    assert read_again == []
    models.assert_same(model, auto().from_pretrained(folder))


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_wrong_order_guess_loads_same_model(
    kind: str, request: pytest.FixtureRequest, read_again: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_feed, "WINDOW_BYTES", 20_000)
    monkeypatch.setattr(_feed, "WAITING_BYTES_MAX", 40_000)
    monkeypatch.setattr(_pretrained, "in_order_of_use", lambda names: sorted(names, reverse=True))
    folder: Path = request.getfixturevalue(kind)
    models.assert_same(from_pretrained(auto(), folder), auto().from_pretrained(folder))
    assert read_again


@pytest.mark.parametrize("dtype", ["bfloat16", "auto", None])
@pytest.mark.parametrize("said", ["float16", None])
def test_dtypes(dtype: str | None, said: str | None, tmp_path: Path) -> None:
    torch = require("torch")
    folder = models.save(models.experts(dtype="bfloat16").to(torch.bfloat16), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["dtype"] = said
    (folder / "config.json").write_text(json.dumps(config))
    given: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    model = from_pretrained(auto(), folder, **given)
    models.assert_same(model, auto().from_pretrained(folder, **given))
    assert model.dtype == getattr(torch, said if said and dtype != "bfloat16" else "bfloat16")


def test_mixed_dtypes_follow_transformers(tmp_path: Path) -> None:
    torch = require("torch")
    saved = models.dense(dtype="bfloat16").to(torch.bfloat16)
    saved.lm_head.to(torch.float32)
    folder = models.save(saved, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": None}))
    with tload.open(folder) as checkpoint:
        assert {info.dtype for info in checkpoint.values()} == {"BF16", "F32"}
    models.assert_same(from_pretrained(auto(), folder), auto().from_pretrained(folder))


def test_the_configuration_of_generation(tmp_path: Path) -> None:
    folder = models.save(models.dense(), tmp_path)
    path = folder / "generation_config.json"
    path.write_text(json.dumps({"do_sample": True, "temperature": 0.25}))
    assert from_pretrained(auto(), folder).generation_config.temperature == 0.25
    with tload.open(folder) as checkpoint:
        files = [shard.location for shard in checkpoint.shards]
    assert from_pretrained(auto(), files, config=str(folder / "config.json")).generation_config.temperature == 0.25
    # The configuration before there was such a file.
    path.unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_beams": 3}))
    generation = from_pretrained(auto(), folder).generation_config
    assert generation.num_beams == 3
    assert generation.to_dict() == auto().from_pretrained(folder).generation_config.to_dict()


def test_tied_weights_are_one(tmp_path: Path) -> None:
    folder = models.save(models.dense(tie_word_embeddings=True), tmp_path)
    with tload.open(folder) as checkpoint:
        assert "lm_head.weight" not in checkpoint
    model = from_pretrained(auto(), folder)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    models.assert_same(model, auto().from_pretrained(folder))


@pytest.mark.parametrize("device_map", ["cpu", {"": "cpu"}, "auto", {"model": "cpu", "lm_head": "cpu"}])
def test_device_maps(device_map: Any, dense: Path) -> None:
    model = from_pretrained(auto(), dense, device_map=device_map)
    models.assert_same(model, auto().from_pretrained(dense, device_map=device_map))


def test_offloaded_weights_are_read_on_use(experts: Path, tmp_path: Path) -> None:
    device_map = {"model.embed_tokens": "cpu", "model.layers.0": "disk", "model.layers.1": "cpu"}
    device_map |= {"model.layers.2": "disk", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "disk"}
    model = from_pretrained(auto(), experts, device_map=device_map, offload_folder=tmp_path)
    assert model.lm_head.weight.is_meta
    models.assert_close(models.logits(model), models.logits(auto().from_pretrained(experts)))


@pytest.mark.parametrize("name", ["AutoModel", "AutoModelForSequenceClassification"])
def test_missing_and_unexpected_keys_are_reported_like_transformers(name: str, dense: Path) -> None:
    cls = getattr(require("transformers"), name)
    stock, expected = cls.from_pretrained(dense, output_loading_info=True)
    model, said = from_pretrained(cls, dense, output_loading_info=True)
    assert said == expected
    assert said["unexpected_keys"] == {"lm_head.weight"}
    assert type(model) is type(stock)
    assert not any(parameter.is_meta for parameter in model.parameters())


def test_other_shapes_are_rejected_like_transformers(dense: Path) -> None:
    config = require("transformers").AutoConfig.from_pretrained(dense, vocab_size=50)
    for load in (auto().from_pretrained, lambda *given, **named: from_pretrained(auto(), *given, **named)):
        with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
            load(dense, config=config)
    _, expected = auto().from_pretrained(dense, config=config, ignore_mismatched_sizes=True, output_loading_info=True)
    model, said = from_pretrained(auto(), dense, config=config, ignore_mismatched_sizes=True, output_loading_info=True)
    assert said == expected
    assert {key[0] for key in said["mismatched_keys"]} == {"lm_head.weight", "model.embed_tokens.weight"}
    assert model.lm_head.weight.shape[0] == 50


def test_arguments_change_the_configuration(dense: Path) -> None:
    for cls in (auto(), require("transformers").LlamaForCausalLM):
        model = from_pretrained(cls, dense, attn_implementation="eager", rms_norm_eps=0.5)
        stock = cls.from_pretrained(dense, attn_implementation="eager", rms_norm_eps=0.5)
        assert model.config._attn_implementation == "eager"
        models.assert_same(model, stock)


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_loaded_model_can_be_saved(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    folder: Path = request.getfixturevalue(kind)
    expected = models.save(auto().from_pretrained(folder), tmp_path / "expected")
    saved = models.save(from_pretrained(auto(), folder), tmp_path / "saved")
    assert sorted(path.name for path in saved.iterdir()) == sorted(path.name for path in expected.iterdir())
    for path in expected.iterdir():
        assert (saved / path.name).read_bytes() == path.read_bytes(), path.name


def test_sources(dense: Path, tmp_path: Path) -> None:
    stock = auto().from_pretrained(dense)
    with tload.open(dense) as checkpoint:
        models.assert_same(from_pretrained(auto(), checkpoint), stock)
        assert tload.load(checkpoint, names="lm_head.weight")
    models.assert_same(from_pretrained(auto(), str(dense / "model.safetensors.index.json")), stock)
    models.assert_same(from_pretrained(auto(), sorted(dense.glob("*.safetensors")), config=str(dense)), stock)
    # Of several checkpoints in a folder, the one that transformers loads.
    folder = models.save(models.dense(), tmp_path, "1GB")
    (folder / "adapter_model.safetensors").write_bytes(next(dense.glob("*.safetensors")).read_bytes())
    models.assert_same(from_pretrained(auto(), folder), stock)


def test_a_server_with_a_local_configuration(dense: Path, web: servers.Web) -> None:
    for path in dense.iterdir():
        web.files[f"model/{path.name}"] = path.read_bytes()
    url = f"{web.url}/model"
    config = web.files.pop("model/config.json")
    with pytest.raises(tload.InvalidRequestError, match="config= is needed") as caught:
        from_pretrained(auto(), f"{url}?signature=hunter2")
    assert "hunter2" not in str(caught.value)
    assert "config.json" in str(caught.value)
    web.files["model/config.json"] = config
    with pytest.raises(tload.InvalidRequestError, match="state_dict="):
        from_pretrained(auto(), dense, state_dict={"a": 1})
    model = from_pretrained(auto(), url, config=dense, options=tload.Options(memory_limit="1 MiB"))
    models.assert_same(model, auto().from_pretrained(dense))
    assert model.name_or_path == url


def test_configuration_comes_from_the_bucket(
    dense: Path, s3: servers.S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.put_folder("bucket", "llama", dense)
    expected = auto().from_pretrained(dense)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for source in (url, f"{url}/model.safetensors.index.json"):
        model = from_pretrained(auto(), source, store=s3.store, options=tload.Options(timeout=60))
        models.assert_same(model, expected)
        assert model.name_or_path == model.config.name_or_path == source
        assert model.generation_config.to_dict() == expected.generation_config.to_dict()
    assert not list(tmp_path.iterdir()), "temporary files stay"


def test_configuration_of_open_checkpoint_is_fetched_with_its_options(dense: Path, web: servers.Web) -> None:
    for path in dense.iterdir():
        web.files[f"model/{path.name}"] = path.read_bytes()
    with tload.open(f"{web.url}/model", store={"header.x-auth": "hunter2"}) as checkpoint:
        models.assert_same(from_pretrained(auto(), checkpoint), auto().from_pretrained(dense))
    asked = [request for request in web.requests if request.path == "/model/config.json"]
    assert asked
    assert all(request.headers["x-auth"] == "hunter2" for request in asked)


def test_remote_configurations_are_checked(dense: Path, web: servers.Web) -> None:
    url = f"{web.url}/model"
    config = json.loads((dense / "config.json").read_text())
    with pytest.raises(tload.NotFoundError):
        from_pretrained(auto(), url)
    web.files["model/model.safetensors"] = next(iter(dense.glob("*.safetensors"))).read_bytes()
    with pytest.raises(tload.InvalidRequestError, match=r"there is no config\.json"):
        from_pretrained(auto(), url)
    web.requests.clear()
    for content in (b"<html>", b"[" * 100_000):
        web.files["model/config.json"] = content
        with pytest.raises(tload.FormatError, match="not valid JSON"):
            from_pretrained(auto(), url)
    web.files["model/config.json"] = b" " * (16 * 1024 * 1024 + 1)
    with pytest.raises(tload.FormatError, match=r"has 16\.0 MiB, at most 16\.0 MiB were expected"):
        from_pretrained(auto(), url)
    own = config | {"model_type": "own", "auto_map": {"AutoConfig": "configuration_own.OwnConfig"}}
    web.files["model/config.json"] = json.dumps(own).encode()
    for trusted in (None, True):
        with pytest.raises(tload.UnsupportedError, match=r"needs the code of configuration_own\.OwnConfig"):
            from_pretrained(auto(), url, trust_remote_code=trusted)
    assert {request.path for request in web.requests} == {"/model/config.json"}


def keep_commit(cache: Path, commit: str, folder: Path, *revisions: str) -> None:
    """Put a commit of a model into a cache of the Hub's tools."""
    kept = cache / "models--org--name"
    shutil.copytree(folder, kept / "snapshots" / commit)
    for revision in revisions:
        (kept / "refs" / revision).parent.mkdir(parents=True, exist_ok=True)
        (kept / "refs" / revision).write_text(commit)


@pytest.mark.parametrize(
    "url",
    ["hf://org/name", "hf://org/name@main/", "hf://org/name@v%2F1", "hf://models/org/name"],
)
def test_the_configuration_of_a_model_of_the_hub(
    url: str, dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    keep_commit(tmp_path, "0123456789abcdef0123456789abcdef01234567", dense, "main", "v/1")
    expected = auto().from_pretrained(dense)
    for cls in (auto(), type(expected)):
        model = from_pretrained(cls, url, cache_dir=tmp_path)
        models.assert_same(model, expected)
        assert model.generation_config.to_dict() == expected.generation_config.to_dict()
    with pytest.raises(tload.NotFoundError, match="incomplete in the huggingface_hub cache"):
        from_pretrained(auto(), "hf://org/name/folder", cache_dir=tmp_path)


def test_arguments_that_would_reach_only_the_configuration_are_refused(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    commit = "0123456789abcdef0123456789abcdef01234567"
    keep_commit(tmp_path, commit, dense, "main", "v/1")
    opened = tload.open("hf://org/name@v%2F1")
    refused: list[tuple[Any, dict[str, Any], str, str]] = [
        ("hf://org/name", {"revision": "v/1"}, "revision='v/1' is not that of the URL", "hf://org/name@v%2F1"),
        ("hf://models/org/name@v%2F1/", {"revision": "main"}, "revision='main'", "hf://org/name@main"),
        (opened, {"revision": "main"}, "revision='main'", "hf://org/name@main"),
        (["hf://org/name/model.safetensors"], {"revision": "v/1"}, "revision='v/1'", "hf://org/name@v%2F1"),
        ("hf://org/name", {"local_files_only": True}, "local_files_only= has no effect", "HF_HUB_OFFLINE=1"),
        (opened, {"force_download": True}, "force_download= has no effect", "leave it out"),
        ("s3://bucket/model", {"force_download": True}, "force_download= has no effect", "leave it out"),
        (dense, {"options": tload.Options(dtype="bf16")}, "dtype=bf16 in options=", "pass dtype="),
    ]
    for source, keywords, message, hint in refused:
        with pytest.raises(tload.InvalidRequestError, match=message) as caught:
            from_pretrained(auto(), source, config=dense, **keywords)
        assert hint in str(caught.value.hint)
    for source, revision in (("hf://org/name", "main"), (opened, commit), ("hf://org/name@v%2F1", "v/1")):
        from_pretrained(auto(), source, cache_dir=tmp_path, revision=revision, local_files_only=False)


def other_configuration(dense: Path, folder: Path) -> Path:
    """Copy a model with another initializer range in its configuration."""
    shutil.copytree(dense, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"initializer_range": 0.5}))
    return folder


def test_the_configuration_of_a_hub_model_is_of_the_commit_of_its_weights(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    other = other_configuration(dense, tmp_path / "other")
    # For tload, main is one commit; for transformers, it has moved on to another.
    keep_commit(tmp_path / "weights", "1" * 40, other, "main")
    keep_commit(tmp_path / "files", "1" * 40, other)
    keep_commit(tmp_path / "files", "2" * 40, dense, "main")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "weights"))
    with tload.open("hf://org/name") as checkpoint:
        for source in ("hf://org/name", checkpoint):
            model = from_pretrained(auto(), source, cache_dir=tmp_path / "files")
            assert model.config.initializer_range == 0.5


def test_the_configuration_in_a_folder_of_the_hub_is_of_the_commit_of_its_weights(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The cache has the configuration of the commit before, and no weights.
    before = other_configuration(dense, tmp_path / "before" / "folder")
    for path in before.glob("*.safetensors"):
        path.unlink()
    keep_commit(tmp_path / "cache", "1" * 40, before.parent, "main")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    expected = auto().from_pretrained(dense)
    with hub.hub() as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        served.commit("org/name", {f"folder/{path.name}": path.read_bytes() for path in dense.iterdir()})
        model = from_pretrained(auto(), "hf://org/name/folder")
    models.assert_same(model, expected)
    assert model.config.initializer_range == expected.config.initializer_range


def test_transformers_finds_a_hub_model_that_was_loaded_with_hf_cache(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with hub.hub() as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        served.commit("org/name", {path.name: path.read_bytes() for path in dense.iterdir()})
        tload.load("hf://org/name", hf_cache=True)
    model = auto().from_pretrained("org/name", cache_dir=tmp_path, local_files_only=True)
    models.assert_same(model, auto().from_pretrained(dense))


def test_file_shrinking_mid_load_returns_no_model(experts: Path, tmp_path: Path) -> None:
    folder = models.save(auto().from_pretrained(experts), tmp_path)
    cls = require("transformers").Qwen3MoeForCausalLM
    with tload.open(folder) as checkpoint:
        path = max(folder.glob("*.safetensors"))
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(tload.Error, match=path.name) as caught:
            from_pretrained(cls, checkpoint)
    assert isinstance(caught.value, (tload.ChangedError, tload.IoError))
    assert os.environ.get(ASYNC) is None
    del caught
    gc.collect()
    assert not [found for found in gc.get_objects() if type(found) is cls]


def test_interrupt_ends_load(experts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ASYNC, "no")
    feeds = []
    receive = _feed.Feed._receive

    def interrupted(feed: _feed.Feed, wanted: str) -> None:
        feeds.append(feed)
        if len(feeds) > 20:
            raise KeyboardInterrupt
        receive(feed, wanted)

    monkeypatch.setattr(_feed.Feed, "_receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        from_pretrained(auto(), experts)
    assert not feeds[0]._running
    with pytest.raises(tload.CancelledError):
        feeds[0].take("lm_head.weight")
    assert os.environ[ASYNC] == "no"


@pytest.mark.parametrize("before", [None, "no"])
def test_concurrent_loads_restore_environment(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if before is not None:
        monkeypatch.setenv(ASYNC, before)
    first, second = _pretrained._one_at_a_time(), _pretrained._one_at_a_time()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert os.environ[ASYNC] == "1"
    second.__exit__(None, None, None)
    assert os.environ.get(ASYNC) == before


def test_requests_that_transformers_rejects_are_rejected_before_first_read(dense: Path, read_again: list[str]) -> None:
    with pytest.raises(ValueError, match="quantization"):
        from_pretrained(auto(), dense, quantization_config={"quant_method": "none of them"})
    assert read_again == []


@pytest.mark.parametrize("name", ["state_dict", "gguf_file", "variant", "subfolder"])
def test_other_weights_are_rejected(name: str, dense: Path) -> None:
    with pytest.raises(tload.InvalidRequestError, match=f"{name}= and source both say"):
        from_pretrained(auto(), dense, **dict[str, Any]({name: "x"}))


def test_unsuitable_classes_are_rejected(dense: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="wanted a model class of transformers, found str"):
        from_pretrained("Llama", dense)
    with pytest.raises(TypeError, match=r"found str; write from_pretrained\(AutoModelForCausalLM, 'llama_dir'\)"):
        from_pretrained("llama_dir", auto())
    with pytest.raises(TypeError, match=r"write options=tload\.Options\(timeout='30s'\)"):
        from_pretrained(auto(), dense, timeout="30s")
    with pytest.raises(tload.NotFoundError, match="did you mean"):
        from_pretrained(auto(), dense.with_name(dense.name + "x"))
    with pytest.raises(tload.InvalidRequestError, match="has no model for a LlamaConfig"):
        from_pretrained(require("transformers").AutoModelForSpeechSeq2Seq, dense)
    config = require("transformers").AutoConfig.from_pretrained(dense)
    config.auto_map = {"AutoModelForCausalLM": "code.py--Model"}
    with pytest.raises(tload.UnsupportedError, match=r"code of .* comes with the checkpoint"):
        from_pretrained(auto(), dense, config=config, trust_remote_code=True)
    config.save_pretrained(tmp_path)
    with pytest.raises(tload.UnsupportedError, match=r"code of .* comes with the checkpoint"):
        from_pretrained(auto(), dense, config=tmp_path, trust_remote_code=True)
    models.assert_same(from_pretrained(auto(), dense, config=config), auto().from_pretrained(dense))


def test_a_folder_without_weights(dense: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((dense / "config.json").read_text())
    with pytest.raises(tload.NotFoundError):
        from_pretrained(auto(), tmp_path)


def test_without_transformers(monkeypatch: pytest.MonkeyPatch, dense: Path) -> None:
    cls = auto()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(tload.UnsupportedError, match="install transformers"):
        from_pretrained(cls, dense)


def test_adapters_and_zero3_rejected(dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(dense, tmp_path / "model")
    (folder / "adapter_config.json").write_text("{}")
    monkeypatch.setattr(require("transformers.utils"), "is_peft_available", lambda: False)
    models.assert_same(from_pretrained(auto(), folder), auto().from_pretrained(dense))
    monkeypatch.setattr(require("transformers.utils"), "is_peft_available", lambda: True)
    with tload.open(folder) as checkpoint:
        for source in (folder, checkpoint):
            with pytest.raises(tload.UnsupportedError, match="adapter beside the weights"):
                from_pretrained(auto(), source)
    monkeypatch.setattr(require("transformers.integrations"), "is_deepspeed_zero3_enabled", lambda: True)
    with pytest.raises(tload.UnsupportedError, match="ZeRO-3"):
        from_pretrained(auto(), dense)


def test_weights_left_on_meta_raise_error(dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = require("torch")
    cls = require("transformers").LlamaForCausalLM
    finalize = cls._finalize_model_loading

    def forgets(model: Any, *arguments: Any) -> Any:
        said = finalize(model, *arguments)
        model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq.to("meta")
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.to("meta"))
        return said

    monkeypatch.setattr(cls, "_finalize_model_loading", staticmethod(forgets))
    with pytest.raises(tload.UnsupportedError, match=r"meta device: 'model.rotary_emb.inv_freq', 'lm_head.weight'"):
        from_pretrained(auto(), dense)
