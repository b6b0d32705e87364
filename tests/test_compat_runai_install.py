"""`tload.compat.runai.install`: programs import it as runai_model_streamer, and find the names that
they need."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conftest import require
from files import Content, header

if TYPE_CHECKING:
    from collections.abc import Iterator

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


# Public names of runai_model_streamer 0.17.0, by module. Left out are the internals that
# docs/with/runai.md lists as not provided.
THEIRS = {
    "": [
        "DistributedStreamer",
        "FileChunks",
        "FileStreamer",
        "ObjectStorageModel",
        "SafetensorsStreamer",
        "list_safetensors",
        "logger_level",
        "pull_files",
    ],
    "distributed_streamer": ["DistributedStreamer"],
    "distributed_streamer.distributed_streamer": [
        "DEFAULT_BROADCAST_TIMEOUT",
        "DEFAULT_DIST_BUFFER_ALIGNMENT",
        "DistributedStreamer",
        "MAX_DIST_BUFFER_ALIGNMENT",
        "RUNAI_STREAMER_CUDA_ALIGNMENT_ENV_VAR",
    ],
    "file_streamer": ["FileChunks", "FileStreamer"],
    "file_streamer.file_streamer": [
        "FileStreamer",
        "RunaiStreamerInvalidInputException",
        "homogeneous_paths",
        "host_or_device",
    ],
    "file_streamer.requests_iterator": [
        "DEFAULT_MAX_PADS_PER_BUFFER",
        "DEFAULT_MEMORY_LIMIT_STRING",
        "DEFAULT_RING_BUFFERS",
        "DIRECT_IO_BLOCK",
        "FileChunks",
        "RUNAI_STREAMER_MAX_PADS_PER_BUFFER_ENV_VAR_NAME",
        "RUNAI_STREAMER_MEMORY_LIMIT_ENV_VAR_NAME",
        "RUNAI_STREAMER_RING_BUFFERS_ENV_VAR_NAME",
        "RunaiStreamerMemoryLimitException",
    ],
    "s3_utils": [],
    "s3_utils.s3_utils": [
        "AWS_EC2_METADATA_DISABLED_ENV",
        "AWS_ENDPOINT_URL_ENV",
        "AZURE_PROTOCOL_PREFIX",
        "DEFAULT_AWS_EC2_METADATA_DISABLED",
        "DEFAULT_GCS_ENDPOINT_URL",
        "GCS_PROTOCOL_PREFIX",
        "S3Credentials",
        "S3_PROTOCOL_PREFIX",
        "filter_allow",
        "filter_ignore",
        "is_azure_path",
        "is_gs_path",
        "is_s3_path",
        "removeprefix",
    ],
    "safetensors_streamer": [],
    "safetensors_streamer.safetensors_pytorch": [
        "LITTLE_ENDIAN_LONG_LONG_STRUCT_FORMAT",
        "MAX_HEADER_SIZE",
        "Offsets",
        "SAFETENSORS_DATA_OFFSETS_KEY",
        "SAFETENSORS_DTYPE_KEY",
        "SAFETENSORS_HEADER_BUFFER_SIZE",
        "SAFETENSORS_NAME_KEY",
        "SAFETENSORS_SHAPE_KEY",
        "SafetensorMetadata",
        "prepare_request",
    ],
    "safetensors_streamer.safetensors_streamer": [
        "ObjectStorageModel",
        "SAFETENSORS_PATTERN",
        "SafetensorsStreamer",
        "list_safetensors",
        "pull_files",
    ],
}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("module", THEIRS)
def test_module_has_the_public_names_of_runai(module: str) -> None:
    found = importlib.import_module(f"{NAME}.{module}".rstrip("."))
    assert [name for name in THEIRS[module] if not hasattr(found, name)] == []
    assert found.__file__ is not None
    assert Path(found.__file__).exists()
    if hasattr(found, "__path__") and THEIRS[module]:
        assert sorted(found.__all__) == [name for name in THEIRS[module] if name != "logger_level"]


@pytest.mark.usefixtures("installed")
def test_star_import_gives_the_names_of_runai() -> None:
    namespace: dict[str, Any] = {}
    exec(f"from {NAME} import *", namespace)
    assert {"SafetensorsStreamer", "pull_files"} <= set(namespace)
    assert not {"install", "uninstall"} & set(namespace)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("paths", "wanted"),
    [
        ([], True),
        (["a", "/b", "file://c"], True),
        (["s3://a/b", "s3://c/d"], True),
        (["s3://a/b", "gs://a/b"], False),
        (["a", "az://a/b"], False),
    ],
)
def test_homogeneous_paths_are_of_one_kind(paths: list[str], wanted: bool) -> None:  # noqa: FBT001
    """Results of runai_model_streamer 0.17."""
    assert importlib.import_module(f"{NAME}.file_streamer.file_streamer").homogeneous_paths(paths) == wanted


# What vLLM's modules do when they are imported, before its plugins.
VLLM_UTILS = """
try:
    from runai_model_streamer import list_safetensors as runai_list_safetensors
    from runai_model_streamer import pull_files as runai_pull_files
except ImportError:
    runai_list_safetensors = runai_pull_files = None
"""
VLLM_WEIGHTS = """
try:
    from runai_model_streamer import SafetensorsStreamer
except ImportError:
    SafetensorsStreamer = None
"""
VLLM_LOADERS = """
loaders = {}
def register_model_loader(name):
    return lambda loader: loaders.setdefault(name, loader)
"""


@pytest.mark.parametrize("is_installed", [False, True])
def test_vllm_uses_tload_whether_or_not_runai_is_installed(is_installed: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """In a process of its own, with packages that import what vLLM's import."""
    require("torch")
    files = {
        "vllm/__init__.py": "",
        "vllm/model_executor/__init__.py": "",
        "vllm/model_executor/model_loader/__init__.py": VLLM_LOADERS,
        "vllm/model_executor/model_loader/weight_utils.py": VLLM_WEIGHTS,
        "vllm/transformers_utils/__init__.py": "",
        "vllm/transformers_utils/runai_utils.py": VLLM_UTILS,
    }
    if is_installed:
        files[f"{NAME}/__init__.py"] = "list_safetensors = pull_files = SafetensorsStreamer = object()\n"
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    script = f"""
import importlib.util, os, sys, types
sys.path.insert(0, sys.argv[1])
from vllm.model_executor import model_loader
from vllm.model_executor.model_loader import weight_utils
from vllm.transformers_utils import runai_utils
assert ("{NAME}" in sys.modules) == {is_installed}
loader = types.ModuleType("tload.vllm._loader")
loader.TloadModelLoader = object
sys.modules["tload.vllm._loader"] = loader
os.environ["TLOAD_REPLACE_RUNAI"] = "1"
import tload.vllm
tload.vllm.register()
assert set(model_loader.loaders) == {{"tload", "runai_streamer"}}
from tload.compat import runai
assert runai_utils.runai_pull_files is runai.pull_files
assert runai_utils.runai_list_safetensors is runai.list_safetensors
assert weight_utils.SafetensorsStreamer is runai.SafetensorsStreamer
import {NAME}
is_theirs = {NAME}.pull_files is not runai.pull_files
assert is_theirs == {is_installed}, "imported before, it stays"
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


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
