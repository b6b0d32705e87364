"""Progress: callbacks, and bars on terminals."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING, Any

import pytest

import tload
import tload._stream
from conftest import require
from files import Content, tile, write_file
from tload import _progress

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


@pytest.fixture
def megabytes(tmp_path: Path) -> Path:
    path = tmp_path / "a.safetensors"
    write_file(path, {f"t{index}": Content("U8", (MIB,), tile(index, MIB)) for index in range(16)})
    return path


def test_callback_sees_increasing_progress_and_end(megabytes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tload._stream, "INTERVAL", 0.0)
    seen: list[tload.Progress] = []
    tload.load(megabytes, framework="dlpack", progress=seen.append)
    assert len(seen) >= 16
    received = [progress.bytes_received for progress in seen]
    assert received == sorted(received)
    last = seen[-1]
    assert (last.tensors_received, last.tensors_total) == (16, 16)
    assert (last.bytes_received, last.bytes_total, last.fraction) == (16 * MIB, 16 * MIB, 1.0)
    assert last.bytes_read >= 16 * MIB


def test_a_callback_is_called_ten_times_a_second_at_most(megabytes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _progress.INTERVAL == 0.1
    # Longer than any load: only the call at the end remains.
    monkeypatch.setattr(tload._stream, "INTERVAL", 3600.0)
    seen: list[tload.Progress] = []
    list(tload.stream(megabytes, framework="dlpack", progress=seen.append))
    assert [progress.fraction for progress in seen] == [1.0]


def test_callback_exception_stops_load(megabytes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tload._stream, "INTERVAL", 0.0)

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
    assert str(progress) == " 25% 1.0 MiB of 4.0 MiB, 10 of 40 tensors"
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
            f"import tload, tload._stream; tload._stream.INTERVAL = 0.0\n"
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
    assert "100% 16.0 MiB of 16.0 MiB, 16 of 16 tensors, " in last["text/html"]
    # Text for environments without HTML.
    assert last["text/plain"].startswith("tload: 100% 16.0 MiB of 16.0 MiB, 16 of 16 tensors, ")


def test_no_bar_is_drawn_in_shells_without_a_terminal(megabytes: Path) -> None:
    """IPython alone is not a notebook."""
    require("IPython")
    script = (
        "from IPython.core.interactiveshell import InteractiveShell; InteractiveShell.instance();"
        f"import tload; tload.load({str(megabytes)!r}, framework='dlpack', progress=True)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert done.stdout == done.stderr == b""


@pytest.mark.parametrize("with_tqdm", [True, False])
def test_a_bar_is_drawn_on_terminals(with_tqdm: bool, megabytes: Path) -> None:  # noqa: FBT001
    if with_tqdm:
        require("tqdm")
    without = "" if with_tqdm else "sys.modules['tqdm'] = sys.modules['tqdm.auto'] = None;"
    script = f"import sys; {without} import tload; tload.load({str(megabytes)!r}, framework='dlpack', progress=True)"
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    try:
        process = subprocess.Popen([sys.executable, "-c", script], stdout=theirs, stderr=theirs)
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
    assert b"tload" in drawn
    assert b"100%" in drawn
    assert drawn.endswith(b"\n")
