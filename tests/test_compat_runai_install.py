"""`tload.compat.runai.install`: programs import it as runai_model_streamer, and find the names that
they need."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from conftest import require
from files import Content, header

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Every = tuple["Path", dict[str, Content]]
NAME = "runai_model_streamer"


@pytest.fixture
def runai() -> Any:
    require("torch")
    return importlib.import_module("tload.compat.runai")


@pytest.fixture
def installed(runai: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        monkeypatch.delitem(sys.modules, name)
    runai.install()
    yield importlib.import_module(NAME)
    runai.uninstall()
    assert not [name for name in sys.modules if name.partition(".")[0] == NAME]


def test_install_makes_runai_importable(runai: Any, installed: Any, floats: Every) -> None:
    runai.install()
    assert importlib.import_module(NAME) is installed, "once is enough"
    assert importlib.util.find_spec(NAME) is not None
    assert set(runai.__all__) <= set(vars(installed))
    # Imports of vLLM 0.33 and SGLang 0.5.23.
    pytorch = importlib.import_module(f"{NAME}.safetensors_streamer.safetensors_pytorch")
    assert installed.SafetensorsStreamer is runai.SafetensorsStreamer
    path, tensors = floats
    with installed.DistributedStreamer() as streamer:
        ((first, metadata, sizes),) = pytorch.prepare_request(streamer, [str(path)], None)
    assert first == 8 + len(header(tensors))
    assert [tensor.name for tensor in metadata] == list(tensors)
    assert sizes == [len(content.raw) for content in tensors.values()]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("distributed_streamer", "DistributedStreamer"),
        ("distributed_streamer.distributed_streamer", "DistributedStreamer"),
        ("file_streamer", "FileStreamer"),
        ("file_streamer.file_streamer", "FileStreamer"),
        ("file_streamer.file_streamer", "RunaiStreamerInvalidInputException"),
        ("file_streamer.requests_iterator", "FileChunks"),
        ("file_streamer.requests_iterator", "RunaiStreamerMemoryLimitException"),
        ("s3_utils.s3_utils", "S3Credentials"),
        ("s3_utils.s3_utils", "filter_allow"),
        ("s3_utils.s3_utils", "filter_ignore"),
        ("s3_utils.s3_utils", "removeprefix"),
        ("safetensors_streamer.safetensors_streamer", "SafetensorsStreamer"),
        ("safetensors_streamer.safetensors_streamer", "ObjectStorageModel"),
        ("safetensors_streamer.safetensors_pytorch", "SafetensorMetadata"),
    ],
)
def test_runai_names_exist_in_same_modules(module: str, name: str, installed: Any) -> None:
    found = importlib.import_module(f"{NAME}.{module}")
    thing: Any = installed
    for part in module.split("."):
        thing = getattr(thing, part)
    assert thing is found, "also as an attribute of its parent"
    assert hasattr(found, name)


PATHS = ["a/model.safetensors", "a/b/config.json", "a/b/Config.json", "a/dir/", "x", "a/model.safetensors"]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("patterns", "wanted"),
    [
        ([], []),
        (["*"], PATHS),
        (["*.safetensors"], ["a/model.safetensors", "a/model.safetensors"]),
        (["*/"], ["a/dir/"]),
        (["config.json"], []),
        (["a/*.json", "x"], ["a/b/config.json", "a/b/Config.json", "x"]),
        (["*[!C]onfig.json"], ["a/b/config.json"]),
    ],
)
def test_patterns_match_whole_paths_and_keep_order_and_repetitions(patterns: list[str], wanted: list[str]) -> None:
    """Results of runai_model_streamer 0.17."""
    theirs = importlib.import_module(f"{NAME}.s3_utils.s3_utils")
    assert theirs.filter_allow(PATHS, patterns) == wanted
    assert theirs.filter_ignore(PATHS, patterns) == [path for path in PATHS if path not in wanted]


@pytest.mark.usefixtures("installed")
def test_removeprefix_removes_one_leading_prefix() -> None:
    removeprefix = importlib.import_module(f"{NAME}.s3_utils.s3_utils").removeprefix
    assert [removeprefix(text, "a/") for text in ("a/a/b", "b/a/", "a", "")] == ["a/b", "b/a/", "a", ""]
    assert removeprefix("a", "") == "a"


def test_install_rejected_after_runai_import() -> None:
    """In a process of its own: the import stays."""
    require("torch")
    script = f"""
import sys, types
sys.modules["{NAME}"] = types.ModuleType("{NAME}")
import tload.compat.runai
try:
    tload.compat.runai.install()
except tload.InvalidRequestError as error:
    assert "has been imported already" in str(error), error
    assert "torch" not in sys.modules, "torch is imported when it is used"
else:
    raise SystemExit("installed")
tload.compat.runai.uninstall()
assert "{NAME}" in sys.modules, "it was not ours"
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
