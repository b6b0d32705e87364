"""Reloads of a real model inside vLLM: what is wrong with the new weights is found while the model
still has its old ones, and what is missing is named. Needs vLLM: `make test-engines` runs it.

The model is a tiny Llama of random numbers, loaded in this process, without an engine.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM
from vllm.config import set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.reload.inplace import reload_weights
from vllm.plugins import load_general_plugins

from tload._engines.watch import GONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from servers import S3, Web

load_general_plugins()

SHAPE = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
DOWN = "model.layers.1.mlp.down_proj.weight"


def write_llama(folder: Path, seed: int, **fields: Any) -> Path:
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**(SHAPE | fields)))
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="200KB")
    return folder


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def write_changed(folder: Path, changed: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
    """Write the weights of a folder again, in one file, with a change."""
    tensors = tensors_of(folder)
    changed(tensors)
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def configuration(folder: Path, extra: dict[str, Any], load_format: str, **fields: Any) -> Any:
    arguments = EngineArgs(
        model=str(folder),
        load_format=load_format,
        model_loader_extra_config=extra,
        dtype="bfloat16",
        skip_tokenizer_init=True,
        enforce_eager=True,
        **fields,
    )
    return arguments.create_engine_config()


class Served:
    """A model that vLLM has loaded."""

    def __init__(self, folder: Path, extra: dict[str, Any], load_format: str = "tload") -> None:
        self.config = configuration(folder, extra, load_format)
        with self.within():
            self.model = get_model_loader(self.config.load_config).load_model(self.config, self.config.model_config)

    @contextmanager
    def within(self) -> Iterator[None]:
        with set_current_vllm_config(self.config):
            if not parallel_state.model_parallel_is_initialized():
                with socket.create_server(("127.0.0.1", 0)) as free:
                    port = free.getsockname()[1]
                parallel_state.init_distributed_environment(1, 0, f"tcp://127.0.0.1:{port}", 0, "gloo")
                parallel_state.initialize_model_parallel(1, 1, backend="gloo")
            elif self.config.model_config.is_moe and parallel_state._EP is None:
                parallel_state.destroy_model_parallel()
                parallel_state.initialize_model_parallel(1, 1, backend="gloo")
            yield

    def reload(self, path: str | None = None) -> None:
        with self.within():
            reload_weights(self.config, self.model, None, path, is_checkpoint_format=True)

    def answer(self) -> list[torch.Tensor]:
        """Compute with all weights, but without a cache for attention."""
        with self.within(), torch.no_grad():
            states = self.model.model.embed_tokens(torch.arange(16))
            said = []
            for layer in self.model.model.layers:
                states = layer.post_attention_layernorm(states)
                attention = layer.self_attn
                query = attention.qkv_proj(layer.input_layernorm(states))[0]
                said.append(query)
                states = states + attention.o_proj(query[:, : states.shape[1]])[0] + layer.mlp(states)
            return [*said, self.model.compute_logits(self.model.model.norm(states))]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(left, right) for left, right in zip(one, other, strict=True))


@pytest.fixture(scope="module", autouse=True)
def _plans_of_these_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: write_llama(tmp_path_factory.mktemp(name), seed) for seed, name in enumerate("ab")}


@pytest.fixture
def extra() -> dict[str, Any]:
    return {"store": {"endpoint": "http://127.0.0.1:9", "anonymous": True, "region": "x", "retries": 0}}


@pytest.fixture
def new(folders: dict[str, Path], tmp_path: Path) -> Path:
    """A folder with other weights of the same model."""
    return shutil.copytree(folders["b"], tmp_path / "new")


def shard(folder: Path) -> Path:
    return sorted(folder.glob("*.safetensors"))[1]


def cut(folder: Path) -> None:
    shard(folder).write_bytes(shard(folder).read_bytes()[:-2])


def write_mixtral(folder: Path) -> None:
    shutil.rmtree(folder)
    model = MixtralForCausalLM(MixtralConfig(**SHAPE, num_local_experts=2, num_experts_per_tok=1))
    model.to(torch.bfloat16).save_pretrained(folder)


def write_other_size(folder: Path) -> None:
    shutil.rmtree(folder)
    write_llama(folder, 0, intermediate_size=512)


def write_fewer_layers(folder: Path) -> None:
    shutil.rmtree(folder)
    write_llama(folder, 0, num_hidden_layers=1)


def quantize(tensors: dict[str, torch.Tensor]) -> None:
    tensors[DOWN] = tensors[DOWN].to(torch.float8_e4m3fn)
    tensors[DOWN.replace("weight", "weight_scale")] = torch.ones(1)


def only(folder: Path, name: str, content: bytes) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / name).write_bytes(content)


def link_away(folder: Path) -> None:
    shard(folder).unlink()
    (folder / "model-00002-of-00005.safetensors").unlink(missing_ok=True)
    (folder / "model-00002-of-00005.safetensors").symlink_to(folder / "gone")


# By name: a change to the folder of the new weights, and a pattern of the error.
FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no such folder": (shutil.rmtree, "new`: there is no such directory"),
    "empty folder": (lambda new: (shutil.rmtree(new), new.mkdir()), "Cannot find any model weights"),
    "file ends early": (cut, r"file ends too early: found \d+ bytes, wanted \d+"),
    "empty file": (lambda new: shard(new).write_bytes(b""), "model-00002-of-"),
    "garbage": (lambda new: shard(new).write_bytes(b"\xff" * 64), "model-00002-of-"),
    "header is no JSON": (lambda new: shard(new).write_bytes(b"\x10" + b"\0" * 7 + b"x" * 16), "model-00002-of-"),
    "page of a proxy": (lambda new: shard(new).write_bytes(b"<!DOCTYPE html><html></html>"), "model-00002-of-"),
    "pointer of Git LFS": (
        lambda new: shard(new).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
        "model-00002-of-",
    ),
    "shard is missing": (lambda new: shard(new).unlink(), "model-00002-of-|lacks"),
    "dangling link": (link_away, "model-00002-of-"),
    "index is no JSON": (lambda new: (new / "model.safetensors.index.json").write_text("{"), "Expecting|JSON"),
    "a tensor is missing": (lambda new: write_changed(new, lambda all_: all_.pop(DOWN)), f"lacks '{DOWN}'"),
    "a layer is missing": (write_fewer_layers, "lacks 'model.layers.1.input_layernorm.weight', .* and 6 more"),
    "a tensor has another shape": (
        lambda new: write_changed(new, lambda all_: all_.update({DOWN: all_[DOWN][:, 1:]})),
        rf"tensor '{DOWN}' is BF16 \[128, 255\], wanted BF16 \[128, 256\]",
    ),
    "another size": (write_other_size, r"mlp.*_proj.weight' is BF16 .* wanted BF16"),
    "another architecture": (write_mixtral, "lacks .*; it has .*experts.* instead"),
    "another quantization": (lambda new: write_changed(new, quantize), "is F8_E4M3 .* wanted BF16"),
    "sharded state": (
        lambda new: only(new, "model-rank-0-part-0.safetensors", b""),
        "is part of a sharded state|model-rank-0-part-0",
    ),
    "GGUF": (lambda new: only(new, "model.gguf", b"GGUF"), "weights in GGUF files only"),
}
URLS = {
    "no server": ("s3://bucket/m", "127.0.0.1:9 refuses connections"),
    "no such scheme": ("ftp://host/m", "ftp"),
    "not a URL of a bucket": ("s3:///m", "s3:///m"),
}


@pytest.fixture(scope="module")
def served(folders: dict[str, Path]) -> Served:
    store = {"endpoint": "http://127.0.0.1:9", "anonymous": True, "region": "x", "retries": 0}
    return Served(folders["a"], {"store": store})


def check_still_serves(served: Served, location: str, said: str) -> None:
    before, place = served.answer(), served.config.model_config.model
    parameters = dict(served.model.named_parameters())
    with pytest.raises(Exception) as caught:  # noqa: PT011  # of several kinds, all in one line of text
        served.reload(location)
    assert re.search(said, str(caught.value)), caught.value
    assert GONE not in str(caught.value)
    assert all(one is parameters[name] and not one.is_meta for name, one in served.model.named_parameters())
    assert same(served.answer(), before)
    # The next reload, without a location, is not of the one that failed.
    assert served.config.model_config.model == place
    served.reload()
    assert same(served.answer(), before)


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_weights_are_refused_while_the_old_ones_serve(served: Served, new: Path, fault: str) -> None:
    harm, said = FAULTS[fault]
    harm(new)
    check_still_serves(served, str(new), said)


@pytest.mark.parametrize("fault", URLS)
def test_faulty_locations_are_refused_while_the_old_ones_serve(served: Served, fault: str) -> None:
    location, said = URLS[fault]
    check_still_serves(served, location, said)


@pytest.mark.parametrize("fault", ["no such bucket", "wrong key", "no such model"])
def test_faulty_stores_are_refused_while_the_old_weights_serve(folders: dict[str, Path], s3: S3, fault: str) -> None:
    url = s3.put_folder("reload", "b", folders["b"])
    store = dict(s3.store)
    if fault == "wrong key":
        store["secret_access_key"] = "wrong"
    served = Served(folders["a"], {"store": store})
    url = {"no such bucket": "s3://nowhere/b", "no such model": "s3://reload/none"}.get(fault, url)
    check_still_serves(served, url, "tload cannot load the model weights of `s3://")


def test_reload_from_elsewhere_is_as_a_fresh_start(folders: dict[str, Path], s3: S3) -> None:
    url = s3.put_folder("reload", "good", folders["b"])
    fresh = Served(folders["b"], {}, "auto").answer()
    served = Served(folders["a"], {"store": s3.store})
    first = served.answer()
    assert not same(first, fresh)
    for location, wanted in ((url, fresh), (str(folders["a"]), first), (str(folders["b"]), fresh), (None, fresh)):
        served.reload(location)
        assert same(served.answer(), wanted)


def test_source_is_where_reloads_without_location_read(folders: dict[str, Path], tmp_path: Path) -> None:
    bare = shutil.copytree(folders["a"], tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors*"))
    served = Served(bare, {"source": str(folders["a"])})
    before = served.answer()
    served.reload()
    assert same(served.answer(), before)
    served.reload(str(folders["b"]))
    assert not same(served.answer(), before)


def test_failure_after_the_first_tensor_says_that_the_old_weights_are_gone(
    web: Web, folders: dict[str, Path], new: Path
) -> None:
    write_changed(new, lambda _: None)
    served = Served(folders["a"], {"timeout": 2, "store": {"retries": 0}})
    before = served.answer()
    web.files["m/model.safetensors"] = (new / "model.safetensors").read_bytes()
    web.stall_from = len(web.files["m/model.safetensors"]) // 2
    with pytest.raises(RuntimeError, match=re.escape(GONE)):
        served.reload(f"{web.url}/m/model.safetensors")
    web.stall_from = None
    served.config.model_config.model = str(folders["a"])
    served.reload()
    assert same(served.answer(), before)


def test_errors_of_the_engine_name_tensor_and_source(folders: dict[str, Path], new: Path) -> None:
    write_changed(new, lambda all_: all_.update({DOWN: all_[DOWN][:, 1:]}))
    with pytest.raises((AssertionError, RuntimeError), match=rf"while loading '{DOWN}' from `{new}`: "):
        Served(folders["a"], {"source": str(new)})


@pytest.mark.parametrize("name", sorted(["model.embed_tokens.weight", "model.norm.weight", DOWN, "lm_head.weight",
    "model.layers.0.self_attn.q_proj.weight", "model.layers.1.self_attn.v_proj.weight",
    "model.layers.0.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight"]))  # fmt: skip
def test_start_without_one_tensor_fails_and_names_it(new: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    write_changed(new, lambda all_: all_.pop(name))
    with pytest.raises(ValueError, match=rf"`{new}` leaves 1 parameter of LlamaForCausalLM without weights: .*{name}"):
        Served(new, {})
    Served(new, {"missing_weights": "warn", "enable_weights_track": False})
    assert os.environ.get("VLLM_CONFIGURE_LOGGING") == "1" or "they have arbitrary values" in caplog.text


@pytest.mark.parametrize("expert", [0, 1])
def test_start_without_one_expert_fails_and_names_it(tmp_path: Path, expert: int) -> None:
    torch.manual_seed(0)
    shape = SHAPE | {"num_local_experts": 4, "num_experts_per_tok": 2}
    MixtralForCausalLM(MixtralConfig(**shape)).to(torch.bfloat16).save_pretrained(tmp_path)
    Served(tmp_path, {})
    name = next(
        key
        for key in tensors_of(tmp_path)
        if f"layers.1.{'mlp' if 'mlp' in key else 'block_sparse_moe'}.experts.{expert}." in key
    )
    write_changed(tmp_path, lambda all_: all_.pop(name))
    with pytest.raises(
        ValueError, match=rf"leaves 1 parameter of MixtralForCausalLM without weights: .*no tensor '{name}'"
    ):
        Served(tmp_path, {})
