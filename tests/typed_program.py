"""A program that uses the package and states the types that it expects, for mypy. It is never
run."""

import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Unpack, assert_type

import numpy as np
import numpy.typing as npt
import torch

import tload

with tload.open("model") as checkpoint:
    assert_type(checkpoint, tload.Checkpoint)
    infos: Mapping[str, tload.TensorInfo] = checkpoint
    assert_type(checkpoint["a"].shape, tuple[int, ...])
    assert_type(checkpoint.get("a"), tload.TensorInfo | None)
    assert_type(checkpoint.metadata, dict[str, str])

assert_type(tload.load("model", framework="dlpack"), dict[str, tload.Tensor])
assert_type(tload.load("model", framework="pt"), dict[str, torch.Tensor])
assert_type(tload.stream("model", framework="np"), tload.TensorStream[npt.NDArray[Any]])
assert_type(checkpoint.read("a", framework="pt"), torch.Tensor)
tload.load("model", regex=re.compile("norm"), timeout="1h30m", memory_limit=1e9, verify=True)
tload.load("model", regex=["norm", re.compile("bias")], timeout=timedelta(minutes=1), verify=False)
tload.load("model", names=re.compile("norm"))  # type: ignore[call-overload]
assert_type(tload.copy("model", "copy", timeout="10m", extent_bytes=1e6), tload.CopyReport)
assert_type(tload.verify("model", timeout=timedelta(minutes=1)), tload.VerifyReport)
assert_type(tload.list_files("model")[0].nbytes, int | None)
stream = tload.stream([Path("a"), "b"], framework="dlpack", names=["a"], memory_limit="1 GiB", engine="pread")
assert_type(stream, tload.TensorStream[tload.Tensor])
for name, tensor in stream:
    assert_type(name, str)
    assert_type(tensor, tload.Tensor)
assert_type(stream.report.bytes_per_second, float)
assert_type(stream.report.engine.name, str)


def load_model(
    source: tload.typing.Source, limit: tload.typing.Duration, **keywords: Unpack[tload.typing.LoadKeywords]
) -> dict[str, torch.Tensor]:
    assert_type(tload.memory.parked_bytes(), int)
    keywords["timeout"] = limit
    return tload.load(source, **keywords)


load_model(checkpoint, timedelta(minutes=1), device="cuda", names=["a"], store=tload.S3(region="eu-west-1"))
load_model("model", "1m", devcie="cuda")  # type: ignore[call-arg]
parts: tuple[tload.report.DepthReport, ...] = stream.report.depths


def show(progress: tload.Progress) -> None:
    assert_type(progress.fraction, float)


tload.load("model", device="cuda", device_map={"lm_head.*": "cuda:1"}, device_memory_limit="1 GiB")
tload.load("model", device=0)
tload.load("model", device=0.5)  # type: ignore[call-overload]
tload.load("model", device_map=["cuda:1"])  # type: ignore[call-overload]
assert_type(tensor.device, str)
tload.load("model", cache="map", writable=True)
tload.load("model", cache="mmap")  # type: ignore[call-overload]
tload.load("model", cache="map", writable="no")  # type: ignore[call-overload]
assert_type(tensor.writable, bool)
assert_type(stream.report.mapped_bytes, int)
assert_type(stream.report.devices[0].copy_seconds, float)
assert_type(stream.report.staging, tload.StagingReport | None)
assert_type(tload.release_staging(), int)


def fill(
    module: torch.nn.Module, tensors: dict[str, torch.Tensor], arrays: Mapping[str, npt.NDArray[np.float32]]
) -> None:
    assert_type(tload.load_into(module, "model", strict=False, depth=8), tload.Report)
    tload.load_into(tensors, ["a", Path("b")], cast=True, glob="*.weight", progress=True)
    tload.load_into(arrays, checkpoint, options=options, timeout=2.5)
    tload.load_into(module, "model", device="cuda")  # type: ignore[call-arg]
    tload.load_into([module], "model")  # type: ignore[arg-type]


options = tload.Options(depth=8, retries=0, timeout=30)
store = {"endpoint": "http://127.0.0.1:9000", "region": "eu-west-1"}
tload.open("s3://bucket/model", store=store)
tload.load("s3://bucket/model", store={"anonymous": True, "read_timeout": 2.5, "headers": {"X-Team": "a"}})
tload.stream(["s3://bucket/a", Path("b")], store={"ca_file": Path("ca.pem"), "retries": 3}, retries=2)
tload.open("s3://bucket/model", cache_dir=Path("cache"), mirrors=["http://a/m"], cache_check="never")
tload.load("s3://bucket/model", cache_dir="cache", cache_limit="1 GiB", peers=None)
tload.copy("s3://bucket/model", "model", cache_dir="cache")
tload.load("hf://org/name", hf_cache=True)
tload.load("hf://org/name", hf_cache="yes")  # type: ignore[call-overload]
tload.open("s3://bucket/model", cache_check="sometimes")  # type: ignore[arg-type]
tload.load("s3://bucket/model", store={"region": None})  # type: ignore[dict-item]
tload.load("s3://bucket/model", store="region=eu-west-1")  # type: ignore[call-overload]
typed = tload.S3(endpoint="http://127.0.0.1:9000", read_timeout=timedelta(minutes=1), mirrors=["http://a/m"])
assert_type(typed.region, str | None)
tload.open("s3://bucket/model", store=typed)
tload.load("s3://bucket/model", store={**typed, "aws_imdsv1_fallback": True})
tload.copy("hf://org/name", "model", store=tload.HuggingFace(hf_cache=True))
tload.verify("oci://registry/llama:v1", store=tload.OCI(token="secret"))
tload.S3(account="weights")  # type: ignore[call-arg]
tload.Azure(account="weights", anonymous="yes")  # type: ignore[arg-type]
tload.S3("s3://bucket")  # type: ignore[call-arg]
tload.stream("model", framework="numpy", progress=show, options=options, glob="*.weight")
tload.stream("model", progress=True)
tload.stream("model", depth="8")  # type: ignore[call-overload]
tload.stream("model", framework="jax")  # type: ignore[call-overload]

try:
    tload.load("model", framework="dlpack")
except tload.NoSuchTensorError as error:
    assert_type(error.tensor, str | None)
    assert_type(error.range, tuple[int, int] | None)
except tload.DeviceError as error:
    assert_type(error.hint, str | None)
except tload.RemoteError as error:
    assert_type(error.status, int | None)
    assert_type(error.request_id, str | None)
except tload.Error as error:
    assert_type(error.errno, int | None)
