"""Untrusted files: links that lead out of a checkpoint's directory, and names with control
characters."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tload

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ODD = "a\x1b[2J\n\x7f\x9b\u202eé"
"""Characters that clear a screen, end a line, and reverse text."""


def write(path: Path, name: str = "t", tensor_bytes: int = 4) -> None:
    header = json.dumps({name: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(tensor_bytes))


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A directory with one file, which is a link to a file outside."""
    (tmp_path / "outside").mkdir()
    write(tmp_path / "outside" / "x.safetensors")
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").symlink_to("../outside/x.safetensors")
    return model


def load_into(path: Path, **keywords: Any) -> None:
    tload.load_into({"t": np.zeros(4, np.uint8)}, path, **keywords)


OPENERS: list[Callable[..., Any]] = [
    tload.open,
    lambda path, **keywords: tload.load(path, framework="numpy", **keywords),
    lambda path, **keywords: list(tload.stream(path, framework="numpy", **keywords)),
    load_into,
]


@pytest.mark.parametrize("opener", OPENERS)
def test_links_out_of_directory_are_followed_if_allowed(
    linked: Path, opener: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(tload.PermissionDeniedError) as caught:
        opener(linked)
    assert caught.value.location == str(linked / "model.safetensors")
    assert str(linked.parent / "outside" / "x.safetensors") in str(caught.value)
    assert "follow_symlinks" in (caught.value.hint or "")
    opener(linked, follow_symlinks=True)

    monkeypatch.setenv("TLOAD_FOLLOW_SYMLINKS", "1")
    opener(linked)
    with pytest.raises(tload.PermissionDeniedError):
        opener(linked, follow_symlinks=False)


def test_listed_file_may_be_symlink(linked: Path) -> None:
    path = linked / "model.safetensors"
    assert list(tload.open(path)) == ["t"]
    assert list(tload.open([path])) == ["t"]


def test_follow_symlinks_variable_is_boolean(linked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("", " ", "0", "no", "FALSE"):
        monkeypatch.setenv("TLOAD_FOLLOW_SYMLINKS", text)
        with pytest.raises(tload.PermissionDeniedError):
            tload.open(linked)
    monkeypatch.setenv("TLOAD_FOLLOW_SYMLINKS", "Yes")
    tload.open(linked)
    monkeypatch.setenv("TLOAD_FOLLOW_SYMLINKS", "perhaps")
    with pytest.raises(tload.InvalidRequestError, match="TLOAD_FOLLOW_SYMLINKS"):
        tload.open(linked)
    with pytest.raises(TypeError, match="follow_symlinks: wanted a bool"):
        tload.open(linked, follow_symlinks="no")  # type: ignore[arg-type]


def assert_shown(text: str) -> None:
    for line in text.split("\n"):
        assert line.isprintable(), ascii(line)


def test_tensor_names_are_escaped_in_output(tmp_path: Path) -> None:
    model = tmp_path / ODD
    model.mkdir()
    path = model / "model.safetensors"
    write(path, ODD)
    with tload.open(model) as checkpoint:
        assert list(checkpoint) == [ODD]
        shown = [repr(checkpoint), checkpoint.location, repr(checkpoint[ODD]), repr(checkpoint.shards)]
        shown += [shard.location for shard in checkpoint.shards]
        tensor = dict(tload.stream(checkpoint, framework="dlpack"))[ODD]
        shown.append(repr(tensor))
        with pytest.raises(tload.NoSuchTensorError) as missing:
            checkpoint["\x1b"]
        with pytest.raises(tload.NoSuchTensorError) as unselected:
            tload.load(checkpoint, framework="numpy", names=["\x1b\u202e"])
    write(path, ODD, tensor_bytes=3)
    with pytest.raises(tload.FormatError) as cut:
        tload.open(model)
    assert cut.value.tensor == ODD
    for error in (missing.value, unselected.value, cut.value):
        shown += [str(error), repr(error), error.location or "", error.hint or ""]
    for text in shown:
        assert_shown(text)


def test_long_name_is_truncated(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write(path, "n" * 10_000_000, tensor_bytes=3)
    with pytest.raises(tload.FormatError) as cut:
        tload.open(path)
    assert len(str(cut.value)) < 8000
