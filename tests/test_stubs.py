"""Types: the stub matches the binary, and the package and its users pass mypy --strict."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tload
from conftest import require

TESTS = Path(__file__).parent
ROOT = TESTS.parent


def run(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_and_its_users_are_typed() -> None:
    """Check the package, the tests, and a program that states the types it expects:
    `typed_program.py`."""
    require("mypy")
    require("torch")
    run("mypy")


def test_the_stub_agrees_with_the_binary() -> None:
    require("mypy")
    run("mypy.stubtest", "tload._tload", "--concise", "--mypy-config-file", "tests/stubtest.ini")


def test_everything_public_is_documented() -> None:
    for name in tload.__all__:
        thing = getattr(tload, name)
        if isinstance(thing, str):
            continue
        assert thing.__doc__, name
        if isinstance(thing, type):
            for member, value in vars(thing).items():
                if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                    assert value.__doc__, f"{name}.{member}"
