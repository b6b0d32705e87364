"""Share of a read that `tload exec --prefetch` hides behind a start that takes as long as imports do.

    python benches/ready/hidden.py --tload target/release/tload --size 1GiB --start 12 --rounds 3

Runs, by turns and each with an empty cache, a program that sleeps and then loads from a store that sends 100 MB/s in
all: as it is, and under `tload exec`. Hidden is the share of the load's seconds that are gone; `delay` is how much
later the program itself was running.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from throttle import throttled

sys.path.append(str(Path(__file__).parents[2] / "tests"))
import servers

GOAL = 0.7
PROGRAM = """
import json, subprocess, sys, time
began = time.time()
time.sleep(float(sys.argv[1]))
loading = time.time()
done = subprocess.run(sys.argv[2:], stdout=subprocess.PIPE, check=True)
report = json.loads(done.stdout)["report"]
print(json.dumps({
    "began": began, "load_seconds": time.time() - loading,
    **{key: report[key] for key in ("tensor_bytes", "remote_bytes", "cached_bytes")},
}))
"""


def run(tload: str, url: str, cache: Path, start: float, environment: dict[str, str], *, ahead: bool) -> dict[str, Any]:
    shutil.rmtree(cache, ignore_errors=True)
    load = [tload, "load", url, "--json", "--cache-dir", str(cache)]
    command = [sys.executable, "-c", PROGRAM, str(start), *load]
    if ahead:
        command = [tload, "exec", "--prefetch", url, "--cache-dir", str(cache), "--", *command]
    started = time.time()
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    found["begin_seconds"] = found.pop("began") - started
    found["told"] = done.stderr.strip()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tload", default="target/release/tload")
    parser.add_argument("--size", default="1GiB")
    parser.add_argument("--rate", type=float, default=100e6, help="bytes per second of all connections")
    parser.add_argument("--start", type=float, nargs="+", default=[12.0], help="seconds that the program sleeps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    program = servers.find("versitygw") or sys.exit("versitygw is missing: make servers")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as name:
        folder = Path(name)
        (folder / "server").mkdir()
        subprocess.run(
            [options.tload, "-q", "synth", str(folder / "model"), "--size", options.size, "--shards", "4"], check=True
        )
        with (
            servers.versitygw(program, folder / "server") as s3,
            throttled(s3.port, options.rate) as port,
        ):
            url = s3.put_folder("models", "model", folder / "model")
            shutil.rmtree(folder / "model")
            environment = {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
                "AWS_ACCESS_KEY_ID": s3.access_key_id,
                "AWS_SECRET_ACCESS_KEY": s3.secret_access_key,
                "AWS_REGION": servers.REGION,
                "AWS_EC2_METADATA_DISABLED": "true",
                "TLOAD_CONFIG": "",
            }
            for start in options.start:
                for _ in range(options.rounds):
                    for ahead in (False, True):
                        row = run(options.tload, url, folder / "cache", start, environment, ahead=ahead)
                        rows.append({"start_seconds": start, "ahead": ahead} | row)
                        print(json.dumps(rows[-1]), flush=True)
    for start in options.start:
        plain, ahead = (
            [row for row in rows if (row["start_seconds"], row["ahead"]) == (start, which)] for which in (False, True)
        )
        seconds = [statistics.median(row["load_seconds"] for row in each) for each in (plain, ahead)]
        delay = statistics.median(row["begin_seconds"] for row in ahead) - statistics.median(
            row["begin_seconds"] for row in plain
        )
        # A start this long hides no more.
        most = min(seconds[0], start)
        share = (seconds[0] - seconds[1]) / most
        print(
            f"start {start:g} s: load {seconds[0]:.2f} s, with exec {seconds[1]:.2f} s: hides {share:.2f} of "
            f"{most:.2f} s (wanted {GOAL}); the program began {delay * 1000:+.0f} ms later"
        )
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
