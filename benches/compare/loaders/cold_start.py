"""Times a program from its first line to its first tensor: `cold_start.py LOCATION`.

It imports nothing but tload. The interpreter's own start comes before that line. Prints seconds,
and the number of imported modules.
"""

import time

BEGAN = time.perf_counter()

import tload  # noqa: E402  (this is what is measured)

IMPORTED = time.perf_counter()

import sys  # noqa: E402

with tload.stream(sys.argv[1], framework="dlpack") as tensors:
    name, tensor = next(tensors)
    SECONDS = time.perf_counter() - BEGAN

import json  # noqa: E402
import os  # noqa: E402

print(
    json.dumps(
        {
            "seconds": SECONDS,
            "import_seconds": IMPORTED - BEGAN,
            "tensor": name,
            "modules": len(sys.modules),
            "torch": "torch" in sys.modules,
        }
    ),
    flush=True,
)
os._exit(0)
