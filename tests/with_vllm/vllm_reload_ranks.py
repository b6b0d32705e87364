"""Reloads by two ranks, a process each: all of them get the new weights, or all keep the old ones."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.model_loader import get_model_loader
from vllm_reload import DOWN, Served, configuration, write_changed, write_llama

if TYPE_CHECKING:
    from collections.abc import Iterator


class Rank(Served):
    """One of two ranks of a model that vLLM has loaded."""

    def __init__(self, folder: Path, rank: int, port: str, tensor: int) -> None:
        sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": 2 // tensor}
        self.config = configuration(folder, {"join_timeout": 3}, "tload", distributed_executor_backend="mp", **sizes)
        self.config.parallel_config.rank = rank
        self.joins = rank, f"tcp://127.0.0.1:{port}", tensor
        with self.within():
            self.model = get_model_loader(self.config.load_config).load_model(self.config, self.config.model_config)

    @contextmanager
    def within(self) -> Iterator[None]:
        rank, address, tensor = self.joins
        with set_current_vllm_config(self.config):
            if not parallel_state.model_parallel_is_initialized():
                parallel_state.init_distributed_environment(2, rank, address, rank, "gloo")
                parallel_state.initialize_model_parallel(tensor, 2 // tensor, backend="gloo")
            yield


def run(folder: str, new: str, rank: str, port: str, tensor: str) -> None:
    """Load and reload, and print the outcome, in a process of its own."""
    served = Rank(Path(folder), int(rank), port, int(tensor))
    parameters = {name: parameter.detach().clone() for name, parameter in served.model.named_parameters()}
    try:
        served.reload(new)
        said = "reloaded"
    except Exception as error:  # noqa: BLE001  # whatever it is, it is printed
        said = f"refused: {error}".replace("\n", " ")
    now = dict(served.model.named_parameters())
    changed = [not torch.equal(parameters[name], now[name]) for name in parameters if name.endswith("proj.weight")]
    print(f"OUTCOME {'new' if all(changed) else 'mixed' if any(changed) else 'old'} {said}", flush=True)  # noqa: T201
    torch.distributed.barrier()
    os._exit(0)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("tensor", "ways", "said"),
    [
        (1, ("new", "new"), "new reloaded"),
        (2, ("new", "new"), "new reloaded"),
        # Only the second stage of the pipeline needs what is missing.
        (1, ("incomplete", "incomplete"), f"old refused: .*{DOWN}"),
        # On another machine, the directory is not there.
        (2, ("new", "absent"), "old refused: .*there is no such directory"),
    ],
)
def test_all_ranks_reload_or_none(tmp_path: Path, tensor: int, ways: tuple[str, str], said: str) -> None:
    folders = {name: write_llama(tmp_path / name, seed) for seed, name in enumerate(("old", "new", "incomplete"))}
    write_changed(folders["incomplete"], lambda tensors: tensors.pop(DOWN))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    here = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {here!r}); import vllm_reload_ranks; vllm_reload_ranks.run(*sys.argv[1:])"
    children = []
    for rank, way in enumerate(ways):
        line = [sys.executable, "-c", code, str(folders["old"]), str(tmp_path / way), str(rank), str(port), str(tensor)]
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / f"cache{rank}")}
        children.append(subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment))
    for child in children:
        output, _ = child.communicate()
        outcomes = [line.removeprefix("OUTCOME ") for line in output.splitlines() if line.startswith("OUTCOME ")]
        assert len(outcomes) == 1, output
        assert re.match(said, outcomes[0]), outcomes
