"""Measures what a tensor costs besides its bytes, with many tiny ones in the page cache.

    python benches/engines/delivery.py [--tensors 200000] [--rounds 5]

Needs torch, and a release build of tload (`make wheel`). Each round loads the same checkpoint as a
dictionary (`tload.load`), as a stream, and as the stream that engines iterate over (`--load-format
tload`), whose opening is not counted: it takes place once. Garbage collection stays on.
`safetensors` is measured beside.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import struct
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def write(folder: Path, tensors: int, files: int) -> None:
    """Write tensors of 64 bytes."""
    for number in range(files):
        header, at = {}, 0
        for tensor in range(number, tensors, files):
            name = f"model.layers.{tensor // 512}.mlp.experts.{tensor % 512}.down_proj.weight"
            header[name] = {"dtype": "BF16", "shape": [4, 8], "data_offsets": [at, at + 64]}
            at += 64
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        name = f"model-{number + 1:05d}-of-{files:05d}.safetensors"
        (folder / name).write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))


class Bar:
    """A progress bar that shows nothing."""

    def update(self, n: float) -> None:
        """Do nothing."""


@contextmanager
def bar(_total: int) -> Iterator[Bar]:
    yield Bar()


def ways(folder: Path) -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """Return, by name, what is done before the clock starts, and what is measured."""
    from safetensors.torch import load_file

    import tload
    from tload.vllm import _settings, _weights

    files = sorted(map(str, folder.iterdir()))

    def engine(extra: dict[str, Any], **keywords: Any) -> Callable[[], Any]:
        settings, log = _settings.read(extra), logging.getLogger("delivery")
        return lambda: _weights.stream(files, settings, shown="m", open_bar=bar, logger=log, **keywords)

    def drain(tensors: Any) -> int:
        return sum(1 for _ in tensors)

    return {
        "`tload.load`": (lambda: files, tload.load),
        "`tload.stream`": (lambda: files, lambda files: drain(tload.stream(files, order="file"))),
        "engine, memory of its own": (engine({"cache": "auto"}), drain),
        "engine on a CPU": (engine({}, on_cpu=True), drain),
        "`safetensors.torch.load_file`": (lambda: files, lambda files: [load_file(file) for file in files]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, default=200_000)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch), arguments.tensors, arguments.files)
        found: dict[str, list[tuple[float, float]]] = {}
        for number in range(arguments.rounds + 1):
            for name, (prepare, run) in ways(Path(scratch)).items():
                prepared = prepare()
                own, began = time.thread_time(), time.perf_counter()
                kept = run(prepared)
                seconds = time.perf_counter() - began, time.thread_time() - own
                del kept, prepared
                if number > 0:
                    found.setdefault(name, []).append(seconds)
    print(f"{arguments.tensors} tensors of 64 bytes in {arguments.files} files, {arguments.rounds} rounds")
    print("| | median, s | fastest | slowest | CPU of the caller's thread, median, s | µs of it a tensor |")
    print("|:--|--:|--:|--:|--:|--:|")
    for name, times in found.items():
        walls, owns = zip(*times, strict=True)
        own = statistics.median(owns)
        columns = [f"{each:.2f}" for each in (statistics.median(walls), min(walls), max(walls), own)]
        print(f"| {name} | {' | '.join(columns)} | {own / arguments.tensors * 1e6:.1f} |")


if __name__ == "__main__":
    sys.exit(main())
