"""Modules of the package: what each public one has, and in which direction they import each other."""

from __future__ import annotations

import ast
import copy
import dataclasses
import importlib
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest

import tload
import tload.memory
import tload.report
import tload.typing
from files import Content, write_file
from tload._options.keywords import IntoKeywords, LoadKeywords, OptionKeywords, StoreKeywords

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(tload.__file__).parent

ORDER = [
    "_tload",
    "_errors",
    "_exit",
    "_options",
    "report",
    "_report",
    "_sources",
    "_ranks",
    "_tensors",
    "_load",
    "_checkpoint",
    "_files",
    "_patch",
    "memory",
    "typing",
    "",
]
"""Folders and modules of the core, each of which imports only those before it. `""` is `tload` itself; those
that are not listed come after it."""

SURFACE = {
    "tload.memory": ["parked_bytes", "release_staging"],
    "tload.report": [
        "CacheReport",
        "DepthReport",
        "DeviceReport",
        "EngineReport",
        "GroupReport",
        "MirrorReport",
        "PatchReport",
        "PhaseReport",
        "Report",
        "StageTimes",
        "StagingReport",
        "Unverified",
        "VerificationReport",
        "VerifiedBy",
    ],
}
"""Modules whose names are also names of `tload`."""


@pytest.mark.parametrize("module", SURFACE)
def test_names_of_a_module_are_the_same_objects_in_the_package(module: str) -> None:
    public = importlib.import_module(module)
    assert sorted(public.__all__) == SURFACE[module]
    for name in SURFACE[module]:
        assert name in tload.__all__
        assert getattr(public, name) is getattr(tload, name), name


def test_every_name_of_the_package_exists() -> None:
    assert sorted(set(tload.__all__)) == sorted(tload.__all__)
    for name in tload.__all__:
        assert getattr(tload, name) is getattr(tload, name), name
    assert set(tload.__all__) <= set(dir(tload))
    with pytest.raises(AttributeError, match="module 'tload' has no attribute 'lod'"):
        tload.lod  # type: ignore[attr-defined]  # noqa: B018


def test_types_of_arguments_can_be_imported() -> None:
    types = vars(tload.typing)
    assert set(tload.typing.__all__) <= set(types)
    assert set(get_args(tload.typing.Source)) > {str, tload.Checkpoint}
    assert [types[kind.__name__] for kind in (OptionKeywords, StoreKeywords, LoadKeywords, IntoKeywords)] == [
        OptionKeywords,
        StoreKeywords,
        LoadKeywords,
        IntoKeywords,
    ]


def test_objects_of_public_classes_are_pickled_by_public_names(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_file(path, {"a": Content("U8", (3,), b"abc")})
    with tload.stream(path, framework="dlpack") as stream:
        assert len(list(stream)) == 1
    report = stream.report
    again: Any = pickle.loads(pickle.dumps(report))
    assert again == copy.deepcopy(report) == report
    assert isinstance(again, tload.Report)
    assert dataclasses.replace(again, tensors=2) != report
    for name in tload.report.__all__:
        assert getattr(tload.report, name).__module__ == "tload.report"
    with tload.open(path) as checkpoint:
        assert pickle.loads(pickle.dumps(checkpoint["a"])) == checkpoint["a"]
        assert pickle.loads(pickle.dumps(checkpoint.shards)) == checkpoint.shards


def test_import_of_the_package_leaves_out_what_few_programs_need() -> None:
    script = """
import sys, tload
found = {name for name in sys.modules if name.partition(".")[0] in {"tload", "torch", "numpy", "asyncio"}}
print(*sorted(found))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    later = ("tload._files", "tload._options.stores", "tload.typing", "tload.memory", "tload._load.read_one")
    found = done.stdout.split()
    assert "tload._load.load" in found
    assert not [name for name in found if name.startswith((*later, "torch", "numpy", "asyncio"))]


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def run_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if is_for_type_checkers(child):
            for other in getattr(child, "orelse", ()):
                yield other
                yield from run_time_nodes(other)
        else:
            yield child
            yield from run_time_nodes(child)


def imported_by(path: Path) -> set[str]:
    """Return the modules of the package that a module imports when it runs, in functions too."""
    found: set[str] = set()
    for node in run_time_nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(
                inner if inner in MODULES or inner == "tload._tload" else str(node.module) for inner in modules
            )
    return {name for name in found if name.partition(".")[0] == "tload"}


IMPORTS = {name: imported_by(path) for name, path in MODULES.items()}


def test_imports_have_no_circle() -> None:
    done: set[str] = set()
    trail: list[str] = []

    def visit(name: str) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            trail.append(name)
            for other in sorted(IMPORTS.get(name, ())):
                visit(other)
            done.add(trail.pop())

    for name in IMPORTS:
        visit(name)
    assert len(done) > 80


def test_imports_go_one_way() -> None:
    def rank(name: str) -> int:
        part = name.removeprefix("tload").removeprefix(".").partition(".")[0]
        return ORDER.index(part) if part in ORDER else len(ORDER)

    assert {rank(name) for name in (*MODULES, "tload._tload")} == set(range(len(ORDER) + 1)), (
        "an entry without a module"
    )
    upward = [(name, other) for name, others in IMPORTS.items() for other in others if rank(other) > rank(name)]
    assert not upward
