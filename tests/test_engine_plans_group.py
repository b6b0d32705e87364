"""Loads of an engine's model by load plans on several ranks: together if all have a plan."""

from __future__ import annotations

import importlib
import logging
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed

import tload
from ranks import start_ranks
from test_engine_plans import Start
from test_plans import digest, normally
from test_plans_group import model, write
from tload import plans

if TYPE_CHECKING:
    from pathlib import Path

RUNS = importlib.import_module("tload.plans.run")


def load_in_all_ways(rank: int, path: Path, size: int) -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tests.plans").addHandler(handler)
    logging.getLogger("tests.plans").setLevel(logging.INFO)
    with tload.open(path / "model.safetensors") as checkpoint:
        wanted = normally(lambda: model(rank), checkpoint)
    folder = path / f"plans-{rank}"
    start = Start(folder, path / "model.safetensors", missing_weights="warn")
    start.facts = {"rank": rank}
    start.process_group = torch.distributed.group.WORLD

    def loaded() -> str:
        torch.distributed.barrier()
        lines.clear()
        made = model(rank)
        start(made, join_timeout=120)
        assert digest(made) == wanted
        return "\n".join(lines)

    assert "recorded a load plan" in loaded()
    for _ in range(2):
        said = loaded()
        assert "by a load plan in" in said
        assert ("shared by the ranks of this node" in said) == (rank < 2)
        assert "alone" not in said
    # One rank has no plan.
    if rank == 1:
        shutil.rmtree(folder)
    said = loaded()
    assert ("recorded a load plan" if rank == 1 else "by a load plan in") in said
    assert "shared by the ranks" not in said
    # One rank may use none.
    start.against = "of a reason" if rank == 1 else None
    said = loaded()
    assert ("uses no load plan for `the-model`: of a reason" if rank == 1 else "by a load plan in") in said
    assert "shared by the ranks" not in said
    # No rank may use one: they share what they read, as without plans.
    start.against = "of a reason"
    said = loaded()
    assert "of a reason" in said
    assert "shared by the ranks of this node" in said
    start.against = None
    # One rank has plans turned off, and the others learn of it when they ask.
    start.has_plans = rank != 1
    said = loaded()
    assert ("load plan" in said) == (rank != 1)
    assert "shared by the ranks" not in said
    start.has_plans = True
    # The plan of one rank does not fit, which it finds out when the others wait for it.
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(RUNS, "_checked", refuse)
        said = loaded()
    assert ("uses no load plan for `the-model`: it does not fit" if rank == 1 else "by a load plan in") in said
    assert ("tload loads on every rank alone: rank 1" in said) == (rank != 1)
    assert "shared by the ranks" not in said
    assert "by a load plan in" in loaded()
    assert size == torch.distributed.get_world_size()


def refuse(*_: Any) -> None:
    raise plans.RefusedError("it does not fit")


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_load_together_if_all_have_plans(size: int, tmp_path: Path) -> None:
    write(tmp_path)
    start_ranks(size, load_in_all_ways, tmp_path, size)
