"""One start of a process: `startup.py WAY LOCATION` prints the time at which the work is done.

Time is that of the system's monotonic clock, which the process that starts this one reads too.
"""

import sys
import time

way, location = sys.argv[1:]
tensors = {}

if way in {"torch", "in turn"}:
    import torch  # noqa: F401

if way != "torch":
    import tload

    tensors = tload.load(location, framework="dlpack" if way == "read" else "torch")

DONE = time.monotonic()

import json  # noqa: E402
import os  # noqa: E402

loaded = sum(tensor.nbytes for tensor in tensors.values())
print(json.dumps({"done": DONE, "torch": "torch" in sys.modules, "tensor_bytes": loaded}), flush=True)
os._exit(0)
