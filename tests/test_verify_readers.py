"""`TLOAD_VERIFY`, and `verify=` where it is supported, for every interface that returns bytes of a
checkpoint.

A reader that is missing in the table may skip the comparison: add it.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import shutil
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

import models
import tload
from conftest import require
from tload import safetensors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

FILE = "model.safetensors"
NAME = "wide"
"""Size larger than the tensors that `Checkpoint.read` reads on the calling thread."""


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint without any digest."""
    torch = require("torch")
    tensors = {"bias": torch.arange(12.0), NAME: torch.arange(1200.0 * 1024).reshape(1200, 1024)}
    require("safetensors.torch").save_file(tensors, tmp_path / FILE)
    return tmp_path


def targets(folder: Path) -> dict[str, Any]:
    torch = require("torch")
    return {name: torch.zeros(info.shape) for name, info in tload.open(folder).items()}


async def _taken(folder: Path) -> list[Any]:
    return [tensor async for _, tensor in tload.stream(folder)]


def by_dcp(folder: Path) -> None:
    dcp = importlib.import_module("torch.distributed.checkpoint")
    reader = importlib.import_module("tload.dcp").StorageReader(folder)
    dcp.load(targets(folder), storage_reader=reader)


def by_ranges(folder: Path, streamer: str) -> None:
    runai = importlib.import_module("tload.compat.runai")
    chunks = [runai.FileChunks.contiguous(0, str(folder / FILE), 0, [100, 200])]
    with getattr(runai, streamer)() as ranges:
        if streamer == "FileStreamer":
            ranges.stream_files(chunks)
        else:
            ranges.stream_files(chunks, None, "cpu", is_distributed=False)
        list(ranges.get_chunks())


def by_runai(folder: Path) -> None:
    with importlib.import_module("tload.compat.runai").SafetensorsStreamer() as streamer:
        streamer.stream_files([str(folder / FILE)])
        list(streamer.get_tensors())


def by_engine(folder: Path, **keywords: Any) -> None:
    settings = importlib.import_module("tload.vllm._settings").read({})
    weights = importlib.import_module("tload.vllm._weights")
    bar = lambda _total: nullcontext(type("Bar", (), {"update": lambda *_: None})())  # noqa: E731
    list(weights.stream(str(folder), settings, shown="m", open_bar=bar, logger=logging.getLogger("tests"), **keywords))


def opened(take: Callable[[Any], Any], framework: str = "pt", backend: str = "mmap") -> Callable[[Path], Any]:
    return lambda folder: take(safetensors.safe_open(folder / FILE, framework, backend=backend))


def of_torch(name: str) -> Any:
    return getattr(importlib.import_module("tload.safetensors.torch"), name)


def by_accelerate(folder: Path) -> None:
    torch, accelerate = require("torch"), require("accelerate")
    module = torch.nn.Module()
    for name, tensor in targets(folder).items():
        module.register_parameter(name, torch.nn.Parameter(tensor))
    with tload.patch():
        accelerate.load_checkpoint_in_model(module, folder)


READERS: dict[str, Callable[[Path], Any]] = {
    "stream": lambda folder: list(tload.stream(folder)),
    "stream of views": lambda folder: list(tload.stream(folder, cache="map")),
    "stream, async": lambda folder: asyncio.run(_taken(folder)),
    "load": tload.load,
    "load, numpy": lambda folder: tload.load(folder, framework="numpy"),
    "load, dlpack": lambda folder: tload.load(folder, framework="dlpack"),
    "load_into": lambda folder: tload.load_into(targets(folder), folder),
    "read, small": lambda folder: tload.open(folder).read("bias"),
    "read, large": lambda folder: tload.open(folder).read(NAME),
    "Checkpoint.reader": lambda folder: tload.open(folder).reader().read_into({"bias": bytearray(48)}),
    "safe_open.get_tensor": opened(lambda file: file.get_tensor("bias")),
    "safe_open.get_tensor, numpy": opened(lambda file: file.get_tensor("bias"), "np"),
    "safe_open.get_tensor, pread": opened(lambda file: file.get_tensor("bias"), backend="pread"),
    "safe_open.get_tensors": opened(lambda file: file.get_tensors()),
    "safe_open.get_slice": opened(lambda file: file.get_slice("bias")[1:3]),
    "safe_open.get_slice, numpy": opened(lambda file: file.get_slice("bias")[1:3], "np"),
    "safe_open.get_slice, torch's index": opened(lambda file: file.get_slice("bias")[[0, 2]]),
    "safe_open.prefetch": opened(lambda file: list(file.prefetch())),
    "safe_open.prefetch of a part": opened(lambda file: file.prefetch({"bias": slice(1, 3)}).take("bias")),
    "load_file": lambda folder: of_torch("load_file")(folder / FILE),
    "load_model": lambda folder: of_torch("load_model")(require("torch").nn.Module(), folder / FILE, strict=False),
    "load of bytes": lambda folder: of_torch("load")((folder / FILE).read_bytes()),
    "dcp.StorageReader": by_dcp,
    "runai.SafetensorsStreamer": by_runai,
    "runai.FileStreamer": lambda folder: by_ranges(folder, "FileStreamer"),
    "runai.DistributedStreamer": lambda folder: by_ranges(folder, "DistributedStreamer"),
    "vllm and sglang": by_engine,
    "patch, accelerate": by_accelerate,
}

NEVER_VERIFIED = {"Checkpoint.reader", "runai.FileStreamer", "runai.DistributedStreamer", "load of bytes"}
"""Readers of bytes that have no digest."""


def chain(error: BaseException) -> list[str]:
    """Return the texts of an error, its causes, and errors that torch's checkpointing gathered from
    ranks."""
    texts = [f"{type(error).__name__}: {error}"]
    for one in getattr(error, "failures", {}).values():
        texts += chain(one[0])
    return texts + (chain(error.__cause__) if error.__cause__ else [])


def said(reader: str, folder: Path) -> str:
    """Return the error of a reader that has to fail."""
    # Each library has its own class; that of torch's checkpointing is not an `Exception`.
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        READERS[reader](folder)
    return "\n".join(chain(caught.value))


@pytest.mark.parametrize("verify", ["require", "sha256", "manifest", "sha256:manifest"])
@pytest.mark.parametrize("reader", READERS)
def test_readers_reject_unverifiable_parts(
    reader: str, verify: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for off in ("off", "auto"):
        monkeypatch.setenv("TLOAD_VERIFY", off)
        READERS[reader](folder)
    empty = tmp_path / "empty.json"
    empty.write_text(json.dumps({"tload_manifest": 1, "files": {}}))
    monkeypatch.setenv("TLOAD_VERIFY", verify.replace("manifest", str(empty)))
    assert "verified" in said(reader, folder)


@pytest.mark.parametrize("verify", ["auto", "require", "sha256"])
@pytest.mark.parametrize("reader", [reader for reader in READERS if reader not in NEVER_VERIFIED])
def test_readers_reject_flipped_bit(reader: str, verify: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tload.verify(folder, write=True).check()
    path = folder / FILE
    content = bytearray(path.read_bytes())
    with tload.open(path) as checkpoint:
        for info in checkpoint.values():
            content[info.file_range[0]] ^= 1
    path.write_bytes(content)
    READERS[reader](folder)
    monkeypatch.setenv("TLOAD_VERIFY", verify)
    failure = said(reader, folder)
    whole = verify == "sha256" and "every tensor of the file" in failure
    assert "CorruptError" in failure or whole, failure


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("transformers")
    return models.save(models.dense(), tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize("options", [None, tload.Options(verify="require")])
def test_transformers_rejects_unverifiable_parts(
    options: tload.Options | None, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if options is None:
        monkeypatch.setenv("TLOAD_VERIFY", "require")
    pretrained = importlib.import_module("tload.transformers").from_pretrained
    with pytest.raises(tload.InvalidRequestError, match="cannot be verified"):
        pretrained(require("transformers").AutoModelForCausalLM, llama, options=options)


def test_tensor_requested_again_is_verified_by_options(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that share a model read each tensor individually, as does a second request for a
    tensor."""
    pretrained = importlib.import_module("tload.transformers._pretrained")

    class Asks:
        @staticmethod
        def from_pretrained(_: None, **__: Any) -> None:
            modeling = require("transformers.modeling_utils")
            for path in modeling._get_resolved_checkpoint_files()[0]:
                with modeling.safe_open(path, framework="pt") as file:
                    for name in file.keys():  # noqa: SIM118  # not a mapping
                        _ = file.get_tensor(name)
                        _ = file.get_slice(name)[0:1]

    strict, none = tload.Options(verify="require"), None
    with tload.open(llama) as checkpoint:
        pretrained._load(Asks, checkpoint, None, (), {"tp_size": 2}, options=none, group=None)
        with pytest.raises(tload.InvalidRequestError, match="cannot be verified"):
            pretrained._load(Asks, checkpoint, None, (), {"tp_size": 2}, options=strict, group=None)
        monkeypatch.setenv("TLOAD_VERIFY", "require")
        with pytest.raises(tload.InvalidRequestError, match="cannot be verified"):
            pretrained._load(Asks, checkpoint, None, (), {"tp_size": 2}, options=none, group=None)


def test_patched_transformers_rejects_unverifiable_parts(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TLOAD_VERIFY", "require")
    with pytest.raises(tload.InvalidRequestError, match="cannot be verified"), tload.patch():
        require("transformers").AutoModelForCausalLM.from_pretrained(llama)


def test_missing_shard_is_detected_by_readers_naming_all_tensors(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither an index nor a number shows that the shard is missing: only the manifest does."""
    torch = require("torch")
    model = tmp_path / "model"
    shutil.copytree(llama, model)
    (model / "model.safetensors.index.json").unlink(missing_ok=True)
    for number, shard in enumerate(sorted(model.glob("*.safetensors"))):
        shard.rename(model / f"{chr(ord('a') + number)}.safetensors")
    manifest = tmp_path / "manifest.json"
    tload.verify(model, write=manifest).check()
    state = {name: torch.zeros(info.shape) for name, info in tload.open(model).items()}
    readers: dict[str, Callable[[], Any]] = {
        "transformers": lambda: importlib.import_module("tload.transformers").from_pretrained(
            require("transformers").AutoModelForCausalLM, model
        ),
        "vllm and sglang": lambda: by_engine(model, keep=lambda _: True),
        "load_into": lambda: tload.load_into(state, model, strict=False, cast=True),
    }
    for verify in (str(manifest), f"sha256:{manifest}"):
        monkeypatch.setenv("TLOAD_VERIFY", verify)
        for read in readers.values():
            read()
    next(iter(sorted(model.glob("*.safetensors")))).unlink()
    for verify in (str(manifest), f"sha256:{manifest}"):
        monkeypatch.setenv("TLOAD_VERIFY", verify)
        for name, read in readers.items():
            with pytest.raises(BaseException) as caught:  # noqa: PT011
                read()
            texts = "\n".join(chain(caught.value))
            assert "CorruptError" in texts, (name, texts)
            assert "which is not a file of the checkpoint" in texts, (name, texts)


@pytest.mark.parametrize("engine", ["vLLM", "SGLang"])
def test_engines_reject_files_left_to_their_own_loader(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = importlib.import_module("tload.vllm._settings")
    for verify in ("off", "auto"):
        settings.read({"verify": verify}).refuse_others("m", engine)
    for verify in ("require", "sha256", "sha256:m.json", "m.json"):
        with pytest.raises(tload.InvalidRequestError, match=f"cannot be verified.* {engine}'s own loader"):
            settings.read({"verify": verify}).refuse_others("m", engine)
    monkeypatch.setenv("TLOAD_VERIFY", "require")
    with pytest.raises(tload.InvalidRequestError):
        settings.read({}).refuse_others("m", engine)


def test_tensor_viewing_a_file_is_writable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch has no read-only tensors: a write to one would kill the process."""
    monkeypatch.setenv("TLOAD_CACHE", "map")
    with tload.open(folder) as checkpoint:
        tensor = checkpoint.read(NAME)
    tensor += 1
    assert tload.load(folder)[NAME][0, 0] == 0
