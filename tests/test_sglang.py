"""The plugin for SGLang without SGLang: the error names what is missing. Other tests are in
`with_sglang/`."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import tload
import tload.sglang
from tload.sglang import _lora
from tload.vllm._lora import Adapters


def test_missing_sglang_raises_readable_error() -> None:
    if importlib.util.find_spec("sglang") is not None:
        pytest.skip("SKIPPED: this test is for machines without SGLang")
    with pytest.raises(ImportError, match="sglang"):
        tload.sglang.register()
    with pytest.raises(ImportError, match="sglang"):
        _ = tload.sglang.TloadModelLoader


def test_unknown_attribute_raises() -> None:
    module: Any = tload.sglang
    with pytest.raises(AttributeError, match="has no attribute 'TloadLoader'"):
        _ = module.TloadLoader


@dataclass
class Ref:
    """SGLang's reference to an adapter."""

    lora_name: str
    lora_path: str


def weights_in(folder: str) -> str:
    return Path(folder, "adapter_model.safetensors").read_text()


@dataclass
class Manager:
    """The part of SGLang's manager that adapters of requests pass through."""

    loaded: dict[str, str] = field(default_factory=dict)
    lora_ref_cache: dict[str, Ref] = field(default_factory=dict)

    @property
    def lora_registry(self) -> Any:
        async def get_unregistered_loras(names: set[str]) -> list[str]:
            return [name for name in names if name not in self.loaded]

        return SimpleNamespace(get_unregistered_loras=get_unregistered_loras)

    async def resolve(self, request: Any) -> None:
        names = [request.lora_path] if isinstance(request.lora_path, str) else request.lora_path
        for name in names:
            if name is None or name in self.loaded:
                continue
            if name not in self.lora_ref_cache:
                message = f"never been loaded: {name}"
                raise ValueError(message)
            weights = weights_in(self.lora_ref_cache[name].lora_path)
            if weights == "broken":
                message = f"Failed to implicitly load {name}"
                raise ValueError(message)
            self.loaded[name] = weights


@pytest.fixture
def adapters(tmp_path: Path) -> Adapters:
    return Adapters(str(tmp_path / "source"), tmp_path / "copies")


@pytest.fixture
def request_for(adapters: Adapters, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that requests adapters, which are below the directory `source`."""
    module: Any = ModuleType("sglang.srt.lora.lora_registry")
    module.LoRARef = Ref
    for name in ("sglang", "sglang.srt", "sglang.srt.lora"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    hook = _lora.before_resolving(adapters)
    return lambda manager, names: asyncio.run(hook(Manager.resolve, manager, SimpleNamespace(lora_path=names)))


def put(folder: Path, name: str, weights: str) -> None:
    adapter = folder / "source" / name
    adapter.mkdir(parents=True, exist_ok=True)
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (adapter / "adapter_model.safetensors").write_text(weights)


def test_adapters_are_fetched_when_a_request_names_them(tmp_path: Path, request_for: Any) -> None:
    manager = Manager()
    put(tmp_path, "sql", "one")
    put(tmp_path, "team/chat", "two")
    request_for(manager, "sql")
    request_for(manager, [None, "team/chat", "sql"])
    assert manager.loaded == {"sql": "one", "team/chat": "two"}
    # An adapter that SGLang has unloaded is copied again if it has changed.
    manager.loaded.clear()
    put(tmp_path, "sql", "changed")
    request_for(manager, ["sql", "team/chat"])
    assert manager.loaded == {"sql": "changed", "team/chat": "two"}


def test_adapter_that_the_source_has_no_more_is_unknown_once_unloaded(tmp_path: Path, request_for: Any) -> None:
    manager = Manager()
    put(tmp_path, "sql", "one")
    request_for(manager, "sql")
    shutil.rmtree(tmp_path / "source" / "sql")
    request_for(manager, "sql")
    manager.loaded.clear()
    with pytest.raises(ValueError, match="never been loaded"):
        request_for(manager, "sql")


def test_loaded_adapters_make_way_for_others(tmp_path: Path, request_for: Any, adapters: Adapters) -> None:
    manager = Manager()
    for name in ("a", "b", "c"):
        put(tmp_path, name, "weights")
        request_for(manager, name)
    assert list(manager.loaded) == ["a", "b", "c"]
    assert not adapters._disk._uses


def test_adapters_from_elsewhere_stay_as_they_are(tmp_path: Path, request_for: Any) -> None:
    put(tmp_path, "sql", "of the source")
    own = tmp_path / "own"
    own.mkdir()
    (own / "adapter_model.safetensors").write_text("own")
    manager = Manager(lora_ref_cache={"sql": Ref("sql", str(own))})
    request_for(manager, "sql")
    assert manager.loaded == {"sql": "own"}


def test_adapters_that_do_not_exist_or_load_are_unknown(tmp_path: Path, request_for: Any) -> None:
    manager = Manager()
    put(tmp_path, "sql", "broken")
    with pytest.raises(ValueError, match="Failed to implicitly load sql"):
        request_for(manager, "sql")
    for name in ("gone", "../source/sql", "/etc"):
        with pytest.raises(ValueError, match="never been loaded"):
            request_for(manager, name)
    assert not manager.lora_ref_cache
    put(tmp_path, "sql", "repaired")
    request_for(manager, "sql")
    assert manager.loaded == {"sql": "repaired"}
    (tmp_path / "source" / "sql" / "adapter_config.json").write_text('{"peft_type": "IA3"}')
    manager.loaded.clear()
    with pytest.raises(tload.InvalidRequestError, match="'IA3'"):
        request_for(manager, "sql")
