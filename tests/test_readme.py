"""The README's Python runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from conftest import require
from files import Content, write_checkpoint, write_file

if TYPE_CHECKING:
    from servers import S3

README = Path(__file__).parent.parent / "README.md"


def examples(*, remote: bool) -> list[str]:
    found = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    chosen = [example for example in found if ("s3://" in example) == remote]
    assert chosen
    return chosen


def model_dir(folder: Path) -> Path:
    for module in ("torch", "numpy", "ml_dtypes"):
        require(module)
    path = folder / "model_dir"
    path.mkdir()
    layers = [
        {
            f"model.layers.{layer}.{name}": Content.random("BF16", (8, 16), layer)
            for name in ("up.weight", "down.weight")
        }
        for layer in range(2)
    ]
    write_checkpoint(path, [*layers, {"lm_head.weight": Content.random("F32", (3, 5), 0)}])
    return path


def run(example: str, folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_every_example_runs(tmp_path: Path) -> None:
    model_dir(tmp_path)
    for example in examples(remote=False):
        run(example, tmp_path, {})


def test_every_example_with_a_bucket_runs(tmp_path: Path, s3: S3) -> None:
    path = model_dir(tmp_path)
    s3.put_folder("bucket", "model", path)
    for name in "ab":
        write_file(path / f"{name}.safetensors", {name: Content.random("F32", (4,), 0)})
    s3.put("bucket", "b.safetensors", (path / "b.safetensors").read_bytes())
    environment = {
        "AWS_ENDPOINT_URL": s3.store["endpoint"],
        "AWS_ACCESS_KEY_ID": s3.store["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": s3.store["secret_access_key"],
        "AWS_REGION": "us-east-1",
    }
    for example in examples(remote=True):
        run(example, tmp_path, environment)
