"""tload: `load` keeps, `stream` drops. Options are those of `tload.Options`, by default its defaults."""

from __future__ import annotations

import measure
import torch  # noqa: F401  (imported before the clock starts, as the peers import it)

import tload


def load(job: measure.Job) -> measure.Tensors:
    location = job.locations[0]
    if not job.keep:
        yield from tload.stream(location, **job.options)
        return
    tensors = tload.load(location, **job.options)
    if job.options.get("cache") == "map":
        # Pages may be read when they are first touched, as with other loaders that map.
        measure.touch(tensors.values())
    yield from tensors.items()


try:
    tload.Options(**measure.arguments().options)
except (TypeError, ValueError) as error:
    measure.skip(f"this version of tload lacks an option: {error}")
measure.run(load)
