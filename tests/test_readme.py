"""The README's Python runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from conftest import require
from files import Content, write_checkpoint

README = Path(__file__).parent.parent / "README.md"


def test_every_example_runs(tmp_path: Path) -> None:
    for module in ("torch", "numpy", "ml_dtypes"):
        require(module)
    folder = tmp_path / "model_dir"
    folder.mkdir()
    layers = [
        {
            f"model.layers.{layer}.{name}": Content.random("BF16", (8, 16), layer)
            for name in ("up.weight", "down.weight")
        }
        for layer in range(2)
    ]
    write_checkpoint(folder, [*layers, {"lm_head.weight": Content.random("F32", (3, 5), 0)}])
    examples = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    assert examples
    for example in examples:
        done = subprocess.run(
            [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
