"""`dtype=`: which tensors are converted, that values are those of torch, and what refuses it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tload
from files import Content, write_file
from tload._options import dtypes
from tload._tensors import conversion

if TYPE_CHECKING:
    from pathlib import Path

    import gpu

TARGETS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SOURCES = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


def odd_values(dtype: torch.dtype) -> torch.Tensor:
    """Return every value of 8 and 16 bits, else those at the edges of rounding and of the range."""
    if dtype.itemsize == 1:
        return torch.arange(256, dtype=torch.uint8).view(dtype)
    if dtype.itemsize == 2:
        return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    edges = [0, 1, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0x00800000, 0x007FFFFF]
    # Ties between neighbours of both 16-bit formats, and the values beside them.
    ties = [0x3F800000 + step + near for step in (0x8000, 0x18000, 0x1000, 0x3000) for near in (-1, 0, 1)]
    large = [0x477FE000, 0x477FEFFF, 0x477FF000, 0x477FFFFF, 0x7F7F7FFF, 0x7F7F8000, 0x33000000, 0x33000001]
    bits = [*edges, *ties, *large]
    bits += [word | 0x80000000 for word in bits]
    floats = torch.frombuffer(bytearray(struct.pack(f"<{len(bits)}I", *bits)), dtype=torch.float32)
    if dtype is torch.float32:
        return floats
    return torch.cat([floats.double(), torch.tensor([1e300, -1e300, 5e-324, 1 + 2**-40], dtype=torch.float64)])


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A checkpoint with odd values of every float, an integer, and quantised tensors."""
    tensors = {name: odd_values(dtype) for name, dtype in SOURCES.items()}
    contents = {
        name: Content(name, tuple(tensor.shape), tensor.view(torch.uint8).numpy().tobytes())
        for name, tensor in tensors.items()
    }
    contents["int"] = Content("I32", (3,), bytes(range(12)))
    contents["bool"] = Content("BOOL", (3,), b"\0\1\1")
    contents["layer.weight"] = Content("F8_E4M3", (4,), b"\1\2\3\4")
    contents["layer.weight_scale_inv"] = Content("F32", (1,), struct.pack("<f", 0.5))
    contents["layer.scales"] = Content("F8_E8M0", (2,), b"\1\2")
    contents["empty"] = Content("F32", (0, 7), b"")
    write_file(tmp_path / "model.safetensors", contents)
    return tmp_path / "model.safetensors", tensors


def same(left: torch.Tensor, right: torch.Tensor) -> None:
    """Compare bits, except those of NaN, which differ between the loops of one version of torch."""
    assert left.dtype == right.dtype
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[left.dtype.itemsize]
    is_nan = left.isnan()
    assert torch.equal(is_nan, right.isnan())
    assert torch.equal(left[~is_nan].view(words), right[~is_nan].view(words))


@pytest.mark.parametrize("wanted", TARGETS, ids=str)
@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_values_are_those_of_torch(
    wanted: torch.dtype, framework: Any, model: tuple[Path, dict[str, torch.Tensor]], recwarn: pytest.WarningsRecorder
) -> None:
    path, tensors = model
    loaded = tload.load(path, framework=framework, dtype=wanted)
    assert not recwarn.list, "numpy warns of values out of range"
    for name, tensor in tensors.items():
        found: Any = loaded[name]
        if framework == "numpy":
            word = {2: np.int16, 4: np.int32, 8: np.int64}[wanted.itemsize]
            found = torch.from_numpy(np.ascontiguousarray(found).view(word)).view(wanted)
        same(found, tensor.to(wanted))
    empty: Any = loaded["empty"]
    assert tuple(empty.shape) == (0, 7)
    assert str(empty.dtype).removeprefix("torch.") == str(wanted).removeprefix("torch.")


def test_integers_and_quantised_tensors_stay(model: tuple[Path, dict[str, torch.Tensor]]) -> None:
    path, _ = model
    plain, loaded = tload.load(path), tload.load(path, dtype="float32")
    for name in ("int", "bool", "layer.weight", "layer.scales"):
        assert loaded[name].dtype == plain[name].dtype
        assert torch.equal(loaded[name].view(torch.uint8), plain[name].view(torch.uint8))
    # A scale in a floating-point dtype is converted, as any other.
    assert loaded["layer.weight_scale_inv"].item() == 0.5


def test_scales_are_found_by_the_name_beside_a_tensor() -> None:
    f8 = "F8_E4M3"
    for names, wanted in (
        ({"a.weight": f8, "b.weight": f8}, set()),
        ({"a.weight": f8, "a.weight_scale": "F32", "b.weight": f8}, {"a.weight"}),
        ({"a.weight": f8, "a.weight_scale_inv": "F32"}, {"a.weight"}),
        ({"a.weight": f8, "a.Scale": "F32"}, {"a.weight"}),
        ({"weight": f8, "weight_scale": "F32"}, {"weight"}),
        ({"a.experts.w1": f8, "a.experts.w1_scale": "F32", "a.gate": "F32"}, {"a.experts.w1"}),
        ({"a.weight": f8, "scaled_fp8": f8}, {"a.weight", "scaled_fp8"}),
        ({"a.weight": "BF16", "a.weight_scale": "F32"}, set()),
    ):
        assert conversion.quantised(names) == wanted, names


def test_streams_slices_and_maps_convert(model: tuple[Path, dict[str, torch.Tensor]]) -> None:
    path, tensors = model
    wanted = tensors["F32"].to(torch.bfloat16)
    with tload.stream(path, names="F32", slices={"F32": slice(2, 9)}, dtype="BF16") as stream:
        [(_, tensor)] = stream
    same(tensor, wanted[2:9])
    mapped = tload.load(path, names="F32", cache="map", writable=False, dtype=torch.bfloat16)["F32"]
    same(mapped, wanted)
    mapped.zero_()  # A copy: views are read-only.
    same(tload.load(path, names="F32")["F32"], tensors["F32"])


def test_report_counts_conversions(model: tuple[Path, dict[str, torch.Tensor]]) -> None:
    path, tensors = model
    with tload.stream(path, names=["F32", "BF16", "int"], dtype="bfloat16") as stream:
        for _ in stream:
            pass
    report = stream.report
    count = tensors["F32"].numel()
    assert (report.converted_tensors, report.converted_bytes) == (1, 2 * count)
    assert report.tensor_bytes == 4 * count + tensors["BF16"].nbytes + 12
    assert f"\nconvert  1 tensor to {2 * count} B\n" in str(report)
    assert report.to_dict()["converted_tensors"] == 1


def test_names_of_dtypes() -> None:
    for dtype in ("float16", "F16", "f16", torch.float16, np.float16, np.dtype(np.float16)):
        assert dtypes.named(dtype) == "f16"
        assert tload.Options(dtype=dtype) == tload.Options(dtype="f16")
    assert dtypes.named(ml_dtypes.bfloat16) == "bf16"
    assert dtypes.named(np.dtype(ml_dtypes.bfloat16)) == "bf16"
    assert dtypes.named(None) is None
    for name in dtypes.TARGETS:
        assert tload.Options(dtype=name).dtype == name


def test_options_and_single_reads_convert(model: tuple[Path, dict[str, torch.Tensor]]) -> None:
    path, tensors = model
    options = tload.Options(dtype=torch.bfloat16)
    wanted = tensors["F32"].to(torch.bfloat16)
    same(tload.load(path, names="F32", options=options)["F32"], wanted)
    [(_, shared)] = tload.stream(path, names="F32", framework="dlpack", options=options)
    assert (shared.dtype, shared.nbytes) == ("BF16", wanted.nbytes)
    same(torch.utils.dlpack.from_dlpack(shared), wanted)


def test_targets_have_their_own_dtypes(model: tuple[Path, dict[str, torch.Tensor]]) -> None:
    path, tensors = model
    target = {"F32": torch.zeros(tensors["F32"].numel(), dtype=torch.bfloat16)}
    message = "dtype=bf16 has no effect on tensors in the caller's memory"
    for strict in (True, False):
        with pytest.raises(tload.InvalidRequestError, match=message):
            tload.load_into(target, path, names="F32", strict=strict, cast=True, dtype="bf16")
    assert not target["F32"].any()
    tload.load_into(target, path, names="F32", cast=True)
    same(target["F32"], tensors["F32"].to(torch.bfloat16))


def test_no_variable_changes_dtypes(
    model: tuple[Path, dict[str, torch.Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that use tload through other libraries rely on the dtypes of their files."""
    path, tensors = model
    monkeypatch.setenv("TLOAD_DTYPE", "bf16")
    same(tload.load(path, names="F32")["F32"], tensors["F32"])


@pytest.mark.parametrize(
    ("dtype", "framework", "kind", "message"),
    [
        (
            "int8",
            "torch",
            tload.InvalidRequestError,
            "'int8' is not one that tensors are converted to; it can be float16",
        ),
        (torch.float8_e4m3fn, "torch", tload.InvalidRequestError, "float8_e4m3fn"),
        ("bfloat61", "torch", tload.InvalidRequestError, "did you mean 'bfloat16'?"),
        (3, "torch", TypeError, "found int"),
        (float, "torch", TypeError, "found type"),
    ],
)
def test_wrong_dtypes_fail_before_the_source_is_opened(dtype: Any, framework: Any, kind: Any, message: str) -> None:
    for call in (tload.load, tload.stream):
        with pytest.raises(kind) as raised:
            call("/nonexistent", framework=framework, dtype=dtype)
        assert message in str(raised.value)


def test_gpu_needs_torch() -> None:
    with pytest.raises(tload.UnsupportedError, match='needs framework="torch" in a load with a GPU'):
        tload.stream("/nonexistent", framework="dlpack", device="cuda", dtype="f32")


def test_gpu_converts_there(torch_cuda: gpu.TorchCuda, model: tuple[Path, dict[str, torch.Tensor]]) -> None:
    assert torch_cuda is not None
    path, tensors = model
    loaded = tload.load(path, names="F32", device="cuda:1", dtype="float16")["F32"]
    assert loaded.dtype == torch.float16
    same(loaded.cpu(), tensors["F32"].to(torch.float16))


def test_memory_of_a_gpu_load_holds_one_tensor_twice() -> None:
    """The originals are dropped one by one, also those that arrived before torch was imported."""
    import weakref

    from tload._load.stream import _convert_all

    class Original:
        def __init__(self, name: str) -> None:
            self.name = name

    originals = [Original(str(index)) for index in range(8)]
    alive = [weakref.ref(original) for original in originals]
    counts: list[int] = []

    def convert(original: Any) -> str:
        counts.append(sum(reference() is not None for reference in alive))
        return str(original.name)

    converted: dict[str, str] = {}
    _convert_all(originals, convert, converted)  # type: ignore[arg-type]
    assert list(converted) == [str(index) for index in range(8)]
    assert counts == list(range(8, 0, -1))
