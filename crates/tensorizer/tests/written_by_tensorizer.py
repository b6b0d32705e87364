"""Write `files/`: files of the package tensorizer, and the tensors that are in them.

Run it with Python, torch, numpy and tensorizer 2.12.1, with libsodium for the encrypted ones. Most
of a file is an index that the package reserves 256 KiB for, so each is written as text: its length,
and those bytes that are not zero.
"""
# ruff: noqa: INP001, S101, S105 (a script; its passphrase is no secret)

from __future__ import annotations

import hashlib
import pathlib
import tempfile
from typing import Any

import torch
from tensorizer import DecryptionParams, EncryptionParams, TensorDeserializer, TensorSerializer

FILES = pathlib.Path(__file__).parent / "files"
KEY = bytes(range(32))
PASSPHRASE = "correct horse"
NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.complex64: "C64",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
}
OF_NUMPY = [dtype for dtype in NAMES if dtype != torch.bfloat16 and "float8" not in str(dtype)]


def numbers(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor of bytes that count, as `dtype`."""
    if dtype == torch.bool:
        return torch.tensor([True, False, True])
    width = torch.empty((), dtype=dtype).element_size()
    count = torch.Size(shape).numel() * width
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    bytes_ = (torch.arange(count) * 7 % 251).to(torch.uint8)
    return bytes_.view(dtype).reshape(shape)


class Module(torch.nn.Module):
    """A module with a parameter and a buffer of each dtype, and a module in it."""

    def __init__(self, dtypes: list[torch.dtype]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(numbers(torch.float32, (2, 3)))
        self.inner = torch.nn.Linear(3, 2)
        with torch.no_grad():
            self.inner.weight.copy_(numbers(torch.float32, (2, 3)))
            self.inner.bias.copy_(numbers(torch.float32, (2,)))
        for dtype in dtypes:
            self.register_buffer(NAMES[dtype].lower(), numbers(dtype, (2, 2)))
        self.register_buffer("scalar", numbers(torch.float64, ()))


def with_empty(module: Module) -> Module:
    """Add a tensor without elements."""
    module.register_buffer("empty", torch.empty((0, 3)))
    return module


def with_meta(module: Module) -> Module:
    """Add a tensor without bytes."""
    module.register_buffer("meta", torch.empty((5, 2), device="meta"))
    return module


def nested() -> dict[str, Any]:
    """Return a state dictionary with paths, and a dimension of 2^32."""
    return {
        "plain": numbers(torch.float32, (3,)),
        "long": torch.empty((1 << 32, 0)),
        "nested": {"x": [torch.zeros(2), torch.ones(1)]},
    }


def as_text(content: bytes) -> str:
    """Return the length of `content`, and its bytes that are not zero, with their positions."""
    rows = ((at, content[at : at + 32]) for at in range(0, len(content), 32))
    lines = [f"length {len(content)}", *(f"{at} {row.hex()}" for at, row in rows if any(row))]
    return "\n".join(lines) + "\n"


def described(file: str, name: str, tensor: torch.Tensor) -> str:
    """Return the line about a tensor: file, name, dtype, shape, SHA-256 of its bytes."""
    shape = ",".join(map(str, tensor.shape))
    content = b""
    if tensor.numel():
        content = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return "\t".join([file, name, NAMES[tensor.dtype], shape, hashlib.sha256(content).hexdigest()])


def flat(tensors: Any, prefix: str = "") -> dict[str, torch.Tensor]:
    """Return tensors by their dotted names."""
    found = {}
    for key, value in tensors.items() if isinstance(tensors, dict) else enumerate(tensors):
        if isinstance(value, torch.Tensor):
            found[f"{prefix}{key}"] = value
        else:
            found |= flat(value, f"{prefix}{key}.")
    return found


def main() -> None:
    """Write all files, and require that the package reads back what they should hold."""
    FILES.mkdir(exist_ok=True)
    key = EncryptionParams(KEY)
    cheap = {"opslimit": EncryptionParams.OpsLimit.MIN, "memlimit": EncryptionParams.MemLimit.MIN}
    derived = EncryptionParams.from_string(PASSPHRASE, salt=bytes(range(16)), **cheap)
    by_key = (key, DecryptionParams.from_key(KEY))
    by_passphrase = (derived, DecryptionParams.from_string(PASSPHRASE))
    cases = [
        ("v1", with_empty(Module(OF_NUMPY)), (None, None)),
        ("v2", with_empty(Module(list(NAMES))), (None, None)),
        ("v3", Module(list(NAMES)), by_key),
        ("v3_passphrase", Module([torch.bfloat16]), by_passphrase),
        ("v4", with_meta(with_empty(Module([]))), (None, None)),
        ("v4_encrypted", with_meta(Module([])), by_key),
        ("v5", nested(), (None, None)),
    ]
    lines = []
    for name, content, (encryption, decryption) in cases:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "x.tensors"
            serializer = TensorSerializer(str(path), encryption=encryption)
            is_module = isinstance(content, torch.nn.Module)
            (serializer.write_module if is_module else serializer.write_state_dict)(content)
            serializer.close()
            read = TensorDeserializer(str(path), device="cpu", verify_hash=True, encryption=decryption)
            own = content.state_dict() if is_module else flat(content)
            found = {key.removeprefix("."): read[key] for key in read} if is_module else flat(read.tree())
            assert found.keys() == own.keys(), (name, found.keys(), own.keys())
            for tensor in sorted(own):
                # Tensors on no device have no bytes, and are read as zeros.
                value = own[tensor] if not own[tensor].is_meta else torch.zeros(own[tensor].shape)
                line = described(name, tensor, value)
                assert line == described(name, tensor, found[tensor]), line
                lines.append(line)
            (FILES / f"{name}.txt").write_text(as_text(path.read_bytes()))
    (FILES / "tensors.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
