"""Errors about a name, a value or a path suggest the nearest one, and say how to list the names."""

from __future__ import annotations

import tarfile
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

import tload
from files import Content, write_file
from tload import _tload

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAMES = ("model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight", "lm_head.weight")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "random model" / "model.safetensors"
    path.parent.mkdir()
    write_file(path, {name: Content("U8", (4,), bytes(4)) for name in NAMES})
    return path.parent


def load(source: object, **keywords: Any) -> object:
    return tload.load(source, framework="dlpack", **keywords)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("keywords", "hint"),
    [
        ({"names": ["lm_head.wieght"]}, 'did you mean "lm_head.weight"?'),
        ({"glob": "model.layer.*"}, 'did you mean "model.layers.*"?'),
        ({"glob": "layers.0"}, 'did you mean "*.layers.0.*"?'),
        ({"engine": "io_uring"}, 'did you mean "uring"?'),
        ({"cache": "mmap"}, 'did you mean "map"?'),
        ({"cache": "o_direct"}, 'did you mean "direct"?'),
        ({"order": "files"}, 'did you mean "file"?'),
        ({"device": "gpu:0"}, 'did you mean "cuda"?'),
    ],
)
def test_nearest_name_is_suggested(model: Path, keywords: dict[str, Any], hint: str) -> None:
    with pytest.raises(tload.Error) as caught:
        load(model, **keywords)
    assert caught.value.hint == hint
    assert str(caught.value).endswith(f"\n  hint: {hint}")


@pytest.mark.parametrize("keywords", [{"names": ["vision"]}, {"glob": "vision.*"}, {"regex": "^vision"}])
def test_call_that_lists_names_has_the_location(model: Path, keywords: dict[str, Any]) -> None:
    with pytest.raises(tload.NoSuchTensorError) as caught:
        load(model, **keywords)
    assert caught.value.hint == f'list the names with list(tload.open("{model}"))'
    other = model / "other.safetensors"
    write_file(other, {"other": Content("U8", (4,), bytes(4))})
    with pytest.raises(tload.NoSuchTensorError) as caught:
        load([model / "model.safetensors", other], **keywords)
    assert caught.value.hint == "list the names of each of these files"


def test_single_reads_suggest_names(model: Path) -> None:
    with tload.open(model) as checkpoint:
        reads: list[Callable[[], object]] = [
            lambda: checkpoint["lm_head.wieght"],
            lambda: checkpoint.read("lm_head.wieght", framework="dlpack"),
        ]
        for read in reads:
            with pytest.raises(KeyError) as caught:
                read()
            assert "did you mean" in str(caught.value)
            assert "lm_head.weight" in str(caught.value)
        assert checkpoint.get("lm_head.wieght") is None
        assert checkpoint.get("lm_head.wieght", default=3) == 3


def test_keywords_are_suggested(model: Path) -> None:
    calls: list[Callable[..., object]] = [
        lambda **keywords: load(model, **keywords),
        lambda **keywords: tload.stream(model, framework="dlpack", **keywords),
        lambda **keywords: tload.load_into({}, model, **keywords),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"'memroy_limit'; did you mean 'memory_limit'\?$"):
            call(memroy_limit=1 << 30)
    with pytest.raises(tload.InvalidRequestError, match="did you mean 'numpy'"):
        tload.load(model, framework="nunpy")  # type: ignore[call-overload]


def test_variables_suggest_values(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TLOAD_ENGINE", "io_uring")
    with pytest.raises(tload.InvalidRequestError) as caught:
        load(model)
    assert caught.value.hint == 'did you mean "uring"?'


def test_paths_are_suggested(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    for path, hint in [
        (model / "model.safetensor", f'did you mean "{model / "model.safetensors"}"?'),
        (model.parent / "randommodel", f'did you mean "{model}"?'),
        ("randommodel", 'did you mean "random model"?'),
        (model / "*.safetensors", "wildcards are expanded by a shell"),
        ("~/model", "~ is expanded by a shell"),
    ]:
        with pytest.raises(tload.NotFoundError) as caught:
            load(path)
        assert hint in (caught.value.hint or "")


def test_directory_without_weights_says_what_it_is(model: Path) -> None:
    pipeline = model.parent / "pipeline"
    for name in ("scheduler", "unet", "vae"):
        (pipeline / name).mkdir(parents=True)
    (pipeline / "model_index.json").write_text("{}")
    for name in ("unet", "vae"):
        write_file(pipeline / name / "model.safetensors", {})
    with pytest.raises(tload.NotFoundError) as caught:
        tload.open(pipeline)
    assert "contains no *.safetensors among 1 file and 3 subdirectories" in str(caught.value)
    assert caught.value.hint == "it is a diffusers pipeline with unet/, vae/: load one of these subdirectories"
    pickles = model.parent / "pickles"
    pickles.mkdir()
    (pickles / "pytorch_model.bin").touch()
    with pytest.raises(tload.NotFoundError, match=r'"pytorch_model\.bin" is a file of PyTorch: convert it'):
        tload.open(pickles)


def test_other_formats_are_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", b"\x93NUMPY")
    (tmp_path / "a").write_text("a" * 20)
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.add(tmp_path / "a", "a name that is long enough")
    (tmp_path / "x.onnx").write_bytes(b"\x08\x07\x12\x07pytorch" + bytes(64))
    (tmp_path / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    for name, kind in [
        ("x.npz", "an archive of numpy arrays"),
        ("x.tar", "a tar archive"),
        ("x.onnx", "an ONNX model"),
        ("passwd", "a text"),
    ]:
        with pytest.raises(tload.FormatError, match=f"found {kind}"):
            tload.open(tmp_path / name)


def test_marks_of_options_in_foreign_names_are_text(tmp_path: Path) -> None:
    folder = "\u2039model\u203a"
    path = tmp_path / folder / "a.safetensors"
    with pytest.raises(tload.NotFoundError) as caught:
        tload.open(path)
    assert folder in str(caught.value)


def test_search_among_half_a_million_names_finds_the_last() -> None:
    names = [f"model.layers.{at // 256}.experts.{at % 256}.weight" for at in range(500_000)]
    assert _tload.nearest_name("model.layers.1953.experts.31.wieght", names) == names[-1]
    assert _tload.nearest_name("x" * (64 << 10), ["y" * (64 << 10)] * 1000) is None
