"""`tload.open`: a checkpoint's headers as a mapping."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import tload
from conftest import skip_loudly
from files import Content, write_checkpoint, write_file
from tload._sources.locations import SCHEMES

Floats = tuple[Path, dict[str, Content]]


def test_a_file_is_a_mapping_of_its_tensors(floats: Floats) -> None:
    path, tensors = floats
    with tload.open(path) as checkpoint:
        assert isinstance(checkpoint, Mapping)
        assert list(checkpoint) == list(checkpoint.keys()) == list(tensors)
        assert len(checkpoint) == len(tensors)
        assert "layer.3.weight" in checkpoint
        assert "layer.3" not in checkpoint
        assert not checkpoint.__contains__(3)
        assert checkpoint.get("layer.3") is None
        assert checkpoint.total_bytes == sum(len(content.raw) for content in tensors.values())
        info = checkpoint["layer.3.weight"]
        assert info == checkpoint.get("layer.3.weight")
        assert (info.name, info.dtype, info.shape, info.shard) == ("layer.3.weight", "F32", (4, 33), 0)
        assert isinstance(info.shape, tuple)
        start, end = info.file_range
        assert info.nbytes == end - start == 4 * 33 * 4
        assert path.read_bytes()[start:end] == tensors["layer.3.weight"].raw


def test_a_checkpoint_equals_itself_only(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        write_file(tmp_path / f"{name}.safetensors", {"x": Content.random("F32", (4,), seed)})
    one, other = (tload.open(tmp_path / f"{name}.safetensors") for name in "ab")
    assert dict(one) == dict(other), "the headers say the same"
    assert one != other
    assert one == one  # noqa: PLR0124
    assert one != dict(one)
    assert [other, one].index(one) == 1
    assert {one: "a", other: "b"}[other] == "b"


def test_every_kind_of_location_opens_equally(tmp_path: Path) -> None:
    tensors = {"a": Content.random("F32", (3,), 0), "b": Content.random("BF16", (5, 7), 1)}
    write_checkpoint(tmp_path, [{"a": tensors["a"]}, {"b": tensors["b"]}])
    shards = sorted(tmp_path.glob("*.safetensors"))
    index = tmp_path / "model.safetensors.index.json"
    sources: list[Any] = [
        tmp_path,
        str(tmp_path),
        f"file://{tmp_path}",
        index,
        str(index),
        shards,
        [str(shards[0]), shards[1]],
    ]
    for source in sources:
        checkpoint = tload.open(source)
        assert set(checkpoint) == {"a", "b"}, source
        assert len(checkpoint.shards) == 2
        assert checkpoint[checkpoint["b"].name].shard == 1
    one = tload.open(shards[0])
    assert list(one) == ["a"]
    assert one.shards[0].location == str(shards[0])
    assert one.shards[0].file_bytes == shards[0].stat().st_size
    assert one.shards[0].tensor_count == 1
    assert one.shards[0].header_bytes == one["a"].file_range[0]


def test_metadata_is_text_by_name(every_dtype: Floats) -> None:
    path, _ = every_dtype
    checkpoint = tload.open(path)
    assert checkpoint.metadata == {"format": "pt", "author": "tests"}
    assert checkpoint.shards[0].metadata == checkpoint.metadata


def test_path_that_is_not_unicode_opens(floats: Floats, tmp_path: Path) -> None:
    path, tensors = floats
    odd = tmp_path / os.fsdecode(b"caf\xe9.safetensors")
    try:
        odd.write_bytes(path.read_bytes())
    except OSError:
        skip_loudly("bytes-names", "this file system wants Unicode names")
    for source in (odd, str(odd)):
        assert set(tload.open(source)) == set(tensors)


def test_repr_is_readable(floats: Floats) -> None:
    path, _ = floats
    with tload.open(path) as checkpoint:
        assert repr(checkpoint) == f"<tload.Checkpoint {str(path)!r}: 12 tensors, 10.1 KiB in 1 file>"
    assert repr(checkpoint).endswith("in 1 file, closed>")
    assert repr(checkpoint["layer.0.weight"]).startswith(
        "TensorInfo(name='layer.0.weight', dtype='F32', shape=(1, 33), nbytes=132, shard=0, file_range=("
    )


def test_closed_checkpoint_keeps_headers_and_rejects_loads(floats: Floats) -> None:
    path, _ = floats
    with tload.open(path) as checkpoint:
        assert checkpoint["layer.0.weight"].shape == (1, 33)
    assert checkpoint["layer.0.weight"].shape == (1, 33)
    with pytest.raises(tload.InvalidRequestError, match="the checkpoint is closed"):
        tload.stream(checkpoint, framework="dlpack")


def test_unknown_tensor_raises_readable_key_error(floats: Floats) -> None:
    path, _ = floats
    with pytest.raises(KeyError) as caught:
        tload.open(path)["layer.99.weight"]
    assert isinstance(caught.value, tload.NoSuchTensorError)
    assert str(caught.value).startswith(f"{path}: no tensor is named 'layer.99.weight'\n  hint: did you mean 'layer.")
    assert caught.value.tensor == "layer.99.weight"


def test_invalid_location_type_raises() -> None:
    for source in (b"model", 3, None, {"a": 1}, 1.5):
        with pytest.raises(TypeError, match="source: wanted a str"):
            tload.open(source)  # type: ignore[arg-type]
    with pytest.raises(TypeError) as caught:
        tload.open([1, 2])  # type: ignore[list-item]
    assert str(caught.value) == "source[0]: wanted a str or os.PathLike, found int"
    with pytest.raises(TypeError) as caught:
        tload.load(["a.safetensors", None], framework="dlpack")  # type: ignore[call-overload]
    assert str(caught.value) == "source[1]: wanted a str or os.PathLike, found NoneType"
    with pytest.raises(tload.InvalidRequestError):
        tload.open([])


class BytesPath(os.PathLike[bytes]):
    def __fspath__(self) -> bytes:
        return b"model"


def test_bytes_path_raises_type_error() -> None:
    for source in (BytesPath(), [BytesPath()]):
        with pytest.raises(TypeError, match="found one of bytes"):
            tload.open(source)  # type: ignore[arg-type]


@pytest.mark.parametrize("source", ["a\0b", Path("a\0b"), ["a\0b"], [Path("a\0b")], "\udcff\0", "file:///a%00b"])
def test_path_with_nul_is_rejected(source: Any) -> None:
    with pytest.raises(tload.InvalidRequestError) as caught:
        tload.open(source)
    assert "\0" not in str(caught.value)


@pytest.mark.parametrize("source", ["ftp://host/model", "ipfs://org/model", ["ftp://host/model.safetensors"]])
def test_unknown_url_scheme_raises_unsupported_error(source: Any) -> None:
    with pytest.raises(tload.UnsupportedError, match=r"locations that begin with \w+:// cannot be read"):
        tload.open(source)


class UrlPath(os.PathLike[str]):
    def __init__(self, text: str) -> None:
        self.text = text

    def __fspath__(self) -> str:
        return self.text


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_url_in_path_object_is_rejected(scheme: str) -> None:
    url = f"{scheme}://user:hunter2@bucket/model"
    for path in (Path(url), Path(url.upper()), UrlPath(url)):
        sources: list[Any] = [path, ["a.safetensors", path]]
        for source in sources:
            with pytest.raises(tload.InvalidRequestError, match=f"begins with {scheme}:/ is not a URL") as caught:
                tload.open(source)
            assert caught.value.hint == f'pass the URL as a str: "{scheme}://…"'
            assert "hunter2" not in str(caught.value).lower()


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_a_bare_scheme_is_refused_with_what_is_missing(scheme: str) -> None:
    with pytest.raises(
        tload.InvalidRequestError, match=r"names? (no|an?) (bucket|container|host|repository|OCI registry)"
    ):
        tload.open(f"{scheme}://")


def test_path_with_colons_opens(floats: Floats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "s3:"
    folder.mkdir()
    (folder / "a.safetensors").write_bytes(floats[0].read_bytes())
    assert len(tload.open(folder)) == 12
    monkeypatch.chdir(tmp_path)
    assert len(tload.open(Path("s3:"))) == 12


def test_relative_path_survives_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint opened by a relative path stays the same after the working directory changes."""
    tensors = [{"a": Content.random("U8", (3 << 20,), seed)} for seed in (1, 2)]
    for name, content in zip(("here", "there"), tensors, strict=True):
        (tmp_path / name).mkdir()
        write_file(tmp_path / name / "m.safetensors", content)
    monkeypatch.chdir(tmp_path / "here")
    checkpoint = tload.open("m.safetensors")
    monkeypatch.chdir(tmp_path / "there")
    assert bytes(tload.load(checkpoint, framework="numpy")["a"]) == tensors[0]["a"].raw
    assert bytes(tload.load("m.safetensors", framework="numpy")["a"]) == tensors[1]["a"].raw


def test_many_tensors_keep_their_order(tmp_path: Path) -> None:
    tensors = {f"t{index}": Content.random("U8", (index % 5,), index) for index in range(2000)}
    write_file(tmp_path / "many.safetensors", tensors)
    checkpoint = tload.open(tmp_path / "many.safetensors")
    assert set(checkpoint) == set(tensors)
    starts = [info.file_range[0] for info in checkpoint.values()]
    assert starts == sorted(starts)


def test_a_model_wins_over_an_adapter_beside_it(tmp_path: Path) -> None:
    for name in ("adapter_model", "model"):
        write_file(tmp_path / f"{name}.safetensors", {name: Content.random("F32", (4,), 0)})
    with tload.open(tmp_path) as checkpoint:
        assert list(checkpoint) == ["model"]
    stream = tload.stream(tmp_path, framework="numpy")
    assert [name for name, _ in stream] == ["model"]
    (note,) = stream.report.notes
    assert "left out: adapter_model.safetensors" in note
