"""Progress: callbacks, and bars on terminals."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING, Any

import pytest

import tload
import tload._load.stream
from conftest import require
from files import Content, tile, write_file
from tload._report import progress

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MIB = 1 << 20


@pytest.fixture
def megabytes(tmp_path: Path) -> Path:
    path = tmp_path / "a.safetensors"
    write_file(path, {f"t{index}": Content("U8", (MIB,), tile(index, MIB)) for index in range(16)})
    return path


def test_callback_sees_increasing_progress_and_end(megabytes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tload._load.stream, "INTERVAL", 0.0)
    seen: list[tload.Progress] = []
    list(tload.stream(megabytes, framework="dlpack", progress=seen.append))
    assert len(seen) >= 16
    received = [progress.bytes_received for progress in seen]
    assert received == sorted(received)
    last = seen[-1]
    assert (last.tensors_received, last.tensors_total) == (16, 16)
    assert (last.bytes_received, last.bytes_total, last.fraction) == (16 * MIB, 16 * MIB, 1.0)
    assert last.bytes_read >= 16 * MIB


def test_load_calls_a_callback_at_its_end(megabytes: Path) -> None:
    seen: list[tload.Progress] = []
    tload.load(megabytes, framework="dlpack", progress=seen.append)
    assert seen[-1].fraction == 1.0


def test_a_callback_is_called_ten_times_a_second_at_most(megabytes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress.INTERVAL == 0.1
    # Longer than any load: only the call at the end remains.
    monkeypatch.setattr(tload._load.stream, "INTERVAL", 3600.0)
    seen: list[tload.Progress] = []
    list(tload.stream(megabytes, framework="dlpack", progress=seen.append))
    assert [progress.fraction for progress in seen] == [1.0]


def test_callback_exception_stops_load(megabytes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tload._load.stream, "INTERVAL", 0.0)

    class EnoughError(Exception):
        pass

    def refuse(progress: tload.Progress) -> None:
        if progress.tensors_received == 3:
            raise EnoughError

    stream = tload.stream(megabytes, framework="dlpack", progress=refuse)
    with pytest.raises(EnoughError):
        list(stream)
    assert stream.report.outcome == "cancelled"
    assert next(stream, None) is None


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration])
def test_callback_does_not_end_a_load_as_if_it_were_complete(
    kind: type[Exception], megabytes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python would take its `StopIteration` for the end of the stream."""
    monkeypatch.setattr(tload._load.stream, "INTERVAL", 0.0)

    def stop(_: tload.Progress) -> None:
        raise kind

    async def collect() -> None:
        async for _ in tload.stream(megabytes, framework="dlpack", progress=stop):
            pass

    calls: list[Callable[[], object]] = [
        lambda: list(tload.stream(megabytes, framework="dlpack", progress=stop)),
        lambda: tload.load(megabytes, framework="dlpack", progress=stop),
        lambda: asyncio.run(collect()),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=f"^progress: the callable raised {kind.__name__}$"):
            call()


def test_invalid_progress_raises_type_error(megabytes: Path) -> None:
    wrong: Any = "yes"
    with pytest.raises(TypeError, match="progress: wanted True, False, None or a callable, found str"):
        tload.stream(megabytes, framework="dlpack", progress=wrong)


def test_no_bar_is_drawn_into_files(megabytes: Path) -> None:
    script = f"import tload; tload.load({str(megabytes)!r}, framework='dlpack', progress=True)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert done.stdout == done.stderr == b""


def test_progress_is_a_line_for_people() -> None:
    progress = tload.Progress(
        tensors_total=40, tensors_received=10, bytes_total=4 * MIB, bytes_received=MIB, bytes_read=2 * MIB
    )
    assert str(progress) == " 50% 2.0 MiB of 4.0 MiB, 10 of 40 tensors"
    assert progress.bytes_done == 2 * MIB
    aligned = dataclasses.replace(progress, bytes_read=5 * MIB)
    assert (aligned.bytes_done, aligned.fraction) == (4 * MIB, 1.0)
    views = dataclasses.replace(progress, bytes_read=0)
    assert views.bytes_done == MIB
    nothing = tload.Progress(tensors_total=0, tensors_received=0, bytes_total=0, bytes_received=0, bytes_read=0)
    assert str(nothing) == "100% 0 B of 0 B"


def test_programs_without_standard_error_show_nothing(megabytes: Path) -> None:
    script = f"import sys, tload; sys.stderr = None; tload.load({str(megabytes)!r}, framework='dlpack', progress=True)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert done.stdout == done.stderr == b""


def test_a_bar_is_drawn_in_notebooks(megabytes: Path) -> None:
    """Below the cell, in a kernel of IPython's own, whose standard error is no terminal."""
    require("ipykernel")
    jupyter = require("jupyter_client.manager")
    manager, client = jupyter.start_new_kernel(
        kernel_name="python3", startup_timeout=300, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    shown: list[dict[str, Any]] = []

    def note(message: dict[str, Any]) -> None:
        if message["msg_type"] in {"display_data", "update_display_data", "stream", "error"}:
            shown.append(message)

    try:
        code = (
            f"import tload, tload._load.stream; tload._load.stream.INTERVAL = 0.0\n"
            f"_ = tload.load({str(megabytes)!r}, framework='dlpack', progress=True)"
        )
        reply = client.execute_interactive(code, timeout=300, output_hook=note, allow_stdin=False)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert reply["content"]["status"] == "ok", reply
    kinds = [message["msg_type"] for message in shown]
    # One bar, which is redrawn.
    assert kinds[0] == "display_data"
    assert set(kinds[1:]) == {"update_display_data"}
    assert len({message["content"]["transient"]["display_id"] for message in shown}) == 1
    last = shown[-1]["content"]["data"]
    assert '<progress value="1.000"' in last["text/html"]
    assert "100% 16.0 MiB of 16.0 MiB, 16 of 16 tensors" in last["text/html"]
    # Text for environments without HTML.
    assert last["text/plain"].startswith("tload: 100% 16.0 MiB of 16.0 MiB, 16 of 16 tensors")


class Tqdm:
    """Stand-in for tqdm's bar."""

    def __init__(self, **arguments: Any) -> None:
        self.total, self.bar_format = arguments["total"], arguments["bar_format"]
        self.n = 0

    def update(self, more: int) -> None:
        self.n += more


class Speed:
    """Stand-in for the speed of the last seconds."""

    def __init__(self) -> None:
        self.observed: list[tuple[int, int]] = []

    def observe(self, done: int, total: int) -> list[str]:
        self.observed.append((done, total))
        return ["0.15 GB/s", "eta 12s"]


def test_bars_show_what_has_arrived_before_a_tensor_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds: list[Speed] = []

    def make() -> Speed:
        speeds.append(Speed())
        return speeds[-1]

    monkeypatch.setattr(tload._tload, "RecentSpeed", make)
    early = tload.Progress(
        tensors_total=40, tensors_received=1, bytes_total=40 * MIB, bytes_received=MIB, bytes_read=20 * MIB
    )
    bar = progress.BarWatcher(Tqdm, 40 * MIB)
    bar.update(early)
    assert bar._bar.n == 20 * MIB
    assert bar._bar.bar_format == "{l_bar}{bar}| 20.0 MiB/40.0 MiB 1/40 tensors 0.15 GB/s eta 12s"
    drawn: list[Any] = []
    progress.NotebookWatcher(lambda each, **_: drawn.append(each)).update(early)
    assert repr(drawn[0]) == "tload:  50% 20.0 MiB of 40.0 MiB, 1 of 40 tensors, 0.15 GB/s, eta 12s"
    assert '<progress value="0.500"' in drawn[0]._repr_html_()
    assert [speed.observed for speed in speeds] == [[(20 * MIB, 40 * MIB)]] * 2


def test_no_bar_is_drawn_in_shells_without_a_terminal(megabytes: Path) -> None:
    """IPython alone is not a notebook."""
    require("IPython")
    script = (
        "from IPython.core.interactiveshell import InteractiveShell; InteractiveShell.instance();"
        f"import tload; tload.load({str(megabytes)!r}, framework='dlpack', progress=True)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert done.stdout == done.stderr == b""


def drawn_by(arguments: list[str], columns: int) -> bytes:
    """Return all that a program writes to a terminal with 24 lines."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    try:
        process = subprocess.Popen(
            [sys.executable, *arguments], stdout=theirs, stderr=theirs, env={**environment, "TERM": "xterm"}
        )
        os.close(theirs)
        drawn = b""
        while True:
            try:
                read = os.read(ours, 4096)
            except OSError:  # the terminal's other end is closed
                break
            if not read:
                break
            drawn += read
        assert process.wait() == 0
    finally:
        os.close(ours)
    return drawn


def ticks(drawn: bytes) -> list[str]:
    """Return the lines drawn, one above the other, without codes of the terminal."""
    assert not re.search(rb"\x1b\[\d*A", drawn), "the bar takes more than one line"
    return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]+", drawn.decode())]


@pytest.mark.parametrize("columns", [80, 40])
@pytest.mark.parametrize("with_tqdm", [True, False])
def test_a_bar_is_drawn_on_terminals(with_tqdm: bool, columns: int, megabytes: Path) -> None:  # noqa: FBT001
    if with_tqdm:
        require("tqdm")
    without = "" if with_tqdm else "sys.modules['tqdm'] = sys.modules['tqdm.auto'] = None;"
    script = f"import sys; {without} import tload; tload.load({str(megabytes)!r}, framework='dlpack', progress=True)"
    drawn = drawn_by(["-c", script], columns)
    assert b"tload" in drawn
    assert b"100%" in drawn
    assert b"GB/s" not in drawn
    assert drawn.endswith(b"\n")
    assert max(map(len, ticks(drawn))) <= columns


@pytest.mark.parametrize("columns", [80, 40, 15])
@pytest.mark.parametrize("command", ["load", "cp", "verify"])
def test_the_command_draws_a_bar_of_one_line(command: str, columns: int, megabytes: Path, tmp_path: Path) -> None:
    if command == "verify":
        tload.verify(megabytes, write=True)
    arguments = [str(tmp_path / "copy")] if command == "cp" else []
    drawn = drawn_by(["-m", "tload", command, str(megabytes), *arguments], columns)
    message = {"load": "loading ", "cp": "copying ", "verify": "verifying "}[command]
    bars = [line for line in ticks(drawn) if line.startswith(message)]
    assert bars, drawn
    # indicatif clears the rest of the line with spaces.
    assert max(len(line.rstrip()) for line in bars) < columns
    assert max(map(len, bars)) <= columns
    first = bars[0]
    assert "eta" not in first
    assert "/s" not in first


@pytest.mark.parametrize("flag", ["--quiet", "--no-progress", "--verbose"])
def test_flags_leave_out_the_bar(flag: str, megabytes: Path) -> None:
    drawn = drawn_by(["-m", "tload", "load", str(megabytes), flag], 80)
    assert b"loading" not in drawn
    assert b"16 tensors, 16.0 MiB in " in drawn
