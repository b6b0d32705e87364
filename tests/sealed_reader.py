"""Reader of sealed files without tload and without Tink, from docs/reference/sealed.md alone."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

if TYPE_CHECKING:
    from pathlib import Path

SEGMENT, TAG, PREFIX = 1 << 20, 16, 7


def key_of(keyset: str) -> bytes:
    """Return the main key of a keyset of Tink: what is behind the parameters in its message."""
    message = base64.b64decode(json.loads(keyset)["key"][0]["keyData"]["value"])
    size = message[7]
    assert message[:12] == bytes([0x12, 8, 8, 0x80, 0x80, 0x40, 0x10, size, 0x18, 3, 0x1A, size])
    return message[12:]


def cipher(main: bytes, header: bytes, associated: bytes) -> AESGCM:
    """Return the cipher of one file."""
    return AESGCM(HKDF(SHA256(), len(main), header[1 : 1 + len(main)], associated).derive(main))


def nonce(header: bytes, number: int, *, is_last: bool) -> bytes:
    """Return the nonce of a segment."""
    return header[-PREFIX:] + number.to_bytes(4, "big") + bytes([is_last])


def open_bytes(main: bytes, associated: bytes, sealed: bytes) -> bytes:
    """Open a whole file."""
    header, starts = sealed[: sealed[0]], [sealed[0], *range(SEGMENT, len(sealed), SEGMENT)]
    key, last = cipher(main, header, associated), len(starts) - 1
    parts = (sealed[start : start // SEGMENT * SEGMENT + SEGMENT] for start in starts)
    return b"".join(key.decrypt(nonce(header, i, is_last=i == last), part, None) for i, part in enumerate(parts))


def seal_bytes(main: bytes, associated: bytes, header: bytes, file: bytes) -> bytes:
    """Seal a whole file with a header that is given."""
    starts = [0, *range(SEGMENT - TAG - len(header), len(file), SEGMENT - TAG)]
    key, last, parts = cipher(main, header, associated), len(starts) - 1, zip(starts, [*starts[1:], None], strict=True)
    sealed = (key.encrypt(nonce(header, i, is_last=i == last), file[a:b], None) for i, (a, b) in enumerate(parts))
    return header + b"".join(sealed)


def open_checkpoint(folder: Path, keyset: str) -> dict[str, bytes]:
    """Return all files of a sealed checkpoint."""
    main, checkpoint = key_of(keyset), json.loads((folder / "sealed.json").read_text("utf-8"))["id"]

    def read(name: str) -> bytes:
        return open_bytes(main, f"tload-sealed/1\0{checkpoint}\0{name}".encode(), (folder / name).read_bytes())

    return {entry["name"]: read(entry["name"]) for entry in json.loads(read("sealed.manifest"))["files"]}
