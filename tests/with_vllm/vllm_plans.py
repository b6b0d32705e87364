"""Load plans inside vLLM: the same bytes as without, in every form. Needs vLLM: `make test-vllm`
runs it.

Models are made by vLLM in this process, without an engine, and compared as they are before vLLM
processes their weights.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import vllm_forms
from vllm.config import set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm_reload import Served, configuration

import tload
from tload import plans


def digest(model: torch.nn.Module) -> dict[str, str]:
    """Return the digests of all parameters and buffers."""
    found = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    return {name: _digest(tensor.detach()) for name, tensor in found.items()}


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


class Model(Served):
    """A model that vLLM has loaded, and whose weights it has not processed."""

    def __init__(self, folder: Path, extra: dict[str, Any], **fields: Any) -> None:
        self.config = configuration(folder, extra, "tload", **fields)
        own = self.config.model_config
        if "speculative_config" in fields:
            own = self.config.speculative_config.draft_model_config
        with self.within(), set_default_torch_dtype(own.dtype):
            self.model = initialize_model(vllm_config=self.config, model_config=own)
            for parameter in self.model.parameters():
                # Memory that no load writes to is the same in every model.
                parameter.data.copy_(torch.ones_like(parameter, dtype=torch.float32).to(parameter.dtype))
            get_model_loader(self.config.load_config).load_weights(self.model, own)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lines that the loader logs about plans."""
    return _listen(monkeypatch.setattr)


def _listen(replace: Any) -> list[str]:
    from tload.vllm import _loader

    lines: list[str] = []
    info = _loader.logger.info

    def note(text: str, *about: Any) -> None:
        if "load plan" in text:
            lines.append(text % about)
        info(text, *about)

    replace(_loader.logger, "info", note)
    return lines


@pytest.mark.parametrize("form", vllm_forms.FORMS)
def test_plans_load_what_vllm_loads(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = vllm_forms.write(form, tmp_path / "model")
    wanted = digest(Model(folder, {"plan": "off"}).model)
    assert not said
    assert digest(Model(folder, {"plan": "on"}).model) == wanted
    [line] = said
    assert "recorded a load plan" in line
    assert digest(Model(folder, {"plan": "on"}).model) == wanted
    assert "by a load plan in" in said[1]
    assert len(said) == 2


def test_draft_models_load_without_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    """A layer that predicts more tokens is a model of its own, which takes the rest from its target."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = vllm_forms.write(vllm_forms.PREDICTS, tmp_path / "model")
    drafted = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}
    found = [digest(Model(folder, {"plan": plan}, **drafted).model) for plan in ("off", "on")]
    assert found[0] == found[1]
    assert any("eh_proj" in name for name in found[0])
    assert ["draft models take weights from their target model" in line for line in said] == [True]


RANKS = [("Llama", False), ("Qwen3-MoE", False), ("GPTQ", False), ("GPT-OSS", False), ("Qwen3-MoE", True),
    ("Mixtral", True)]  # fmt: skip
"""Forms that two ranks load, and whether they have experts of their own."""


def test_two_ranks_load_by_plans_what_they_load_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    folders = {form: str(vllm_forms.write(form, tmp_path / form)) for form, _ in RANKS}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=_rank, args=(rank, port, folders, tmp_path / f"{rank}")) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    found = [json.loads((tmp_path / f"{rank}").read_text()) for rank in range(2)]
    for (form, experts), *both in zip(RANKS, *found, strict=True):
        for normal, recorded, run, lines, _ in both:
            assert recorded == run == normal, (form, experts)
            assert "recorded a load plan" in lines[0], lines
            assert "by a load plan in" in lines[1], lines
            assert "shared by the ranks of this node" in lines[1], lines
        # Each rank has its own part of the model.
        assert both[0][0] != both[1][0]
        # The two read the files once, and each gets its half.
        with tload.open(folders[form]) as checkpoint:
            total = checkpoint.total_bytes
        read, got = ([each[-1][at] for each in both] for at in range(2))
        assert sum(read) <= 1.1 * total, (form, read, total)
        assert max(got) <= 0.55 * total, (form, got, total)


def _rank(rank: int, port: int, folders: dict[str, str], results: Path) -> None:
    lines = _listen(setattr)
    sizes: list[list[int]] = []
    run = plans.run

    def measured(*arguments: Any, **keywords: Any) -> Any:
        loaded = run(*arguments, **keywords)
        sizes.append([sum(getattr(each, field) for each in loaded.reports) for field in ("read_bytes", "tensor_bytes")])
        return loaded

    plans.run = measured  # type: ignore[assignment]
    os.environ["VLLM_DIST_IDENT"] = f"tload-{port}"
    first = True
    made = []
    for form, experts in RANKS:
        fields = {"tensor_parallel_size": 2, "enable_expert_parallel": experts, "distributed_executor_backend": "mp"}
        with set_current_vllm_config(configuration(Path(folders[form]), {}, "tload", **fields)):
            if first:
                parallel_state.init_distributed_environment(2, rank, f"tcp://127.0.0.1:{port}", rank, "gloo")
            else:
                parallel_state.destroy_model_parallel()
            first = False
            parallel_state.initialize_model_parallel(2, 1, backend="gloo")
        lines.clear()
        ways = [{"plan": plan} for plan in ("off", "on", "on")]
        models = [digest(Model(Path(folders[form]), extra, **fields).model) for extra in ways]
        made.append([*models, [*lines], sizes[-1]])
    results.write_text(json.dumps(made))
