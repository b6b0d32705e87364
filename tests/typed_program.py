"""A program that uses the package and states the types that it expects. For mypy: it is never run."""

from collections.abc import Mapping
from pathlib import Path
from typing import assert_type

import tload

with tload.open("model") as checkpoint:
    assert_type(checkpoint, tload.Checkpoint)
    infos: Mapping[str, tload.TensorInfo] = checkpoint
    assert_type(checkpoint["a"].shape, tuple[int, ...])
    assert_type(checkpoint.get("a"), tload.TensorInfo | None)
    assert_type(checkpoint.metadata, dict[str, str])

assert_type(tload.load("model", framework="dlpack"), dict[str, tload.Tensor])
stream = tload.stream([Path("a"), "b"], framework="dlpack", names=["a"], memory_limit="1 GiB", engine="pread")
assert_type(stream, tload.TensorStream[tload.Tensor])
for name, tensor in stream:
    assert_type(name, str)
    assert_type(tensor, tload.Tensor)
assert_type(stream.report.bytes_per_second, float)
assert_type(stream.report.engine.name, str)


def show(progress: tload.Progress) -> None:
    assert_type(progress.fraction, float)


options = tload.Options(depth=8, timeout=30)
tload.stream("model", framework="numpy", progress=show, options=options, glob="*.weight")
tload.stream("model", progress=True)
tload.stream("model", depth="8")  # type: ignore[call-overload]
tload.stream("model", framework="jax")  # type: ignore[call-overload]

try:
    tload.load("model", framework="dlpack")
except tload.NoSuchTensorError as error:
    assert_type(error.tensor, str | None)
    assert_type(error.range, tuple[int, int] | None)
except tload.Error as error:
    assert_type(error.errno, int | None)
