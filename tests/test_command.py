"""The command, as the wheel installs it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import tload
from files import Content
from tload._options import load_options

Floats = tuple[Path, dict[str, Content]]

SCRIPT = [str(Path(sysconfig.get_path("scripts")) / "tload")]
MODULE = [sys.executable, "-m", "tload"]


def run(command: list[str], *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, check=False, timeout=300, env=environment
    )


@pytest.mark.parametrize("command", [SCRIPT, MODULE])
def test_script_and_module_run_same_command(command: list[str], floats: Floats) -> None:
    done = run(command, "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"tload {tload.__version__}\n"
    done = run(command, "ls", str(floats[0]))
    assert done.returncode == 0, done.stderr
    assert "layer.3.weight" in done.stdout
    done = run(command, "--help")
    assert done.returncode == 0
    assert "Usage: tload" in done.stdout


def test_second_name_runs_same_command() -> None:
    alias = [str(Path(sysconfig.get_path("scripts")) / "tensorload")]
    assert run(alias, "--version").stdout == f"tload {tload.__version__}\n"
    done = run(alias, "ls", "--bogus")
    assert done.returncode == 2
    assert "Usage: tensorload ls" in done.stderr


def test_doctor_reports_other_program_named_tload(tmp_path: Path) -> None:
    other, script = tmp_path / "other" / "tload", tmp_path / "venv" / "tload"
    for program, text in ((other, "another program"), (script, "#!/x/python\nfrom tload.__main__ import main\n")):
        program.parent.mkdir()
        program.write_text(text)
        program.chmod(0o755)

    def look(*programs: Path) -> dict[str, str]:
        path = os.pathsep.join(str(program.parent) for program in programs)
        findings = json.loads(run(MODULE, "doctor", "--json", PATH=path).stdout)["findings"]
        return next(finding for finding in findings if finding["id"] == "program")

    found = look(other, script)
    assert found["level"] == "warn"
    assert found["value"] == f"{other} comes before {script} on PATH"
    assert "python -m tload" in found["advice"]
    assert look(other)["value"] == f"{other} is on PATH, and this tload is not"
    assert look(script, other)["level"] == "ok"


def test_ls_agrees_with_open(floats: Floats) -> None:
    listing = json.loads(run(SCRIPT, "ls", str(floats[0]), "--json").stdout)
    assert {tensor["name"] for tensor in listing["tensors"]} == set(tload.open(floats[0]))


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        *((variable, "") for variable in load_options.VARIABLES.values()),
        ("TLOAD_ENGINE", "pread"),
        ("TLOAD_CACHE", "buffered"),
        ("TLOAD_CACHE", "map"),
        ("TLOAD_DEPTH", "3"),
        ("TLOAD_LANES", "+2"),
        ("TLOAD_IN_FLIGHT", "2 MiB"),
        ("TLOAD_EXTENT", "65536"),
        ("TLOAD_MEMORY_LIMIT", "1.5 MB"),
        ("TLOAD_TIMEOUT", "1e1"),
        ("TLOAD_TIMEOUT", "500ms"),
        ("TLOAD_RETRIES", "0"),
        ("TLOAD_HEDGE", "false"),
        ("TLOAD_STORE", "region=eu-west-1\nretries=0"),
        ("TLOAD_FOLLOW_SYMLINKS", "yes"),
    ],
)
def test_variables_apply_equally_to_command_and_python(
    variable: str, text: str, floats: Floats, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(SCRIPT, "load", str(floats[0]), "--json", **{variable: text})
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)["report"]
    monkeypatch.setenv(variable, text)
    stream = tload.stream(floats[0], framework="dlpack")
    list(stream)
    report = stream.report.to_dict()
    assert told["engine"]["requested"] == report["engine"]["requested"]
    numbers = ("depth", "lanes", "in_flight_bytes", "extent_bytes", "memory_limit", "direct_bytes", "mapped_bytes")
    settings = ("outcome", *numbers)
    assert {name: told[name] for name in settings} == {name: report[name] for name in settings}


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("TLOAD_ENGINE", "bogus"),
        ("TLOAD_CACHE", "bogus"),
        ("TLOAD_ORDER", "bogus"),
        ("TLOAD_DEPTH", "x"),
        ("TLOAD_DEPTH", "0"),
        ("TLOAD_DEPTH", "1_0"),
        ("TLOAD_LANES", "-1"),
        ("TLOAD_MEMORY_LIMIT", "4 XB"),
        ("TLOAD_EXTENT", "5"),
        ("TLOAD_TIMEOUT", "soon"),
        ("TLOAD_TIMEOUT", "0"),
        ("TLOAD_TIMEOUT", "nan"),
        ("TLOAD_RETRIES", "-1"),
        ("TLOAD_RETRIES", "often"),
        ("TLOAD_HEDGE", "maybe"),
        ("TLOAD_STORE", "region"),
        ("TLOAD_STORE", "retries=0\nregoin=eu-west-1"),
        ("TLOAD_FOLLOW_SYMLINKS", "perhaps"),
    ],
)
def test_invalid_variable_rejected_by_command_and_python(
    variable: str, text: str, floats: Floats, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(SCRIPT, "load", str(floats[0]), **{variable: text})
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    monkeypatch.setenv(variable, text)
    with pytest.raises(tload.InvalidRequestError, match=variable):
        tload.stream(floats[0], framework="dlpack")


def test_errors_go_to_standard_error_with_a_status() -> None:
    done = run(SCRIPT, "ls", "/nothing/here")
    assert done.returncode == 3
    assert done.stdout == ""
    assert "/nothing/here" in done.stderr
    assert "Traceback" not in done.stderr
    assert run(SCRIPT, "no-such-command").returncode == 2


def test_closed_stdout_exits_cleanly(floats: Floats) -> None:
    done = subprocess.run(
        f"{SCRIPT[0]} ls {floats[0]} | head -n 1", shell=True, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_command_without_leftovers(number: signal.Signals, tmp_path: Path) -> None:
    size = min(16 << 30, shutil.disk_usage(tmp_path).free // 2)  # seconds of writing
    for index in range(5):
        folder = tmp_path / f"checkpoint{index}"
        command = [*SCRIPT, "synth", str(folder), "--size", str(size)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            # It has begun to write: its handlers are in place.
            while not folder.exists() or not any(folder.rglob("*")):
                assert child.poll() is None, child.communicate()
            child.send_signal(number)
            _, stderr = child.communicate(timeout=300)
        if child.returncode != 0:
            break
        shutil.rmtree(folder)  # It was over before the signal.
    assert child.returncode == 128 + number, stderr
    assert "Traceback" not in stderr
    assert not folder.exists() or not any(folder.rglob("*.safetensors"))


def test_bench_compares_with_loaders_of_the_same_python(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    bench = ["bench", "--preset", "tiny", "--size", "1MiB", "--rounds", "1", "--no-fio", "--cache-state", "warm"]
    against = "safetensors,tload-python,tensorizer"
    # No Python is on PATH.
    done = run(MODULE, *bench, "--against", against, "--dir", str(tmp_path), "--json", str(file), PATH="")
    assert done.returncode == 0, done.stderr
    results = json.loads(file.read_text())
    assert results["against"]["program"] == sys.executable
    [cell] = results["cells"]
    assert cell["failures"] == []
    contenders = {summary["contender"]: summary for summary in cell["summaries"]}
    assert set(contenders) == {"tload", "ceiling", "safetensors", "tload-python"}
    for name in ("safetensors", "tload-python"):
        assert contenders[name]["tload_ratio"]["median"] > 0
        assert f"times as fast as {name}" in done.stdout
    install = f"{sys.executable} -m pip install tensorizer"
    assert f"tensorizer needs tensorizer, which this Python lacks: {install}" in done.stderr


def test_loads_in_python_stop_what_is_read_ahead_for_them(floats: Floats) -> None:
    """The script stands for an engine: it is this process, has its status, and loads once something is read."""
    script = """
import os, sys, tload
name = os.environ["TLOAD_PREFETCH"]
try:
    [*tload.stream(sys.argv[1], framework="dlpack")]
finally:
    print(os.getpid(), name, flush=True)
sys.exit(9)
"""
    command = [*MODULE, "exec", "--prefetch", str(floats[0]), "--", sys.executable, "-c", script, str(floats[0])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        out, _ = process.communicate(timeout=300)
    assert process.returncode == 9
    number, name = out.split()
    assert int(number) == process.pid
    assert name.startswith("tload-prefetch-")


def test_load_tells_the_reader(monkeypatch: pytest.MonkeyPatch, floats: Floats) -> None:
    name = f"tload-prefetch-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind("\0" + name)
        listener.listen()
        listener.settimeout(0)
        monkeypatch.setenv("TLOAD_PREFETCH", name)
        tload.open(floats[0])
        with pytest.raises(BlockingIOError):
            listener.accept()  # opening is not yet a load
        tload.load(floats[0], framework="dlpack")
        listener.accept()[0].close()
    tload.load(floats[0], framework="dlpack")  # it has ended
