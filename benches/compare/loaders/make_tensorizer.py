"""Writes a checkpoint in Tensorizer's format: `make_tensorizer.py FOLDER FILE [KEY]`.

It is encrypted if there is a key, which is in hexadecimal.
"""

import sys

from tensorizer import EncryptionParams, TensorSerializer

import tload

encryption = EncryptionParams(key=bytes.fromhex(sys.argv[3])) if len(sys.argv) > 3 else None
serializer = TensorSerializer(sys.argv[2], encryption=encryption)
serializer.write_state_dict(tload.load(sys.argv[1]))
serializer.close()
