"""`tload.safetensors.safe_open` on damaged, mapped, replaced and remote files."""

from __future__ import annotations

import gc
import json
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tload
from conftest import require, require_root, skip_loudly
from files import Content, header, tile, write_checkpoint, write_file
from test_safetensors_oracle import fingerprint, outcome, raw
from tload import safetensors
from tload.safetensors import SafetensorError, safe_open

if TYPE_CHECKING:
    from servers import S3, Web

MIB = 1 << 20
LAYERS = {f"layer.{index}": Content.random("F32", (index + 1, 64), index) for index in range(6)}


def entry(dtype: str = "F32", shape: tuple[int, ...] = (2,), offsets: tuple[int, int] = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [*shape], "data_offsets": [*offsets]}


def file_of(head: Any, content: bytes = b"", length: int | None = None) -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + content


# Contents of the file, and words of tload's message. The package's messages are shorter.
DAMAGED: dict[str, tuple[bytes, list[str]]] = {
    "nothing": (b"", ["0 bytes", "at least 8"]),
    "short": (b"abc", ["3 bytes", "at least 8"]),
    "too large": (file_of({}, length=10**12), ["header length of 1000000000000", "at most 100000000"]),
    "just too large": (file_of({}, length=100_000_001), ["header length of 100000001"]),
    "longer than the file": (file_of({}, length=1000), ["header length 1000", "found 10 bytes"]),
    "no UTF-8": (file_of(b"\xff\xfe"), ["not UTF-8"]),
    "no JSON": (file_of(b"{hello"), ["not JSON"]),
    "a list": (file_of([]), ["begins with '['"]),
    "truncated": (file_of({"a": entry()}, b"1234"), ['"a"', "ends too early"]),
    "trailing bytes": (file_of({"a": entry()}, bytes(9)), ["bytes follow the last tensor"]),
    "a hole": (file_of({"a": entry(), "b": entry(offsets=(12, 20))}, bytes(20)), ['"b"', "offset 12, wanted 8"]),
    "an overlap": (file_of({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12)), ['"b"', "overlaps"]),
    "late": (file_of({"a": entry(offsets=(4, 12))}, bytes(12)), ['"a"', "offset 4, wanted 0"]),
    "backwards": (file_of({"a": entry(offsets=(8, 0))}, bytes(8)), ['"a"', "[8, 0]"]),
    "another shape": (file_of({"a": entry(shape=(3,))}, bytes(8)), ['"a"', "found 8 bytes", "wanted 12"]),
    "a negative shape": (file_of({"a": entry(shape=(-2,))}, bytes(8)), ['"a"', "shape"]),
    "an overflow": (file_of({"a": entry(shape=(2**62, 2**62))}, bytes(8)), ['"a"', "overflows"]),
    "another dtype": (file_of({"a": entry("F33")}, bytes(8)), ['"a"', "F33"]),
    "half a byte": (file_of({"a": entry("F4", (3,), (0, 2))}, bytes(2)), ['"a"', "whole bytes"]),
    "numbers as metadata": (file_of({"__metadata__": {"x": 3}, "a": entry()}, bytes(8)), ["__metadata__", '"x"']),
}


def test_links_out_of_a_directory_need_permission(tmp_path: Path) -> None:
    np = require("numpy")
    import tload.safetensors.numpy

    folder = tmp_path / "folder"
    folder.mkdir()
    write_file(tmp_path / "elsewhere.safetensors", {"a": Content("U8", (3,), b"abc")})
    (folder / "model.safetensors").symlink_to("../elsewhere.safetensors")
    with pytest.raises(tload.PermissionDeniedError) as raised:
        safe_open(folder, "np")
    assert "follow_symlinks=True" in str(raised.value.hint)
    with safe_open(folder, "np", follow_symlinks=True) as file:
        assert file.get_tensor("a").tobytes() == b"abc"
    assert tload.safetensors.numpy.load_file(folder, follow_symlinks=True)["a"].tobytes() == b"abc"
    # A file by its path is always allowed.
    assert np.array_equal(tload.safetensors.numpy.load_file(folder / "model.safetensors")["a"], list(b"abc"))


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files(case: str, tmp_path: Path) -> None:
    """Both packages refuse the same files with the same class. tload's message gives the
    position."""
    theirs = require("safetensors")
    torch = require("safetensors.torch")
    content, words = DAMAGED[case]
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(content)
    for backend in ("mmap", "pread"):
        kind, message = outcome(safe_open, path, "pt", backend=backend)
        assert (kind, message.partition(": ")[0]) == (SafetensorError, "Error while deserializing header")
        assert str(path) in message
        for word in words:
            assert word in message, message
        with pytest.raises(SafetensorError, match="Error while deserializing header: "):
            theirs.safe_open(path, "pt", backend=backend)
    kind, message = outcome(require("tload.safetensors.torch").load, content)
    assert (kind, message.partition(": ")[0]) == (SafetensorError, "Error while deserializing")
    assert "the bytes" in message
    assert "/" not in message.partition("\n")[0]
    with pytest.raises(SafetensorError, match="Error while deserializing: "):
        torch.load(content)


def test_errors_name_their_cause_and_can_be_sent_away(tmp_path: Path) -> None:
    path = tmp_path / "short.safetensors"
    path.write_bytes(b"abc")
    with pytest.raises(SafetensorError) as caught:
        safe_open(path, "np")
    assert isinstance(caught.value.__cause__, tload.FormatError)
    assert caught.value.__cause__.location == str(path)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_unusual_valid_headers_accepted(tmp_path: Path) -> None:
    theirs = require("safetensors")
    require("torch")
    for number, content in enumerate(
        [
            file_of({}),
            file_of(b"  {}  "),
            file_of({"__metadata__": {"a": "b"}}),
            file_of({"a": {**entry(), "more": 1}}, bytes(range(8))),
            file_of({"__metadata__": None, "a": entry()}, bytes(range(8))),
            # Neither of them is aligned.
            file_of({"u": entry("U8", (3,), (0, 3)), "a": entry(offsets=(3, 11))}, bytes(range(11))),
        ]
    ):
        path = tmp_path / f"{number}.safetensors"
        path.write_bytes(content)
        for framework in ("pt", "np"):
            found, wanted = safe_open(path, framework), theirs.safe_open(path, framework)
            assert found.metadata() == wanted.metadata()
            assert found.keys() == wanted.keys()
            assert fingerprint(found.get_tensors()) == fingerprint(wanted.get_tensors())
            for name in found.keys():  # noqa: SIM118
                assert fingerprint(found.get_tensor(name)) == fingerprint(wanted.get_tensor(name))


def test_duplicate_header_name_rejected(tmp_path: Path) -> None:
    path = tmp_path / "twice.safetensors"
    text = json.dumps(entry())
    path.write_bytes(file_of(f'{{"a":{text},"a":{text}}}'.encode(), bytes(8)))
    with pytest.raises(SafetensorError, match="found its name twice"):
        safe_open(path, "np")


def write_aligned(path: Path, tensors: dict[str, Content]) -> Path:
    """Write a file whose tensors need no copy for alignment."""
    missing = -(len(header(tensors, {"pad": ""})) + 8) % 64
    write_file(path, tensors, metadata={"pad": " " * missing})
    return path


@pytest.fixture
def aligned(tmp_path: Path) -> Path:
    return write_aligned(tmp_path / "aligned.safetensors", LAYERS)


def address(tensor: Any) -> int:
    pointer: int = tensor.data_ptr() if hasattr(tensor, "data_ptr") else tensor.ctypes.data
    return pointer


def mapped_at(path: Path) -> list[tuple[int, int]]:
    """Address at which this process has mapped the file."""
    if not Path("/proc/self/maps").exists():
        skip_loudly("proc", "no /proc to see what is mapped")
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] == str(path):
            start, _, end = fields[0].partition("-")
            found.append((int(start, 16), int(end, 16)))
    return found


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_mapped_tensors_are_views_of_the_file(framework: str, aligned: Path) -> None:
    require("torch")
    before = aligned.read_bytes()
    with safe_open(aligned, framework) as handle:
        tensors = {name: handle.get_tensor(name) for name in LAYERS}
        part = handle.get_slice("layer.5")[1:3, ::2]
        together = handle.get_tensors()
    for tensor in [*tensors.values(), part, *together.values()]:
        assert any(start <= address(tensor) < end for start, end in mapped_at(aligned))
    # A part is a view of the same memory as the whole tensor, and only the file holds that memory.
    assert address(part) == address(tensors["layer.5"]) + 64 * 4
    tensors["layer.5"][1, 2] = 7.0
    assert part[0, 1] == 7.0
    together["layer.5"][0, 0] = 3.0
    assert aligned.read_bytes() == before
    del tensors, part, together, tensor
    gc.collect()
    assert not mapped_at(aligned)


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_pread_tensors_are_not_mapped(framework: str, aligned: Path) -> None:
    require("torch")
    with safe_open(aligned, framework, backend="pread") as handle:
        tensors = [handle.get_tensor("layer.3"), handle.get_slice("layer.3")[1:], *handle.get_tensors().values()]
        assert not mapped_at(aligned)
    tensors[0][:] = 1.0
    assert aligned.exists()


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_engine_of_the_environment_reads(backend: str, aligned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("torch")
    expected = fingerprint(safe_open(aligned, "pt").get_tensors())
    monkeypatch.setenv("TLOAD_ENGINE", "pread")
    for cache in ("", "map"):
        monkeypatch.setenv("TLOAD_CACHE", cache)
        with safe_open(aligned, "pt", backend=backend) as handle:
            assert fingerprint(handle.get_tensors()) == expected
            assert fingerprint(dict(handle.prefetch())) == expected
        assert fingerprint(safetensors.torch.load_file(aligned, backend=backend)) == expected


def test_pread_arrays_are_writable_whatever_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"large": Content.random("F32", (5, MIB), 1), "small": Content.random("F32", (5, 4), 2)}
    path = write_aligned(tmp_path / "large.safetensors", tensors)
    monkeypatch.setenv("TLOAD_CACHE", "map")
    with safe_open(path, "np", backend="pread") as handle:
        arrays = [*handle.get_tensors().values(), *map(handle.get_tensor, handle.keys())]
        arrays.append(handle.prefetch({"large": slice(1, 5)}).take("large"))
        assert not mapped_at(path)
    assert all(array.flags.writeable for array in arrays)


@pytest.mark.parametrize(
    ("variable", "value"), [("TLOAD_CACHE", "direct"), ("TLOAD_CACHE", "map"), ("TLOAD_KEY", "AGE-SECRET-KEY-1")]
)
def test_bytes_need_nothing_of_the_environment(
    variable: str, value: str, aligned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("torch")
    expected = fingerprint(safe_open(aligned, "pt").get_tensors())
    monkeypatch.setenv(variable, value)
    assert fingerprint(safetensors.torch.load(aligned.read_bytes())) == expected
    assert all(array.flags.writeable for array in safetensors.numpy.load(aligned.read_bytes()).values())


def test_errors_about_bytes_show_no_internal_path(aligned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("torch")
    monkeypatch.setenv("TLOAD_VERIFY", "require")
    with pytest.raises(tload.InvalidRequestError, match="the bytes") as caught:
        safetensors.torch.load(aligned.read_bytes())
    assert "/proc/" not in str(caught.value)
    assert caught.value.location is None


def test_each_tensor_has_a_storage_of_its_own(aligned: Path) -> None:
    """Otherwise libraries would take the tensors for tied, and pickle would write the whole file
    for each."""
    require("torch")
    with safe_open(aligned, "pt") as handle:
        for tensor in [*handle.get_tensors().values(), *(handle.get_tensor(name) for name in LAYERS)]:
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
            assert tensor.untyped_storage().data_ptr() == tensor.data_ptr()


def test_unaligned_tensor_is_copied(tmp_path: Path) -> None:
    require("torch")
    path = tmp_path / "odd.safetensors"
    tensors = {"byte": Content("U8", (1,), b"x"), **LAYERS}
    write_file(path, tensors, metadata={"pad": " " * (-(len(header(tensors, {"pad": ""})) + 8) % 64)})
    for framework in ("pt", "np"):
        with safe_open(path, framework) as handle:
            for name, content in LAYERS.items():
                assert raw(handle.get_tensor(name)) == content.raw
                assert address(handle.get_tensor(name)) % 4 == 0


def test_torchs_default_device_changes_nothing(aligned: Path) -> None:
    torch = require("torch")
    require("safetensors")
    for backend in ("mmap", "pread"):
        with torch.device("meta"), safe_open(aligned, "pt", backend=backend) as handle:
            assert handle.get_tensor("layer.1").device.type == "cpu"
            assert handle.get_slice("layer.1")[0].device.type == "cpu"
            assert {tensor.device.type for tensor in handle.get_tensors().values()} == {"cpu"}


def test_file_replaced_while_opened(aligned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header of one file and the bytes of another would make wrong tensors."""
    opened = tload.open

    def replace(*arguments: Any, **keywords: Any) -> Any:
        checkpoint = opened(*arguments, **keywords)
        other = aligned.with_name("other.safetensors")
        other.write_bytes(aligned.read_bytes())
        other.rename(aligned)
        return checkpoint

    monkeypatch.setattr("tload.safetensors._source.open_checkpoint", replace)
    with pytest.raises(tload.ChangedError, match="changed while it was opened"):
        safe_open(aligned, "np")


def test_a_deleted_file_can_still_be_read(aligned: Path) -> None:
    for backend in ("mmap", "pread"):
        with safe_open(aligned, "np", backend=backend) as handle:
            content = aligned.read_bytes()
            aligned.unlink()
            assert raw(handle.get_tensor("layer.3")) == LAYERS["layer.3"].raw
            assert raw(handle.get_slice("layer.3")[2:]) == LAYERS["layer.3"].raw[2 * 256 :]
            aligned.write_bytes(content)


def test_unreadable_file_raises_permission_error(aligned: Path) -> None:
    require_root()
    aligned.chmod(0o000)
    # All modules are imported, and the folder is open, before the rights are dropped.
    code = """
import os, sys
import numpy
from tload.safetensors import safe_open
folder = os.open(sys.argv[1], os.O_RDONLY)
os.setuid(65534)
safe_open(f"/proc/self/fd/{folder}/aligned.safetensors", "np")
"""
    command = [sys.executable, "-c", code, str(aligned.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "PermissionDenied" in done.stderr, done.stderr


def test_many_threads_share_a_handle(aligned: Path) -> None:
    require("torch")
    for backend in ("mmap", "pread"):
        with safe_open(aligned, "pt", backend=backend) as handle, ThreadPoolExecutor(8) as pool:
            parts = {name: handle.get_slice(name) for name in LAYERS}
            start = threading.Barrier(8)

            def read(number: int, parts: Any = parts, handle: Any = handle, start: Any = start) -> None:
                start.wait()
                for name, content in [*LAYERS.items()][number % 6 :]:
                    assert raw(handle.get_tensor(name)) == content.raw
                    assert raw(parts[name][-1]) == content.raw[-256:]

            for done in [pool.submit(read, number) for number in range(8)]:
                done.result()


def test_folders_indices_and_lists(tmp_path: Path) -> None:
    require("torch")
    names = [*LAYERS]
    write_checkpoint(tmp_path, [{name: LAYERS[name] for name in half} for half in (names[::2], names[1::2])])
    shards = sorted(tmp_path.glob("*.safetensors"))
    for source in (tmp_path, tmp_path / "model.safetensors.index.json", shards, tload.open(tmp_path)):
        for framework in ("pt", "np"):
            with safe_open(source, framework) as handle:
                assert handle.keys() == sorted(LAYERS)
                assert handle.offset_keys() == names[::2] + names[1::2]
                assert {name: raw(tensor) for name, tensor in handle.get_tensors().items()} == {
                    name: content.raw for name, content in LAYERS.items()
                }
                assert raw(handle.get_tensor("layer.4")) == LAYERS["layer.4"].raw
                assert raw(handle.get_slice("layer.4")[1]) == LAYERS["layer.4"].raw[256:512]


def test_open_checkpoint_is_not_closed(aligned: Path) -> None:
    with tload.open(aligned) as checkpoint:
        with safe_open(checkpoint, "np") as handle:
            assert raw(handle.get_tensor("layer.0")) == LAYERS["layer.0"].raw
        with pytest.raises(tload.InvalidRequestError, match="store= has no effect"):
            safe_open(checkpoint, "np", store={"retries": 1})
        assert len(tload.load(checkpoint, framework="numpy")) == len(LAYERS)
    with pytest.raises(tload.InvalidRequestError, match="is closed"):
        safe_open(checkpoint, "np")


@pytest.fixture
def served(web: Web, aligned: Path) -> str:
    web.files["model.safetensors"] = aligned.read_bytes()
    return f"{web.url}/model.safetensors"


@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("framework", ["pt", "np"])
def test_url_opens_like_file(framework: str, backend: str, served: str, aligned: Path) -> None:
    theirs = require("safetensors")
    require("torch")
    with safe_open(served, framework, backend=backend) as far, theirs.safe_open(aligned, framework) as near:
        assert far.keys() == near.keys()
        assert far.metadata() == near.metadata()
        assert fingerprint(far.get_tensors()) == fingerprint(near.get_tensors())
        assert fingerprint(far.get_tensor("layer.2")) == fingerprint(near.get_tensor("layer.2"))
        part, wanted = far.get_slice("layer.2"), near.get_slice("layer.2")
        for index in [0, -1, slice(1, 3), (..., slice(None, None, 5)), (1, slice(3, 9)), (0, 0), ()]:
            assert fingerprint(part[index]) == fingerprint(wanted[index]), index


def test_a_url_takes_torchs_indices(served: str, aligned: Path) -> None:
    theirs = require("safetensors")
    torch = require("torch")
    part, wanted = (
        opener(source, "pt").get_slice("layer.5")
        for opener, source in [(safe_open, served), (theirs.safe_open, aligned)]
    )
    taken = [None, [0, 2], torch.tensor([1, 1]), slice(-2, 100), (slice(4, 1), 0), True, (..., None), (0, [1, 2])]
    refused = [6, (0, 64), (0, 0, 0), slice(None, None, -1), "a", 1.5, (-7, 0)]
    for index in [*taken, *refused]:
        assert outcome(part.__getitem__, index) == outcome(wanted.__getitem__, index), index


@pytest.mark.parametrize(("framework", "backend"), [("pt", "mmap"), ("pt", "pread"), ("np", "pread"), ("flax", "mmap")])
def test_slice_reads_only_its_bytes(framework: str, backend: str, web: Web, tmp_path: Path) -> None:
    require({"pt": "torch", "np": "numpy", "flax": "jax"}[framework])
    path = tmp_path / "rows.safetensors"
    content = Content("U8", (64, MIB // 4), tile(0, 16 * MIB))
    write_file(path, {"rows": content, "more": Content("U8", (16 * MIB,), tile(1, 16 * MIB))})
    web.files["rows.safetensors"] = path.read_bytes()
    with safe_open(f"{web.url}/rows.safetensors", framework, backend=backend) as handle:
        rows = handle.get_slice("rows")
        web.requests.clear()
        part = rows[10:12]
        asked = [request.headers["range"].removeprefix("bytes=").split("-") for request in web.requests]
        assert 2 * MIB // 4 <= sum(int(end) - int(start) + 1 for start, end in asked) <= MIB
        assert raw(part if framework != "flax" else part.__array__()) == content.raw[10 * MIB // 4 : 12 * MIB // 4]
        web.requests.clear()
        assert rows[-1].shape == (MIB // 4,)
        assert web.requests


def test_store_url_opens_with_options(s3: S3, aligned: Path) -> None:
    url = s3.put("dropin", "model.safetensors", aligned.read_bytes())
    with safe_open(url, "np", store=s3.store) as handle:
        assert raw(handle.get_tensor("layer.0")) == LAYERS["layer.0"].raw
    from tload.safetensors.numpy import load_file

    assert {*load_file(url, store=s3.store)} == {*LAYERS}
    with pytest.raises(FileNotFoundError):
        safe_open(f"{url}.not", "np", store=s3.store)
    with pytest.raises(SafetensorError, match="ftp"):
        safe_open("ftp://host/model.safetensors", "np")


def test_handles_and_slices_have_repr(aligned: Path) -> None:
    with safe_open(aligned, "np") as handle:
        assert repr(handle) == f"<tload.safetensors.safe_open {str(aligned)!r}: numpy>"
        assert repr(handle.get_slice("layer.1")) == "<tload.safetensors.PySafeSlice 'layer.1': F32 [2, 64]>"
        meta = handle.get_tensor_meta("layer.1")
        assert (meta.dtype, meta.shape, meta.data_offsets) == ("F32", [2, 64], (256, 768))
    assert repr(handle) == "<tload.safetensors.safe_open: closed>"
    with pytest.raises(SafetensorError, match="File is closed"):
        handle.get_tensor_meta("layer.1")


def test_large_files_can_be_mapped(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    content = Content("U8", (20 * MIB,), tile(0, 20 * MIB))
    write_file(path, {"a": content, "b": Content("I16", (3,), b"123456")})
    with safe_open(path, "np") as handle:
        assert handle.get_tensor("a").tobytes() == content.raw
        assert handle.get_slice("a")[5 * MIB : 6 * MIB : 3].tobytes() == content.raw[5 * MIB : 6 * MIB : 3]


@pytest.mark.parametrize("framework", ["tf", "tensorflow", "mlx", "paddle"])
def test_frameworks_left_to_safetensors(framework: str, aligned: Path) -> None:
    with pytest.raises(SafetensorError, match=rf'framework {framework} is not supported(?s:.*)pass framework="np"'):
        safe_open(aligned, framework)


@pytest.mark.parametrize(("framework", "module"), [("pt", "torch"), ("np", "numpy"), ("jax", "jax.numpy")])
def test_missing_frameworks(framework: str, module: str, aligned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=module.partition(".")[0]):
        safe_open(aligned, framework)


def test_only_the_framework_is_imported(aligned: Path) -> None:
    require("numpy")
    code = f"""
import sys
import tload, tload.safetensors
assert "torch" not in sys.modules and "numpy" not in sys.modules
tload.safetensors.safe_open({str(aligned)!r}, "np").get_slice("layer.1")[0]
assert "torch" not in sys.modules and "jax" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_the_package(aligned: Path) -> None:
    """Reading does not need the package; writing names it as missing."""
    require("torch")
    code = f"""
import sys
sys.modules["safetensors"] = sys.modules["safetensors.torch"] = None
from tload.safetensors import SafetensorError, safe_open
from tload.safetensors.torch import load, load_file
assert SafetensorError.__module__ == "tload.safetensors._errors"
path = {str(aligned)!r}
assert load_file(path).keys() == load(open(path, "rb").read()).keys()
try:
    safe_open(path, "pt").get_tensor("none")
except SafetensorError as error:
    print(error)
try:
    from tload.safetensors.torch import save_file
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "File does not contain tensor none" in done.stdout
    assert "pip install safetensors" in done.stdout


def test_other_attributes_come_from_package() -> None:
    theirs = require("safetensors")
    for name in ("serialize", "serialize_file", "deserialize", "TensorSpec"):
        assert getattr(safetensors, name) is getattr(theirs, name)
    with pytest.raises(AttributeError, match=r"neither 'tload\.safetensors' nor 'safetensors' has an .* 'nonsense'"):
        _ = safetensors.nonsense
