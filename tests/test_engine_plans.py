"""Loads of an engine's model by load plans, without an engine: the first records one, later ones use
it, and whatever speaks against one leaves the load to the engine's loader."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

import plan_models
import tload
from test_load_into import save
from test_plans import digest, normally
from tload import plans
from tload._engines import form, planned, watch
from tload.vllm import _settings, _weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

logger = logging.getLogger("tests.plans")


class Bar:
    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None: ...

    def update(self, n: float) -> None: ...


class Start:
    """Loads a model as the loaders for engines do."""

    def __init__(self, folder: Path, source: Path, **about: Any) -> None:
        self.folder, self.source = folder, str(source)
        self.facts: dict[str, object] = {"rank": 0}
        self.against: str | None = None
        self.has_plans = True
        self.about = about
        self.process_group: Any = None
        self.used: list[Any] = []

    def __call__(self, model: Any, *, records: bool = True, wrapped: bool = False, **settings: Any) -> Any:
        weights = _weights.stream(
            self.source,
            _settings.read(settings),
            shown="the-model",
            open_bar=lambda _: Bar(),
            logger=logger,
            process_group=self.process_group,
        )
        given = iter(weights)
        attempt = planned.Attempt(
            weights=given,
            source=weights,
            about=lambda _: planned.About(engine="tests 1", facts=self.facts, against=self.against),
            records=records,
            folder=self.folder,
            shown="the-model",
            logger=logger,
        )
        about: dict[str, Any] = {
            "shown": "the-model",
            "missing_weights": "error",
            "logger": logger,
            "describe": lambda *_: {},
            "present": weights.infos,
            "attempt": attempt if self.has_plans else None,
            "done": lambda *what: self.used.append(what),
        }
        watch.arm(model, watch.Watch(**(about | self.about)))
        try:
            return model.load_weights((each for each in given) if wrapped else given)
        finally:
            watch.disarm(model)


@pytest.fixture(autouse=True)
def _lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def said(caplog: pytest.LogCaptureFixture) -> str:
    [line] = [record.getMessage() for record in caplog.records if "load plan" in record.getMessage()]
    caplog.clear()
    return line


@pytest.mark.parametrize("case", plan_models.CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("missing_weights", ["error", "off"])
def test_second_start_loads_by_the_plan_of_the_first(
    case: Callable[[], plan_models.Case], missing_weights: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    make, tensors, normal = case()
    # Parts of some of these are never loaded.
    about = {"missing_weights": "warn" if missing_weights == "error" else "off"}
    start = Start(tmp_path / "plans", save(tmp_path / "model.safetensors", tensors), **about)
    module = make()
    wanted_names = start(module, wrapped=True)
    wanted = digest(module)
    caplog.clear()
    for told in ("recorded a load plan", "by a load plan in"):
        module = make()
        assert start(module) == wanted_names
        assert digest(module) == wanted
        line = said(caplog)
        assert told in line
        assert ("by the engine's loader" in line) == bool(normal)
        assert "load_weights" not in vars(module)
    # Reloads are compared with these.
    assert start.used[1] == start.used[2]
    if missing_weights == "error":
        assert start.used[0][0] <= start.used[1][0] <= start.used[0][0] | normal


class Linear(torch.nn.Module):
    """Layers of two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 6, bias=False) for _ in range(3))
        self.calls = 0

    def load_weights(self, weights: Any) -> set[str]:
        for name, tensor in weights:
            layer, which = name.split(".")
            start = 0 if which == "a" else 3
            self.get_parameter(f"layers.{layer}.weight").data[start : start + 3].copy_(tensor)
        return {f"layers.{at}.weight" for at in range(3)}


TENSORS = {f"{layer}.{which}": torch.randn(3, 4) for layer in range(3) for which in "ab"}


def test_missing_weights_are_found_by_plans_too(tmp_path: Path) -> None:
    path = save(tmp_path / "model.safetensors", {name: it for name, it in TENSORS.items() if name != "1.b"})
    start = Start(tmp_path / "plans", path, missing_weights="warn")
    start(Linear())
    assert list((tmp_path / "plans").glob("*.plan"))
    start.about = {}
    for records in (True, False):
        with pytest.raises(ValueError, match=r"'layers.1.weight' \(48 of 96 bytes were written; no tensor '1.b'\)"):
            start(Linear(), records=records)


def loads(start: Start, caplog: pytest.LogCaptureFixture, model: Any = None, **settings: Any) -> str:
    """Return what is logged about plans by a load that must be right."""
    model = model or Linear()
    start(model, **settings)
    for name, tensor in TENSORS.items():
        layer, which = name.split(".")
        rows = slice(0, 3) if which == "a" else slice(3, 6)
        assert torch.equal(model.layers[int(layer)].weight.data[rows], tensor)
    return said(caplog)


def test_reloads_go_by_the_plan_of_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    make, tensors, _ = plan_models.stacked()
    start = Start(tmp_path / "plans", save(tmp_path / "model.safetensors", tensors))
    start(module := make())
    assert "recorded a load plan" in said(caplog)
    # Other values, in another order, of files of their own.
    others = {name: tensor + 1 for name, tensor in reversed(tensors.items())}
    start.source = str(save(tmp_path / "next.safetensors", others))
    with tload.open(start.source) as checkpoint:
        wanted = normally(make, checkpoint)
    assert digest(module) != wanted
    start(module, records=False)
    assert "by a load plan in" in said(caplog)
    assert digest(module) == wanted
    # A reload of another form has no plan, and records none.
    start.source = str(save(tmp_path / "last.safetensors", {**tensors, "one": tensors["one"].float()}))
    with tload.open(start.source) as checkpoint:
        wanted = normally(make, checkpoint)
    start(module, records=False)
    assert "none was recorded" in said(caplog)
    assert digest(module) == wanted
    assert len(list((tmp_path / "plans").iterdir())) == 1


def test_a_changed_key_records_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    start = Start(tmp_path / "plans", save(tmp_path / "model.safetensors", TENSORS))
    assert "recorded" in loads(start, caplog)
    assert "by a load plan in" in loads(start, caplog)
    start.facts = {"rank": 1}
    assert "recorded" in loads(start, caplog)
    model = Linear()
    model.get_submodule("layers.0").tp_rank = 1  # type: ignore[assignment]
    assert "recorded" in loads(start, caplog, model)

    class Other(Linear):
        pass

    assert "recorded" in loads(start, caplog, Other())
    start.facts = {"rank": 0}
    assert "by a load plan in" in loads(start, caplog)


def test_what_speaks_against_a_plan_leaves_the_load_to_the_engine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start = Start(tmp_path / "plans", save(tmp_path / "model.safetensors", TENSORS))
    start.against = "experts move between ranks"
    assert "uses no load plan for `the-model`: experts move" in loads(start, caplog)
    start.against = None
    assert "none was recorded" in loads(start, caplog, records=False)
    start.facts = None  # type: ignore[assignment]
    assert "uses no load plan for `the-model`: TypeError" in loads(start, caplog)
    start.facts = {"rank": 0}
    assert not (tmp_path / "plans").exists()
    # An engine that changes tensors on the way has another iterator.
    model = Linear()
    start(model, wrapped=True)
    assert not any("load plan" in record.getMessage() for record in caplog.records)


class Counting(Linear):
    """A loader that leaves something behind that no plan repeats."""

    def load_weights(self, weights: Any) -> set[str]:
        self.calls += 1
        return super().load_weights(weights)


def test_a_refusal_is_remembered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    start = Start(tmp_path / "plans", save(tmp_path / "model.safetensors", TENSORS))
    for calls in (2, 1):
        model = Counting()
        assert "the loader changes '.calls', which no plan repeats" in loads(start, caplog, model)
        assert model.calls == calls


def test_a_passing_failure_is_not_remembered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Linear):
        fails = True

        def load_weights(self, weights: Any) -> set[str]:
            if Failing.fails:
                Failing.fails = False
                raise MemoryError
            return super().load_weights(weights)

    start = Start(tmp_path / "plans", save(tmp_path / "model.safetensors", TENSORS))
    assert "the loader failed: MemoryError" in loads(start, caplog, Failing())
    assert "recorded" in loads(start, caplog, Failing())


@pytest.mark.parametrize("harm", ["damaged", "of others", "gone"])
def test_a_file_that_cannot_be_used_is_no_plan(harm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    start = Start(tmp_path / "plans", save(tmp_path / "model.safetensors", TENSORS))
    loads(start, caplog)
    [path] = (tmp_path / "plans").glob("*.plan")
    if harm == "damaged":
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    elif harm == "of others":
        path.chmod(0o666)
    else:
        path.unlink()
    model = Linear()
    start(model)
    lines = [record.getMessage() for record in caplog.records if "plan" in record.getMessage()]
    assert ["is not used" in line for line in lines] == ([True, False] if harm != "gone" else [False])
    assert "recorded a load plan" in lines[-1]
    caplog.clear()
    assert "by a load plan in" in loads(start, caplog)


def test_errors_of_reading_are_those_of_the_normal_way(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = save(tmp_path / "model.safetensors", TENSORS)
    start = Start(tmp_path / "plans", path, replaces=True)
    loads(start, caplog)
    weights = path.read_bytes()
    real = plans.run

    def cut(*arguments: Any, **keywords: Any) -> Any:
        path.write_bytes(weights[:-8])
        return real(*arguments, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "run", cut)
        with pytest.raises(RuntimeError, match="tload cannot load the model weights of `the-model`") as caught:
            start(Linear())
    assert isinstance(caught.value.__cause__, tload.Error)
    assert watch.GONE in str(caught.value)


def test_few_plans_are_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned, "FILES_MAX", 2)
    start = Start(tmp_path / "plans", save(tmp_path / "model.safetensors", TENSORS))
    for rank in range(4):
        start.facts = {"rank": rank}
        loads(start, caplog)
        for at, path in enumerate(sorted((tmp_path / "plans").iterdir(), key=lambda each: each.stat().st_mtime)):
            os.utime(path, (at, at))
    assert len(list((tmp_path / "plans").iterdir())) == 2
    assert "by a load plan in" in loads(start, caplog)


def test_plans_are_in_the_directory_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TLOAD_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert planned.folder("/m", None, "on") == tmp_path / "x" / "tload" / "plans"
    # Recording takes time, and nothing says that this directory lasts.
    assert planned.folder("/m", None, "auto") is None
    monkeypatch.setenv("TLOAD_CACHE_DIR", str(tmp_path / "c"))
    for plan in ("on", "auto"):
        assert planned.folder("/m", None, plan) == tmp_path / "c" / "plans"
        assert planned.folder("/m", {"cache_dir": tmp_path / "d"}, plan) == tmp_path / "d" / "plans"
    assert planned.folder("/m", None, "off") is None


def test_models_on_other_devices_need_the_setting(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    start = Start(tmp_path / "plans", save(tmp_path / "model.safetensors", TENSORS))
    opened = _weights.stream(start.source, _settings.read({}), shown="m", open_bar=lambda _: Bar(), logger=logger)
    attempt = planned.Attempt(
        weights=iter(opened),
        source=opened,
        about=lambda _: planned.About(engine="tests 1", facts={}),
        records=True,
        folder=tmp_path / "plans",
        shown="m",
        logger=logger,
    )

    class Elsewhere(Linear):
        def parameters(self, recurse: bool = True) -> Any:  # noqa: FBT001, FBT002  # as in torch
            for parameter in super().parameters(recurse):
                yield type("P", (), {"is_meta": False, "device": torch.device("cuda"), "of": parameter})()

    assert attempt.load(Elsewhere(), lambda _: None) is None
    assert '"plan": "on" uses one' in said(caplog)
    opened.close()


def test_form_is_the_same_for_the_same_model_and_names_what_differs() -> None:
    one, other = Linear(), Linear()
    assert form.digest(form.of(one)) == form.digest(form.of(other))
    assert form.difference(form.of(one), form.of(other)) is None
    other._pending = {}  # type: ignore[assignment]  # as vLLM's loader of DeepSeek leaves it
    assert form.difference(form.of(one), form.of(other)) is None
    changes: dict[str, Callable[[Any], Any]] = {
        ".pending": lambda model: setattr(model, "pending", {"a": 1}),
        ".calls": lambda model: setattr(model, "calls", 1),
        "layers.0.new": lambda model: setattr(model.layers[0], "new", torch.zeros(2)),
        "layers.1.weight": lambda model: setattr(model.layers[1], "weight", torch.nn.Parameter(torch.zeros(6, 5))),
        "layers.1.weight.is_loaded": lambda model: setattr(model.layers[1].weight, "is_loaded", True),
        "layers.2.": lambda model: model.layers.__setitem__(2, torch.nn.Embedding(6, 4)),
        "layers.2.expert_map:values": lambda model: setattr(model.layers[2], "expert_map", torch.tensor([0, 1])),
    }
    for name, change in changes.items():
        before, after = Linear(), Linear()
        if name.endswith(":values"):
            before.layers[2].expert_map = torch.tensor([1, 0])
        change(after)
        assert form.difference(form.of(before), form.of(after)) == name
        assert form.digest(form.of(before)) != form.digest(form.of(after))


@pytest.mark.parametrize("changed", ["loaders", "helpers", "classes"])
def test_form_has_the_sources_of_what_loads_parameters(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "kinds_of_parameters"
    package.mkdir()
    sources = {
        "__init__": "",
        "loaders": "from kinds_of_parameters.helpers import half\n\ndef load(*given):\n    half(*given)\n",
        "helpers": "def half(*given): ...\n",
        "classes": "import torch\n\nclass Own(torch.nn.Parameter): ...\n",
    }
    for name, text in sources.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))

    def digest() -> str:
        loaders, classes = (importlib.import_module(f"{package.name}.{name}") for name in ("loaders", "classes"))
        model = Linear()
        weight = classes.Own(torch.zeros(4, 4))
        weight.weight_loader = functools.partial(loaders.load, 1)
        model.register_parameter("own", weight)
        found = form.digest(form.of(model))
        for name in [name for name in sys.modules if name.startswith(package.name)]:
            del sys.modules[name]
        return found

    before = digest()
    assert digest() == before
    importlib.invalidate_caches()
    with (package / f"{changed}.py").open("a") as file:
        file.write("# another version\n")
    assert digest() != before


def test_plans_of_processes_with_one_number_do_not_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes in containers that share a directory of plans."""
    from tload.plans import disk

    tmp_path.chmod(0o700)
    rename, kept = type(tmp_path).rename, []

    def while_another_writes(self: Path, target: Path) -> Path:
        monkeypatch.undo()
        kept.append(disk.save_refusal(tmp_path / "a.plan", "key", "another"))
        return rename(self, target)

    monkeypatch.setattr(type(tmp_path), "rename", while_another_writes)
    assert disk.save_refusal(tmp_path / "a.plan", "key", "reason")
    assert kept == [True]
    assert disk.refusal(tmp_path / "a.plan", "key") == "reason"
    assert [path.name for path in tmp_path.iterdir()] == ["a.plan"]
