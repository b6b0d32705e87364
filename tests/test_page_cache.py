"""Modes of `cache`: copies from the page cache, its content after a load, and tensors that are
views of files."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tload
from capsules import look
from conftest import require
from files import BITS, EVERY_DTYPE, Content, header, tile, write_file
from resident import evict, resident_bytes, warm
from tload._options import load_options
from tload._tensors import numpy_arrays, torch_tensors

if TYPE_CHECKING:
    import gpu
    from servers import Web
    from tload.typing import Cache

MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
LARGE = {f"t{index}": Content("F32", (MIB,), tile(index, 4 * MIB)) for index in range(8)}
# The largest dtypes come first: if the first tensor starts at a page boundary, all of them are
# aligned.
ALIGNED = dict(sorted(EVERY_DTYPE.items(), key=lambda item: -BITS[item[1].dtype]))


def write_aligned(path: Path, tensors: dict[str, Content]) -> Path:
    """Write tensors so that the first starts at a page boundary, and none has to be copied for
    alignment."""
    missing = -(len(header(tensors, {"pad": ""})) + 8) % PAGE
    write_file(path, tensors, metadata={"pad": " " * missing})
    return path


@pytest.fixture
def large(tmp_path: Path) -> Path:
    return write_aligned(tmp_path / "large.safetensors", LARGE)


@pytest.fixture(scope="module")
def aligned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_aligned(tmp_path_factory.mktemp("aligned") / "aligned.safetensors", ALIGNED)


def raw(tensor: Any) -> bytes:
    return look(tensor.__dlpack__(max_version=(1, 0))).raw


def report_of(path: Path, **keywords: Any) -> tload.Report:
    stream = tload.stream(path, framework="dlpack", **keywords)
    for name, tensor in stream:
        assert raw(tensor) == LARGE[name].raw, name
    return stream.report


def of(dtypes: set[str]) -> list[str]:
    return [name for name, content in ALIGNED.items() if content.dtype in dtypes]


@pytest.mark.parametrize("writable", [None, False, True])
def test_views_are_right_in_torch(*, writable: bool | None, aligned: Path) -> None:
    torch = require("torch")
    safetensors = require("safetensors")
    loaded = tload.load(aligned, names=of(set(torch_tensors.DTYPES)), cache="map", writable=writable)
    compared = set()
    with safetensors.safe_open(aligned, framework="pt") as oracle:
        for name, tensor in loaded.items():
            wanted = oracle.get_tensor(name)
            assert (tensor.dtype, tensor.shape) == (wanted.dtype, wanted.shape), name
            # Compared as bytes: random floats contain NaNs.
            assert torch.equal(tensor.reshape(-1).view(torch.uint8), wanted.reshape(-1).view(torch.uint8)), name
            compared.add(ALIGNED[name].dtype)
    assert compared == set(torch_tensors.DTYPES)


@pytest.mark.parametrize("writable", [None, False, True])
def test_numpy_views_are_correct_and_read_only_by_default(*, writable: bool | None, aligned: Path) -> None:
    require("ml_dtypes")
    loaded = tload.load(
        aligned,
        framework="numpy",
        names=of({*numpy_arrays.DTYPES, *numpy_arrays.ML_DTYPES}),
        cache="map",
        writable=writable,
    )
    for name, array in loaded.items():
        content = ALIGNED[name]
        assert array.shape == content.shape, name
        assert array.dtype.name == {**numpy_arrays.DTYPES, **numpy_arrays.ML_DTYPES}[content.dtype], name
        assert array.tobytes() == content.raw, name
        if content.raw:
            assert array.flags.writeable == bool(writable), name
            if not writable:
                with pytest.raises(ValueError, match="read-only"):
                    array[...] = 0
    assert len(loaded) > 150


@pytest.mark.parametrize("writable", [None, False, True])
def test_dlpack_views_are_correct_with_read_only_flag(*, writable: bool | None, aligned: Path) -> None:
    stream = tload.stream(aligned, framework="dlpack", cache="map", writable=writable)
    loaded = dict(stream)
    assert stream.report.copied_bytes == 0
    for name, content in ALIGNED.items():
        seen = look(loaded[name].__dlpack__(max_version=(1, 0)))
        assert seen.raw == content.raw, name
        if content.raw:
            assert loaded[name].writable == bool(writable), name
            assert (seen.flags & 1 == 0) == bool(writable), name
    assert set(loaded) == set(ALIGNED)


def test_dlpack_below_v1_rejects_read_only_view(large: Path) -> None:
    np = require("numpy")
    tensor = tload.load(large, framework="dlpack", cache="map")["t0"]
    for exporter in (tensor, tensor.flat()):
        for max_version in (None, (0, 8)):
            with pytest.raises(BufferError, match=r"read-only view of a file.*writable=True"):
                exporter.__dlpack__(max_version=max_version)
        assert look(exporter.__dlpack__(max_version=(1, 0))).flags == 1
        for max_version in (None, (1, 0)):
            copied = look(exporter.__dlpack__(max_version=max_version, copy=True))
            assert copied.raw == LARGE["t0"].raw
            assert copied.flags == (0 if max_version is None else 2)
    copy = np.from_dlpack(tensor, copy=True)
    copy.fill(1.0)
    assert raw(tensor) == LARGE["t0"].raw
    writable = tload.load(large, framework="dlpack", cache="map", writable=True)["t0"]
    assert look(writable.__dlpack__()).raw == LARGE["t0"].raw


def test_owned_tensors_are_always_writable(large: Path) -> None:
    np = require("numpy")
    caches: list[Cache] = ["auto", "buffered", "drop"]
    for cache in caches:
        tensor = tload.load(large, framework="dlpack", cache=cache, writable=False, names="t0")["t0"]
        assert tensor.writable
        assert np.from_dlpack(tensor).flags.writeable


def test_writes_to_view_are_private(large: Path) -> None:
    require("torch")
    np = require("numpy")
    before = large.read_bytes()
    earlier = tload.load(large, framework="numpy", cache="map")
    for name, tensor in tload.load(large, cache="map").items():
        tensor.zero_()
        assert not tensor.any(), name
    for name, array in tload.load(large, framework="numpy", cache="map", options=tload.Options(writable=True)).items():
        assert array.tobytes() == LARGE[name].raw, name
        array.fill(1.0)
        assert np.all(array == 1.0)
    later = tload.load(large, framework="numpy", cache="map")
    for name, content in LARGE.items():
        assert earlier[name].tobytes() == later[name].tobytes() == content.raw, name
    del earlier, later
    gc.collect()
    assert large.read_bytes() == before


def test_neighbours_on_one_page_are_not_touched(tmp_path: Path) -> None:
    require("torch")
    tensors = {f"t{index}": Content.random("U8", (100,), index) for index in range(200)}
    loaded = tload.load(write_aligned(tmp_path / "a.safetensors", tensors), cache="map")
    for name in list(loaded)[::2]:
        loaded[name].fill_(0xEE)
    for name in list(loaded)[1::2]:
        assert bytes(loaded[name].numpy()) == tensors[name].raw, name


WRITES = """
import sys, tload
tensor = tload.load(sys.argv[1], names="t0", cache="map", writable=%s)["t0"]
print("loaded", flush=True)
tensor.zero_()
print("written", flush=True)
"""


@pytest.mark.parametrize(("writable", "said"), [(None, 2), (True, 2), (False, 1)])
def test_torch_views_are_writable_by_default(*, writable: bool | None, said: int, large: Path) -> None:
    require("torch")
    script = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))" + WRITES % writable
    done = subprocess.run([sys.executable, "-c", script, str(large)], capture_output=True, text=True, check=False)
    assert len(done.stdout.split()) == said, done.stderr
    # Systems other than Linux have another signal for it.
    killed = {-signal.SIGSEGV, -signal.SIGBUS}
    assert (done.returncode == 0) if said == 2 else (done.returncode in killed)


def test_torch_without_read_only_import_is_rejected_first(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = require("torch")

    def export(_self: Any, _stream: Any = None) -> Any:
        raise AssertionError

    monkeypatch.setattr(torch.Tensor, "__dlpack__", export)
    with pytest.raises(tload.UnsupportedError, match="cannot import a read-only view of a file"):
        tload.stream(large, cache="map", writable=False)
    assert len(tload.load(large, cache="map")) == 8
    assert len(tload.load(large, writable=False)) == 8


def test_environment_can_select_views(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TLOAD_CACHE", "map")
    assert report_of(large).engine.name == "map"
    assert not tload.load(large, framework="dlpack")["t0"].writable
    assert "writable" not in load_options.VARIABLES, "programs set it"


def test_report_counts_views(large: Path) -> None:
    # A memory limit too small for any tensor: none of them is copied.
    report = report_of(large, cache="map", memory_limit=1)
    assert report.engine.name == "map"
    assert report.outcome == "complete"
    assert report.mapped_bytes == report.read_bytes >= report.tensor_bytes == 32 * MIB
    assert (report.direct_bytes, report.buffered_bytes, report.copied_bytes, report.memory_peak) == (0, 0, 0, 0)
    assert report.to_dict()["mapped_bytes"] == report.mapped_bytes
    assert " mapped" in str(report)
    other = report_of(large)
    assert other.mapped_bytes == 0
    assert " mapped" not in str(other)


def test_misaligned_tensor_copied_and_writable(tmp_path: Path) -> None:
    np = require("numpy")
    tensors = {"odd": Content("U8", (3,), b"abc"), "f": Content.random("F64", (999,), 1)}
    stream = tload.stream(write_aligned(tmp_path / "a.safetensors", tensors), framework="dlpack", cache="map")
    loaded = dict(stream)
    assert stream.report.copied_bytes == 999 * 8
    assert (loaded["odd"].writable, loaded["f"].writable) == (False, True)
    array = np.from_dlpack(loaded["f"])
    assert array.tobytes() == tensors["f"].raw
    assert array.flags.writeable


@pytest.mark.parametrize("framework", ["torch", "numpy", "dlpack"])
def test_views_outlive_everything(framework: str, large: Path) -> None:
    if framework != "dlpack":
        require(framework)
    with tload.open(large) as checkpoint:
        stream = tload.stream(checkpoint, framework=framework, cache="map")  # type: ignore[call-overload]
        kept = {name: tensor for index, (name, tensor) in enumerate(stream) if index % 3 == 0}
    del stream, checkpoint
    gc.collect()
    # Another file may be renamed over this one, if it is a different file.
    write_aligned(large.with_suffix(".new"), {name: Content("F32", (MIB,), bytes(4 * MIB)) for name in LARGE})
    large.with_suffix(".new").rename(large)
    large.unlink()
    assert len(kept) == 3
    for name, tensor in kept.items():
        found = bytes(tensor.numpy()) if framework == "torch" else raw(tensor)
        assert found == LARGE[name].raw, name


def test_a_view_of_a_view_keeps_the_file(large: Path) -> None:
    require("torch")
    view = tload.load(large, cache="map")["t1"].view(16, -1)[3][5:50]
    gc.collect()
    large.unlink()
    start = 3 * (MIB // 16)
    assert bytes(view.numpy()) == LARGE["t1"].raw[4 * (start + 5) : 4 * (start + 50)]


def mappings(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


@pytest.mark.skipif(sys.platform != "linux", reason="SKIPPED: no /proc to see what is mapped")
def test_file_stays_mapped_while_a_tensor_lives(large: Path) -> None:
    np = require("numpy")
    array = np.from_dlpack(tload.load(large, framework="dlpack", cache="map", names="t3")["t3"])
    gc.collect()
    assert mappings(large) > 0
    del array
    gc.collect()
    assert mappings(large) == 0


@pytest.mark.parametrize("cold", [True, False])
def test_drop_leaves_nothing_in_the_page_cache(*, cold: bool, large: Path) -> None:
    (evict if cold else warm)(large)
    report_of(large, cache="drop")
    assert resident_bytes(large) == 0
    # The other modes do leave it there, so the test above can fail.
    report_of(large, cache="buffered")
    assert resident_bytes(large) > 16 * MIB


def test_cache_drop_applies_to_load_into(large: Path) -> None:
    np = require("numpy")
    warm(large)
    target = {name: np.zeros(MIB, np.float32) for name in LARGE}
    tload.load_into(target, large, cache="drop")
    assert resident_bytes(large) == 0
    for name, array in target.items():
        assert array.tobytes() == LARGE[name].raw, name


@pytest.mark.parametrize("cache", [None, "auto", "drop"])
def test_cached_pages_are_copied_from_page_cache(cache: Cache | None, large: Path) -> None:
    warm(large)
    report = report_of(large, cache=cache)
    assert (report.direct_bytes, report.mapped_bytes) == (0, 0)
    assert report.buffered_bytes == report.read_bytes
    evict(large)
    report = report_of(large, cache=cache)
    if report.buffered_bytes:
        # Without direct I/O in the file system, requesting it is an error.
        with pytest.raises(tload.UnsupportedError):
            tload.stream(large, framework="dlpack", cache="direct")
    else:
        assert report.direct_bytes == report.read_bytes


def test_load_into_takes_no_views_and_writes_nothing(large: Path) -> None:
    torch = require("torch")
    np = require("numpy")
    arrays = {name: np.full(MIB, 7.0, np.float32) for name in LARGE}
    # The core fills none of the float16 targets itself.
    halves = {name: torch.full((MIB,), 7.0, dtype=torch.float16) for name in LARGE}
    for target in (arrays, halves):
        with pytest.raises(tload.UnsupportedError, match="cache=map maps files into host memory") as caught:
            tload.load_into(target, large, cast=True, cache="map")
        assert caught.value.hint == "use cache=auto"
        assert all((tensor == 7.0).all() for tensor in target.values())


def test_views_are_rejected_for_gpu(cuda: gpu.Stub, large: Path) -> None:
    for keywords in ({"device": "cuda:0"}, {"device_map": {"t0": "cuda:1"}}):
        device: Any = keywords
        with pytest.raises(tload.UnsupportedError, match="cache=map maps files into host memory"):
            tload.stream(large, framework="dlpack", cache="map", **device)
    assert cuda.live("allocations") == 0


def test_objects_have_no_views(web: Web, large: Path) -> None:
    other = write_aligned(large.with_name("other.safetensors"), {"other": Content("U8", (3,), b"abc")})
    web.files["a.safetensors"] = other.read_bytes()
    url = f"{web.url}/a.safetensors"
    for source in (url, [str(large), url]):
        with pytest.raises(tload.UnsupportedError, match="cache=map maps files, and this is an object") as caught:
            tload.stream(source, framework="dlpack", cache="map")
        assert caught.value.location == url


def test_truncated_file_raises_error(large: Path) -> None:
    with tload.open(large) as checkpoint:
        os.truncate(large, 10 * MIB)
        with pytest.raises(tload.ChangedError):
            tload.load(checkpoint, framework="dlpack", cache="map")
