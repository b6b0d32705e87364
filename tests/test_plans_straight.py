"""Tensors that a plan reads from the page cache straight into parameters."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch

import plan_models
import tload
from files import Content, write_file
from test_interrupt import assert_prompt, running
from test_load_into import raw, save
from test_plans import digest, normally, recorded
from tload import _tload, plans
from tload._engines import views
from tload._sources.opened import usable
from tload._tensors import torch_tensors
from tload.plans import straight
from tload.plans.places import bind
from tload.plans.plan import FIXED

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 64
LARGE = 64 << 20
NORMAL = ("turned", "converted", "halves")
"""Tensors that do not keep order or dtype, or of which columns are apart. The others go straight: whole, in rows,
cut, twice, short, and of pairs of 4-bit floats."""


def make() -> Any:
    def one(self: Any, name: str, tensor: torch.Tensor) -> str:
        parameters = dict(self.named_parameters())
        if name in ("q", "k"):
            parameters["qk"].data.narrow(0, 0 if name == "q" else ROWS, ROWS).copy_(tensor)
            return "qk"
        if name == "twice":
            parameters["again"].data.copy_(tensor)
        parameter = parameters[name].data
        if name == "fused":
            parameter.narrow(0, 0, 16).copy_(tensor.narrow(0, 16, 16))
            parameter.narrow(0, 16, 16).copy_(tensor.narrow(0, 0, 16))
        elif name == "cut":
            parameter.copy_(tensor.narrow(0, 0, ROWS // 2))
        elif name == "turned":
            parameter.copy_(tensor.t())
        elif name == "halves":
            parameter.copy_(tensor.narrow(1, 0, ROWS // 2))
        else:
            parameter.copy_(tensor)
        return name

    parameters = {
        "qk": plan_models.empty(2 * ROWS, ROWS),
        "norm": plan_models.empty(ROWS * ROWS),
        "counts": plan_models.empty(ROWS, ROWS, dtype=torch.int32),
        "twice": plan_models.empty(ROWS, ROWS),
        "again": plan_models.empty(ROWS, ROWS),
        "fused": plan_models.empty(32, ROWS),
        "cut": plan_models.empty(ROWS // 2, ROWS),
        "turned": plan_models.empty(ROWS, ROWS),
        "converted": plan_models.empty(ROWS, ROWS, dtype=torch.float32),
        "halves": plan_models.empty(ROWS, ROWS // 2),
        "short": plan_models.empty(8),
        "pairs": torch.zeros(ROWS, 8, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    }
    return plan_models.Model(parameters, one)


def tensors() -> dict[str, torch.Tensor]:
    square = {
        name: plan_models.rand(ROWS, ROWS) for name in ("q", "k", "twice", "cut", "turned", "converted", "halves")
    }
    counts = torch.arange(ROWS * ROWS, dtype=torch.int32).reshape(ROWS, ROWS)
    others = {"norm": plan_models.rand(ROWS * ROWS), "fused": plan_models.rand(32, ROWS), "short": plan_models.rand(8)}
    pairs = torch.randint(256, (ROWS, 8), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    return {**square, **others, "counts": counts, "pairs": pairs}


def written(path: Path) -> Path:
    """Write the tensors: files count each of a pair of 4-bit floats."""
    found = tensors()
    pairs = found.pop("pairs")
    contents = {
        name: Content(torch_tensors.dtype_names()[it.dtype], tuple(it.shape), raw(it)) for name, it in found.items()
    }
    write_file(path, {**contents, "pairs": Content("F4", (ROWS, 16), raw(pairs))})
    return path


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.manual_seed(0)
    monkeypatch.setattr(straight, "BYTES_MIN", 1)
    # Not all temporary directories are on file systems that are known to be local.
    monkeypatch.setattr(views, "are_best", lambda options, _: options.cache is None)
    return written(tmp_path / "model.safetensors")


def test_rows_are_read_straight_into_parameters(path: Path) -> None:
    with tload.open(path) as checkpoint:
        wanted = normally(make, checkpoint)
        plan = recorded(module := make(), checkpoint)
        assert digest(module) == wanted
        loaded = plans.run(plan, module := make(), checkpoint)
        assert digest(module) == wanted
        nbytes = {name: checkpoint[name].nbytes for name in checkpoint if name not in NORMAL}
        assert loaded.straight_bytes == sum(nbytes.values()) + nbytes["twice"] - nbytes["cut"] // 2
        assert sum(report.tensors for report in loaded.reports) == len(NORMAL)
        # As an option forbids, and as one rank of several.
        loaded = plans.run(plan, module := make(), checkpoint, options=tload.Options(cache="auto"))
        assert (digest(module), loaded.straight_bytes) == (wanted, 0)
        assert sum(report.tensors for report in loaded.reports) == len(checkpoint)


def test_few_bytes_are_left_to_loads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(straight, "BYTES_MIN", 1 << 20)
    with tload.open(path) as checkpoint:
        plan = recorded(make(), checkpoint)
        loaded = plans.run(plan, module := make(), checkpoint)
        assert (digest(module), loaded.straight_bytes) == (normally(make, checkpoint), 0)


def test_many_short_tensors_and_long_ones(path: Path) -> None:
    lengths = [*range(1, 400), 3 << 20, 5, (4 << 20) + 1, 7]
    for number, part in enumerate((lengths[:200], lengths[200:])):
        save(path.with_name(f"model-{number}.safetensors"), {
            f"{number}.{index}": torch.randint(256, (length,), dtype=torch.uint8) for index, length in enumerate(part)
        })  # fmt: skip
    with tload.open([path.with_name(f"model-{number}.safetensors") for number in range(2)]) as checkpoint:
        total = sum(lengths)
        names = list(checkpoint)[::-1]

        def load_weights(self: Any, weights: Any) -> set[str]:
            at = 0
            for _, tensor in sorted(weights, key=lambda each: names.index(each[0])):
                self.all.data.narrow(0, at, len(tensor)).copy_(tensor)
                at += len(tensor)
            return {"all"}

        def module() -> Any:
            made = plan_models.Model({"all": torch.zeros(total, dtype=torch.uint8)}, lambda *_: "")
            made.load_weights = lambda weights: load_weights(made, weights)  # type: ignore[method-assign]
            return made

        plan = recorded(module(), checkpoint)
        loaded = plans.run(plan, filled := module(), checkpoint)
        assert (digest(filled), loaded.straight_bytes) == (normally(module, checkpoint), total)
        # Every other one: what lies between them is not read.
        rows = dataclasses.replace(plan, rows=plan.rows[::2])
        places = bind(filled := module(), plan.places)
        chosen = straight.tensors_in(rows, places, checkpoint, None)
        length = rows.rows[:, FIXED].tolist()
        assert straight.load(rows, chosen, places, checkpoint) == sum(length)
        assert int((filled.all != 0).sum()) <= sum(length)


def test_parameters_made_in_inference_mode_and_their_versions(path: Path) -> None:
    with tload.open(path) as checkpoint:
        wanted = normally(make, checkpoint)
        with torch.inference_mode():
            plan = recorded(make(), checkpoint)
            assert plans.run(plan, module := make(), checkpoint).straight_bytes > 0
            assert digest(module) == wanted
        module = make()
        before, places = module.qk._version, bind(module, plan.places)
        straight.load(plan, straight.tensors_in(plan, places, checkpoint, None), places, checkpoint)
        assert module.qk._version > before  # autograd has to see the change


def test_files_that_shrank_are_an_error(path: Path) -> None:
    with tload.open(path) as checkpoint:
        plan = recorded(make(), checkpoint)
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
        places = bind(module := make(), plan.places)
        assert straight.load(plan, straight.tensors_in(plan, places, checkpoint, None), places, checkpoint) == 0
        with pytest.raises(tload.ChangedError, match=r"model\.safetensors"):
            plans.run(plan, module, checkpoint)


@pytest.mark.parametrize("way", ["written", "replaced"])
def test_files_that_changed_are_an_error(way: str, path: Path) -> None:
    with tload.open(path) as checkpoint:
        plan = recorded(make(), checkpoint)
        status = path.stat()
        if way == "replaced":
            written(path.with_name("other"))
            path.with_name("other").replace(path)
        else:
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10_000_000_000))
        places = bind(make(), plan.places)
        with pytest.raises(tload.ChangedError, match="replaced" if way == "replaced" else "modification time"):
            straight.load(plan, straight.tensors_in(plan, places, checkpoint, None), places, checkpoint)


def test_loads_do_what_reads_could_not(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tload.open(path) as checkpoint:
        plan = recorded(make(), checkpoint)
        calls = []
        monkeypatch.setattr(_tload, "scatter", lambda *given: calls.append(given))
        loaded = plans.run(plan, module := make(), checkpoint)
        assert len(calls) == 1
        assert (digest(module), loaded.straight_bytes) == (normally(make, checkpoint), 0)


FAR = (1 << 63) - 1


@pytest.mark.parametrize(
    ("row", "is_inside"),
    [
        ((0, 0, 0, 0, 16), True),
        ((0, 0, 4, 12, 12), True),
        ((0, 0, 16, 24, 0), True),
        ((1, 0, 0, 0, 1), False),
        ((-1, 0, 0, 0, 1), False),
        ((0, 1, 0, 0, 1), False),
        ((0, -1, 0, 0, 1), False),
        ((0, 0, 0, 0, 17), False),
        ((0, 0, 5, 0, 12), False),
        ((0, 0, 0, 9, 16), False),
        ((0, 0, -1, 0, 2), False),
        ((0, 0, 0, -1, 2), False),
        ((0, 0, 0, 0, -1), False),
        ((0, 0, FAR, 0, FAR), False),
        ((0, 0, 0, FAR, FAR), False),
        ((0, 0, FAR, 0, 1), False),
        ((0, 0, 0, 0), False),
        ((0, 0, 0, 0, 16, 0), False),
    ],
)
def test_rows_outside_of_tensors_or_memory_are_refused(row: tuple[int, ...], is_inside: bool, path: Path) -> None:  # noqa: FBT001
    with tload.open(path) as checkpoint:
        values = checkpoint.read("short").view(torch.uint8)
        memory = torch.full((40,), 7, dtype=torch.uint8)
        # The piece is in the middle: bytes beside it would be seen.
        pieces = [(memory.data_ptr() + 8, 24)]
        # A row before it shows that nothing is read if any row is refused.
        table = torch.tensor((*(0, 0, 0, 0, 1), *row), dtype=torch.int64)
        given = usable(checkpoint), ["short"], pieces, table.numpy().tobytes()
        if is_inside:
            assert _tload.scatter(*given)
            _, _, start, place, length = row
            memory[8] = 7 if place else memory[8]
            assert torch.equal(memory[8 + place : 8 + place + length], values[start : start + length])
            memory[8 + place : 8 + place + length] = 7
        else:
            with pytest.raises(tload.InvalidRequestError, match="leaves its tensor or its memory"):
                _tload.scatter(*given)
        assert bool((memory == 7).all())


def test_tensors_that_there_are_not_and_closed_checkpoints_are_refused(path: Path) -> None:
    with tload.open(path) as checkpoint:
        plan = recorded(make(), checkpoint)
        with pytest.raises(tload.InvalidRequestError, match="no such tensor"):
            _tload.scatter(usable(checkpoint), ["absent"], [], b"")
    places = bind(make(), plan.places)
    with pytest.raises(tload.InvalidRequestError, match="closed"):
        straight.load(plan, torch.ones(len(plan.sources), dtype=torch.bool), places, checkpoint)


def hole(folder: Path) -> Path:
    """A file of one tensor of zeros, `t`, that takes no disk space."""
    path = folder / "hole.safetensors"
    header = json.dumps({"t": {"dtype": "U8", "shape": [LARGE], "data_offsets": [0, LARGE]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + LARGE)
    return path


def test_file_that_changes_during_the_reads_is_an_error(tmp_path: Path) -> None:
    path = hole(tmp_path)
    memory = torch.full((LARGE,), 7, dtype=torch.uint8)
    table = torch.tensor([(0, 0, 0, 0, LARGE)] * 256, dtype=torch.int64).numpy().tobytes()
    with tload.open(path) as checkpoint, ThreadPoolExecutor(1) as pool:
        given = usable(checkpoint), ["t"], [(memory.data_ptr(), LARGE)], table
        reads = pool.submit(_tload.scatter, *given)
        while bool(memory[0] == 7) and not reads.done():
            pass
        assert not reads.done()
        os.truncate(path, path.stat().st_size + 1)
        with pytest.raises(tload.ChangedError, match=r"hole\.safetensors"):
            reads.result()


ENDLESS = """
import sys, time
import torch
import tload
from tload import _tload
from tload._sources.opened import usable
path, length = sys.argv[1], int(sys.argv[2])
memory = torch.zeros(length, dtype=torch.uint8)
table = torch.tensor([(0, 0, 0, 0, length)] * 2000, dtype=torch.int64).numpy().tobytes()
with tload.open(path) as checkpoint:
    given = usable(checkpoint), ["t"], [(memory.data_ptr(), length)], table
    try:
        print("ready", flush=True)
        while True:
            _tload.scatter(*given)
    except KeyboardInterrupt:
        print(time.monotonic(), flush=True)
"""


def test_ctrl_c_ends_the_reads(tmp_path: Path) -> None:
    path = hole(tmp_path)

    def interrupt() -> float:
        with running(ENDLESS, path, LARGE) as child:
            sent = time.monotonic()
            child.send_signal(signal.SIGINT)
            stdout, stderr = child.communicate(timeout=300)
            assert child.returncode == 0, stderr
            return float(stdout) - sent

    assert_prompt(interrupt, 3)
