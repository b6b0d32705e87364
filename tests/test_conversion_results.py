"""The results of torch that the Rust crate `convert` is tested with are those of this torch."""

from __future__ import annotations

import pathlib
import runpy

import pytest

torch = pytest.importorskip("torch")

FOLDER = pathlib.Path(__file__).parent.parent / "crates/convert/tests"


def test_committed_results_are_those_of_torch() -> None:
    """Earlier versions of torch do not clamp F8_E4M3, and are not compared there."""
    script = runpy.run_path(str(FOLDER / "results_of_torch.py"))
    clamps = torch.tensor([1e6]).to(torch.float8_e4m3fn).float().item() == 448
    committed = (FOLDER / "results_of_torch.txt").read_text().splitlines()
    compared = [line for line in committed if clamps or line.split()[1] != "F8_E4M3"]
    assert len(compared) == (56 if clamps else 49)
    assert not set(compared) - set(script["lines"]())
