"""Copies of a checkpoint to an S3 store: `tload cp` beside `aws s3 cp`, and `s5cmd` if it is installed.

    python benches/compare/upload.py --size 1GiB --rounds 5 --versitygw .tools/bin/versitygw

The store is a versitygw on this machine, over a directory of its disk. Contenders run by turns, each to a prefix of its
own, which is compared in length and removed. Prints a JSON document.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "benchbench", "AWS_REGION": "us-east-1"}


@contextlib.contextmanager
def store(program: str, folder: Path) -> Iterator[str]:
    """Yield the endpoint of a store with the bucket `models`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for name in ("objects/models", "sidecar"):
        (folder / name).mkdir(parents=True)
    command = [program, "--access", SECRET["AWS_ACCESS_KEY_ID"], "--secret", SECRET["AWS_SECRET_ACCESS_KEY"]]
    command += ["--port", f"127.0.0.1:{port}", "posix", "--sidecar", str(folder / "sidecar"), str(folder / "objects")]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            while True:
                with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)):
                    break
                if server.poll() is not None:
                    raise SystemExit((folder / "log").read_text())
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait()


def commands(tload: str, model: Path, endpoint: str) -> dict[str, list[str]]:
    """Return the command of each contender, without its target."""
    found = {"tload": [tload, "cp", str(model), "--target-store", f"endpoint={endpoint}"]}
    if shutil.which("aws"):
        found["aws"] = ["aws", "s3", "cp", "--quiet", "--recursive", "--endpoint-url", endpoint, str(model)]
    if shutil.which("s5cmd"):
        found["s5cmd"] = ["s5cmd", "--endpoint-url", endpoint, "cp", f"{model}/"]
    return found


def measured(name: str, turn: int, command: list[str], objects: Path, total: int) -> dict[str, float]:
    # The server keeps what it knows of objects that were removed without it.
    prefix = f"{name}-{turn}"
    os.sync()
    before, began = os.times(), time.perf_counter()
    target = f"s3://models/{prefix}" + ("" if name == "tload" else "/")
    subprocess.run([*command, target], check=True, env=os.environ | SECRET, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - began, os.times()
    found = sum(file.stat().st_size for file in (objects / prefix).glob("model*"))
    if found != total:
        raise SystemExit(f"{name} stored {found} of {total} bytes")
    shutil.rmtree(objects / prefix)
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"seconds": seconds, "cpu_seconds": cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="1GiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--tload", default="tload", help="the command")
    parser.add_argument("--versitygw", default="versitygw", help="the server")
    arguments = parser.parse_args()
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        model = folder / "model"
        subprocess.run(
            [arguments.tload, "synth", str(model), "--size", arguments.size], check=True, capture_output=True
        )
        total = sum(file.stat().st_size for file in model.glob("model*"))
        with store(arguments.versitygw, folder) as endpoint:
            contenders = commands(arguments.tload, model, endpoint)
            objects = folder / "objects/models"
            for turn in range(arguments.rounds):
                names = list(contenders)
                names = names[turn % len(names) :] + names[: turn % len(names)]
                rounds.append({it: measured(it, turn, contenders[it], objects, total) for it in names})
    ratios = {
        name: statistics.median(turn[name]["seconds"] / turn["tload"]["seconds"] for turn in rounds)
        for name in contenders
        if name != "tload"
    }
    medians = {name: statistics.median(turn[name]["seconds"] for turn in rounds) for name in contenders}
    print(json.dumps({"bytes": total, "rounds": rounds, "median_seconds": medians, "speed_ratios": ratios}, indent=2))


if __name__ == "__main__":
    main()
