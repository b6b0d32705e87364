"""`verify=` with files that the safetensors package wrote, and a manifest beside them."""

from __future__ import annotations

import hashlib
import json
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import tload
from conftest import require
from tload.safetensors import safe_open

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def crc64(raw: bytes) -> str:
    """Compute CRC-64/NVME from its definition, one bit at a time."""
    crc = ones = (1 << 64) - 1
    for byte in raw:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x9A6C9329AC4BC9B5 if crc & 1 else 0)
    return f"{crc ^ ones:016x}"


def digests(raw: bytes) -> dict[str, Any]:
    return {"crc64nvme": crc64(raw), "sha256": hashlib.sha256(raw).hexdigest()}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a file and its manifest."""
    rng = np.random.default_rng(1)
    tensors = {f"t{index}": rng.standard_normal((3, 70 + index), dtype=np.float32) for index in range(4)}
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    raw = path.read_bytes()
    with tload.open(path) as checkpoint:
        ranges = {tensor.name: tensor.file_range for tensor in checkpoint.values()}
    named = {
        name: {"begin": begin, "end": end, **digests(raw[begin:end])} for name, (begin, end) in sorted(ranges.items())
    }
    manifest = {
        "tload_manifest": 1,
        "files": {"model.safetensors": {"bytes": len(raw), **digests(raw), "tensors": named}},
    }
    (tmp_path / "tload-manifest.json").write_text(json.dumps(manifest))
    return tmp_path


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def test_verified_bytes_are_counted(model: Path) -> None:
    for verify in ("auto", "require", model / "tload-manifest.json", str(model / "tload-manifest.json")):
        with tload.stream(model, framework="numpy", verify=verify) as stream:
            tensors = dict(stream)
            report = stream.report
        assert len(tensors) == 4
        assert report.verification is not None
        assert report.verification.bytes == report.tensor_bytes
        assert [(by.files, by.algorithm) for by in report.verification.by] == [(1, "crc64nvme")]
        assert "tload-manifest.json" in report.verification.by[0].by
        assert report.verification.unverified == ()
        assert report.stages.verify > 0
        core = json.loads(stream._raw.report()[0])
        own = {
            "import_seconds": report.import_seconds,
            "import_wait_seconds": report.import_wait_seconds,
            "bytes_per_second": report.bytes_per_second,
        }
        own |= {"converted_tensors": 0, "converted_bytes": 0}
        assert report.to_dict() == {**core, **own}
        assert "tload-manifest.json" in str(report)


def test_flipped_bit_raises_error_with_location(model: Path) -> None:
    path = model / "model.safetensors"
    with tload.open(path) as checkpoint:
        begin, end = checkpoint["t2"].file_range
    flip(path, end - 1)
    tload.load(model, framework="numpy")
    with pytest.raises(tload.CorruptError, match="expected crc64nvme:") as caught:
        tload.load(model, framework="numpy", verify="auto")
    error = caught.value
    assert isinstance(error, ValueError)
    assert (error.location, error.tensor, error.range) == (str(path), "t2", (begin, end))
    assert "tload-manifest.json" in str(error)
    assert error.hint
    raw = path.read_bytes()[begin:end]
    assert error.found == f"crc64nvme:{crc64(raw)}"
    assert error.expected is not None
    assert error.expected.startswith("crc64nvme:")
    assert error.expected != error.found
    assert error.by == f"manifest {model / 'tload-manifest.json'}"
    copied = pickle.loads(pickle.dumps(error))
    assert (copied.expected, copied.found, copied.by) == (error.expected, error.found, error.by)
    target = {name: np.zeros(info.shape, np.float32) for name, info in tload.open(path).items()}
    with pytest.raises(tload.CorruptError):
        tload.load_into(target, model, verify="require")
    assert not target["t2"].any(), "the wrong tensor was written"
    assert len(tload.load(model, framework="numpy", verify="require", names=["t0", "t3"])) == 2


@pytest.mark.parametrize("framework", ["np", "pt"])
@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("verify", ["auto", "require"])
def test_safe_open_yields_verified_tensors_only(
    model: Path, framework: str, backend: str, verify: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if framework == "pt":
        require("torch")
    path = model / "model.safetensors"
    with tload.open(path) as checkpoint:
        begin, end = checkpoint["t2"].file_range
    good = np.frombuffer(path.read_bytes()[begin:end], np.float32).reshape(3, 72)
    monkeypatch.setenv("TLOAD_VERIFY", verify)

    def parts() -> Iterator[tuple[Callable[[safe_open], Any], Any]]:
        yield lambda handle: handle.get_tensor("t2"), good
        yield lambda handle: handle.get_tensors()["t2"], good
        yield lambda handle: handle.get_slice("t2")[1:, 3:70:2], good[1:, 3:70:2]
        yield lambda handle: handle.get_slice("t2")[1, 2], good[1, 2]
        yield lambda handle: handle.prefetch({"t2": (slice(0, 2), 5)}).take("t2"), good[:2, 5]

    with safe_open(path, framework, backend=backend) as handle:
        for take, wanted in parts():
            found = take(handle)
            assert found.shape == wanted.shape
            assert np.array_equal(np.asarray(found), wanted)
    # A bit of its first row, which no part includes.
    flip(path, begin)
    with safe_open(path, framework, backend=backend) as handle:
        for take, _ in parts():
            with pytest.raises(tload.CorruptError):
                take(handle)
        assert handle.get_tensor("t1") is not None
    monkeypatch.delenv("TLOAD_VERIFY")
    with safe_open(path, framework, backend=backend) as handle:
        assert not np.array_equal(np.asarray(handle.get_tensor("t2")), good)


def test_safe_open_rejects_unverifiable_parts(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model / "model.safetensors"
    (model / "tload-manifest.json").unlink()
    monkeypatch.setenv("TLOAD_VERIFY", "require")
    with safe_open(path, "np") as handle:
        with pytest.raises(tload.InvalidRequestError, match="cannot be verified"):
            handle.get_tensor("t0")
        with pytest.raises(tload.InvalidRequestError, match="cannot be verified"):
            handle.get_slice("t0")[0]
    monkeypatch.setenv("TLOAD_VERIFY", "off")
    with safe_open(path, "np") as handle:
        assert handle.get_tensor("t0").shape == (3, 70)


def test_wrong_header_is_detected_before_first_tensor(model: Path) -> None:
    path = model / "model.safetensors"
    at = path.read_bytes().index(b"F32")
    raw = bytearray(path.read_bytes())
    raw[at : at + 3] = b"I32"
    path.write_bytes(raw)
    with pytest.raises(tload.CorruptError) as caught:
        tload.stream(model, framework="numpy", names=["t0"], verify="auto")
    assert caught.value.range == (0, tload.open(path).shards[0].header_bytes)


def test_unverified_file_reported_or_rejected(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model / "tload-manifest.json").unlink()
    with tload.stream(model, framework="numpy", verify="auto") as stream:
        dict(stream)
        verification = stream.report.verification
    assert verification is not None
    assert (verification.bytes, verification.unverified_files) == (0, 1)
    assert verification.unverified[0].why
    with pytest.raises(tload.InvalidRequestError, match="cannot be verified"):
        tload.stream(model, framework="numpy", verify="require")
    monkeypatch.setenv("TLOAD_VERIFY", "require")
    with pytest.raises(tload.InvalidRequestError):
        tload.load(model, framework="numpy")
    assert tload.load(model, framework="numpy", verify="off")


def test_sha256_mode_accepts_sha256_only(model: Path) -> None:
    manifest = f"sha256:{model / 'tload-manifest.json'}"
    for verify in ("sha256", manifest):
        with tload.stream(model, framework="numpy", verify=verify) as stream:
            dict(stream)
            verification = stream.report.verification
        assert verification is not None
        assert [by.algorithm for by in verification.by] == ["sha256"]
        assert verification.bytes == (model / "model.safetensors").stat().st_size
        with pytest.raises(tload.InvalidRequestError, match="cannot be verified") as caught:
            tload.load(model, framework="numpy", verify=verify, names=["t0"])
        assert "load every tensor of the file" in str(caught.value.hint)


def test_invalid_verify_is_rejected_without_secrets() -> None:
    with pytest.raises(tload.InvalidRequestError, match='verify is ""; it can be'):
        tload.Options(verify="")
    for value in (1, 0.5, ["auto"]):
        with pytest.raises(TypeError, match=r'verify: wanted a bool, "off", "auto", "require", .* a manifest, found'):
            tload.Options(verify=value)  # type: ignore[arg-type]
    assert "hunter2" not in repr(tload.Options(verify="https://host/m.json?sig=hunter2"))
