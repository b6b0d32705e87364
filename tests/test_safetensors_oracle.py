"""All reads of `tload.safetensors`, compared with the safetensors package: same results, same
errors."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from conftest import require
from files import Content, write_file
from tload import safetensors as ours
from tload._tensors import numpy_arrays, torch_tensors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tload.safetensors import safe_open

HANDLES = [(framework, backend) for framework in ("pt", "np") for backend in ("mmap", "pread")]

TENSORS = {
    "table": Content.random("F32", (10, 5), seed=1),
    "cube": Content.random("F16", (2, 3, 4), seed=2),
    "long": Content.random("I64", (7,), seed=3),
    "one": Content.random("F64", (), seed=4),
    "none": Content("F32", (0, 5), b""),
    "flat": Content("F32", (3, 0, 2), b""),
}

INDICES: dict[str, list[Any]] = {
    "table": [
        *(slice(None), ..., (), 0, -1, 9, -10, slice(2), slice(2, None), slice(5, 5), slice(0, 0), slice(0, 10)),
        *(slice(None, None, 2), slice(1, 8, 3), slice(None, None, 100), slice(9, 10), []),
        *((slice(2, None), 0), (slice(2, None), -1), (slice(None), slice(None, None, 2)), (slice(None, None, 3), 4)),
        *((slice(None, None, 3), slice(1, None, 2)), (0, 0), (-1, -5), (..., 0), (0, ...), (..., 1, 2), (1, 2, ...)),
        *((..., slice(1, 3)), (slice(0, 2), ..., 1), (slice(None), ...), (slice(3, 7), slice(4, 5))),
        # Indices out of range, and objects that are not indices.
        *(10, -11, 2**40, -(2**40), (0, 5), (0, -6), (slice(2, None), 20), (0, 0, 0), (slice(None),) * 3),
        *(slice(20), slice(20, None), slice(10, 10), slice(10, None), (0, slice(6)), (..., 0, 0, 0)),
        *(slice(None, None, -1), slice(None, None, 0), (0, slice(None, None, -2))),
        *(1.5, "a", slice(1.5, 2), slice("a"), {}, object()),
    ],
    "cube": [..., (1, ..., 2), (..., slice(None, None, 3)), (0, 1, 2), (slice(None), 1), (slice(1), slice(1, 3), -1)],
    "long": [3, -7, slice(2, 6, 3), (..., -1), 7, (0, 0)],
    "one": [..., (), 0, -1, slice(None), (0, 0), (..., 0), slice(0, 0)],
    "none": [(), 0, -1, 5, (0, slice(1, 3))],
    "flat": [(), 0, -1, slice(None), slice(None, None, 2), slice(0, 0), slice(1, 1), (slice(None), 0), 3],
}

# `backend="mmap"` treats these indices as torch does. Otherwise the package's own rules refuse
# them.
ADVANCED: list[Any] = [None, (..., None), [0, 1], True, (0, [1])]
NEGATIVE: list[Any] = [slice(-3, None), slice(None, -3), slice(-100, 100), (0, slice(-2, None)), slice(8, 1)]


def outcome(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> tuple[Any, ...]:
    """Return a comparable result of a call: a value's content, or an error's type and message."""
    try:
        value = call(*arguments, **keywords)
    except Exception as error:  # noqa: BLE001
        return type(error), str(error)
    return fingerprint(value)


def fingerprint(value: Any) -> tuple[Any, ...]:
    if isinstance(value, dict):
        return tuple((name, fingerprint(tensor)) for name, tensor in sorted(value.items()))
    if hasattr(value, "shape"):
        return type(value), str(value.dtype), tuple(value.shape), raw(value)
    return (value,)


def raw(tensor: Any) -> bytes:
    """Return the bytes of a torch tensor or a numpy array."""
    if hasattr(tensor, "untyped_storage"):
        import torch

        if not tensor.numel():
            return b""
        tensor = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    result: bytes = tensor.tobytes()
    return result


@pytest.fixture
def theirs() -> Any:
    require("torch")
    require("numpy")
    # The package supports bfloat16 in numpy only once ml_dtypes is imported.
    require("ml_dtypes")
    return require("safetensors")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    write_file(path, TENSORS, metadata={"format": "pt", "author": "tests"})
    return path


def both(theirs: Any, path: Path, framework: str, backend: str) -> tuple[safe_open, Any]:
    return (
        ours.safe_open(path, framework, "cpu", backend=backend),
        theirs.safe_open(path, framework, "cpu", backend=backend),
    )


def test_error_class_is_that_of_safetensors(theirs: Any) -> None:
    assert ours.SafetensorError is theirs.SafetensorError


@pytest.mark.parametrize(("framework", "backend"), HANDLES)
def test_handles_report_like_safetensors(framework: str, backend: str, theirs: Any, path: Path) -> None:
    mine, original = both(theirs, path, framework, backend)
    for name in ("keys", "metadata"):
        assert getattr(mine, name)() == getattr(original, name)(), name
    # Tensors without bytes share offsets with others, and the package orders them arbitrarily.
    for keys in (mine.offset_keys(), original.offset_keys()):
        assert [name for name in keys if TENSORS[name].raw] == ["table", "cube", "long", "one"]
    assert sorted(mine.offset_keys()) == sorted(TENSORS)
    for name in TENSORS:
        assert mine.get_slice(name).get_shape() == original.get_slice(name).get_shape()
        assert mine.get_slice(name).get_dtype() == original.get_slice(name).get_dtype()
    assert fingerprint(mine.get_tensors()) == fingerprint(original.get_tensors())


@pytest.mark.parametrize(("framework", "backend"), HANDLES)
def test_every_dtype_equals_safetensors(
    framework: str, backend: str, theirs: Any, every_dtype: tuple[Path, dict[str, Content]]
) -> None:
    path, contents = every_dtype
    mine, original = both(theirs, path, framework, backend)
    known = torch_tensors.DTYPES if framework == "pt" else {**numpy_arrays.DTYPES, **numpy_arrays.ML_DTYPES}
    compared = set()
    for name, content in contents.items():
        found = outcome(mine.get_tensor, name)
        if content.dtype in known:
            assert found[-1] == content.raw, name
        else:
            assert found[0] is ours.SafetensorError, name
            assert f"Dtype not understood: {content.dtype}" in found[1]
        wanted = outcome(original.get_tensor, name)
        if not isinstance(wanted[0], type) or not issubclass(wanted[0], Exception):
            assert found == wanted, name
            compared.add(content.dtype)
    if framework == "np":
        assert compared == {*numpy_arrays.DTYPES, "BF16"}
    else:
        # `pread` of the package does not support 4-bit floats.
        assert compared | {"F4"} == set(known)


@pytest.mark.parametrize(("framework", "backend"), HANDLES)
@pytest.mark.parametrize("name", INDICES)
def test_every_index_equals_safetensors(framework: str, backend: str, name: str, theirs: Any, path: Path) -> None:
    mine, original = (handle.get_slice(name) for handle in both(theirs, path, framework, backend))
    for index in INDICES[name]:
        found, wanted = outcome(mine.__getitem__, index), outcome(original.__getitem__, index)
        if isinstance(index, int) and abs(index) > 2**31 and (framework, backend) != ("pt", "mmap"):
            # Too large for the package's integers.
            assert found[0] is wanted[0] is ours.SafetensorError
            continue
        if wanted[0] is TypeError and (framework, backend) != ("pt", "mmap"):
            assert found[0] is TypeError
            continue
        assert found == wanted, index


@pytest.mark.parametrize(("framework", "backend"), HANDLES)
def test_torch_only_indices_match(framework: str, backend: str, theirs: Any, path: Path) -> None:
    mine, original = (handle.get_slice("table") for handle in both(theirs, path, framework, backend))
    for index in [*ADVANCED, *(NEGATIVE if (framework, backend) == ("pt", "mmap") else [])]:
        assert outcome(mine.__getitem__, index) == outcome(original.__getitem__, index), index


@pytest.mark.parametrize(("framework", "backend"), [handle for handle in HANDLES if handle != ("pt", "mmap")])
def test_extended_slices_match_python(framework: str, backend: str, theirs: Any, path: Path) -> None:
    handle, original = both(theirs, path, framework, backend)
    table, whole = handle.get_slice("table"), handle.get_tensor("table")
    with_minus = [slice(-3, None), slice(None, -3), slice(-3, -1), slice(-10, None), (slice(2, -2, 2), slice(-4, -1))]
    for index in [*with_minus, slice(8, 1), slice(-1, 1), (0, slice(4, 2))]:
        assert outcome(original.get_slice("table").__getitem__, index)[0] in {OverflowError, SystemError}
        assert fingerprint(table[index]) == fingerprint(whole[index]), index
    for index in [slice(-11, None), slice(None, -11)]:
        with pytest.raises(
            ours.SafetensorError, match=r"Error during slicing \[.*-11.*\] with shape \[10, 5\]: index -11"
        ):
            table[index]
    none = handle.get_slice("none")
    for index in [slice(None), slice(0, 0), ..., (slice(None, None, 2), slice(1, 3)), (..., 0)]:
        assert outcome(original.get_slice("none").__getitem__, index)[0] is ours.SafetensorError
        assert fingerprint(none[index]) == fingerprint(handle.get_tensor("none")[index])


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_floats_of_4_bits_are_cut_by_pairs(backend: str, theirs: Any, tmp_path: Path) -> None:
    path = tmp_path / "f4.safetensors"
    write_file(path, {"pairs": Content.random("F4", (4, 6), seed=0), "odd": Content.random("F4", (2, 3), seed=0)})
    handle, _ = both(theirs, path, "pt", backend)
    pairs, whole = handle.get_slice("pairs"), handle.get_tensor("pairs")
    assert pairs.get_shape() == [4, 6]
    assert tuple(whole.shape) == (4, 3)
    for index, wanted in [
        (slice(None), whole),
        (1, whole[1]),
        ((..., slice(2, None)), whole[:, 1:]),
        ((slice(1, 3), slice(2, 4)), whole[1:3, 1:2]),
        ((-1, slice(0, 6)), whole[-1]),
    ]:
        assert fingerprint(pairs[index]) == fingerprint(wanted), index
    for index in [(0, 0), (..., 1), (0, slice(1, 3)), (0, slice(2, 5)), (0, slice(0, 6, 2))]:
        with pytest.raises(ours.SafetensorError, match="does not end up at a byte boundary"):
            pairs[index]
    with pytest.raises(ours.SafetensorError, match=r"last dim be divisible by 2 in torch: got \[2, 3\]"):
        handle.get_tensor("odd")


@pytest.mark.parametrize(("framework", "backend"), HANDLES)
def test_names_and_closed_handles(framework: str, backend: str, theirs: Any, path: Path) -> None:
    handles = both(theirs, path, framework, backend)
    mine, original = ([outcome(call) for call in _misuse(handle)] for handle in handles)
    assert [found[0] for found in mine] == [wanted[0] for wanted in original]
    for found, wanted in zip(mine, original, strict=True):
        assert found == wanted or found[0] is TypeError


def _misuse(handle: Any) -> list[Callable[[], Any]]:
    part = handle.get_slice("table")

    def closed(name: str, *arguments: Any) -> Callable[[], Any]:
        def call() -> Any:
            handle.__exit__(None, None, None)
            return getattr(handle, name)(*arguments)

        return call

    return [
        lambda: handle.get_tensor("missing"),
        lambda: handle.get_slice("missing"),
        lambda: handle.get_tensor(3),
        lambda: handle.get_slice(None),
        *(closed(name) for name in ("keys", "offset_keys", "metadata", "get_tensors")),
        *(closed(name, "table") for name in ("get_tensor", "get_slice")),
        # A part is independent of its handle.
        lambda: part[1:3],
        part.get_shape,
        lambda: handle.__exit__(None, None, None),
    ]


OPENINGS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "no such file": (("nowhere.safetensors", "pt"), {}),
    "no such folder": (("no/where.safetensors", "np"), {}),
    "empty": (("", "pt"), {}),
    "zero byte": (("a\0b", "pt"), {}),
    "bytes": ((b"model.safetensors", "pt"), {}),
    "number": ((3, "pt"), {}),
    "nothing": ((None, "pt"), {}),
    "framework": (("model.safetensors", "caffe"), {}),
    "case": (("model.safetensors", "PT"), {}),
    "framework of another type": (("model.safetensors", 3), {}),
    "backend": (("model.safetensors", "pt"), {"backend": "direct"}),
    "backend of another type": (("model.safetensors", "pt"), {"backend": None}),
    "device": (("model.safetensors", "pt", "tpu"), {}),
    "device -1": (("model.safetensors", "pt", -1), {}),
    "device 1.5": (("model.safetensors", "pt", 1.5), {}),
    "device meta": (("model.safetensors", "pt", "meta"), {}),
    "device cpu:0": (("model.safetensors", "pt", "cpu:0"), {}),
    "device cuda:1:2": (("model.safetensors", "pt", "cuda:1:2"), {}),
    "numpy on a GPU": (("model.safetensors", "np", "cuda:0"), {}),
    "numpy on 0": (("model.safetensors", "np", 0), {}),
    "numpy elsewhere": (("model.safetensors", "np", "xpu:3"), {}),
    "too many": (("model.safetensors", "pt", "cpu", "mmap"), {}),
    "unknown": (("model.safetensors", "pt"), {"prefetch": True}),
    "no framework": (("model.safetensors",), {}),
}


@pytest.mark.parametrize("case", OPENINGS)
def test_open_errors_match_package(case: str, theirs: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    arguments, keywords = OPENINGS[case]
    found = outcome(ours.safe_open, *arguments, **keywords)
    wanted = outcome(theirs.safe_open, *arguments, **keywords)
    assert issubclass(found[0], wanted[0]), (found, wanted)
    if wanted[0] is FileNotFoundError:
        assert "No such file or directory" in found[1]
        assert str(arguments[0]) in found[1]
    elif wanted[0] is not TypeError:
        assert found == wanted


@pytest.mark.parametrize("framework", ["torch", "pytorch", "numpy"])
def test_other_names_of_frameworks(framework: str, theirs: Any, path: Path) -> None:
    mine, original = both(theirs, path, framework, "mmap")
    assert fingerprint(mine.get_tensor("table")) == fingerprint(original.get_tensor("table"))


def test_cpu_devices(theirs: Any, path: Path) -> None:
    for device in ("cpu", None):
        wanted = theirs.safe_open(path, "pt", device).get_tensor("table")
        assert fingerprint(ours.safe_open(path, "pt", device).get_tensor("table")) == fingerprint(wanted)
    torch = require("torch")
    device = torch.device("cpu")
    assert ours.safe_open(path, "pt", device).get_tensor("table").device == device
    for refused in (torch.device("meta"), torch.device("privateuseone")):
        with pytest.raises(ours.SafetensorError, match=f"device {refused} is invalid"):
            ours.safe_open(path, "pt", refused)


@pytest.mark.parametrize("module", ["torch", "numpy"])
def test_examples_of_safetensors(module: str, theirs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the code in the package's docstrings twice: unchanged, and with tload's imports."""
    original = require(f"safetensors.{module}")
    (tmp_path / "my_folder").mkdir()
    for name in ("model.safetensors", "my_folder/bert.safetensors"):
        write_file(tmp_path / name, {"embedding": Content.random("F32", (16, 16), seed=0)})
    monkeypatch.chdir(tmp_path)
    documented = [original.load, original.load_file, original.save, original.save_file]
    documented += [theirs.safe_open.get_slice, theirs.safe_open.get_tensor, theirs.safe_open.get_tensors]
    ran = 0
    for thing in documented:
        for code in _examples(thing.__doc__):
            wanted, found = _run(code), _run(code.replace("from safetensors", "from tload.safetensors"))
            assert found == wanted, code
            ran += bool(wanted)
    assert ran >= 6


def _examples(docstring: str) -> list[str]:
    blocks = docstring.split("```python\n")[1:]
    # Examples for a GPU or for Metal do not run everywhere.
    plain = (textwrap.dedent(block.partition("```")[0]) for block in blocks)
    return [code.replace("device=0", 'device="cpu"').replace('device="mps"', 'device="cpu"') for code in plain]


def _run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(code, names)
    kept = ("tensor", "tensor_part", "state_dict", "loaded", "byte_data")
    return {name: fingerprint(names[name]) for name in kept if name in names}
