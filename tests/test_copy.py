"""Copies and listings from Python: the behaviour of `tload cp`, with errors as exceptions."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tload
from files import tile

if TYPE_CHECKING:
    from collections.abc import Callable

    import servers

MIB = 1 << 20

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
    with pytest.raises(TypeError, match=r"source: wanted a str or os\.PathLike, found list"):
        tload.copy([folder], tmp_path / "target")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="names: wanted a str"):
        tload.copy(folder, tmp_path / "target", names=[1])  # type: ignore[list-item]
    assert not (tmp_path / "target").exists()
    for own in (folder, folder / "config.json"):
        with pytest.raises(tload.InvalidRequestError, match="are the same directory"):
            tload.copy(own, folder)
    (tmp_path / "link").symlink_to(folder)
    for below in (folder / "new" / "deep", tmp_path / "link" / "new"):
        with pytest.raises(tload.InvalidRequestError, match="the target is below the source"):
            tload.copy(folder, below)
    assert not (folder / "new").exists()
    assert tload.copy(folder / "config.json", folder / "new").copied_files == 1


def test_url_target_is_rejected(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tload.UnsupportedError, match="copied to directories, S3, Google Cloud Storage") as caught:
        tload.copy(folder, "https://host/model?token=hunter2")
    assert "hunter2" not in str(caught.value)
    assert not (tmp_path / "https:").exists()


def test_directory_is_copied_to_a_store_and_between_stores(folder: Path, s3: servers.S3, tmp_path: Path) -> None:
    s3.put("models", "other", b"x")
    files = {name: content for name, content in FILES.items() if "/." not in name}
    url = "s3://models/uploaded"
    report = tload.copy(folder, url, store=s3.store)
    assert (report.target, report.copied_files) == (url, len(files))
    listed = [row for row in tload.list_files(url, store=s3.store) if row.path != ".tload-copied"]
    assert listed == [(name, len(content)) for name, content in sorted(files.items())]
    again = tload.copy(folder, url, target_store=s3.store)
    assert (again.copied_files, again.skipped_files) == (0, len(files))
    tload.copy(url, "s3://models/second", store=s3.store)
    tload.copy("s3://models/second", tmp_path / "back", store=s3.store)
    assert all((tmp_path / "back" / name).read_bytes() == content for name, content in files.items())
    with pytest.raises(tload.InvalidRequestError, match="empty prefix"):
        tload.copy(tmp_path / "back", url, store=s3.store)


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


@pytest.mark.parametrize("call", ["copy", "verify"])
def test_progress_ends_at_the_total(folder: Path, tmp_path: Path, call: str) -> None:
    seen: list[tload.Progress] = []
    if call == "copy":
        tload.copy(folder, tmp_path / "target", hidden=True, progress=seen.append)
        total = 16
    else:
        tload.verify(folder, write=tmp_path / "manifest.json", progress=seen.append)
        total = len(FILES["model.safetensors"])
    last = seen[-1]
    assert (last.bytes_received, last.bytes_read, last.bytes_total) == (total, total, total)
    assert str(last) == f"100% {total} B of {total} B"
    assert (last.tensors_received, last.tensors_total) == (0, 0)
    with pytest.raises(TypeError, match="progress: wanted True, False, None or a callable, found str"):
        tload.copy(folder, tmp_path / "target", progress="yes")  # type: ignore[arg-type]


def test_bar_of_a_copy_is_drawn_on_terminals(folder: Path, tmp_path: Path) -> None:
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    script = f"import tload; tload.copy({str(folder)!r}, {str(tmp_path / 'target')!r}, progress=True)"
    done = subprocess.run([sys.executable, "-c", script], check=True, stderr=terminal, stdout=subprocess.PIPE)
    os.close(terminal)
    shown = os.read(main, 10_000).decode()
    os.close(main)
    assert "tload" in shown
    assert "100%" in shown
    assert done.stdout == b""


def stalled(web: servers.Web, at: int) -> bytes:
    """Serve a file whose bytes from `at` on never arrive."""
    content = tile(1, 4 * MIB)
    web.files["m/model.safetensors"] = content
    web.stall_from = at
    return content


def test_exception_of_progress_stops_copy(web: servers.Web, tmp_path: Path) -> None:
    stalled(web, MIB)

    class EnoughError(Exception):
        pass

    def refuse(progress: tload.Progress) -> None:
        assert progress.bytes_total == 4 * MIB
        raise EnoughError

    with pytest.raises(EnoughError):
        tload.copy(f"{web.url}/m/model.safetensors", tmp_path / "target", progress=refuse)


def late(call: Callable[[float], object], wanted: str) -> tload.LoadTimeoutError:
    """Return the error of a call that a longer timeout allows to get as far as `wanted`."""
    # On a busy machine, a short one may expire before.
    for timeout in (0.5, 2.0, 8.0, 32.0):
        with pytest.raises(tload.LoadTimeoutError, match="longer than its timeout") as caught:
            call(timeout)
        if wanted in str(caught.value):
            return caught.value
    pytest.fail(f"{wanted} is not in {caught.value}")


def test_late_copy_says_what_is_kept_and_resumes(web: servers.Web, tmp_path: Path) -> None:
    content = stalled(web, MIB)
    url = f"{web.url}/m/model.safetensors"
    error = late(lambda timeout: tload.copy(url, tmp_path, timeout=timeout), "1.0 MiB are kept in")
    assert isinstance(error, TimeoutError)
    assert "1.0 MiB of 4.0 MiB had been copied" in str(error)
    web.stall_from = None
    report = tload.copy(url, tmp_path)
    assert (report.resumed_bytes, report.copied_bytes) == (MIB, 3 * MIB)
    assert there(tmp_path) == {"model.safetensors": content}


def test_timeout_of_a_verification(web: servers.Web, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stalled(web, 0)
    url = f"{web.url}/m/model.safetensors"
    # At any stage, the error is the same.
    message = "verifying took longer than its timeout of 300ms"
    with pytest.raises(tload.LoadTimeoutError, match=message):
        tload.verify(url, timeout=0.3)
    monkeypatch.setenv("TLOAD_TIMEOUT", "300ms")
    with pytest.raises(tload.LoadTimeoutError, match=message):
        tload.verify(url)
    with pytest.raises(TypeError, match="timeout: wanted"):
        tload.verify(folder, timeout=object())  # type: ignore[arg-type]


def journaled_bytes(target: Path) -> int:
    try:
        journal = json.loads((target / ".model.safetensors.tload-partial.json").read_text())
    except FileNotFoundError:
        return 0
    return sum(done["end"] - done["start"] for done in journal["done"])


def test_killed_copy_resumes(web: servers.Web, tmp_path: Path) -> None:
    """The file is fetched in one request, which is still running when the copy is killed."""
    content = stalled(web, 3 * MIB)
    command = [sys.executable, "-m", "tload", "cp", f"{web.url}/m/model.safetensors", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
        # The bytes fetched while opening are journaled at once, the others a little later.
        while journaled_bytes(tmp_path) < 3 * MIB:
            try:
                child.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            assert child.stderr is not None
            pytest.fail(child.stderr.read().decode())
        child.kill()
    web.stall_from = None
    done = subprocess.run([*command, "--json"], check=True, capture_output=True)
    report = json.loads(done.stdout)
    assert (report["resumed_bytes"], report["copied_bytes"]) == (3 * MIB, MIB)
    assert there(tmp_path) == {"model.safetensors": content}


def test_dry_run_plans_and_writes_nothing(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "a" / "target"
    report = tload.copy(folder, target, hidden=True, dry_run=True)
    assert not (tmp_path / "a").exists()
    assert report.plan is not None
    assert [(file.name, file.action, file.bytes) for file in report.plan.files] == [
        (name, "copy", len(content)) for name, content in sorted(FILES.items())
    ]
    assert (report.copied_files, report.copied_bytes, report.plan.needed_bytes) == (4, 16, 16)
    assert report.plan.free_bytes
    assert tload.copy(folder, target).plan is None
    (folder / "config.json").write_bytes(b"[1]")
    report = tload.copy(folder, target, hidden=True, dry_run=True)
    assert report.plan is not None
    assert {file.name: file.action for file in report.plan.files} == {
        "config.json": "copy",
        "model.safetensors": "skip",
        "nested/.hidden": "copy",
        "nested/a.bin": "skip",
    }
    assert there(target)["config.json"] == b"{}"
    shown = subprocess.run(
        [sys.executable, "-m", "tload", "cp", str(folder), str(target), "--dry-run"], check=True, capture_output=True
    ).stdout.decode()
    assert [line.split()[:2] for line in shown.splitlines()[:2]] == [["action", "size"], ["copy", "3"]]
    assert "1 file would be copied, 3 B read, 2 files skipped; needs 3 B of disk space (" in shown


def test_dry_run_shows_resumed_bytes(web: servers.Web, tmp_path: Path) -> None:
    stalled(web, MIB)
    url = f"{web.url}/m/model.safetensors"
    late(lambda timeout: tload.copy(url, tmp_path, timeout=timeout), "1.0 MiB are kept in")
    web.stall_from = None
    before = there(tmp_path)
    report = tload.copy(url, tmp_path, dry_run=True)
    assert report.plan is not None
    assert [(file.action, file.resumed_bytes) for file in report.plan.files] == [("resume", MIB)]
    assert report.copied_bytes == 3 * MIB
    assert there(tmp_path) == before


def test_names_that_cannot_be_copied_are_left_out(folder: Path, tmp_path: Path) -> None:
    odd = os.fsencode(folder) + b"/odd\xff.bin"
    try:
        with Path(os.fsdecode(odd)).open("wb") as file:
            file.write(b"x")
    except OSError:
        pytest.skip("the file system has no such names")
    target = tmp_path / "target"
    with pytest.raises(tload.InvalidRequestError, match=r"left out: .*odd") as caught:
        tload.copy(folder, target)
    assert "skip_unusable" in str(caught.value)
    report = tload.copy(folder, target, skip_unusable=True)
    assert report.unusable == ("odd\ufffd.bin",)
    assert report.skipped_files > 0
    assert tload.copy(folder, target, exclude="odd*").unusable == ()
    assert all("odd" not in file.path for file in tload.list_files(folder))
