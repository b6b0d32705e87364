"""`verify=`: files that the safetensors package wrote, and a manifest beside them."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import tload

if TYPE_CHECKING:
    from pathlib import Path


def crc64(raw: bytes) -> str:
    """CRC-64/NVME by its definition, a bit at a time."""
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


def test_what_is_right_is_compared_and_counted(model: Path) -> None:
    for verify in ("auto", "require", model / "tload-manifest.json", str(model / "tload-manifest.json")):
        with tload.stream(model, framework="numpy", verify=verify) as stream:
            tensors = dict(stream)
            report = stream.report
        assert len(tensors) == 4
        assert report.verification is not None
        assert report.verification.bytes == report.tensor_bytes
        assert [by.files for by in report.verification.by] == [1]
        assert "tload-manifest.json" in report.verification.by[0].by
        assert report.verification.unverified == ()
        assert report.stages.verify > 0
        assert json.loads(json.dumps(report.to_dict())) == report.to_dict()
        assert "tload-manifest.json" in str(report)


def test_a_flipped_bit_is_an_error_that_says_where(model: Path) -> None:
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
    target = {name: np.zeros(info.shape, np.float32) for name, info in tload.open(path).items()}
    with pytest.raises(tload.CorruptError):
        tload.load_into(target, model, verify="require")
    assert not target["t2"].any(), "the wrong tensor was written"
    assert len(tload.load(model, framework="numpy", verify="require", names=["t0", "t3"])) == 2


def test_a_wrong_header_is_found_before_anything_is_read(model: Path) -> None:
    path = model / "model.safetensors"
    at = path.read_bytes().index(b"F32")
    raw = bytearray(path.read_bytes())
    raw[at : at + 3] = b"I32"
    path.write_bytes(raw)
    with pytest.raises(tload.CorruptError) as caught:
        tload.stream(model, framework="numpy", names=["t0"], verify="auto")
    assert caught.value.range == (0, tload.open(path).shards[0].header_bytes)


def test_what_nobody_knows_is_said_or_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_nonsense_is_refused_and_secrets_are_not_shown() -> None:
    with pytest.raises(tload.InvalidRequestError, match="verify is empty"):
        tload.Options(verify="")
    with pytest.raises(TypeError, match="verify: wanted a str or a path, found bool"):
        tload.Options(verify=True)  # type: ignore[arg-type]
    assert "hunter2" not in repr(tload.Options(verify="https://host/m.json?sig=hunter2"))
