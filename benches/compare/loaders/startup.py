"""One start of a process: `startup.py WAY LOCATION` prints the time at which the work is done.

Time is that of the system's monotonic clock, which the process that starts this one reads too. The
way `phases` also prints when each phase began, and how long it took.
"""

import sys
import time

BEGAN = time.monotonic()

way, location = sys.argv[1:]
phases = []
loaded = 0

if way in {"torch", "in turn"}:
    import torch  # noqa: F401

if way != "torch":
    import tload

    IMPORTED = time.monotonic()
    stream = tload.stream(location, framework="dlpack" if way == "read" else "torch")
    # The caller waits for the first tensor until torch is imported; the load does not.
    tensors = {}
    FIRST = None
    for name, tensor in stream:
        FIRST = FIRST or time.monotonic()
        tensors[name] = tensor

DONE = time.monotonic()

import json  # noqa: E402
import os  # noqa: E402

if way != "torch":
    report = stream.report
    loaded = report.tensor_bytes
    opened = DONE - max(one.start_seconds + one.seconds for one in report.phases)
    phases = [
        ("import tload", BEGAN, IMPORTED - BEGAN),
        *((one.phase, opened + one.start_seconds, one.seconds) for one in report.phases),
        ("import torch", IMPORTED, report.import_seconds),
        ("first tensor received", FIRST, DONE - FIRST),
    ]

found = {"began": BEGAN, "done": DONE, "torch": "torch" in sys.modules, "tensor_bytes": loaded, "phases": phases}
print(json.dumps(found), flush=True)
os._exit(0)
