"""The program that decides from a GPU machine's results which variants become defaults
(`benches/gpu/decide`)."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHES = Path(__file__).parent.parent / "benches"
DECIDE = BENCHES / "gpu" / "decide"
EXPERIMENTS = BENCHES / "results" / "16core-h100-2026-11-28" / "experiments.txt"
CHECKED = "ok       every dtype, as torch tensors: 115 tensors\nSKIPPED  DLPack into CuPy: no module\n"
GB = 10**9
#: Bytes of the two lengths, and bytes per second of the bus.
WHOLE, HALF, BUS = 24 * GB, 12 * GB, 50 * GB


def module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", DECIDE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    before = list(sys.path)
    try:
        spec.loader.exec_module(loaded)
    finally:
        sys.path[:] = before
    return loaded


decide = module("decide")


def sample(kind: str, nbytes: int, seconds: float) -> dict[str, Any]:
    residency = {"wanted": "warm", "found": "warm"}
    return {"kind": kind, "bytes": nbytes, "seconds": seconds, "residency": residency}


def run(name: str, turn: int, rate: float, fixed: float, first: float) -> dict[str, Any]:
    """Return a run whose loads take `fixed` seconds and the bytes at `rate`; the first takes `first` more."""
    samples = [sample("first", WHOLE, fixed + first + WHOLE / rate)]
    samples += [sample("again", WHOLE, fixed + WHOLE / rate), sample("also", HALF, fixed + HALF / rate)]
    return {"contender": name, "round": turn, "tensors": 9, "bytes": WHOLE, "checksum": 7, "samples": samples}


#: Share of the bus of each variant, fixed milliseconds, and those of a first load beyond.
SPEEDS = {
    "before": (0.70, 9, 60),
    "regions": (0.80, 9, 30),
    "align": (0.80, 9, 30),
    "slots": (0.98, 9, 25),
    "batch": (0.98, 9, 25),
    "early": (0.98, 4, 9),
    "all": (0.98, 4, 9),
    "defaults": (0.80, 9, 30),
}


def compared(speeds: dict[str, tuple[float, float, float]], *, rounds: int = 3) -> dict[str, Any]:
    copies = {"contender": "ceiling: pinned copies", "samples": [sample("again", BUS, 1.0)]}
    runs = [copies | {"round": turn} for turn in range(1, rounds + 1)]
    for turn in range(1, rounds + 1):
        # Each round is slower than the one before, for all.
        slow = 1 + turn / 10
        for name, (share, fixed, first) in speeds.items():
            runs.append(run(name, turn, share * BUS / slow, fixed / 1e3 * slow, first / 1e3))
    case = {"name": "large", "state": "warm", "contenders": ["ceiling: pinned copies", *speeds], "runs": runs}
    checkpoints = {"large": {"tensors": 9, "bytes": WHOLE}}
    return {"rehearsal": False, "checkpoints": checkpoints, "sections": [case]}


def table(text: str) -> dict[str, tuple[str, str]]:
    """Return answer and reason by the first cell of each row."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}


def test_experiments_of_an_h100_are_read_completely() -> None:
    found = decide.parse(EXPERIMENTS.read_text())
    assert sorted(found.copies) == [64, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536]
    assert found.copies[1024] == {1: 47.2, 2: 46.9, 4: 47.1, 8: 53.2, 16: 52.5, 64: 46.9, "events": 35.9}
    assert (found.bus, found.small) == (54.3, (2.42, 0.5))
    assert [Path(file.path).parent.name for file in found.files] == ["shm", "tmpfs of huge pages", "tmp"]
    for file in found.files:
        assert len(file.rings) == 13
        assert all(sorted(rates) == [8, 10, 12, 14] for rates in file.rings.values())
        assert file.registered["read-only, no flag"] is None
        assert len(file.registered["read-only, flag READ_ONLY"]) == 8
    assert found.allocations[256] == 0.42


def test_experiments_of_an_h100_decide_for_batches_and_against_streams() -> None:
    answers = table(decide.decide(EXPERIMENTS.read_text(), None, None))
    assert answers["batches"][0] == "yes"
    assert answers["a second stream"][0] == "no"
    assert answers["several threads a slot"][0] == "yes"
    assert answers["an engine that registers mappings"][0] == "no"
    assert "256 MiB" in answers["allocations"][1]


@pytest.mark.parametrize("end", [0, 900, 2000, 5000, 9000])
def test_experiments_that_were_stopped_are_read_so_far(end: int) -> None:
    assert decide.decide(EXPERIMENTS.read_text()[:end], None, None).startswith("# Decisions")


def test_refused_batches_leave_a_second_stream_possible() -> None:
    lines = ["  1024 KiB   46.0   46.0   46.0 -801.0 -801.0 -801.0   40.0"]
    lines += ["  4096 KiB   51.0   53.9   53.0 -801.0 -801.0 -801.0   48.0"]
    lines += [" 65536 KiB   54.0   54.0   54.0 -801.0 -801.0 -801.0   54.0"]
    answers = table(decide.decide("\n".join(lines), None, None))
    assert answers["batches"][0] == "no"
    assert answers["a second stream"][0] == "yes"


def test_faster_variants_become_defaults_and_others_do_not() -> None:
    text = decide.decide(None, compared(SPEEDS), CHECKED)
    answers = table(text)
    assert "No default changes" not in text
    assert answers["regions"] == ("yes", "faster; loads as fast as with 'before': large 1.141 × (1.14–1.14)")
    # Counted without a GPU, so it need not be measurable.
    assert answers["align"][0] == "yes"
    assert "fewer calls, and not slower" in answers["align"][1]
    assert answers["chunk, slot, ring"][0] == "yes"
    assert answers["batch"] == ("no", "no difference; loads as fast as with 'slots': large 1.000 × (1.00–1.00)")
    assert answers["early"][0] == "yes"
    assert answers["early"][1].startswith("faster; first loads as fast as")
    assert answers["nice, numa"][0] == "no"


def test_fixed_time_and_rate_are_separated() -> None:
    case = compared(SPEEDS, rounds=1)["sections"][0]
    fitted = decide.fit(case, "regions")
    assert fitted.gbs == pytest.approx(0.80 * 50 / 1.1)
    assert fitted.fixed == pytest.approx(0.0099)
    assert decide.first_excess(case, "regions") == pytest.approx(0.0399)
    told = decide.aims(case, "regions")
    assert told == "rate 0.727 of 0.97: MISSED; fixed 9.9 of 5 ms: MISSED; first load 39.9 of 15 ms: MISSED"


def test_slower_in_one_case_is_no_default() -> None:
    results = compared(SPEEDS)
    slower = {name: (speed[0] - 0.05 * (name == "slots"), *speed[1:]) for name, speed in SPEEDS.items()}
    slower["slots"] = (0.75, 9, 25)
    other = compared(slower)["sections"][0] | {"name": "disk"}
    results["sections"].append(other)
    results["checkpoints"]["disk"] = results["checkpoints"]["large"]
    answer, reason = table(decide.decide(None, results, CHECKED))["chunk, slot, ring"]
    assert answer == "no"
    assert reason.startswith("slower; ")


@pytest.mark.parametrize(
    ("check", "change", "why"),
    [
        (None, {}, "no check of the bytes with all flags has run"),
        ("FAILED   8-bit floats: AssertionError\nok       every dtype\n", {}, "the check of the bytes failed: FAILED"),
        (CHECKED, {"rehearsal": True}, "this was a rehearsal"),
        (CHECKED, {"checksum": 8}, "bytes differ from the rest"),
    ],
)
def test_no_default_changes_without_right_bytes(check: str | None, change: dict[str, Any], why: str) -> None:
    results = compared(SPEEDS)
    results |= {name: value for name, value in change.items() if name == "rehearsal"}
    if "checksum" in change:
        results["sections"][0]["runs"][-1]["checksum"] = change["checksum"]
    text = decide.decide(None, results, check)
    assert "**No default changes: " in text
    assert why in text
    assert {answer for answer, _ in table(text).values()} <= {"default", "no", "withheld", "--:"}


def test_missing_runs_are_not_measured() -> None:
    few = {name: SPEEDS[name] for name in ("before", "regions")}
    results = compared(few)
    error = {"contender": "batch", "round": 1, "error": "skipped: no time was left"}
    results["sections"][0]["runs"].append(error)
    results["sections"][0]["contenders"].append("batch")
    text = decide.decide(None, results, CHECKED)
    answers = table(text)
    assert answers["regions"][0] == "yes"
    assert answers["batch"] == ("", "not measured")
    assert "skipped: no time was left" in text


def test_command_reads_a_folder_of_results(tmp_path: Path) -> None:
    (tmp_path / "compare.json").write_text(json.dumps(compared(SPEEDS)))
    (tmp_path / "check.txt").write_text(CHECKED)
    done = subprocess.run(
        [sys.executable, str(DECIDE / "decide.py"), str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert table(done.stdout)["regions"][0] == "yes"
    assert done.stderr.strip() == f"MISSING: {tmp_path / 'experiments.txt'}"
