"""Secrets are planted everywhere and shown nowhere; the search of the suite finds a secret that is
shown."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import traceback
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import secrecy
import tload
from servers import ROOT, unused_port

if TYPE_CHECKING:
    from pathlib import Path

    from servers import Web

SECRET = "hunter2"
KEY = "-----BEGIN PRIVATE KEY-----\\nhunter2\\n-----END PRIVATE KEY-----"

VARIABLES = {
    "AWS_ACCESS_KEY_ID": "AKIAhunter2",
    "AWS_SECRET_ACCESS_KEY": "hunter2secret",
    "AWS_SESSION_TOKEN": "hunter2token",
    "AZURE_STORAGE_ACCOUNT_NAME": "account",
    "AZURE_STORAGE_ACCOUNT_KEY": "aHVudGVyMmh1bnRlcjI=",
    "GOOGLE_SERVICE_ACCOUNT_KEY": f'{{"type": "service_account", "private_key": "{KEY}", "client_email": "a@b"}}',
    "HF_TOKEN": "hf_hunter2",
}

SIGNED = {
    "S3": "X-Amz-Credential=AKIAhunter2&X-Amz-Security-Token=hunter2&X-Amz-Signature=hunter2",
    "Azure": "sv=2024-01-01&se=2027-01-01&sig=hunter2",
    "GCS": "X-Goog-Credential=hunter2&X-Goog-Signature=hunter2",
    "CloudFront": "Policy=hunter2&Signature=hunter2&Key-Pair-Id=hunter2",
    "others": "token=hunter2&api_key=hunter2#access_token=hunter2",
}


def everything(error: BaseException) -> str:
    """Return all texts that can be shown of an error."""
    lines = traceback.format_exception(error)
    # A traceback shows lines of this file, too.
    texts = [line for line in lines if not line.lstrip().startswith("File ")]
    return "".join([*texts, repr(error), str(error), repr(vars(error)), repr(pickle.loads(pickle.dumps(error)))])


@pytest.mark.parametrize("kind", SIGNED)
def test_no_kind_of_signed_url_is_shown(kind: str, web: Web, tmp_path: Path) -> None:
    url = f"http://user:hunter2@127.0.0.1:{web.port}/none.safetensors?{SIGNED[kind]}"
    calls: list[Any] = [tload.open, tload.load, tload.stream, lambda url: tload.copy(url, tmp_path)]
    for call in calls:
        with pytest.raises(tload.Error) as caught:
            call(url)
        assert SECRET not in everything(caught.value)
    assert any(SECRET in request.path for request in web.requests), "but the server receives it"


@pytest.mark.parametrize(
    "url", ["s3://bucket/model", "gs://bucket/model", "az://bucket/model", "hf://org/model", "oci://localhost/a"]
)
def test_secrets_of_the_environment_are_not_shown(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    closed_port = f"http://127.0.0.1:{unused_port()}"
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    stores: list[dict[str, Any]] = [
        {"endpoint": closed_port},
        {"endpoint": closed_port, "proxy": f"http://user:hunter2@127.0.0.1:{unused_port()}"},
        {"endpoint": closed_port, "headers": {"Authorization": "Bearer hunter2"}},
    ]
    for store in stores:
        with pytest.raises(tload.Error) as caught:
            tload.open(url, store=store | {"retries": 0, "open_timeout": 20})
        assert SECRET not in everything(caught.value)


def run(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_uncaught_error_and_debug_log_hide_secrets(web: Web) -> None:
    url = f"http://user:hunter2@127.0.0.1:{web.port}/none.safetensors?sig=hunter2"
    script = "import os, logging; logging.basicConfig(level=1); import tload; tload.load(os.environ['URL'])"
    done = run(script, URL=url, TLOAD_LOG="debug", RUST_BACKTRACE="1", **VARIABLES)
    assert done.returncode == 1
    assert "NotFoundError" in done.stderr
    assert SECRET not in done.stderr + done.stdout


PROGRAM = """
import logging, subprocess, sys, warnings
import pytest
import tload

SECRET = "hun" + "ter2"

def test_nothing(): ...
def test_printed(): print("a " + SECRET)
def test_logged(): logging.getLogger("any").error("b %s", SECRET)
def test_read(capsys):
    print("c " + SECRET)
    capsys.readouterr()
def test_raised():
    with pytest.raises(tload.Error):
        raise tload.FormatError("d", hint=SECRET)
def test_started(): subprocess.run([sys.executable, "-c", f"print('e {SECRET}')"], capture_output=True)
@pytest.mark.filterwarnings("default")
def test_warned(): warnings.warn("f " + SECRET)
"""


@pytest.mark.parametrize("test", ["printed", "logged", "read", "raised", "started", "warned", "nothing"])
@pytest.mark.parametrize("processes", [0, 1])
def test_suite_search_finds_shown_secret(test: str, processes: int, tmp_path: Path) -> None:
    (tmp_path / "test_program.py").write_text(PROGRAM)
    (tmp_path / "conftest.py").write_text("import secrecy\ndef pytest_configure(config): secrecy.search(config)\n")
    program = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", f"test_{test}", str(tmp_path)]
    program += ["--numprocesses", str(processes)]
    paths = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    # Not through a function that is searched itself.
    output = tmp_path / "output"
    with output.open("wb") as file:
        status = subprocess.call(
            program, env=os.environ | {"PYTHONPATH": paths}, stdout=file, stderr=file, cwd=tmp_path
        )
    text = output.read_text()
    assert "1 passed" in text
    assert SECRET not in text.partition("secrets shown")[2]
    if test == "nothing":
        assert status == 0
        assert "no secret in" in text
    else:
        assert status == 1, text
        assert f"test_program.py::test_{test}: " in text


def test_rust_tests_are_searched_too(tmp_path: Path) -> None:
    tool = ROOT / "tools" / "no-secrets"
    output = tmp_path / "output"

    def searched(script: str) -> tuple[int, str]:
        with output.open("wb") as file:
            status = subprocess.call([tool, "sh", "-c", script], stdout=file, stderr=file)
        return status, output.read_text()

    assert searched("echo fine; exit 0") == (0, "fine\n")
    assert searched("echo fails >&2; exit 3") == (3, "fails\n")
    status, text = searched("echo the secret is hun''ter2 >&2")
    assert status == 1
    assert text.endswith("in these lines:\n1:the secret is (secret)\n")


def test_this_session_is_searched(pytestconfig: pytest.Config) -> None:
    search = secrecy.of_session(pytestconfig)
    before = search.searched
    with pytest.raises(tload.NotFoundError):
        tload.open("/nothing/here")
    logging.getLogger("tload").warning("searched at the end of the test")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("seen", stacklevel=1)
    assert search.searched > before
    assert secrecy.leaks("a hunter" + "2 b") == ["a "]
