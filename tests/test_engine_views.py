"""Views of files as the tensors for engines on CPUs: when they are chosen, and what they are."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tload
from conftest import require, skip_loudly
from files import Content, write_file
from resident import evict, resident_bytes
from tload._engines import views
from tload.vllm import _settings, _weights

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Web

NAMES = [f"layers.{at}.weight" for at in range(4)]


class Bar:
    """A progress bar that shows nothing."""

    def update(self, n: float) -> None:
        """Do nothing."""


@contextmanager
def bar(_total: int) -> Iterator[Bar]:
    yield Bar()


def content() -> dict[str, Content]:
    return {name: Content.random("F32", (256, 1024), at) for at, name in enumerate(NAMES)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of 2 MiB in the page cache."""
    tensors = list(content().items())
    for number, some in enumerate((tensors[:2], tensors[2:])):
        path, at = tmp_path / f"model-0000{number + 1}-of-00002.safetensors", 0
        # Tensors at odd addresses would be copied.
        while at == 0 or (path.stat().st_size % 4 and at < 8):
            write_file(path, dict(some), {"pad": "x" * at})
            at += 1
    if not views.are_best(tload.Options(), map(str, tmp_path.iterdir())):
        skip_loudly("local-files", f"{tmp_path} is on no local file system that answers RWF_NOWAIT")
    return tmp_path


def load(
    source: Any,
    caplog: pytest.LogCaptureFixture,
    extra: dict[str, Any] | None = None,
    *,
    on_cpu: bool = True,
    **how: Any,
) -> tuple[dict[str, Any], str]:
    """Return copies of the tensors, as an engine makes them, and the log."""
    require("torch")
    logger = logging.getLogger("tests")
    caplog.clear()
    with caplog.at_level(logging.INFO):
        weights = _weights.stream(
            source, _settings.read(extra or {}), shown="m", open_bar=bar, logger=logger, on_cpu=on_cpu, **how
        )
        return {name: tensor.clone() for name, tensor in weights}, caplog.text


def keep(path: Path, share: float) -> None:
    """Leave the beginning of a file in the page cache."""
    evict(path)
    kept = round(path.stat().st_size * share)
    with path.open("rb", buffering=0) as file:
        # The kernel reads nothing ahead.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for _ in range(0, kept, 4096):
            file.read(4096)
    assert abs(resident_bytes(path) - kept) < path.stat().st_size / 20


VIEWS = "as views of the files"


def test_files_in_the_page_cache_are_views_on_a_cpu_only(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    got, log = load(str(folder), caplog)
    assert VIEWS in log
    assert "through the page cache" not in log
    assert {name: bytes(tensor.numpy()) for name, tensor in got.items()} == {
        name: each.raw for name, each in content().items()
    }
    assert VIEWS not in load(str(folder), caplog, on_cpu=False)[1]


@pytest.mark.parametrize(
    "extra",
    [{"cache": "auto"}, {"cache": "buffered"}, {"engine": "pread"}, {"verify": "auto"}, {"device": "cuda"}],
    ids=str,
)
def test_settings_that_say_otherwise_win(
    folder: Path, caplog: pytest.LogCaptureFixture, extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def stream(*_: Any, options: tload.Options, **__: Any) -> None:
        asked.append(options.cache)
        raise ZeroDivisionError

    monkeypatch.setattr(tload, "stream", stream)
    with pytest.raises(ZeroDivisionError):
        load(str(folder), caplog, extra)
    assert asked == [extra.get("cache")]
    with pytest.raises(ZeroDivisionError):
        load(str(folder), caplog)
    assert asked[1:] == ["map"]


def test_variables_that_say_otherwise_win(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("TLOAD_CACHE", "auto"), ("TLOAD_ENGINE", "pread"), ("TLOAD_VERIFY", "auto")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert VIEWS not in load(str(folder), caplog)[1]


@pytest.mark.parametrize(("share", "are_views"), [(0.9, True), (0.6, False), (0, False)])
def test_files_that_are_mostly_in_the_page_cache_are_views(
    folder: Path, caplog: pytest.LogCaptureFixture, share: float, *, are_views: bool
) -> None:
    for path in folder.iterdir():
        keep(path, share)
    got, log = load(str(folder), caplog)
    assert (VIEWS in log) == are_views
    assert {name: bytes(tensor.numpy()) for name, tensor in got.items()} == {
        name: each.raw for name, each in content().items()
    }


def test_other_files_are_no_views(folder: Path, web: Web, caplog: pytest.LogCaptureFixture) -> None:
    paths = sorted(map(str, folder.iterdir()))
    web.files["m/model.safetensors"] = Path(paths[0]).read_bytes()
    url = f"{web.url}/m/model.safetensors"
    assert VIEWS not in load([paths[1], url], caplog)[1]
    options = tload.Options()
    assert views.are_best(options, paths)
    for other in (url, str(folder), str(folder / "none"), "/proc/self/maps", "/dev/null", "a\0b"):
        assert not views.are_best(options, [*paths, other])


@pytest.mark.parametrize("kind", ["nfs4", "fuse", None])
def test_files_of_servers_are_no_views(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str | None) -> None:
    device = folder.stat().st_dev
    assert views._file_systems()[device] in views.LOCAL
    monkeypatch.setattr(views, "_file_systems", lambda: {} if kind is None else {device: kind})
    assert not views.are_best(tload.Options(), map(str, folder.iterdir()))


def test_writes_to_a_view_do_not_reach_the_file(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    require("torch")
    weights = _weights.stream(
        str(folder), _settings.read({}), shown="m", open_bar=bar, logger=logging.getLogger("tests"), on_cpu=True
    )
    for _, tensor in weights:
        tensor.fill_(0)
    got, _ = load(str(folder), caplog)
    assert all(bytes(tensor.numpy()) == content()[name].raw for name, tensor in got.items())


def test_copies_survive_a_truncation_after_the_load(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    got, log = load(str(folder), caplog)
    assert VIEWS in log
    for path in folder.iterdir():
        os.truncate(path, 0)
    assert all(bytes(tensor.numpy()) == content()[name].raw for name, tensor in got.items())
    # Nothing of the files is mapped any more.
    assert str(folder) not in Path("/proc/self/maps").read_text()
