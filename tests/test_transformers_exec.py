"""Programs of transformers under `tload exec --prefetch`, which need no change for it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import models
from conftest import require
from resident import evict

# Loads when all has been read ahead, as after imports that take long.
PROGRAM = """
import sys
import time
from pathlib import Path

import transformers
from resident import resident_bytes

folder, loader, out = sys.argv[1:]
files = sorted(Path(folder).glob("*.safetensors"))
while any(resident_bytes(file) < file.stat().st_size / 2 for file in files):
    time.sleep(0.01)
if loader == "tload":
    from tload.transformers import from_pretrained

    model = from_pretrained(transformers.AutoModelForCausalLM, folder)
else:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
model.save_pretrained(out)
sys.exit(9)
"""


@pytest.fixture(scope="module", autouse=True)
def _packages() -> None:
    for name in ("torch", "transformers", "accelerate"):
        require(name)


@pytest.mark.parametrize("loader", ["transformers", "tload"])
def test_files_are_in_the_page_cache_when_transformers_loads(
    loader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    model = models.dense()
    folder = models.save(model, tmp_path / "model")
    files = sorted(folder.glob("*.safetensors"))
    for file in files:
        evict(file)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    ahead = [sys.executable, "-m", "tload", "exec", "--prefetch", str(folder), "--"]
    program = [sys.executable, "-c", PROGRAM, str(folder), loader, str(tmp_path / "out")]
    done = subprocess.run([*ahead, *program], capture_output=True, text=True, check=False)
    assert done.returncode == 9, done.stderr
    assert re.search(r"note: tload exec: read .* ahead into the page cache", done.stderr), done.stderr
    models.assert_same(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out"), model)
