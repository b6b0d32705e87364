"""Writes a checkpoint in Tensorizer's format: `make_tensorizer.py FOLDER FILE`."""

import sys

from tensorizer import TensorSerializer

import tload

serializer = TensorSerializer(sys.argv[2])
serializer.write_state_dict(tload.load(sys.argv[1]))
serializer.close()
