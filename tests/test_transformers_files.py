"""The files of a model, as transformers and `tload.transformers.from_pretrained` choose and use
them. transformers itself is the oracle."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hub
import models
import tload
from conftest import require
from tload.transformers import _files, from_pretrained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import servers

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module", autouse=True)
def _packages() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        for name in ("torch", "transformers", "accelerate", "safetensors"):
            require(name)
        yield


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.save(models.dense(), tmp_path_factory.mktemp("dense"))


@pytest.fixture
def two(dense: Path, tmp_path: Path) -> Path:
    """A directory with two models: shards with an index, and a single file of sevens."""
    folder = shutil.copytree(dense, tmp_path / "two")
    torch, files = require("torch"), require("safetensors.torch")
    with tload.open(dense) as checkpoint:
        sevens = {name: torch.full(info.shape, 7.0) for name, info in checkpoint.items()}
    files.save_file(sevens, folder / "model.safetensors", {"format": "pt"})
    return folder


def auto() -> Any:
    return require("transformers").AutoModelForCausalLM


def mean(model: Any) -> float:
    return float(model.lm_head.weight.detach().mean())


def test_single_file_comes_before_index_wherever_the_model_is(  # noqa: PLR0917
    two: Path,
    s3: servers.S3,
    web: servers.Web,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert mean(auto().from_pretrained(two)) == 7
    url = s3.put_folder("bucket", "two", two)
    for path in two.iterdir():
        web.files[f"two/{path.name}"] = path.read_bytes()
    sources: list[tuple[Any, Any]] = [(two, None), (url, s3.store), (f"{web.url}/two", None)]
    for source, store in sources:
        caplog.clear()
        monkeypatch.setattr("tload._load.stream._noted", set())
        assert mean(from_pretrained(auto(), source, store=store)) == 7
        assert any("left out" in message and INDEX in message for message in caplog.messages), source
        # `tload.load` follows the index, also wherever the model is, and tells what it leaves out.
        caplog.clear()
        state = tload.load(source, store=store)
        assert abs(float(state["lm_head.weight"].mean())) < 1
        assert any("left out" in message and "model.safetensors" in message for message in caplog.messages), source
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    with hub.hub() as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        served.commit("org/two", {path.name: path.read_bytes() for path in two.iterdir()})
        assert mean(from_pretrained(auto(), "hf://org/two", config=two)) == 7
        assert mean(from_pretrained(auto(), "hf://org/two", config=two, store={"hf_cache": True})) == 7
        cached = {path.name for path in (tmp_path / "cache").rglob("snapshots/*/*")}
        assert cached >= {"model.safetensors", INDEX}
        assert not [name for name in cached if name.startswith("model-")]


def test_index_decides_between_copies_of_a_tensor(dense: Path, tmp_path: Path) -> None:
    torch, files = require("torch"), require("safetensors.torch")
    folder = shutil.copytree(dense, tmp_path / "model")
    first, *_, last = sorted(folder.glob("*.safetensors"))
    stale = files.load_file(last)
    name, tensor = next(iter(files.load_file(first).items()))
    files.save_file({**stale, name: torch.full_like(tensor, 7.0)}, last, {"format": "pt"})
    models.assert_same(from_pretrained(auto(), folder), auto().from_pretrained(dense))


def test_configuration_may_name_the_weights(two: Path, s3: servers.S3) -> None:
    path = two / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "transformers_weights": INDEX}))
    stock = auto().from_pretrained(two)
    assert mean(stock) != 7
    url = s3.put_folder("bucket", "named", two)
    for cls in (auto(), type(stock)):
        models.assert_same(from_pretrained(cls, two), stock)
        models.assert_same(from_pretrained(cls, url, store=s3.store), stock)
    # A file that the caller names is loaded.
    assert mean(from_pretrained(auto(), two / "model.safetensors")) == 7
    path.write_text(json.dumps({**config, "transformers_weights": "../x.safetensors"}))
    with pytest.raises(tload.InvalidRequestError, match="leads out of the directory"):
        from_pretrained(auto(), two)


@pytest.mark.parametrize("name", ["named.safetensors", INDEX, "deep/named.safetensors"])
def test_links_of_named_weights_need_permission(name: str, two: Path, dense: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    shutil.copytree(dense, theirs)
    (theirs / "named.safetensors").write_bytes((two / "model.safetensors").read_bytes())
    (two / name).unlink(missing_ok=True)
    if "/" in name:
        (two / "deep").symlink_to(theirs)
    else:
        (two / name).symlink_to(theirs / name)
    config = json.loads((two / "config.json").read_text())
    (two / "config.json").write_text(json.dumps({**config, "transformers_weights": name}))
    cls = require("transformers").LlamaForCausalLM
    sources: list[tuple[Any, dict[str, Any]]] = [(two, {}), (two.as_uri(), {"config": two})]
    for one in (auto(), cls):
        for source, keywords in sources:
            with pytest.raises(tload.PermissionDeniedError, match="leads out") as raised:
                from_pretrained(one, source, **keywords)
            assert "follow_symlinks=True" in str(raised.value.hint)
        models.assert_same(from_pretrained(one, two, follow_symlinks=True), one.from_pretrained(two))


def test_links_of_named_weights_in_a_cache_of_the_hub(two: Path, tmp_path: Path) -> None:
    config = json.loads((two / "config.json").read_text())
    (two / "config.json").write_text(json.dumps({**config, "transformers_weights": "named.safetensors"}))
    repository = tmp_path / "models--org--name"
    snapshot = shutil.copytree(two, repository / "snapshots" / ("1" * 40))
    (repository / "blobs").mkdir()
    (snapshot / "model.safetensors").rename(repository / "blobs" / "b10b")
    (snapshot / "named.safetensors").symlink_to("../../blobs/b10b")
    assert mean(from_pretrained(auto(), snapshot)) == 7


def test_configuration_of_the_hub_may_name_the_weights(
    two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((two / "config.json").read_text())
    named = {**config, "transformers_weights": INDEX}
    cls = require("transformers").LlamaForCausalLM
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    kept = tmp_path / "cache" / "models--org--name"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("1" * 40)
    snapshot = shutil.copytree(two, kept / "snapshots" / ("1" * 40))
    (snapshot / "config.json").write_text(json.dumps(named))
    for one in (auto(), cls):
        model = from_pretrained(one, "hf://org/name", cache_dir=tmp_path / "cache")
        assert mean(model) != 7
    # A directory with the name of the model is another one.
    shutil.copytree(two, tmp_path / "here" / "org" / "name")
    monkeypatch.chdir(tmp_path / "here")
    for one in (auto(), cls):
        with pytest.raises(tload.InvalidRequestError, match="local directory 'org/name'"):
            from_pretrained(one, "hf://org/name", cache_dir=tmp_path / "cache")


def test_use_safetensors_false_loads_files_of_pytorch(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = require("torch")
    cls = require("transformers").LlamaForCausalLM
    with pytest.raises(OSError, match=r"pytorch_model\.bin"):
        from_pretrained(auto(), two, use_safetensors=False)
    state = {name: torch.full_like(tensor, 3.0) for name, tensor in auto().from_pretrained(two).state_dict().items()}
    torch.save(state, two / "pytorch_model.bin")
    assert mean(from_pretrained(auto(), two, use_safetensors=False)) == 3
    assert mean(from_pretrained(cls, two, use_safetensors=False)) == 3
    assert mean(from_pretrained(auto(), two, use_safetensors=True)) == 7
    for source in ("https://host/model", [str(two / "model.safetensors")]):
        with pytest.raises(tload.InvalidRequestError, match="use_safetensors=False"):
            from_pretrained(auto(), source, config=two, use_safetensors=False)
    with pytest.raises(tload.InvalidRequestError, match="cannot be verified"):
        from_pretrained(auto(), two, use_safetensors=False, options=tload.Options(verify="require"))
    given: dict[str, Any] = {"store": {"region": "r"}, "follow_symlinks": True}
    for name, value in given.items():
        with pytest.raises(tload.InvalidRequestError, match=f"transformers reads itself, without {name}="):
            from_pretrained(auto(), two, use_safetensors=False, **{name: value})
    monkeypatch.setenv("TLOAD_VERIFY", "require")
    with pytest.raises(tload.InvalidRequestError, match="cannot be verified"):
        from_pretrained(auto(), two, use_safetensors=False)


@pytest.mark.parametrize(
    "keywords",
    [
        {"state_dict": {"a": 1}},
        {"variant": "fp16"},
        {"options": tload.Options(dtype="bf16")},
        {"store": {"region": "r"}, "use_safetensors": False},
        {"use_safetensors": False},
    ],
)
def test_failing_call_leaves_the_group(keywords: dict[str, Any], two: Path, tmp_path: Path) -> None:
    group = tload.Group.local(tmp_path / "group", 0, 1)
    with pytest.raises(tload.InvalidRequestError):
        from_pretrained(auto(), two, group=group, **keywords)
    assert "closed" in repr(group)


def test_files_that_transformers_reads_itself_cannot_be_verified(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = require("transformers").LlamaForCausalLM
    strict = tload.Options(verify="require")
    divided = tmp_path / "divided"
    shutil.copytree(dense, divided)
    for path in divided.glob("*.safetensors*"):
        path.unlink()
    first = min(dense.glob("*.safetensors"))
    shutil.copy(first, divided / "shard-00001-model-00001-of-00001.safetensors")
    for one in (auto(), cls):
        with pytest.raises(tload.InvalidRequestError, match="transformers reads files of this model itself"):
            from_pretrained(one, divided, options=strict)
    monkeypatch.setattr(cls.config_class, "extra_files", ("head.safetensors",))
    for one in (auto(), cls):
        with pytest.raises(tload.InvalidRequestError, match="transformers reads files of this model itself"):
            from_pretrained(one, dense, options=strict)


OFFLOADED = {
    "model.embed_tokens": "cpu",
    "model.layers": "disk",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": "disk",
}


def offloads(tmp_path: Path) -> list[dict[str, Any]]:
    """Device maps that leave weights on the disk: given, and made since memory is short."""
    return [
        {"device_map": OFFLOADED},
        {"device_map": OFFLOADED, "offload_folder": str(tmp_path / "offload")},
        {"device_map": "auto", "max_memory": {"cpu": 60_000}},
    ]


@pytest.mark.parametrize("shard_size", ["100KB", "1GB"])
def test_offloaded_weights_are_read_from_local_files(shard_size: str, tmp_path: Path) -> None:
    folder = models.save(models.dense(), tmp_path / "model", shard_size)
    stock = models.logits(auto().from_pretrained(folder))
    for keywords in offloads(tmp_path):
        model = from_pretrained(auto(), folder, **keywords)
        assert model.lm_head.weight.is_meta
        models.assert_close(models.logits(model), stock)
        oracle = auto().from_pretrained(folder, **keywords)
        assert [it.is_meta for it in model.parameters()] == [it.is_meta for it in oracle.parameters()]
    written = tmp_path / "offload"
    assert not [path for path in written.iterdir() if path.suffix == ".safetensors"]


def test_offloaded_weights_of_a_url_are_written(dense: Path, web: servers.Web, tmp_path: Path) -> None:
    for path in dense.iterdir():
        web.files[f"model/{path.name}"] = path.read_bytes()
    url = f"{web.url}/model"
    with pytest.raises(ValueError, match="offload_folder"):
        from_pretrained(auto(), url, device_map=OFFLOADED)
    model = from_pretrained(auto(), url, device_map=OFFLOADED, offload_folder=tmp_path)
    models.assert_close(models.logits(model), models.logits(auto().from_pretrained(dense)))


def test_locations_with_any_ending(dense: Path, web: servers.Web, tmp_path: Path) -> None:
    stock = auto().from_pretrained(dense)
    web.files["config.json"] = (dense / "config.json").read_bytes()
    single = models.save(models.dense(), tmp_path / "single", "1GB") / "model.safetensors"
    web.files["model.safetensors"] = single.read_bytes()
    models.assert_same(from_pretrained(auto(), f"{web.url}/model.safetensors?signature=x"), stock)
    other = single.rename(single.with_name("weights"))
    models.assert_same(from_pretrained(auto(), [other], config=dense), stock)
    offloaded = from_pretrained(auto(), [other], config=dense, device_map=OFFLOADED)
    models.assert_close(models.logits(offloaded), models.logits(stock))


def test_only_the_first_search_is_answered(dense: Path) -> None:
    modeling = importlib.import_module("transformers.modeling_utils")
    find = getattr(modeling, _files.FIND)
    arguments = (str(dense), None, None, None, None, False)
    theirs = find(*arguments)[0]
    with tload.open(dense) as checkpoint, _files.found_by_transformers(checkpoint, refuse, refuse):
        find = getattr(modeling, _files.FIND)
        assert all(hasattr(path, "handle") for path in find(*arguments)[0])
        later = find(*arguments)[0]
    assert later == theirs
    assert not any(hasattr(path, "handle") for path in later)


@pytest.mark.parametrize("disable_mmap", [True, False, None])
def test_disable_mmap(disable_mmap: Any, dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    names = _files.ShardHandle.keys

    def keys(handle: _files.ShardHandle) -> list[str]:
        opened.append(handle)
        return names(handle)

    monkeypatch.setattr(_files.ShardHandle, "keys", keys)
    model = from_pretrained(auto(), dense, disable_mmap=disable_mmap)
    models.assert_same(model, auto().from_pretrained(dense))
    assert len(opened) == len(list(dense.glob("*.safetensors")))


def refuse(*_: Any, **__: Any) -> Any:
    raise OSError(19, "No such device")


def test_file_systems_without_mappings_are_read(dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = auto().from_pretrained(dense)
    safetensors = importlib.import_module("tload.safetensors.torch")
    path = min(dense.glob("*.safetensors"))
    expected = require("safetensors.torch").load_file(path)
    monkeypatch.setattr("tload.safetensors._map.mmap.mmap", refuse)
    reports: list[Any] = []
    ended = tload.TensorStream.close

    def close(stream: Any) -> None:
        ended(stream)
        reports.append(stream.report)

    monkeypatch.setattr(tload.TensorStream, "close", close)
    models.assert_same(from_pretrained(auto(), dense), stock)
    with tload.patch():
        models.assert_same(auto().from_pretrained(dense), stock)
    torch = require("torch")
    for source in (path, dense):
        loaded = safetensors.load_file(source)
        assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
        with safetensors.safe_open(source, "pt") as file:
            assert all(torch.equal(file.get_tensor(name), tensor) for name, tensor in expected.items())
            assert all(torch.equal(file.get_slice(name)[:1], tensor[:1]) for name, tensor in expected.items())
    assert reports
    assert not any(report.mapped_bytes for report in reports)


def test_replaced_functions_are_restored(dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modeling = importlib.import_module("transformers.modeling_utils")
    names = ("safe_open", _files.FIND, _files.READS_WHOLE)
    before = {name: getattr(modeling, name) for name in names}
    from_pretrained(auto(), dense)
    with pytest.raises(RuntimeError):
        from_pretrained(auto(), dense, vocab_size=50)
    assert {name: getattr(modeling, name) for name in names} == before
    # Another thread's search is its own.
    with tload.open(dense) as checkpoint, _files.found_by_transformers(checkpoint, refuse, refuse):
        token = _files._found.set(None)
        models.assert_same(auto().from_pretrained(dense), from_pretrained(auto(), dense))
        _files._found.reset(token)
    monkeypatch.delattr(modeling, _files.FIND)
    with pytest.raises(tload.UnsupportedError, match="this version of transformers"):
        from_pretrained(auto(), dense)
    assert modeling.safe_open is before["safe_open"]


def from_folder(folder: Path, keywords: dict[str, Any]) -> list[Callable[[], Any]]:
    """Return the ways to load a model from a directory: that of transformers is the first."""

    def patched() -> Any:
        with tload.patch():
            return auto().from_pretrained(folder, **keywords)

    return [
        lambda: auto().from_pretrained(folder, **keywords),
        patched,
        lambda: from_pretrained(auto(), folder, **keywords),
        lambda: from_pretrained(auto(), folder, options=tload.Options(memory_limit="64 MiB"), **keywords),
    ]


def outcome(load: Callable[[], Any]) -> Any:
    """Return the kinds of the parameters and the logits of a model, or its error."""
    try:
        model = load()
    except Exception as error:  # noqa: BLE001  # the same as that of transformers, whatever it is
        return type(error), str(error)
    state = model.state_dict()
    kinds = [(name, type(value), getattr(value, "dtype", None)) for name, value in state.items()]
    return kinds, models.logits(model).float().tolist()


def half(folder: Path) -> Path:
    torch = require("torch")
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 64}
    model = models.dense(dtype="bfloat16", **sizes).to(torch.bfloat16)
    return models.save(model, folder, "30KB")


TORCHAO = [
    ("Int8WeightOnlyConfig", {"version": 2}),
    ("Int8DynamicActivationInt8WeightConfig", {"version": 2}),
    ("Float8WeightOnlyConfig", {}),
    ("IntxWeightOnlyConfig", {}),
]


@pytest.mark.filterwarnings("ignore")  # those of the packages
@pytest.mark.parametrize(("name", "arguments"), TORCHAO)
def test_checkpoints_quantized_by_torchao(
    name: str, arguments: dict[str, Any], tmp_path: Path, web: servers.Web
) -> None:
    quantization, transformers = require("torchao.quantization"), require("transformers")
    plain, quantized = half(tmp_path / "plain"), tmp_path / "quantized"
    config = transformers.TorchAoConfig(getattr(quantization, name)(**arguments))
    keywords = {"dtype": require("torch").bfloat16, "device_map": "cpu"}
    on_load = from_folder(plain, {**keywords, "quantization_config": config})
    on_load[0]().save_pretrained(quantized, max_shard_size="20KB")
    assert len(list(quantized.glob("*.safetensors"))) > 1
    for ways in (on_load, from_folder(quantized, keywords)):
        stock, *others = map(outcome, ways)
        assert isinstance(stock[0], list), stock
        assert all(other == stock for other in others)
    # The metadata of its files come from wherever they are.
    for path in quantized.iterdir():
        web.files[f"model/{path.name}"] = path.read_bytes()
    assert outcome(lambda: from_pretrained(auto(), f"{web.url}/model", **keywords)) == stock


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("arguments", [{"load_in_8bit": True}, {"load_in_4bit": True}])
def test_checkpoints_quantized_by_bitsandbytes(arguments: dict[str, Any], tmp_path: Path) -> None:
    require("bitsandbytes")
    plain, quantized = half(tmp_path / "plain"), tmp_path / "quantized"
    config = require("transformers").BitsAndBytesConfig(**arguments)
    on_load = from_folder(plain, {"device_map": "cpu", "quantization_config": config})
    on_load[0]().save_pretrained(quantized, max_shard_size="30KB")
    for ways in (on_load, from_folder(quantized, {"device_map": "cpu"})):
        stock, *others = map(outcome, ways)
        assert isinstance(stock[0], list), stock
        assert all(other == stock for other in others)


def with_config(folder: Path, quantization: dict[str, Any]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": quantization}))


def replace(folder: Path, change: Callable[[str, Any], dict[str, Any]]) -> None:
    """Replace each tensor of a checkpoint by others."""
    files = require("safetensors.torch")
    placed = {}
    for path in sorted(folder.glob("*.safetensors")):
        changed: dict[str, Any] = {}
        for name, tensor in files.load_file(path).items():
            changed |= change(name, tensor)
        files.save_file(changed, path, {"format": "pt"})
        placed.update(dict.fromkeys(changed, path.name))
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placed}))


def fp8(folder: Path) -> dict[str, Any]:
    """Save a model as DeepSeek's: blocks of float8, each with the inverse of its scale."""
    torch = require("torch")
    half(folder)

    def change(name: str, tensor: Any) -> dict[str, Any]:
        if not name.endswith("proj.weight"):
            return {name: tensor}
        rows, columns = (-(-size // 16) for size in tensor.shape)
        scales = torch.full((rows, columns), 0.125)
        return {name: (tensor * 8).to(torch.float8_e4m3fn), f"{name}_scale_inv": scales}

    replace(folder, change)
    method = {"quant_method": "fp8", "weight_block_size": [16, 16], "activation_scheme": "dynamic"}
    with_config(folder, {**method, "modules_to_not_convert": ["lm_head"]})
    return {"quantization_config": require("transformers").FineGrainedFP8Config(dequantize=True)}


def mxfp4(folder: Path) -> dict[str, Any]:
    """Save a model as GPT-OSS: experts of blocks of four bits, each with an exponent."""
    torch, transformers = require("torch"), require("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 96}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "dtype": "bfloat16"}
    config = transformers.GptOssConfig(**sizes, **heads, **tokens, num_local_experts=4, num_experts_per_tok=2)
    models.save(transformers.GptOssForCausalLM(config).to(torch.bfloat16), folder, "30KB")

    def change(name: str, tensor: Any) -> dict[str, Any]:
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            return {name: tensor}
        experts, inputs, outputs = tensor.shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
        scales = torch.randint(120, 128, (experts, outputs, inputs // 32), dtype=torch.uint8)
        return {f"{name}_blocks": blocks, f"{name}_scales": scales}

    replace(folder, change)
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    with_config(folder, {"quant_method": "mxfp4", "modules_to_not_convert": kept})
    return {"quantization_config": transformers.Mxfp4Config(dequantize=True)}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("save", [fp8, mxfp4])
def test_checkpoints_with_scales_beside_weights(save: Callable[[Path], dict[str, Any]], tmp_path: Path) -> None:
    dequantized = save(tmp_path)
    # Kernels for the CPU may be missing: then all ways raise the same error.
    for keywords in ({}, {"device_map": "cpu"}, dequantized):
        stock, *others = map(outcome, from_folder(tmp_path, keywords))
        assert all(other == stock for other in others), keywords
    assert isinstance(stock[0], list), stock


COMPRESSED: list[tuple[str, dict[str, Any]]] = [
    ("int-quantized", {"num_bits": 8, "strategy": "channel"}),
    ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
    ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32}),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("form", "arguments"), COMPRESSED)
def test_checkpoints_of_compressed_tensors(form: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    quantization = require("compressed_tensors.quantization")
    compressors = require("compressed_tensors.compressors")
    torch = require("torch")
    model = models.dense(dtype="bfloat16", num_hidden_layers=2, hidden_size=64, intermediate_size=64)
    model = model.to(torch.bfloat16)
    weights = quantization.QuantizationArgs(**arguments)
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=weights)
    config = quantization.QuantizationConfig(
        config_groups={"all": scheme}, ignore=["lm_head"], quantization_status="frozen", format=form
    )
    quantization.apply_quantization_config(model, config)
    for module in model.modules():
        if hasattr(module, "weight_scale"):
            module.weight_scale.data.fill_(0.001)
    compressor = compressors.ModelCompressor.from_pretrained_model(model, quantization_format=form)
    compressor.compress_model(model)
    model.save_pretrained(tmp_path, max_shard_size="50KB")
    compressor.update_config(str(tmp_path))
    for keywords in ({}, {"device_map": "cpu"}):
        stock, *others = map(outcome, from_folder(tmp_path, keywords))
        assert isinstance(stock[0], list), stock
        assert all(other == stock for other in others), keywords


def test_pretrained_is_given_paths_that_handles_belong_to(dense: Path) -> None:
    """Without the handle, a path is read by `tload.safetensors`: slower, but right."""
    with tload.open(dense) as checkpoint:
        paths, index = _files._files(checkpoint, refuse, refuse)
    assert list(map(Path, paths)) == sorted(dense.glob("*.safetensors"))
    assert {Path(path).parent for path in index["weight_map"].values()} == {dense}
    with importlib.import_module("tload.safetensors").safe_open(str(paths[0]), "pt") as file:
        assert file.keys() == paths[0].handle.keys()
