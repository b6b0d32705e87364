"""tload, with its defaults: `load_tload.py URL`."""

import sys

import torch  # noqa: F401  (imported before the clock starts, as the peers import it)

import measure
import tload

measure.run(lambda: tload.load(sys.argv[1]))
