"""Sharded and presharded states inside SGLang: what its own loaders have saved and load, tload loads
too. `make test-engines` runs it.

The model is a stand-in, since SGLang's own need a GPU; all else is SGLang's.
"""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from sglang.srt import runtime_context
from sglang.srt.configs.device_config import DeviceConfig
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.layers import dp_attention
from sglang.srt.model_loader import loader as loaders
from sglang.srt.model_loader.loader import PreshardedModelLoader, ShardedStateLoader, get_model_loader
from sglang.srt.plugins import load_plugins
from sglang_loader import Config

import tload
from ranks import start_ranks
from tload.sglang import _sharded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import S3, Web

load_plugins()


class Packed:
    """A quantization method: the weights that are saved are those that it has processed."""

    @staticmethod
    def process_weights_after_loading(module: Any) -> None:
        if module.weight.dtype is not torch.int8:
            module.weight = torch.nn.Parameter(module.weight.data.to(torch.int8).t().contiguous(), requires_grad=False)


class Linear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((8, 4), -1.0), requires_grad=False)
        self.quant_method = Packed()


class Model(torch.nn.Module):
    """Each rank has other weights in its linear layer, and the same norm."""

    def __init__(self, rank: int = 0) -> None:
        super().__init__()
        self.linear = Linear()
        self.norm = torch.nn.Parameter(torch.full((5,), -1.0), requires_grad=False)
        self.rank = rank
        self.fixed = False

    def load_weights(self, weights: Any) -> None:
        for name, tensor in weights:
            self.get_parameter(name).data.copy_(tensor + (self.rank if name == "linear.weight" else 0))

    def post_load_weights(self) -> None:
        self.fixed = True

    def content(self) -> dict[str, bytes]:
        return {
            name: tensor.reshape(-1).view(torch.uint8).numpy().tobytes() for name, tensor in self.state_dict().items()
        }


def config(path: Path) -> Any:
    hf_config = SimpleNamespace(architectures=["Model"], model_type="stand-in")
    return Config(
        model_path=str(path),
        revision=None,
        hf_config=hf_config,
        is_draft_model=False,
        dtype=torch.float32,
        quantization=None,
    )


@contextmanager
def parallel(rank: int, size: int, **fields: Any) -> Iterator[None]:
    """Publish the state that SGLang's engine would: this rank, and the settings of its loaders."""

    class World:
        rank_in_group, world_size = rank, size

        @staticmethod
        def barrier() -> None:
            if size > 1:
                torch.distributed.barrier()

        @staticmethod
        def all_gather_object(given: Any) -> list[Any]:
            found: list[Any] = [None] * size
            torch.distributed.all_gather_object(found, given)
            return found

    here = SimpleNamespace(
        **{"tp_rank": rank, "tp_size": size, "pp_rank": 0, "pp_size": 1, "moe_ep_size": 1, "world_group": World()}
        | {"moe_dense_tp_size": None, "moe_dp_size": 1, "enable_dp_lm_head": False, "enable_fp32_lm_head": False}
        | fields
    )
    execution = SimpleNamespace(
        features=SimpleNamespace(enable_fp32_lm_head=False),
        moe=SimpleNamespace(ep_num_redundant_experts=0, enable_eplb=False, init_expert_location="trivial"),
    )
    published = SimpleNamespace(
        model_path="",
        model_checksum=None,
        weight_loader_disable_mmap=False,
        weight_loader_prefetch_checkpoints=False,
        weight_loader_prefetch_num_threads=1,
        weight_loader_drop_cache_after_load=False,
    )
    with pytest.MonkeyPatch.context() as patch:
        for module in (loaders, _sharded, runtime_context):
            patch.setattr(module, "get_parallel", lambda: here)
        patch.setattr(loaders, "get_exec", lambda: execution)
        patch.setattr(loaders, "get_model", lambda: published)
        patch.setattr(loaders, "get_server_args", lambda: None)
        patch.setattr(dp_attention, "get_moe_cp_size", lambda: 1)
        patch.setattr(loaders, "_initialize_model", lambda *_: Model(rank))
        patch.setattr(loaders, "_get_quantization_config", lambda *_: None)
        yield


def load(path: Path, load_format: str, extra: dict[str, Any] | None = None) -> Model:
    loader = get_model_loader(LoadConfig(load_format=load_format, model_loader_extra_config=extra or {}))
    model: Model = loader.load_model(model_config=config(path), device_config=DeviceConfig("cpu"))
    return model


def write_checkpoint(folder: Path) -> Path:
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    tensors = {"linear.weight": torch.arange(32.0).reshape(8, 4), "norm": torch.arange(5.0)}
    save_file(tensors, folder / "model.safetensors")
    return folder


def processed(rank: int, checkpoint: Path) -> Model:
    """Return the model as it is after a start."""
    model = load(checkpoint, "auto")
    assert model.linear.weight.dtype is torch.int8
    assert int(model.linear.weight[0, 0]) == rank
    return model


def test_a_state_loads_as_with_the_engines_own_loader(tmp_path: Path, s3: S3, web: Web) -> None:
    state = tmp_path / "state"
    state.mkdir()
    for rank in (0, 1):
        with parallel(rank, 2):
            saved = processed(rank, write_checkpoint(tmp_path / "m"))
            ShardedStateLoader.save_model(saved, str(state), max_size=30)
    assert len(list(state.iterdir())) == 4
    url = s3.put_folder("states", "sgl", state)
    for path in state.iterdir():
        web.files[f"m/{path.name}"] = path.read_bytes()
    for rank in (0, 1):
        with parallel(rank, 2):
            wanted = processed(rank, tmp_path / "m").content()
            assert load(state, "sharded_state").content() == wanted
            sources: list[Any] = [None, str(state), [str(path) for path in state.iterdir()], url, f"{web.url}/m"]
            for source in sources:
                model = load(state, "tload", {"sharded_state": True, "source": source, "store": s3.store})
                assert model.content() == wanted
                assert model.fixed
                assert not model.training
    with (
        parallel(0, 1),
        pytest.raises(RuntimeError, match="was saved by more ranks than load it: 'model-rank-1-part-0"),
    ):
        load(state, "tload", {"sharded_state": True})
    with parallel(0, 2, pp_size=2), pytest.raises(ValueError, match="2 ranks would share 'model-rank-0-part-0"):
        load(state, "tload", {"sharded_state": True})


def test_a_presharded_state_loads_as_with_the_engines_own_loader(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "m")
    start_ranks(2, save_and_load_presharded, str(tmp_path / "m"))
    [state] = (tmp_path / "m" / "presharded").iterdir()
    assert {path.name.split("-")[2] for path in state.glob("model-*")} == {"common.safetensor", "rank"}


def save_and_load_presharded(rank: int, folder: str) -> None:
    with parallel(rank, 2):
        saved = load(Path(folder), "presharded").content()
        assert load(Path(folder), "presharded").content() == saved
        assert load(Path(folder), "tload", {"presharded": True}).content() == saved


def test_files_in_the_page_cache_are_views_on_a_cpu(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with parallel(0, 1), caplog.at_level("INFO"):
        wanted = processed(0, write_checkpoint(tmp_path / "m")).content()
        assert load(tmp_path / "m", "tload").content() == wanted
        assert "as views of the files" in caplog.text
        caplog.clear()
        assert load(tmp_path / "m", "tload", {"cache": "auto"}).content() == wanted
        assert "as views of the files" not in caplog.text


@pytest.fixture
def presharded(tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    """A folder with the state of one rank."""
    with parallel(0, 1):
        return tmp_path / "m", load(write_checkpoint(tmp_path / "m"), "presharded").content()


def test_presharded_states_are_read_from_everywhere(
    presharded: tuple[Path, dict[str, bytes]], tmp_path: Path, s3: S3, web: Web
) -> None:
    folder, saved = presharded
    [state] = (folder / "presharded").iterdir()
    url = s3.put_folder("states", f"p/{state.name}", state).removesuffix(f"/{state.name}")
    for path in state.iterdir():
        web.files[f"p/{state.name}/{path.name}"] = path.read_bytes()
    with parallel(0, 1):
        for source in (str(folder / "presharded"), url, f"{web.url}/p"):
            extra = {"presharded": True, "source": source, "store": s3.store, "verify_on_load": True}
            assert load(tmp_path, "tload", extra).content() == saved


def flip(state: Path) -> None:
    [path] = state.glob("model-*")
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")


def change_plan(state: Path) -> None:
    plan = json.loads((state / "checksum.json").read_text())
    plan["shard_config"]["tp"] = 4
    (state / "checksum.json").write_text(json.dumps(plan))


FAULTS: dict[str, tuple[Any, str]] = {
    "no state": (shutil.rmtree, "save it with --load-format presharded"),
    "not complete": (lambda state: (state / "READY").unlink(), "READY.*\n.*save it with --load-format presharded"),
    "no plan": (lambda state: (state / "checksum.json").unlink(), "checksum.json.*\n.*save it with"),
    "other configuration": (change_plan, "was saved with another model or configuration"),
    "missing file": (lambda state: next(state.glob("model-*")).unlink(), "model-00000-common.safetensor"),
    "other bytes": (flip, "checksum mismatch"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_presharded_states_are_errors(presharded: tuple[Path, dict[str, bytes]], fault: str) -> None:
    folder, _ = presharded
    [state] = (folder / "presharded").iterdir()
    harm, said = FAULTS[fault]
    harm(state)
    with parallel(0, 1), pytest.raises((RuntimeError, ValueError), match=f"(?s){said}"):
        load(folder, "tload", {"presharded": True, "verify_on_load": True})
    # Nothing is written: SGLang's own loader would save the state.
    assert not (folder / "presharded" / state.name / "_tmp_presharding").exists()


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"presharded": 1}, "presharded: wanted a bool, found int"),
        ({"presharded": True, "sharded_state": True}, "presharded and sharded_state are two layouts"),
        ({"presharded": True, "source": ["a"]}, "a presharded source is a directory or its URL, not a list"),
    ],
)
def test_wrong_settings_are_errors(extra: dict[str, Any], said: str) -> None:
    with pytest.raises(tload.InvalidRequestError, match=said):
        get_model_loader(LoadConfig(load_format="tload", model_loader_extra_config=extra))
    assert PreshardedModelLoader.DEFAULT_SUBDIR == "presharded"
