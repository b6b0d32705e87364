"""Load plans: the same bytes as the engine's loader, or none."""

from __future__ import annotations

import array
import gc
import hashlib
import importlib
import itertools
import json
import os
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import plan_models
import tload
from test_load_into import save
from tload import _tload, plans
from tload.plans import boxes, disk
from tload.plans.places import bits
from tload.plans.plan import Written, overlaps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import servers

RUNS = importlib.import_module("tload.plans.run")
"""The module, whose name in the package is that of its function."""


def digest(module: nn.Module) -> dict[str, str]:
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        name: hashlib.sha256(bits(it.detach()).contiguous().numpy().tobytes()).hexdigest()
        for name, it in tensors.items()
    }


def normally(make: Callable[[], Any], checkpoint: Any, **keywords: Any) -> dict[str, str]:
    module = make()
    with tload.stream(checkpoint, **keywords) as weights:
        module.load_weights(weights)
    return digest(module)


def recorded(module: Any, checkpoint: tload.Checkpoint) -> plans.Plan:
    return plans.record(module, checkpoint, module.load_weights, key="k")


@pytest.mark.parametrize("case", plan_models.CASES, ids=lambda case: case.__name__)
def test_plan_loads_what_the_loader_loads(
    case: Callable[[], plan_models.Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    make, tensors, normal = case()
    path = save(tmp_path / "model.safetensors", tensors)
    with tload.open(path) as checkpoint:
        wanted = normally(make, checkpoint)
        first = make()
        plan = recorded(first, checkpoint)
        assert digest(first) == wanted
        assert set(plan.normal) == normal
        assert plans.save(plan, tmp_path / "plans" / "one")
        kept = plans.restore(tmp_path / "plans" / "one", "k")
        assert kept is not None
        module = make()
        plans.run(kept, module, checkpoint, module.load_weights)
        assert digest(module) == wanted
        # Without the core, as for parameters on GPUs.
        with monkeypatch.context() as patch:
            patch.setattr(boxes, "tensors_in", lambda plan, _: torch.zeros(len(plan.sources), dtype=torch.bool))
            module = make()
            plans.run(kept, module, checkpoint, module.load_weights)
            assert digest(module) == wanted
        # Other values, as after a training step: nothing of the recorded ones is in the plan.
        others = {name: it.clone() for name, it in tensors.items()}
        for it in others.values():
            bits(it).bitwise_xor_(1) if it.dtype is not torch.bool else it.logical_not_()
    with tload.open(save(tmp_path / "others.safetensors", others)) as checkpoint:
        plans.run(kept, module, checkpoint, module.load_weights)
        assert digest(module) == normally(make, checkpoint)


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint and the file of a plan with boxes of all kinds, a constant, and a normal tensor."""
    torch.manual_seed(0)
    cases = [plan_models.phi3(), plan_models.padded(), plan_models.casts(), plan_models.mamba()]
    model = save(tmp_path / "model.safetensors", {name: it for _, tensors, _ in cases for name, it in tensors.items()})
    with tload.open(model) as checkpoint:
        assert plans.save(recorded(several(), checkpoint), tmp_path / "plans" / "one")
    return model, tmp_path / "plans" / "one"


def several() -> Any:
    cases = [plan_models.phi3(), plan_models.padded(), plan_models.casts(), plan_models.mamba()]

    class Several(nn.ModuleList):
        def load_weights(self, weights: Any) -> None:
            modules: list[Any] = list(self)
            for name, tensor in weights:
                for module, (_, tensors, _) in zip(modules, cases, strict=True):
                    if name in tensors:
                        module.load_weights([(name, tensor)])

    return Several([make() for make, _, _ in cases])


def test_damaged_plans_are_not_used(kept: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    _, path = kept
    whole = path.read_bytes()
    for index in range(len(whole)):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 1 << index % 8]) + whole[index + 1 :])
        assert plans.restore(path, "k") is None, index
        assert len(caplog.records) == 1, index
        caplog.clear()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert plans.restore(path, "k") is None
    path.write_bytes(whole + b"0")
    assert plans.restore(path, "k") is None
    path.write_bytes(whole)
    caplog.clear()
    assert plans.restore(path, "another key") is None
    assert plans.restore(path.with_name("absent"), "k") is None
    assert not caplog.records
    assert plans.restore(path, "k") is not None


def rewritten(whole: bytes, change: Callable[[dict[str, Any], list[list[int]]], object]) -> bytes:
    """Return the bytes of a plan that someone has changed, with a checksum that is right."""
    start = len(disk._MAGIC) + 8
    end = start + int.from_bytes(whole[start - 8 : start], "little")
    described = json.loads(whole[start:end])
    number, width = described["rows"]
    flat = array.array("q", whole[end:-32])
    rows = [flat[index * width : (index + 1) * width].tolist() for index in range(number)]
    change(described, rows)
    text = json.dumps(described).encode()
    data = whole[: start - 8] + len(text).to_bytes(8, "little") + text
    data += b"".join(array.array("q", row).tobytes() for row in rows)
    return data + hashlib.sha256(data).digest()


def test_plans_that_were_changed_stay_inside_tensors_and_parameters(
    kept: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    model, path = kept
    whole = path.read_bytes()
    path.write_bytes(rewritten(whole, lambda *_: None))
    assert plans.restore(path, "k") is not None
    refused = ran = 0
    numbers = (-1, 0, 1, 2, 3, 7, 1 << 20, 1 << 47, 1 << 62, -(1 << 63))
    with tload.open(model) as checkpoint:
        table = restored(path).rows.shape
        for row, column, number in itertools.product(range(table[0]), range(table[1]), numbers[::3]):

            def change(_: dict[str, Any], rows: list[list[int]], at: Any = (row, column, number)) -> None:
                rows[at[0]][at[1]] = at[2]

            path.write_bytes(rewritten(whole, change))
            plan = plans.restore(path, "k")
            if plan is None:
                refused += 1
                continue
            # Another plan of the same user, all of whose boxes are inside: it is followed.
            ran += 1
            if ran % 7 == 0:
                module = several()
                plans.run(plan, module, checkpoint, module.load_weights)
    assert refused > 50
    assert ran > 10
    changes: list[Callable[[dict[str, Any], list[list[int]]], object]] = [
        lambda it, _: it.update(rows=[1 << 40, 1 << 40]),
        lambda it, _: it.update(rows=[-1, 3]),
        lambda it, _: it.update(rows=[True, 3]),
        lambda it, _: it.update(rows=None),
        lambda it, rows: it.update(rows=[len(rows) * len(rows[0]), 1]),
        lambda it, _: it["places"].pop(),
        lambda it, _: it["places"].append(it["places"][0]),
        lambda it, _: it["places"][0].__setitem__(2, [-4, -4]),
        lambda it, _: it["places"][0].__setitem__(2, [1 << 60] * 9),
        lambda it, _: it["places"][0].__setitem__(3, [100, 1]),
        lambda it, _: (it["names"].pop(), it["of_form"].pop()),
        lambda it, _: it["names"].pop(),
        lambda it, _: it["forms"][0].__setitem__(0, "F1024"),
        lambda it, _: it["forms"][0].__setitem__(1, [1]),
        lambda it, _: it["names"].__setitem__(0, 5),
        lambda it, _: it["of_form"].__setitem__(0, len(it["forms"])),
        lambda it, _: it["of_form"].__setitem__(0, -1),
        lambda it, _: it["of_form"].__setitem__(0, bool(1)),
        lambda it, _: it["fills"][0].__setitem__(2, 1 << 40),
        lambda it, _: it["fills"][0].__setitem__(0, 99),
        lambda it, _: it["fills"][0].__setitem__(5, "zero"),
        lambda it, _: it["fills"][0].__setitem__(5, 10**400),
        lambda it, _: (
            it["places"][it["fills"][0][0]].__setitem__(slice(2, 4), [[1 << 46], [1]]),
            it["fills"][0].__setitem__(slice(2, 5), [0, [1 << 46], [1]]),
        ),
        lambda it, _: it["fills"].append(it["fills"][0]),
        lambda it, _: it.update(dtypes=["os"]),
        lambda it, _: it.update(dtypes=[]),
        lambda it, _: it.update(normal="A_log"),
        lambda it, _: it.update(normal=[it["names"][0]]),
        lambda it, _: it.pop("loaded"),
        lambda it, _: it.update(key=7),
    ]
    for index, changed in enumerate(changes):
        caplog.clear()
        path.write_bytes(rewritten(whole, changed))
        assert plans.restore(path, "k") is None, index
        assert len(caplog.records) == 1, index


def restored(path: Path) -> plans.Plan:
    plan = plans.restore(path, "k")
    assert plan is not None
    return plan


def test_plans_of_others_are_not_used(kept: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    _, path = kept
    path.chmod(0o620)
    assert plans.restore(path, "k") is None
    assert "can be changed by other users: mode 620" in caplog.text
    path.chmod(0o600)
    path.parent.chmod(0o777)
    assert plans.restore(path, "k") is None
    plan_before = path.read_bytes()
    path.parent.chmod(0o700)
    path.with_name("link").symlink_to(path)
    assert plans.restore(path.with_name("link"), "k") is None
    os.mkfifo(path.with_name("pipe"))
    assert plans.restore(path.with_name("pipe"), "k") is None
    assert plans.restore(path.parent, "k") is None
    plan = restored(path)
    path.parent.chmod(0o777)
    assert not plans.save(plan, path)
    assert path.read_bytes() == plan_before
    assert [each.name for each in path.parent.iterdir() if each.name.startswith(".")] == []
    if os.geteuid() == 0:
        path.parent.chmod(0o700)
        os.chown(path, 12345, 0)
        assert plans.restore(path, "k") is None
        assert "belongs to another user: uid 12345, wanted 0" in caplog.text


def test_plans_that_do_not_fit_write_nothing(kept: tuple[Path, Path], tmp_path: Path) -> None:
    model, path = kept
    plan = restored(path)

    def refused(module: Any, source: Path, reason: str) -> None:
        before = digest(module)
        with tload.open(source) as checkpoint, pytest.raises(plans.RefusedError, match=reason):
            plans.run(plan, module, checkpoint, module.load_weights)
        assert digest(module) == before

    tensors = tload.load(model)
    refused(several(), save(tmp_path / "less", {name: it for name, it in tensors.items() if name != "D"}), "headers")
    refused(several(), save(tmp_path / "other", tensors | {"D": tensors["D"].float()}), "headers")
    module = several()
    module[0].qkv = nn.Parameter(torch.zeros(8, 16, dtype=torch.bfloat16))
    refused(module, model, r"parameter '0\.qkv' is not as it was recorded")
    module = several()
    module[0].qkv = nn.Parameter(torch.zeros(16, 8))
    refused(module, model, r"parameter '0\.qkv' is not as it was recorded")
    module = several()
    del module[3].D
    refused(module, model, r"parameter '3\.D' is not as it was recorded")
    module = several()
    shared = torch.zeros(20, 8, dtype=torch.bfloat16)
    module[0].qkv, module[1].embed = nn.Parameter(shared[:16]), nn.Parameter(shared[4:16])
    refused(module, model, "share memory")
    with torch.device("meta"):
        module = several()
    with tload.open(model) as checkpoint, pytest.raises(plans.RefusedError, match="meta device"):
        plans.run(plan, module, checkpoint, module.load_weights)
    with tload.open(model) as checkpoint, pytest.raises(plans.RefusedError, match="need the engine's loader"):
        plans.run(plan, several(), checkpoint)


def test_a_rank_reads_only_its_part(tmp_path: Path) -> None:
    half = 512

    def one(self: Any, name: str, tensor: torch.Tensor) -> str:
        parameter = self.get_parameter(name)
        if name == "fused":
            for index in range(3):
                rows = tensor.narrow(0, index * 2 * half + half, half)
                parameter.data.narrow(0, index * half, half).copy_(rows)
        else:
            parameter.data.copy_(tensor.narrow(0, half, half))
        return name

    def make() -> Any:
        return plan_models.Model(
            {name: torch.zeros(rows, 512) for name, rows in (("fused", 3 * half), ("rows", half))}, one
        )

    tensors = {"fused": torch.randn(6 * half, 512), "rows": torch.randn(2 * half, 512)}
    with tload.open(save(tmp_path / "model.safetensors", tensors)) as checkpoint:
        wanted, module = normally(make, checkpoint), make()
        plan = recorded(module, checkpoint)
        assert digest(module) == wanted
        for options in (None, tload.Options(cache="auto")):
            loaded = plans.run(plan, module := make(), checkpoint, options=options)
            assert digest(module) == wanted
            total = loaded.straight_bytes + sum(report.tensor_bytes for report in loaded.reports)
            assert total * 2 == checkpoint.total_bytes
        assert plan.coverage() == {"fused": 3 * half * 512, "rows": half * 512}


FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def test_casts_of_the_core_are_those_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a whole, turned around, and every second column; short reads end inside of elements."""
    torch.manual_seed(0)
    short = {torch.float8_e4m3fn, torch.float8_e5m2}

    def values(one: torch.dtype, other: torch.dtype) -> torch.Tensor:
        made = torch.randn(37, 48, dtype=torch.float64) * torch.logspace(-9, 2, 48, dtype=torch.float64)
        # Values out of the range of a dtype may become NaN, of which there are several.
        made.clamp_(-400, 400)
        made[0, :4] = torch.tensor([0.0, -0.0, 1e-45, -(2.0**-16)])
        if not short & {one, other}:
            made[1, :2] = torch.tensor([float("inf"), -float("inf")])
        return made.to(one)

    pairs = {f"{one}_{other}".replace("torch.", ""): (one, other) for one in FLOATS for other in FLOATS}
    # One byte in front, so that no element is at a multiple of its size.
    tensors = {"0": torch.zeros(1, dtype=torch.uint8)} | {name: values(*pair) for name, pair in pairs.items()}

    def one(self: Any, name: str, tensor: torch.Tensor) -> str:
        if name != "0":
            self.get_parameter(f"{name}_whole").data.copy_(tensor)
            self.get_parameter(f"{name}_turned").data.copy_(tensor.t())
            self.get_parameter(f"{name}_second").data.copy_(tensor[:, ::2])
        return name

    def make() -> Any:
        shapes = {"whole": (37, 48), "turned": (48, 37), "second": (37, 24)}
        return plan_models.Model(
            {
                f"{name}_{kind}": torch.zeros(shape, dtype=dtype)
                for name, (_, dtype) in pairs.items()
                for kind, shape in shapes.items()
            },
            one,
        )

    with tload.open(save(tmp_path / "model.safetensors", tensors)) as checkpoint:
        wanted = normally(make, checkpoint)
        plan = recorded(make(), checkpoint)
        monkeypatch.delattr(RUNS, "_copy_rest")
        for extent_bytes in (None, 4096):
            module = make()
            plans.run(plan, module, checkpoint, options=tload.Options(extent_bytes=extent_bytes))
            found = digest(module)
            assert [name for name, value in found.items() if value != wanted[name]] == []


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_of_tensor_parallelism_read_half(rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries, keys and values by rows, from one tensor; the output by columns; experts by their number."""
    columns = 1 << 17

    def one(self: Any, name: str, tensor: torch.Tensor) -> str:
        parameter = self.get_parameter(name)
        if name == "qkv":
            for index in range(3):
                rows = tensor.narrow(0, index * 8 + rank * 4, 4)
                parameter.data.narrow(0, index * 4, 4).copy_(rows)
        elif name == "out":
            parameter.data.copy_(tensor.narrow(1, rank * columns, columns))
        elif name == "experts":
            parameter.data.copy_(tensor[rank::2].transpose(1, 2))
        else:
            parameter.data.copy_(tensor)
        return name

    def make() -> Any:
        shapes = {"qkv": (12, 1 << 15), "out": (8, columns), "experts": (4, 256, 1 << 12), "norm": (64,)}
        return plan_models.Model({name: plan_models.empty(*shape) for name, shape in shapes.items()}, one)

    tensors = {
        "qkv": plan_models.rand(24, 1 << 15),
        "out": plan_models.rand(8, 2 * columns),
        "experts": plan_models.rand(8, 1 << 12, 256),
        "norm": plan_models.rand(64),
    }
    with tload.open(save(tmp_path / "model.safetensors", tensors)) as checkpoint:
        wanted = normally(make, checkpoint)
        plan = recorded(make(), checkpoint)
        # All of it is the core's.
        monkeypatch.delattr(RUNS, "_copy_rest")
        module = make()
        reports = plans.run(plan, module, checkpoint).reports
        assert digest(module) == wanted
        assert sum(report.read_bytes for report in reports) <= 0.55 * checkpoint.total_bytes
        assert sum(report.tensor_bytes for report in reports) <= 0.501 * checkpoint.total_bytes


def test_plans_load_from_an_object_store(s3: servers.S3, kept: tuple[Path, Path]) -> None:
    model, path = kept
    url = s3.put("plans", "model.safetensors", model.read_bytes())
    module = several()
    with tload.open(model) as checkpoint:
        wanted = normally(several, checkpoint)
    with tload.open(url, store=s3.store) as checkpoint:
        plans.run(restored(path), module, checkpoint, module.load_weights)
        assert digest(module) == wanted


def test_key_changes_with_all_that_a_plan_depends_on() -> None:
    keys = [
        plans.key("vllm 0.32", headers="a", tp=2, config="x"),
        plans.key("vllm 0.33", headers="a", tp=2, config="x"),
        plans.key("vllm 0.32", headers="b", tp=2, config="x"),
        plans.key("vllm 0.32", headers="a", tp=1, config="x"),
        plans.key("vllm 0.32", headers="a", tp=2, config="y"),
        plans.key("vllm 0.32", headers="a", tp=2),
    ]
    assert len(set(keys)) == len(keys)
    assert plans.key("vllm 0.32", headers="a", config="x", tp=2) == keys[0]


@pytest.mark.parametrize(
    ("written", "is_found"),
    [
        ([Written(0, (4,), (1,), 1), Written(4, (4,), (1,), 1)], False),
        ([Written(0, (5,), (1,), 1), Written(4, (4,), (1,), 1)], True),
        ([Written(0, (4, 2), (4, 1), 1), Written(2, (4, 2), (4, 1), 1)], False),
        ([Written(0, (4, 3), (4, 1), 1), Written(2, (4, 2), (4, 1), 1)], True),
        ([Written(0, (4, 4), (1, 1), 1)], True),
        ([Written(0, (3, 4), (4, 1), 1)], False),
        ([Written(0, (2, 3), (3, 2), 1)], False),
        ([Written(0, (3, 3), (2, 2), 1)], True),
        ([Written(0, (3,), (0,), 1)], True),
        ([Written(0, (4,), (1,), 2), Written(8, (1,), (1,), 1)], False),
        ([Written(0, (4,), (1,), 2), Written(7, (1,), (1,), 1)], True),
    ],
)
def test_overlaps_are_found(written: list[Written], is_found: bool) -> None:  # noqa: FBT001
    assert overlaps(written) is is_found


def test_boxes_with_huge_gaps_take_no_memory() -> None:
    far = [Written(offset, (2,), (1 << 40,), 4) for offset in (0, 4)]
    with pytest.raises(ValueError, match="too far apart"):
        overlaps(far)


def test_recordings_keep_no_stand_ins(tmp_path: Path) -> None:
    # An engine's heap is large: a collection that looks for cycles in it takes a second.
    make, tensors, _ = plan_models.zeroed()
    module = make()
    known: list[weakref.ref[torch.Tensor]] = []
    load = module.load_weights

    def noting(weights: plan_models.Weights) -> None:
        for each in weights:
            known.append(weakref.ref(each[1]))
            load([each])
            known.append(weakref.ref(each[1].view(torch.uint8)))

    gc.disable()
    try:
        with tload.open(save(tmp_path / "model.safetensors", tensors)) as checkpoint:
            plan = plans.record(module, checkpoint, noting)
        assert plan.normal == ("bias",)
        assert [each() for each in known] == [None] * len(known) != []
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("case", [plan_models.stacked, plan_models.bytes_, plan_models.packed])
def test_elements_that_a_run_leaves_out_are_noticed(
    case: Callable[[], plan_models.Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    make, tensors, _ = case()
    real = boxes._table
    width = None

    def short(plan: plans.Plan, rows: torch.Tensor, used: torch.Tensor) -> bytes:
        nonlocal width
        width = 8 * (6 + 3 * plan.dims)
        return real(plan, rows, used)[:-width]

    monkeypatch.setattr(boxes, "_table", short)
    module = make()
    with tload.open(save(tmp_path / "model.safetensors", tensors)) as checkpoint:
        with pytest.raises(plans.RefusedError, match="not all of parameter"):
            recorded(module, checkpoint)
        assert width is not None
        assert normally(lambda: module, checkpoint) == normally(make, checkpoint)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ((0, 0, 0, 60, 4, 0, 1, 0, 0), None),
        ((1, 0, 0, 0, 4, 0, 1, 0, 0), "row 0 has no box"),
        ((0, 1, 0, 0, 4, 0, 1, 0, 0), "row 0 has no box"),
        ((-1, 0, 0, 0, 4, 0, 1, 0, 0), "row 0 has no box"),
        ((0, 0, 0, -4, 4, 0, 1, 0, 0), "row 0 has no box"),
        ((0, 0, 0, 61, 4, 0, 1, 0, 0), "row 0 has no box"),
        ((0, 0, 0, 0, 4, 0, 17, 4, 4), "row 0 has no box"),
        ((0, 0, 0, 0, 0, 0, 1, 0, 0), "row 0 has no box"),
        ((0, 0, 0, 0, 4, 0, 0, 4, 4), "row 0 has no box"),
        ((0, 0, 0, 0, 4, 0, 2, 0, 4), "row 0 has no box"),
        ((0, 0, 0, 0, 4, 0, 2, 4, 2), "row 0 has no box"),
        ((0, 0, 0, 0, 4, 0, 2, 1 << 62, 4), "leaves its tensor"),
        ((0, 0, 64, 0, 4, 0, 1, 0, 0), "leaves its tensor"),
        ((0, 0, 0, 0, 4, 0, 1), "row 0 has no box"),
        ((0, 0, 0, 0, 4, -1, 1, 0, 0), "row 0 has no box"),
        ((0, 0, 0, 0, 4, 2, 1, 0, 0), "row 0 has no box"),
        # To twice the bytes.
        ((0, 0, 0, 60, 4, 1, 1, 0, 0), "row 0 has no box"),
        ((0, 0, 0, 56, 2, 1, 1, 0, 0), "row 0 has no box"),
    ],
)
def test_tables_with_boxes_outside_are_refused(row: tuple[int, ...], reason: str | None, tmp_path: Path) -> None:
    memory = torch.zeros(16)
    path = save(tmp_path / "model.safetensors", {"x": torch.ones(16)})
    table = array.array("q", row).tobytes()
    with tload.open(path) as checkpoint:

        def loader() -> Any:
            raw: Any = checkpoint._raw
            return _tload.Loader(
                raw,
                names=["x"],
                found=[],
                globs=[],
                regexes=[],
                device="cpu",
                options=tload.Options(),
                boxes=([(memory.data_ptr(), 64, None)], [("F32", "F64")], 1, table, memory),
            )

        if reason is None:
            stream = loader().stream()
            with pytest.raises(StopIteration):
                stream.receive(None)
            assert memory.tolist() == [0.0] * 15 + [1.0]
            return
        with pytest.raises(tload.InvalidRequestError, match=reason):
            loader()
