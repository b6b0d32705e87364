"""Sharded states inside vLLM: what its own loader has saved and loads, tload loads too. Needs vLLM:
`make test-engines` runs it.

The models are tiny ones of random numbers, without an engine. States are saved before vLLM
processes the weights, because its CPU kernels pack those of linear layers into memory of their own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.plugins import load_general_plugins
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm_reload import write_llama, write_mixtral

from ranks import start_ranks
from tload.vllm._weights import natural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import S3, Web

load_general_plugins()

NORM = "model.norm.weight"
PART_BYTES = 60_000
"""Maximum size of a file: each rank writes several."""


class Loads:
    """Loads of one model on this rank, by all loaders."""

    def __init__(self, checkpoint: str, ranks: int) -> None:
        self.checkpoint = checkpoint
        self.arguments = {
            "model": checkpoint,
            "dtype": "bfloat16",
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "tensor_parallel_size": ranks,
        }

    def config(self, load_format: str, extra: dict[str, Any]) -> Any:
        arguments = EngineArgs(**self.arguments, load_format=load_format, model_loader_extra_config=extra)
        return arguments.create_engine_config()

    @contextmanager
    def model(self, config: Any) -> Iterator[Any]:
        """Provide a model without weights: all bytes of its state are the same."""
        with set_current_vllm_config(config), set_default_torch_dtype(torch.bfloat16):
            model = initialize_model(vllm_config=config)
            for tensor in model.state_dict().values():
                tensor.untyped_storage().fill_(0xA5)
            yield model

    def digest(self, load_format: str, extra: dict[str, Any] | None = None, model: str | None = None) -> str:
        """Load a model and return the digest of its state."""
        config = self.config(load_format, extra or {})
        if model is not None:
            config.model_config.model = model
        with self.model(config) as loaded:
            get_model_loader(config.load_config).load_weights(loaded, config.model_config)
            return digest(loaded)

    def save(self, folder: str, pattern: str | None = None) -> str:
        """Load the checkpoint with vLLM, save the state, and return its digest."""
        config = self.config("auto", {})
        with self.model(config) as model:
            get_model_loader(config.load_config).load_weights(model, config.model_config)
            ShardedStateLoader.save_model(model, folder, pattern, PART_BYTES)
            return digest(model)


def digest(model: torch.nn.Module) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folders = {name: tmp_path_factory.mktemp(name) for name in ("llama", "tied", "mixtral")}
    write_llama(folders["llama"], 0)
    write_llama(folders["tied"], 1, tie_word_embeddings=True)
    write_mixtral(folders["mixtral"])
    return {name: str(folder) for name, folder in folders.items()}


def initialize(rank: int, ranks: int) -> None:
    with set_current_vllm_config(VllmConfig()):
        if ranks == 1:
            with socket.create_server(("127.0.0.1", 0)) as free:
                address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
            parallel_state.init_distributed_environment(1, 0, address, 0, "gloo")
        else:
            parallel_state.init_distributed_environment(ranks, rank, backend="gloo")
        parallel_state.initialize_model_parallel(ranks, 1, backend="gloo")


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """This process is the only rank."""
    initialize(0, 1)
    yield
    parallel_state.destroy_model_parallel()
    parallel_state.destroy_distributed_environment()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", ["llama", "tied", "mixtral"])
def test_a_state_loads_as_with_the_engines_own_loader(
    checkpoints: dict[str, str], tmp_path: Path, s3: S3, web: Web, name: str
) -> None:
    loads, folder = Loads(checkpoints[name], 1), str(tmp_path)
    saved = loads.save(folder)
    assert len(list(tmp_path.iterdir())) > 2
    assert loads.digest("auto") == saved
    assert loads.digest("sharded_state", model=folder) == saved
    assert loads.digest("tload", {"sharded_state": True}, model=folder) == saved
    assert loads.digest("tload", {"sharded_state": True, "source": folder}) == saved
    url = s3.put_folder("states", name, tmp_path)
    assert loads.digest("tload", {"sharded_state": True, "source": url, "store": s3.store}) == saved
    for path in tmp_path.iterdir():
        web.files[f"m/{path.name}"] = path.read_bytes()
    assert loads.digest("tload", {"sharded_state": True, "source": f"{web.url}/m"}) == saved


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("fault", ["missing file", "other model", "tied", "truncated", "other ranks", "checkpoint"])
def test_faulty_states_are_errors(checkpoints: dict[str, str], tmp_path: Path, fault: str) -> None:
    loads, folder = Loads(checkpoints["llama"], 1), str(tmp_path)
    said = {
        "missing file": "targets and checkpoint do not match: 1 missing in the checkpoint: ",
        "other model": r'targets and checkpoint do not match: .*"model\.layers\.0\.block_sparse_moe',
        "tied": r'1 missing in the checkpoint: "model\.embed_tokens\.weight"',
        "truncated": "file ends too early",
        "other ranks": "was saved by more ranks than load it: 'model-rank-1-part-0.safetensors'",
        "checkpoint": "has no file of a sharded state: .*; it has 'model-00001-of-",
    }[fault]
    saved = Loads(checkpoints[{"other model": "mixtral", "tied": "tied"}.get(fault, "llama")], 1)
    saved.save(folder)
    names = sorted((path.name for path in tmp_path.iterdir()), key=natural)
    if fault == "missing file":
        (tmp_path / names[-1]).unlink()
    elif fault == "truncated":
        os.truncate(tmp_path / names[1], 20_000)
    elif fault == "other ranks":
        shutil.copy(tmp_path / names[0], tmp_path / "model-rank-1-part-0.safetensors")
    elif fault == "checkpoint":
        folder = checkpoints["llama"]
    config = loads.config("tload", {"sharded_state": True, "source": folder})
    with loads.model(config) as model:
        empty = digest(model)
        with pytest.raises(RuntimeError, match=f"(?s)tload cannot load the sharded state of `{folder}`: .*({said})"):
            get_model_loader(config.load_config).load_weights(model, config.model_config)
        assert digest(model) == empty


@pytest.mark.usefixtures("alone")
def test_a_smaller_tensor_is_an_error_that_the_engine_overlooks(checkpoints: dict[str, str], tmp_path: Path) -> None:
    loads, folder = Loads(checkpoints["llama"], 1), str(tmp_path)
    saved = loads.save(folder)
    [path] = [path for path in tmp_path.iterdir() if NORM in load_file(path)]
    tensors = load_file(path)
    save_file(tensors | {NORM: tensors[NORM][:-1].clone()}, path)
    assert loads.digest("sharded_state", model=folder) != saved
    with pytest.raises(RuntimeError, match=f'"{NORM}" has shape'):
        loads.digest("tload", {"sharded_state": True}, model=folder)


@pytest.mark.usefixtures("alone")
def test_a_state_saved_after_weights_were_packed_is_an_error_as_with_the_engine(
    checkpoints: dict[str, str], tmp_path: Path
) -> None:
    loads, folder = Loads(checkpoints["llama"], 1), str(tmp_path)
    config = loads.config("auto", {})
    with set_current_vllm_config(config):
        model = get_model_loader(config.load_config).load_model(config, config.model_config)
    ShardedStateLoader.save_model(model, folder)
    with pytest.raises(ValueError, match=r"Missing keys .*qkv_proj\.weight"):
        loads.digest("sharded_state", model=folder)
    with pytest.raises(RuntimeError, match=r"\d+ missing in the checkpoint: .*_proj\.weight"):
        loads.digest("tload", {"sharded_state": True}, model=folder)


@pytest.mark.usefixtures("alone")
def test_a_state_is_not_reloaded(checkpoints: dict[str, str], tmp_path: Path) -> None:
    loads = Loads(checkpoints["llama"], 1)
    saved = loads.save(str(tmp_path))
    config = loads.config("tload", {"sharded_state": True, "source": str(tmp_path)})
    with loads.model(config) as model:
        loader = get_model_loader(config.load_config)
        loader.load_weights(model, config.model_config)
        with pytest.raises(ValueError, match="a sharded state cannot be reloaded"):
            loader.get_all_weights(config.model_config, model)
        assert digest(model) == saved


def test_each_of_two_ranks_loads_its_own_state(checkpoints: dict[str, str], tmp_path: Path) -> None:
    start_ranks(2, save_and_load, checkpoints, str(tmp_path), f"sharded-{os.getpid()}")


def save_and_load(rank: int, checkpoints: dict[str, str], folder: str, ident: str) -> None:
    os.environ["VLLM_DIST_IDENT"] = ident  # of vLLM's own shared memory
    load_general_plugins()
    initialize(rank, 2)
    digests = []
    for name, checkpoint in checkpoints.items():
        loads = Loads(checkpoint, 2)
        for pattern in (None, "{rank}/{part}.safetensors"):
            state = f"{folder}/{name}-{pattern is None}"
            Path(state, str(rank)).mkdir(parents=True, exist_ok=True)
            torch.distributed.barrier()
            digests.append(saved := loads.save(state, pattern))
            torch.distributed.barrier()
            extra = {} if pattern is None else {"pattern": pattern}
            assert loads.digest("sharded_state", extra, model=state) == saved
            assert loads.digest("tload", {"sharded_state": True} | extra, model=state) == saved
            if pattern is None:
                files = [str(file) for file in Path(state).glob("*.safetensors")]
                assert loads.digest("tload", {"sharded_state": True, "source": files}) == saved
                assert {file for file in files if f"-rank-{rank}-" in file} != set(files)
        torch.distributed.barrier()
    # Each rank has another one.
    others: list[list[str]] = [[], []]
    torch.distributed.all_gather_object(others, digests)
    assert not set(others[0]) & set(others[1])
    # Neither rank loads if a file of one of them is missing, and none shares the other's.
    state = f"{folder}/llama-True"
    torch.distributed.barrier()
    if rank == 0:
        Path(state, "model-rank-1-part-0.safetensors").unlink()
    torch.distributed.barrier()
    with pytest.raises(RuntimeError, match=r"lacks 'model-rank-1-part-0\.safetensors', "):
        Loads(checkpoints["llama"], 2).digest("tload", {"sharded_state": True}, model=state)
    with pytest.raises(ValueError, match="2 ranks would share 'model-rank-0-part-0"):
        Loads(checkpoints["llama"], 2).digest("tload", {"pattern": "model-rank-0-part-{part}.safetensors"}, model=state)
    parallel_state.destroy_model_parallel()
