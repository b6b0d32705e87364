"""tload beside other loaders and raw downloads, from one object store, in rotating order.

    python benches/compare/objects.py s3://models/llama4 --files shard1 shard2 … --rounds 5 --markdown results.md

The environment configures the store (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, …). `--tensorizer URL`
names the same checkpoint in Tensorizer's format (`loaders/make_tensorizer.py`). `--python` is an
interpreter that has the peers; `--tload` is the command. Loaders keep all tensors to the end, in
CPU memory that was touched before the clock started (`loaders/measure.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import processes
import tables

LOADERS = Path(__file__).parent / "loaders"
RANGE = 16 << 20
#: Timeout of each run, seconds.
RUN_SECONDS_MAX = 600.0


@dataclass
class Contender:
    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    #: Prints its own figures as JSON; otherwise wall time and CPU time of the process are used.
    reports: bool = True
    samples: list[dict[str, Any]] = field(default_factory=list)

    def run(self, total: int) -> None:
        sample = processes.run(self.command, os.environ | self.environment, RUN_SECONDS_MAX, reports=self.reports)
        if "error" in sample:
            raise SystemExit(f"{self.name}: {sample['error']}")
        if not self.reports:
            usage = Path(self.environment["USAGE"]).read_text().split()
            seconds = sample["wall_seconds"]
            sample = {"seconds": seconds, "cpu_seconds": float(usage[0]) + float(usage[1]), "bytes": total}
        if sample["bytes"] != total:
            raise SystemExit(f"{self.name}: {sample['bytes']} of {total} bytes")
        self.samples.append(sample)

    def median(self, key: str) -> float:
        return statistics.median(sample[key] for sample in self.samples)


def curl(files: list[str], sizes: list[int], connections: int, folder: str) -> Contender:
    """Return a contender that sends signed ranged requests of 16 MiB and discards the bodies."""
    endpoint, region = os.environ["AWS_ENDPOINT_URL"], os.environ.get("AWS_REGION", "us-east-1")
    user = f"{os.environ['AWS_ACCESS_KEY_ID']}:{os.environ['AWS_SECRET_ACCESS_KEY']}"
    transfers = [
        f'url = "{endpoint}/{file.removeprefix("s3://")}"\nrange = "{first}-{min(first + RANGE, size) - 1}"\n'
        f'output = "/dev/null"\naws-sigv4 = "aws:amz:{region}:s3"\nuser = "{user}"\n'
        'header = "x-amz-content-sha256: UNSIGNED-PAYLOAD"\nsilent\nfail\n'
        for file, size in zip(files, sizes, strict=True)
        for first in range(0, size, RANGE)
    ]
    config = Path(folder) / f"curl{connections}"
    config.write_text("next\n".join(transfers))
    usage = str(Path(folder) / f"usage{connections}")
    program = f"curl --no-progress-meter --parallel --parallel-immediate --parallel-max {connections} --config {config}"
    return Contender(
        f"curl --parallel-max {connections}",
        ["bash", "-c", f"TIMEFORMAT='%U %S'; {{ time {program} >/dev/null; }} 2> {usage}"],
        {"USAGE": usage},
        reports=False,
    )


def table(contenders: list[Contender], ours: Contender) -> str:
    rows = []
    for contender in contenders:
        times = [sample["seconds"] for sample in contender.samples]
        ratio = statistics.median(
            theirs / sample["seconds"] for theirs, sample in zip(times, ours.samples, strict=True)
        )
        gib = contender.samples[0]["bytes"] / tables.GIB
        rows.append(
            [
                contender.name,
                f"{contender.median('seconds'):.2f}",
                f"{min(times):.2f}–{max(times):.2f}",
                f"{contender.median('cpu_seconds') / gib:.2f}",
                tables.gib(contender.median("peak_rss_bytes") if contender.reports else None),
                f"{ratio:.2f} ×",
            ]
        )
    return tables.table(("contender", "seconds", "min–max", "CPU s per GiB", "peak RSS", "tload is"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("location")
    parser.add_argument("--files", nargs="+", required=True, help="URLs of the shards, for Run:ai and curl")
    parser.add_argument("--tensorizer", help="URL of the same tensors in Tensorizer's format")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--tload", default="tload")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runai", type=int, nargs="*", default=[4, 8, 16, 32, 64])
    parser.add_argument("--readers", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    parser.add_argument("--curl", type=int, nargs="*", default=[8, 16])
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()

    listed = subprocess.run([args.tload, "ls", args.location, "--json"], capture_output=True, text=True, check=True)
    found = json.loads(listed.stdout)
    total, sizes = found["total"]["bytes"], [shard["file_bytes"] for shard in found["shards"]]
    loader = [args.python, "-W", "ignore"]
    ours = Contender("tload, defaults", [*loader, str(LOADERS / "load_tload.py"), args.location])
    contenders = [ours]
    for concurrency in args.runai:
        environment = {
            "RUNAI_STREAMER_CONCURRENCY": str(concurrency),
            "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        command = [*loader, str(LOADERS / "load_runai.py"), *args.files]
        contenders.append(Contender(f"Run:ai, concurrency {concurrency}", command, environment))
    for readers in args.readers if args.tensorizer else []:
        options = json.dumps({"num_readers": readers})
        command = [*loader, str(LOADERS / "load_tensorizer.py"), args.tensorizer, "--options", options]
        contenders.append(Contender(f"Tensorizer, {readers} readers", command))
    with tempfile.TemporaryDirectory() as folder:
        contenders += [curl(args.files, sizes, connections, folder) for connections in args.curl]
        for turn in range(args.rounds):
            for index in range(len(contenders)):
                contenders[(index + turn) % len(contenders)].run(total)
            print(f"round {turn + 1} of {args.rounds}", file=sys.stderr)
    text = table(contenders, ours)
    print(text)
    if args.markdown:
        args.markdown.write_text(text)


if __name__ == "__main__":
    main()
