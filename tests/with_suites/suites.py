"""Runs the tests of other projects twice, with their package and with tload's replacement, and
compares.

`make test-suites` runs it. The tests come from package registries: from the source distribution, or
from the wheel, of exactly the installed version. Each test must end as with the original package,
whether passed, failed or skipped: without a network, many fail. `meant.py` lists intended
differences with their reasons; any other is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from meant import MEANT
from safetensors.numpy import save_file

HERE = Path(__file__).parent

SUITE_SECONDS = 3600
"""Seconds: a suite that takes longer hangs."""


@dataclass(frozen=True)
class Suite:
    """Tests of one artifact."""

    package: str
    """Name in the registry, and of the installed package."""
    stand_in: str
    """Replacement that the plugin installs."""
    folder: str
    """Folder to run in, below the root of the source distribution; of a wheel, the package."""
    files: tuple[str, ...]
    """Test files below that folder."""
    note: str
    """Tests that are left out, with reasons."""
    wheel: bool = False
    """`True` if the wheel contains the tests."""
    keyword: str = ""
    """Selection of tests in these files, as pytest's `-k`; all if empty."""
    here: bool = False
    """`True` if the files are beside this one: the artifact's tests, for models of ours."""


SUITES = {
    "safetensors": Suite(
        "safetensors",
        "safetensors",
        "bindings/python",
        ("tests/test_*.py",),
        "all; those for Flax, TensorFlow, MLX and Paddle need packages that are not installed",
    ),
    "accelerate": Suite(
        "accelerate",
        "patch",
        "",
        (
            "tests/test_accelerator.py",
            "tests/test_big_modeling.py",
            "tests/test_load_checkpoint_and_dispatch_with_broadcast.py",
            "tests/test_modeling_utils.py",
            "tests/test_offload.py",
        ),
        "the files that read checkpoints",
    ),
    "transformers": Suite(
        "transformers",
        "patch",
        "",
        ("model_suite.py",),
        "of `ModelTesterMixin` what saves or loads, with four small models of ours: the artifact has the mixin and no "
        "models' tests",
        keyword="save or load or pretrained or offload or mismatched or missing or tied",
        here=True,
    ),
    "runai": Suite(
        "runai-model-streamer",
        "runai",
        "runai_model_streamer",
        (
            "distributed_streamer/tests/test_none_device.py",
            "file_streamer/tests/test_file_streamer.py",
            "file_streamer/tests/test_list_files.py",
            "safetensors_streamer/tests/test_alignment.py",
            "safetensors_streamer/tests/test_metadata_ordering.py",
            "safetensors_streamer/tests/test_mock.py",
            "safetensors_streamer/tests/test_object_storage_model.py",
            "safetensors_streamer/tests/test_safetensors_streamer.py",
            "tests/test_annotations.py",
        ),
        "those of its internals are left out: libstreamer, partition, slot_pool, requests_iterator, rank_memory_limit",
        wheel=True,
    ),
}

ABSENT = {
    "diffusers": "its source distribution has `tests/testing_utils.py` and no test",
    "transformers' tests of its own models": "its source distribution has `tests/test_*.py` and no folder below",
    "PyTorch's tests of distributed checkpoints": "PyTorch publishes wheels only, which have no `test/`",
}
"""Suites that are in no registry, with the reason. They need a checkout of the project."""


def fetch(suite: Suite, cache: Path) -> Path:
    """Return the unpacked artifact of the installed version, downloading it if it is missing."""
    wanted = version(suite.package)
    target = cache / f"{suite.package}-{wanted}"
    if not target.exists():
        kind = "--only-binary" if suite.wheel else "--no-binary"
        downloads = cache / "downloads" / target.name
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", kind, suite.package]
        subprocess.run([*command, "--dest", str(downloads), f"{suite.package}=={wanted}"], check=True)
        (artifact,) = downloads.iterdir()
        unpacked = cache / f"{target.name}.unpacking"
        shutil.rmtree(unpacked, ignore_errors=True)
        if suite.wheel:
            with zipfile.ZipFile(artifact) as archive:
                archive.extractall(unpacked)
        else:
            with tarfile.open(artifact) as archive:
                archive.extractall(unpacked, filter="data")
        unpacked.rename(target)
    return target


def tests_of(suite: Suite, artifact: Path, work: Path) -> tuple[Path, list[str]]:
    """Return the folder to run in, and the test files below it."""
    if suite.here:
        # Outside of the configuration of our own tests.
        for file in suite.files:
            shutil.copy(HERE / file, work / file)
        return work, list(suite.files)
    if suite.wheel:
        # Outside of the package's own code, which would be imported from here.
        (package,) = (path for path in artifact.rglob(suite.folder) if path.is_dir())
        for file in suite.files:
            (work / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(package / file, work / file)
        # Its tests read this file, which its wheel lacks.
        file = work / "safetensors_streamer/tests/test_files/test.safetensors"
        file.parent.mkdir()
        save_file({"a": np.arange(12.0).reshape(3, 4), "b": np.ones(5)}, file)
        return work, list(suite.files)
    (root,) = artifact.iterdir()
    shutil.copytree(root / suite.folder, work, dirs_exist_ok=True)
    return work, sorted({str(path.relative_to(work)) for file in suite.files for path in work.glob(file)})


def run(suite: Suite, artifact: Path, stand_in: str | None, outcomes: Path) -> dict[str, list[str]]:
    """Run the tests and return the outcome and error of each; key "" has the number of files that
    tload opened."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TLOAD_")}
    environment |= {
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(HERE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TLOAD_SUITE_ARTIFACT": str(artifact),
    }
    outcomes.unlink(missing_ok=True)
    log = outcomes.with_suffix(".log")
    with tempfile.TemporaryDirectory(dir=outcomes.parent) as work, log.open("w") as output:
        folder, files = tests_of(suite, artifact, Path(work))
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "--continue-on-collection-errors"]
        command += ["-p", "plugin", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder)]
        command += ["--import-mode=importlib", "--timeout=300", "--outcomes", str(outcomes)]
        command += [*(["--stand-in", stand_in] if stand_in else []), "-k", suite.keyword, *files]
        subprocess.run(
            command, cwd=folder, env=environment, stdout=output, stderr=output, check=False, timeout=SUITE_SECONDS
        )
    if not outcomes.exists():
        sys.exit(f"pytest did not finish: see {log}")
    found = json.loads(outcomes.read_text())
    if not found["tests"]:
        sys.exit(f"no test was found: see {log}")
    return {"": [str(found["opened"])], **found["tests"]}


def counted(outcomes: dict[str, list[str]]) -> str:
    counts = Counter(outcome[0] for name, outcome in outcomes.items() if name)
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items(), key=lambda item: -item[1]))


def compare(name: str, stock: dict[str, list[str]], ours: dict[str, list[str]]) -> tuple[list[str], list[str]]:
    """Return the intended and the other differences, as lines."""
    meant, wrong = [], []
    differences = MEANT.get(name, ())
    for test in sorted({*stock, *ours} - {""}):
        before, after = stock.get(test, ["not run", ""]), ours.get(test, ["not run", ""])
        if before[0] == after[0]:
            continue
        reason = next((it.reason for it in differences if it.includes(test, after[1])), None)
        line = f"`{test}`: {before[0]} with the package, {after[0]} with tload"
        if reason is None:
            wrong.append(f"{line}: {(after[1] or before[1])[:200]}")
        else:
            meant.append(f"{line}: {reason}")
    return meant, wrong


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"which: {', '.join(SUITES)} (default: all)")
    parser.add_argument("--cache", type=Path, required=True, help="folder for artifacts and logs")
    parser.add_argument("--results", type=Path, help="Markdown file to write")
    arguments = parser.parse_args()
    names = arguments.suites or list(SUITES)
    if unknown := set(names) - set(SUITES):
        parser.error(f"no such suite: {', '.join(sorted(unknown))}")
    cache = arguments.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    rows, details, failures = [], [], 0
    for name in names:
        suite = SUITES[name]
        artifact = fetch(suite, cache)
        stock = run(suite, artifact, None, cache / f"{name}-stock.json")
        ours = run(suite, artifact, suite.stand_in, cache / f"{name}-tload.json")
        meant, wrong = compare(name, stock, ours)
        failures += len(wrong)
        say(f"{name} {version(suite.package)}: stock {counted(stock)}; tload {counted(ours)}")
        for line in wrong:
            say(f"  DIFFERS {line}")
        how = f"{len(wrong)} differ" if wrong else "as the package" if not meant else f"{len(meant)} differ, as meant"
        cells = [f"{name} {version(suite.package)}", counted(stock), counted(ours), how, ours[""][0], suite.note]
        rows.append(f"| {' | '.join(cells)} |")
        details += [f"- {name}, {line}" for line in (*meant, *wrong)]
        if ours[""][0] == "0" and suite.stand_in != "runai":
            failures += 1
            say("  WRONG: tload was not asked to open a single file")
    for name, why in ABSENT.items():
        say(f"NOT RUN: {name}: {why}")
    if arguments.results:
        write(arguments.results, rows, details)
    sys.exit(f"{failures} unexpected differences" if failures else 0)


def write(path: Path, rows: list[str], details: list[str]) -> None:
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "pytest", "tload"))
    lines = [
        "# Tests of other projects with tload in the place of their package",
        "",
        "Written by `make test-suites`. Tests come from the package registry, of the version that is",
        "installed, and run twice, offline: with the stock package and with tload. A test has to end the",
        "same way.",
        "",
        f"{versions}, Python {platform.python_version()}.",
        "",
        "| suite | with the package | with tload | | files that tload opened | which tests |",
        "|:--|:--|:--|:--|--:|:--|",
        *rows,
        "",
        "Not run, because no registry has these tests:",
        "",
        *(f"- {name}: {why}" for name, why in ABSENT.items()),
    ]
    if details:
        lines += ["", "Tests that end otherwise:", "", *details]
    path.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
