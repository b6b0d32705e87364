"""Copies and listings from Python: the behaviour of `tload cp`, with errors as exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import tload

if TYPE_CHECKING:
    from pathlib import Path

    import servers

FILES = {
    "config.json": b"{}",
    "model.safetensors": b"\x02" + bytes(7) + b"{}",
    "nested/.hidden": b"h",
    "nested/a.bin": b"abc",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "source"


def there(target: Path) -> dict[str, bytes]:
    return {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}


def test_directory_is_copied_then_skipped(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    report = tload.copy(folder, target, hidden=True)
    assert there(target) == FILES
    assert (report.copied_files, report.copied_bytes, report.skipped_files) == (4, 16, 0)
    assert (report.location, report.target) == (str(folder), str(target))
    assert tload.copy(str(folder), str(target), hidden=True).skipped_files == 4
    assert tload.copy(folder, target, hidden=True, force=True).copied_files == 4


@pytest.mark.parametrize(
    ("keywords", "wanted"),
    [
        ({}, {"config.json", "model.safetensors", "nested/a.bin"}),
        ({"include": "*.json"}, {"config.json"}),
        ({"include": ["*.json", "nested/*"], "exclude": "*.bin"}, {"config.json"}),
        ({"names": ["nested/a.bin"]}, {"nested/a.bin"}),
        ({"names": ["nested/.hidden"]}, {"nested/.hidden"}),
    ],
)
def test_some_files_are_copied(folder: Path, tmp_path: Path, keywords: dict[str, Any], wanted: set[str]) -> None:
    tload.copy(folder, tmp_path / "target", depth=2, **keywords)
    assert there(tmp_path / "target").keys() == wanted


def test_mistakes_are_exceptions(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        tload.copy(folder / "none", tmp_path / "target")
    with pytest.raises(tload.NotFoundError, match="nothing to copy"):
        tload.copy(folder, tmp_path / "target", names=["a.bin"])
    with pytest.raises(tload.NotFoundError, match=r'it contains no file "gone\.json"'):
        tload.copy(folder, tmp_path / "target", names=["config.json", "gone.json"])
    with pytest.raises(tload.InvalidRequestError, match="depth is 0"):
        tload.copy(folder, tmp_path / "target", depth=0)
    with pytest.raises(tload.InvalidRequestError, match="names is empty"):
        tload.copy(folder, tmp_path / "target", names=[])
    with pytest.raises(TypeError, match="names: wanted a str"):
        tload.copy(folder, tmp_path / "target", names=[1])  # type: ignore[list-item]
    assert not (tmp_path / "target").exists()


def test_url_target_is_rejected(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tload.UnsupportedError, match="the target is a URL") as caught:
        tload.copy(folder, "s3://bucket/model?token=hunter2")
    assert "hunter2" not in str(caught.value)
    assert not (tmp_path / "s3:").exists()


def test_files_are_listed(folder: Path) -> None:
    assert tload.list_files(folder) == [(name, len(content)) for name, content in sorted(FILES.items())]
    (row,) = tload.list_files(folder / "config.json")
    assert row == (row.path, row.nbytes) == ("config.json", 2)
    with pytest.raises(FileNotFoundError):
        tload.list_files(folder / "none")


def test_objects_are_listed_and_copied(s3: servers.S3, tmp_path: Path) -> None:
    for name, content in FILES.items():
        s3.put("bucket", f"copies/{name}", content)
    url = "s3://bucket/copies"
    assert tload.list_files(url, store=s3.store) == [(name, len(content)) for name, content in sorted(FILES.items())]
    assert tload.list_files("s3://bucket/nothing", store=s3.store) == []
    tload.copy(url, tmp_path / "target", names=["nested/a.bin"], store=s3.store)
    assert there(tmp_path / "target") == {"nested/a.bin": b"abc"}
