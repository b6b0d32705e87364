"""Shared fixtures of the tests: loud skips, and checkpoints to load."""

from __future__ import annotations

import gc
import importlib
import os
import signal
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

import gpu
import secrecy
import servers
import tload._load.stream
import tload._tensors.cuda
from files import EVERY_DTYPE, Content, write_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def pytest_configure(config: pytest.Config) -> None:
    """Search all output of the session for the secrets that its tests plant."""
    secrecy.search(config)
    if config.getoption("numprocesses", default=None) and not hasattr(config, "workerinput"):
        return  # The workers of pytest-xdist do the same.
    # Background jobs of a shell ignore Ctrl-C, and commands under nohup ignore SIGHUP; so would the
    # processes that tests start and interrupt. They do not inherit handlers, but get the default
    # action; this process goes on after a hangup.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, lambda *_: None)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def skip_loudly(name: str, reason: str) -> NoReturn:
    """Skip the test that needs `name`, or fail it if `TLOAD_REQUIRE` (a list, or `all`) requires
    it."""
    message = f"SKIPPED: needs {name}: {reason}"
    required = {word.strip() for word in os.environ.get("TLOAD_REQUIRE", "").split(",")}
    if required & {name, "all"}:
        pytest.fail(f"{message} (TLOAD_REQUIRE forbids the skip)")
    pytest.skip(message)


def require(name: str) -> Any:
    """Import the module `name`, or skip loudly."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        skip_loudly(name, str(error))


def require_root() -> None:
    """Skip loudly without the right to become another user."""
    if os.geteuid() != 0:
        skip_loudly("root", "cannot become another user")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the caller's variables of tload and of clouds, and notes that an earlier test logged."""
    for name in list(os.environ):
        own = name.startswith("TLOAD_") and name != "TLOAD_REQUIRE"
        clouds = ("AWS_", "GOOGLE_", "AZURE_", "HF_", "HUGGING", "RUNAI_STREAMER_", "CLOUD_STORAGE_", "TRANSFORMERS_")
        if own or name.startswith(clouds) or name.lower().endswith(("_proxy", "_ca_bundle")):
            monkeypatch.delenv(name)
    # Also hide credentials in files and from the machine's cloud.
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("TLOAD_CONFIG", "")
    monkeypatch.setattr(tload._load.stream, "_noted", set())


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.S3]:
    """A server that speaks S3 and checks signatures."""
    program = servers.find("versitygw")
    if program is None:
        skip_loudly("servers", "versitygw is neither in .tools/bin nor on the PATH")
    with servers.versitygw(program, tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def web() -> Iterator[servers.Web]:
    """A web server with ranges, which can be made to stall."""
    with servers.web() as server:
        yield server


def require_stub() -> Path:
    """Return the path of the CUDA driver stub, or skip loudly."""
    library = gpu.library()
    if library is None:
        skip_loudly("cuda-stub", "no libtload_cuda_stub.so; cargo build --package tload-cuda-stub makes it")
    return library


@pytest.fixture
def cuda(request: pytest.FixtureRequest) -> Iterator[gpu.Stub]:
    """A driver over host memory with two GPUs. Fails at the end on leaks and violations."""
    stub = gpu.Stub.load(require_stub())
    tload.release_staging()
    stub.reset()
    failed = request.session.testsfailed
    yield stub
    gc.collect()
    # The traceback of a failed test keeps tensors alive.
    if request.session.testsfailed == failed:
        stub.settle()
        assert stub.count("violations") == 0, stub.violation()


@pytest.fixture
def torch_cuda(cuda: gpu.Stub, monkeypatch: pytest.MonkeyPatch) -> Iterator[gpu.TorchCuda]:
    """Torch with two GPUs: its allocator returns host memory that the driver treats as GPU
    memory."""
    require("torch")
    memory = gpu.TorchCuda(cuda)
    for name in ("check", "current_device", "current_stream", "device_of", "empty", "free_bytes", "imported_bytes"):
        monkeypatch.setattr(tload._tensors.cuda, name, getattr(memory, name))
    yield memory
    memory.settle()


@pytest.fixture(scope="session")
def every_dtype(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Content]]:
    """A file with tensors of every dtype, in shapes from scalar to odd, and its contents."""
    path = tmp_path_factory.mktemp("every") / "every.safetensors"
    write_file(path, EVERY_DTYPE, metadata={"format": "pt", "author": "tests"})
    return path, EVERY_DTYPE


@pytest.fixture
def floats(tmp_path: Path) -> tuple[Path, dict[str, Content]]:
    """A small file of floats."""
    path = tmp_path / "floats.safetensors"
    tensors = {f"layer.{index}.weight": Content.random("F32", (index + 1, 33), seed=index) for index in range(12)}
    write_file(path, tensors)
    return path, tensors
