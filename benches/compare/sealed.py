"""Loads of a sealed checkpoint beside those of the plain one, and of Tensorizer's files beside Tensorizer.

    python benches/compare/sealed.py --size 2GiB --rounds 5 --folder /mnt/disk

Loads from disk and from the page cache, and over HTTP from `tload serve`, as fast as it goes and through a link of 100
MB/s. Each load is a process of its own, by turns, and ratios are taken within a round. Tensorizer takes part if it is
installed. Prints Markdown, then a JSON document with all samples.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from processes import LOADERS, Tools, environment, run, say

sys.path.append(str(Path(__file__).parents[1] / "ready"))
from throttle import throttled

if TYPE_CHECKING:
    from collections.abc import Iterator

LINK = 100e6
"""Bytes per second of the slow link."""

KEY = "5ca1ab1e" * 8
"""Key of Tensorizer's files, in hexadecimal."""


@dataclass(frozen=True)
class Contender:
    """One way to load."""

    place: str
    name: str
    location: str
    script: str = "load_tload.py"
    state: str | None = "warm"
    options: dict[str, Any] = field(default_factory=dict)
    is_sealed: bool = False


@contextlib.contextmanager
def served(tools: Tools, folder: Path) -> Iterator[int]:
    """Yield the port of `tload serve`."""
    command = [*tools.tload, "serve", str(folder), "--listen", "127.0.0.1:0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        url = server.stdout.readline().split(" at ")[1] if server.stdout else ""
        yield int(url.strip().rstrip("/").rsplit(":", 1)[1])
    finally:
        server.terminate()
        server.wait()


def made(tools: Tools, folder: Path, size: str) -> list[Contender]:
    """Write the checkpoints, and return the ways to load them from disk and page cache."""
    key = folder / "key.json"
    plain, sealed = folder / "plain", folder / "sealed"
    subprocess.run([*tools.tload, "synth", str(plain), "--size", size], check=True, capture_output=True)
    subprocess.run([*tools.tload, "seal", str(plain), str(sealed), "--new-key-file", str(key)], check=True)
    found = []
    for place, state in (("disk", "cold"), ("page cache", "warm")):
        found += [
            Contender(place, "plain", str(plain), state=state),
            Contender(place, "sealed", str(sealed), state=state, is_sealed=True),
        ]
    for name, options in (("tensorizer", {}), ("tensorizer, encrypted", {"key": KEY})):
        file = folder / f"{name}.tensors"
        command = [tools.python, "-W", "ignore", str(LOADERS / "make_tensorizer.py"), str(plain), str(file)]
        command += options.values()
        made = subprocess.run(command, env=environment(tools, {}), capture_output=True, text=True, check=False)
        if made.returncode:
            say(f"{name} is left out: {made.stderr.strip().splitlines()[-1:]}")
            continue
        for place, state in (("disk", "cold"), ("page cache", "warm")):
            found.append(Contender(place, name, str(file), "load_tensorizer.py", state, options))
            if not options:
                found.append(Contender(place, "tload, its file", str(file), state=state))
    return found


def sample(contender: Contender, tools: Tools, key: Path) -> dict[str, Any]:
    command = [tools.python, "-W", "ignore", str(LOADERS / contender.script), contender.location, "--mode", "stream"]
    command += ["--options", json.dumps(contender.options)]
    if contender.state:
        command += ["--state", contender.state]
    variables = environment(tools, {"TLOAD_KEY_FILE": str(key)} if contender.is_sealed else {})
    found = run(command, variables, tools.seconds_max)
    if "error" in found:
        raise SystemExit(f"{contender.place}, {contender.name}: {found['error']}")
    return found


def median(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def table(rounds: list[dict[str, dict[str, Any]]], contenders: list[Contender]) -> str:
    """Return a row for each contender, compared with the plain checkpoint at the same place."""
    lines = [
        "| place | load | seconds | CPU s per GiB | speed, of plain | CPU s more per GiB |",
        "|:--|:--|--:|--:|--:|--:|",
    ]
    for contender in contenders:
        own = [turn[f"{contender.place}, {contender.name}"] for turn in rounds]
        plain = [turn[f"{contender.place}, plain"] for turn in rounds]
        gib = own[0]["bytes"] / (1 << 30)
        row = [contender.place, contender.name, median([it["seconds"] for it in own])]
        row.append(median([it["cpu_seconds"] / gib for it in own]))
        if contender.name != "plain":
            pairs = list(zip(own, plain, strict=True))
            row.append(median([other["seconds"] / it["seconds"] for it, other in pairs]))
            row.append(median([(it["cpu_seconds"] - other["cpu_seconds"]) / gib for it, other in pairs]))
        lines.append("| " + " | ".join(row + [""] * (6 - len(row))) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="2GiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--tload", default="tload", help="the command")
    arguments = parser.parse_args()
    tools = Tools(sys.executable, [arguments.tload], 600)
    with contextlib.ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(dir=arguments.folder)))
        contenders = made(tools, folder, arguments.size)
        port = ends.enter_context(served(tools, folder))
        slow = ends.enter_context(throttled(port, LINK))
        for place, number in (("loopback", port), ("link of 100 MB/s", slow)):
            for name in ("plain", "sealed"):
                url = f"http://127.0.0.1:{number}/{name}"
                contenders.append(Contender(place, name, url, state=None, is_sealed=name == "sealed"))
        rounds = []
        for turn in range(arguments.rounds):
            order = contenders[turn % len(contenders) :] + contenders[: turn % len(contenders)]
            rounds.append({f"{it.place}, {it.name}": sample(it, tools, folder / "key.json") for it in order})
            say(f"round {turn + 1} of {arguments.rounds}")
    print(table(rounds, contenders))
    print(json.dumps({"size": arguments.size, "cores": len(os.sched_getaffinity(0)), "rounds": rounds}))


if __name__ == "__main__":
    main()
