"""Ceiling of the bus: one large pinned tensor is copied to the device repeatedly, with no other work.

Option: `bytes` of the tensor, 2 GiB by default; the directory argument is ignored.
"""

from __future__ import annotations

import json
import time

import timed
import torch

COPIES = 8


def main() -> None:
    args = timed.arguments()
    timed.warm_context(args.torch_device)
    nbytes = int(args.options.get("bytes", 2 << 30))
    host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=args.torch_device != "cpu")
    host.fill_(1)
    there = torch.empty_like(host, device=args.torch_device, pin_memory=False)
    samples = []
    for _ in range(2 + args.again):
        timed.wait(args.torch_device)
        cpu, start = timed.cpu_seconds(), time.perf_counter()
        for _ in range(COPIES):
            there.copy_(host, non_blocking=True)
        timed.wait(args.torch_device)
        seconds, cpu = time.perf_counter() - start, timed.cpu_seconds() - cpu
        samples.append({"kind": "again", "seconds": seconds, "cpu_seconds": cpu, "bytes": COPIES * nbytes})
    # The first sample warms up the clocks of the bus.
    print(json.dumps({"samples": samples[1:]}))


main()
