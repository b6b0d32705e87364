"""The reader of the description of sealed files repeats the vectors that Tink wrote."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import sealed_reader

VECTORS = Path(__file__).parent.parent / "crates/sealed/tests/vectors.json"


def test_vectors() -> None:
    for vector in json.loads(VECTORS.read_text()):
        file = bytes(at * 31 % 251 for at in range(vector["bytes"]))
        main, associated = sealed_reader.key_of(vector["keyset"]), bytes.fromhex(vector["associated"])
        found = sealed_reader.seal_bytes(main, associated, bytes.fromhex(vector["header"]), file)
        assert len(found) == vector["sealed_bytes"]
        assert hashlib.sha256(found).hexdigest() == vector["sealed_sha256"]
        assert sealed_reader.open_bytes(main, associated, found) == file
