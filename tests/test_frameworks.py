"""Every dtype arrives with the right type, shape and bytes in every framework, without a copy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tload
from capsules import look
from conftest import require
from files import BITS, Content, write_file
from tload import _tload
from tload._tensors import frameworks, numpy_arrays, torch_tensors

Every = tuple[Path, dict[str, Content]]

# DLPack's code, bits and lanes: dlpack.h 1.1.
CODES = {
    "BOOL": (6, 8, 1),
    "F4": (17, 4, 2),
    "F6_E2M3": (15, 6, 1),
    "F6_E3M2": (16, 6, 1),
    "U8": (1, 8, 1),
    "I8": (0, 8, 1),
    "F8_E5M2": (12, 8, 1),
    "F8_E4M3": (10, 8, 1),
    "F8_E8M0": (14, 8, 1),
    "F8_E4M3FNUZ": (11, 8, 1),
    "F8_E5M2FNUZ": (13, 8, 1),
    "I16": (0, 16, 1),
    "U16": (1, 16, 1),
    "F16": (2, 16, 1),
    "BF16": (4, 16, 1),
    "I32": (0, 32, 1),
    "U32": (1, 32, 1),
    "F32": (2, 32, 1),
    "C64": (5, 64, 1),
    "F64": (2, 64, 1),
    "I64": (0, 64, 1),
    "U64": (1, 64, 1),
}


def only(tensors: dict[str, Content], dtypes: set[str]) -> list[str]:
    return [name for name, content in tensors.items() if content.dtype in dtypes]


def shape_in_pairs(content: Content) -> tuple[int, ...]:
    if content.dtype != "F4":
        return content.shape
    return (*content.shape[:-1], content.shape[-1] // 2)


def test_every_core_dtype_has_a_mapping() -> None:
    assert set(_tload.DTYPES) == set(BITS) == set(CODES)
    assert set(BITS) - set(torch_tensors.DTYPES) == {"F6_E2M3", "F6_E3M2"}
    assert set(BITS) - set(numpy_arrays.DTYPES) - set(numpy_arrays.ML_DTYPES) == {"F4", "F6_E2M3", "F6_E3M2"}


def test_dlpack_describes_every_dtype_and_shape(every_dtype: Every) -> None:
    path, tensors = every_dtype
    loaded = tload.load(path, framework="dlpack")
    assert list(loaded) == list(tensors)
    for name, content in tensors.items():
        tensor = loaded[name]
        assert (tensor.name, tensor.dtype, tensor.shape) == (name, content.dtype, content.shape)
        assert tensor.nbytes == len(content.raw)
        for max_version in (None, (1, 0)):
            seen = look(tensor.__dlpack__(max_version=max_version))
            assert seen.dtype == CODES[content.dtype], name
            assert seen.shape == shape_in_pairs(content), name
            assert seen.raw == content.raw, name
            assert seen.device == tensor.__dlpack_device__() == (1, 0)
            assert (seen.address is None) == (not content.raw)
            if seen.address is not None:
                assert seen.address % max(BITS[content.dtype] // 8, 1) == 0, "aligned for its dtype"


@pytest.mark.parametrize("exchanged", [True, False], ids=["exchanged", "as-bytes"])
def test_torch_imports_every_supported_dtype(
    exchanged: bool,  # noqa: FBT001  # a parameter of pytest
    every_dtype: Every,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = require("torch")
    path, tensors = every_dtype
    if not exchanged:
        # An older torch.
        monkeypatch.setattr(torch_tensors, "_is_exchanged", lambda _: False)
    names = only(tensors, set(torch_tensors.DTYPES))
    loaded = tload.load(path, names=names)
    assert list(loaded) == names
    for name in names:
        tensor, content = loaded[name], tensors[name]
        assert tensor.dtype == getattr(torch, torch_tensors.DTYPES[content.dtype]), name
        assert tuple(tensor.shape) == shape_in_pairs(content), name
        assert tensor.is_contiguous()
        assert tensor.device.type == "cpu"
        assert bytes(tensor.reshape(-1).view(torch.uint8).numpy()) == content.raw, name
        assert tensor.numel() == 0 or tensor.data_ptr() % tensor.element_size() == 0


def test_dtypes_are_tried_on_the_cpu() -> None:
    torch = require("torch")
    dtypes = list(torch_tensors.dtype_names())
    found = [torch_tensors._is_exchanged(dtype) for dtype in dtypes]
    with torch.device("meta"):
        assert [torch_tensors._is_exchanged(dtype) for dtype in dtypes] == found


def test_torch_agrees_with_the_safetensors_package(every_dtype: Every) -> None:
    torch = require("torch")
    safetensors = require("safetensors")
    path, tensors = every_dtype
    loaded = tload.load(path, names=only(tensors, set(torch_tensors.DTYPES)))
    compared = set()
    with safetensors.safe_open(path, framework="pt") as oracle:
        for name, tensor in loaded.items():
            wanted = oracle.get_tensor(name)
            assert tensor.dtype == wanted.dtype, name
            assert tensor.shape == wanted.shape, name
            # Compared as bytes: random floats contain NaNs.
            assert torch.equal(tensor.reshape(-1).view(torch.uint8), wanted.reshape(-1).view(torch.uint8)), name
            compared.add(tensors[name].dtype)
    assert compared == set(torch_tensors.DTYPES)


def test_numpy_agrees_with_the_safetensors_package(every_dtype: Every) -> None:
    require("ml_dtypes")
    safetensors = require("safetensors")
    path, tensors = every_dtype
    loaded = tload.load(path, framework="numpy", names=only(tensors, {*numpy_arrays.DTYPES, *numpy_arrays.ML_DTYPES}))
    compared = set()
    with safetensors.safe_open(path, framework="numpy") as oracle:
        for name, array in loaded.items():
            content = tensors[name]
            assert array.shape == content.shape, name
            assert array.tobytes() == content.raw, name
            assert array.flags.c_contiguous
            assert array.flags.writeable
            assert array.dtype.name == {**numpy_arrays.DTYPES, **numpy_arrays.ML_DTYPES}[content.dtype]
            try:
                wanted = oracle.get_tensor(name)
            except Exception:  # noqa: BLE001  # the package lacks some dtypes in numpy
                continue
            assert array.dtype == wanted.dtype, name
            assert wanted.tobytes() == array.tobytes(), name
            compared.add(content.dtype)
    assert compared >= {"BOOL", "U8", "I8", "I16", "U16", "F16", "I32", "U32", "F32", "F64", "I64", "U64"}


def test_nothing_is_copied(every_dtype: Every) -> None:
    torch = require("torch")
    np = require("numpy")
    path, _ = every_dtype
    for tensor in tload.load(path, framework="dlpack").values():
        if tensor.nbytes == 0:
            continue
        address = look(tensor.__dlpack__(max_version=(1, 0))).address
        assert torch.from_dlpack(tensor.flat()).data_ptr() == address
        assert np.from_dlpack(tensor.flat()).ctypes.data == address
        convert: Any = torch_tensors.converter([], list)
        with pytest.raises(KeyError):
            convert(tensor)  # dtypes that were not checked are not converted


@pytest.mark.parametrize(
    ("options", "is_shared", "is_refused"),
    [
        (tload.Options(private=False), True, True),
        (tload.Options(private=False), False, False),
        (tload.Options(), True, False),
        (tload.Options(cache="map", writable=False), False, True),
    ],
)
def test_old_torch_refuses_read_only_memory_before_the_load(
    *, options: tload.Options, is_shared: bool, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = require("torch")
    monkeypatch.setattr(torch.Tensor, "__dlpack__", lambda self, stream=None: (self, stream))
    make_converter = frameworks.converters("torch", options, is_shared=is_shared)
    if not is_refused:
        make_converter([], list)
        return
    with pytest.raises(
        tload.UnsupportedError, match="read-only view of a file or of memory that ranks share"
    ) as caught:
        make_converter([], list)
    assert "private=True" in str(caught.value.hint)


def test_views_share_their_memory(floats: Every) -> None:
    torch = require("torch")
    np = require("numpy")
    path, _ = floats
    tensor = tload.load(path, framework="dlpack")["layer.1.weight"]
    one, other = torch.from_dlpack(tensor), np.from_dlpack(tensor)
    one.fill_(7.0)
    assert (other == 7.0).all()
    other[0, 0] = 1.5
    assert one[0, 0] == 1.5


def test_dtype_missing_in_torch_is_rejected_before_first_read(
    every_dtype: Every, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = require("torch")
    path, _ = every_dtype
    with pytest.raises(tload.UnsupportedError) as caught:
        tload.stream(path)
    assert "dtype F6_E2M3 of 'F6_E2M3.0', 'F6_E2M3.1', 'F6_E2M3.2' and 2 more: torch" in str(caught.value)
    assert caught.value.tensor == "F6_E2M3.0"
    assert caught.value.hint is not None
    assert 'framework="dlpack"' in caught.value.hint
    monkeypatch.delattr(torch, "float8_e8m0fnu")
    with pytest.raises(tload.UnsupportedError, match=r"dtype F8_E8M0 of .* has no such dtype"):
        tload.stream(path, glob="F8_*")


def test_torch_rejects_odd_f4_dimension(tmp_path: Path) -> None:
    require("torch")
    path = tmp_path / "odd.safetensors"
    odd = Content.random("F4", (2, 3), 0)
    write_file(path, {"odd": odd})
    with pytest.raises(tload.UnsupportedError, match=r"'odd' has the shape \(2, 3\)"):
        tload.stream(path)
    seen = look(tload.load(path, framework="dlpack")["odd"].__dlpack__())
    assert (seen.dtype, seen.shape, seen.raw) == ((17, 4, 1), (2, 3), odd.raw)


def test_dtype_missing_in_numpy_names_package_to_install(every_dtype: Every, monkeypatch: pytest.MonkeyPatch) -> None:
    require("numpy")
    path, _ = every_dtype
    with pytest.raises(tload.UnsupportedError, match="numpy has no packed floats of less than 8 bits"):
        tload.stream(path, framework="numpy", glob="F4*")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(tload.UnsupportedError, match=r"pip install 'tload\[numpy\]'"):
        tload.stream(path, framework="numpy", glob="BF16*")
    assert len(tload.load(path, framework="numpy", glob="F16*")) == 10


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_missing_framework_error_names_alternatives(
    framework: Any, floats: Every, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = floats
    monkeypatch.setitem(sys.modules, framework, None)
    with pytest.raises(tload.UnsupportedError, match=f'framework="{framework}" needs {framework}') as caught:
        tload.load(path, framework=framework)
    assert caught.value.hint is not None
    assert 'framework="dlpack"' in caught.value.hint


def test_unknown_framework_raises_value_error(floats: Every) -> None:
    with pytest.raises(ValueError, match="framework 'jax' is unknown; it can be torch, numpy, dlpack"):
        tload.load(floats[0], framework="jax")  # type: ignore[call-overload]


SLOW = ("asyncio", "concurrent.futures", "ctypes", "html", "pathlib", "tempfile", "urllib.parse")
"""Modules of the standard library that a load of a file does not need."""


def test_import_and_load_import_no_slow_modules(floats: Every) -> None:
    script = (
        f"import sys; before = {{*sys.modules}}; import tload; tload.load({str(floats[0])!r}, framework='dlpack'); "
    )
    script += f"print(*sorted({set(SLOW)!r} & (sys.modules.keys() - before)))"
    # Without `site`, whose imports depend on what is installed.
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {script}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_public_names_are_all_that_dir_shows() -> None:
    script = "import tload; print(*(name for name in dir(tload) if not name.startswith('_')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {name for name in tload.__all__ if not name.startswith("_")}
    assert "doctest" not in (tload.__doc__ or "")


def test_submodules_are_attributes_imported_on_first_use() -> None:
    script = (
        "import sys, tload; early = [name for name in sys.modules if name.startswith('tload.transformers')]; "
        "print(early, callable(tload.transformers.from_pretrained), hasattr(tload, 'transformer'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[] True False\n"


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import tload; tload.open(path)", ("torch", "numpy", "tqdm", "ml_dtypes")),
        ("import tload; tload.load(path, framework='dlpack')", ("torch", "numpy", "tqdm", "ml_dtypes")),
        ("import tload; tload.load(path, framework='numpy')", ("torch", "tqdm", "ml_dtypes")),
        ("import tload.__main__", ("torch", "numpy", "tqdm", "ml_dtypes")),
    ],
)
def test_only_used_frameworks_are_imported(code: str, absent: tuple[str, ...], floats: Every) -> None:
    script = f"import sys; path = {str(floats[0])!r}; {code}; sys.exit(bool({absent!r} & sys.modules.keys()))"
    script = script.replace(repr(absent), repr(set(absent)))
    subprocess.run([sys.executable, "-c", script], check=True)
