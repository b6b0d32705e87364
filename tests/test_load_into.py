"""Loading into modules, tensors and arrays in CPU memory: every byte in its place, or all targets
unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tload
from conftest import require
from files import Content, tile, write_file
from in_use import assert_nothing_new, in_use
from test_frameworks import only, shape_in_pairs
from tload import _tload
from tload._tensors import numpy_arrays, torch_tensors

Every = tuple[Path, dict[str, Content]]
Floats = tuple[Path, dict[str, Content]]
MIB = 1 << 20


def raw(tensor: Any) -> bytes:
    torch = require("torch")
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


def empty_for(content: Content) -> Any:
    torch = require("torch")
    return torch.empty(shape_in_pairs(content), dtype=getattr(torch, torch_tensors.DTYPES[content.dtype]))


def save(path: Path, tensors: dict[str, Any]) -> Path:
    """Write torch tensors."""
    torch = require("torch")
    names = {getattr(torch, its): ours for ours, its in torch_tensors.DTYPES.items()}
    write_file(path, {n: Content(names[t.dtype], tuple(t.shape), raw(t)) for n, t in tensors.items()})
    return path


def test_every_dtype_is_read_directly_into_tensor(every_dtype: Every) -> None:
    path, tensors = every_dtype
    names = only(tensors, set(torch_tensors.DTYPES))
    target = {name: empty_for(tensors[name]) for name in names}
    addresses = {name: tensor.data_ptr() for name, tensor in target.items()}
    report = tload.load_into(target, path, names=names)
    for name, tensor in target.items():
        assert raw(tensor) == tensors[name].raw, name
        assert tensor.data_ptr() == addresses[name]
    assert report.outcome == "complete"
    assert report.tensors == len(names)
    assert report.staging is not None
    assert report.devices == ()


def test_every_dtype_is_read_directly_into_array(every_dtype: Every) -> None:
    np = require("numpy")
    ml_dtypes = require("ml_dtypes")
    path, tensors = every_dtype
    names = only(tensors, {*numpy_arrays.DTYPES, *numpy_arrays.ML_DTYPES})
    dtypes = numpy_arrays.DTYPES | {ours: getattr(ml_dtypes, its) for ours, its in numpy_arrays.ML_DTYPES.items()}
    target = {name: np.zeros(tensors[name].shape, dtypes[tensors[name].dtype]) for name in names}
    report = tload.load_into(target, path, names=names)
    for name, array in target.items():
        assert array.tobytes() == tensors[name].raw, name
    assert report.tensors == len(names)


@pytest.mark.parametrize("engine", ["auto", "pread"])
def test_a_module_with_many_files(engine: Any, tmp_path: Path) -> None:
    torch = require("torch")
    torch.manual_seed(0)

    def build() -> Any:
        return torch.nn.Sequential(
            torch.nn.Linear(300, 700), torch.nn.BatchNorm1d(700), torch.nn.Linear(700, 3, dtype=torch.bfloat16)
        )

    saved = build()
    saved[1].running_mean.normal_()
    state = saved.state_dict()
    half = len(state) // 2
    paths = [
        save(tmp_path / f"{index}.safetensors", dict(part))
        for index, part in enumerate((list(state.items())[:half], list(state.items())[half:]))
    ]
    model = build()
    parameters = dict(model.named_parameters())
    calls: list[tload.Progress] = []
    report = tload.load_into(model, paths, engine=engine, memory_limit="8 MiB", progress=calls.append)
    assert calls[-1].fraction == 1.0
    assert report.memory_limit <= 8 * MIB
    assert dict(model.named_parameters()) == parameters, "the same objects"
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    assert all(parameter.requires_grad and parameter.grad_fn is None for parameter in model.parameters())


def test_other_dtypes_and_strides_are_copied(tmp_path: Path) -> None:
    torch = require("torch")
    np = require("numpy")
    values = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    path = save(tmp_path / "a.safetensors", dict.fromkeys("abcdefg", values))
    base = torch.zeros(8, 12)
    target = {
        "a": torch.zeros(4, 6, dtype=torch.bfloat16),
        "b": torch.zeros(6, 4).t(),
        "c": base[::2, ::2],
        "d": torch.nn.Parameter(torch.zeros(4, 6, dtype=torch.float64)),
        "e": np.zeros((4, 6), np.int16),
        "f": np.zeros((6, 4), np.float32).T,
        "g": np.zeros((4, 6), ">f4"),
    }
    tload.load_into(target, path, cast=True)
    for name in "abcd":
        assert torch.equal(target[name].detach().float(), values), name
    for name in "efg":
        assert (np.asarray(target[name], np.float32) == values.numpy()).all(), name
    assert base.sum() == values.sum(), "nothing beside the view"


def test_strides_alone_need_no_cast(tmp_path: Path) -> None:
    torch = require("torch")
    values = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    path = save(tmp_path / "a.safetensors", {"a": values})
    target = {"a": torch.zeros(6, 4).t()}
    tload.load_into(target, path)
    assert torch.equal(target["a"], values)


@pytest.mark.parametrize("saved", [("one",), ("two",), ("one", "two")])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_tied_parameters_are_filled_whichever_was_saved(saved: tuple[str, ...], dtype: str, tmp_path: Path) -> None:
    torch = require("torch")
    values = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    path = save(tmp_path / "a.safetensors", {f"{name}.weight": values for name in saved})
    model = torch.nn.Module()
    model.one = torch.nn.Linear(4, 3, bias=False, dtype=getattr(torch, dtype))
    model.two = torch.nn.Linear(4, 3, bias=False)
    model.two.weight = model.one.weight
    report = tload.load_into(model, path, cast=dtype != "float32")
    assert torch.equal(model.two.weight.float(), values)
    assert model.one.weight is model.two.weight
    assert report.tensors == 1


def test_all_mismatches_are_listed_before_any_write(tmp_path: Path) -> None:
    torch = require("torch")
    path = save(tmp_path / "a.safetensors", {name: torch.ones(2, 3) for name in ("fits", "shape", "dtype", "extra")})
    target = {
        "fits": torch.zeros(2, 3),
        "shape": torch.zeros(3, 2),
        "dtype": torch.zeros(2, 3, dtype=torch.float16),
        "missing": torch.zeros(1),
    }
    with pytest.raises(ValueError, match="do not match") as caught:
        tload.load_into(target, path)
    assert isinstance(caught.value, tload.InvalidRequestError)
    for text in (
        '1 missing in the checkpoint: "missing"',
        '1 unexpected in the checkpoint: "extra"',
        '"shape" has shape [2, 3] in the checkpoint, [3, 2] here',
        '"dtype" is F32 in the checkpoint, F16 here',
    ):
        assert text in str(caught.value)
    assert all(not tensor.any() for tensor in target.values())
    assert caught.value.hint is not None
    assert "cast" in caught.value.hint


def test_non_strict_loads_common_names(tmp_path: Path) -> None:
    torch = require("torch")
    path = save(tmp_path / "a.safetensors", {"a": torch.ones(2), "b": torch.ones(2)})
    target = {"b": torch.zeros(2), "c": torch.zeros(2)}
    report = tload.load_into(target, path, strict=False)
    assert (target["b"].tolist(), target["c"].tolist()) == ([1, 1], [0, 0])
    assert report.tensors == 1
    assert tload.load_into({"x": torch.zeros(2)}, path, strict=False).tensors == 0
    assert tload.load_into({}, path, strict=False).tensors == 0
    with pytest.raises(tload.InvalidRequestError, match="2 unexpected in the checkpoint"):
        tload.load_into({}, path)


def test_unselected_targets_are_unchanged(tmp_path: Path) -> None:
    torch = require("torch")
    path = save(tmp_path / "a.safetensors", {"a": torch.ones(2), "b": torch.ones(2)})
    target = {"a": torch.zeros(2), "b": torch.zeros(2)}
    tload.load_into(target, path, glob="a*", strict=False)
    assert (target["a"].tolist(), target["b"].tolist()) == ([1, 1], [0, 0])
    with pytest.raises(tload.NoSuchTensorError, match="nope"):
        tload.load_into(target, path, names="nope", strict=False)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_invalid_targets_are_listed(tmp_path: Path) -> None:
    torch = require("torch")
    np = require("numpy")
    path = save(tmp_path / "a.safetensors", {"good": torch.ones(2)})
    read_only = np.zeros(2, np.float32)
    read_only.flags.writeable = False
    target = {
        "good": torch.zeros(2),
        "meta": torch.zeros(2, device="meta"),
        "sparse": torch.eye(2).to_sparse(),
        "quantized": torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.quint8),
        "expanded": torch.zeros(1).expand(2),
        "array": read_only,
        "broadcast": np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (2,), (0,)),
        "list": [0.0, 0.0],
    }
    with pytest.raises(tload.InvalidRequestError) as caught:
        tload.load_into(target, path)
    for text in (
        "'meta' is on the meta device",
        "'sparse' is sparse (sparse_coo)",
        "'quantized' is quantized",
        "'expanded' has overlapping elements in memory",
        "'array' is read-only",
        "'broadcast' has overlapping elements in memory",
        "'list' is not a tensor or array but a list",
    ):
        assert text in str(caught.value), text
    assert "'good'" not in str(caught.value)
    assert target["good"].tolist() == [0, 0]
    with torch.device("meta"):
        module = torch.nn.Linear(2, 2)
    with pytest.raises(tload.InvalidRequestError, match=r"'weight' is on the meta device.*'bias' is on the meta"):
        tload.load_into(module, path)


def test_invalid_calls_raise_errors(tmp_path: Path) -> None:
    torch = require("torch")
    path = save(tmp_path / "a.safetensors", {"a": torch.ones(2)})
    wrong: Any
    for wrong in ([torch.zeros(2)], torch.zeros(2), None):
        with pytest.raises(TypeError, match=r"target: wanted a torch\.nn\.Module or a mapping of names, found"):
            tload.load_into(wrong, path)
    wrong = {3: torch.zeros(2)}
    with pytest.raises(TypeError, match=r"target: wanted names \(str\) as keys, found int"):
        tload.load_into(wrong, path)
    with pytest.raises(TypeError, match=r"load_into\(\) got an unexpected keyword argument 'device'"):
        tload.load_into({}, path, device="cpu")  # type: ignore[call-arg]


def pairs_that_share() -> dict[str, tuple[Any, Any, str]]:
    """Two targets of the shape (4, 4), and the memory that they share."""
    torch = require("torch")
    np = require("numpy")
    base = torch.zeros(4, 4)
    other = torch.zeros(64)
    array = np.zeros((4, 4), np.float32)
    halves = torch.zeros(4, 4, dtype=torch.bfloat16)
    complexes = torch.zeros(4, 4, dtype=torch.complex64)
    same, some = "are the same memory with different shapes or strides", "share some of their memory"
    return {
        "transposed": (base, base.t(), same),
        "shifted": (other[:16].view(4, 4), other[8:24].view(4, 4), some),
        "strided": (other.view(8, 8)[::2, ::2], other.view(8, 8)[:4, :4], some),
        "two strided": (other.view(8, 8)[::2, ::2], other.view(8, 8)[2:6, 1:5], some),
        "as_strided": (other.as_strided((4, 4), (16, 1)), other.as_strided((4, 4), (1, 16)), same),
        "in two dtypes": (halves, halves.view(torch.int16), "are the same memory, as BF16 and as I16"),
        "in two dtypes, strided": (
            halves.t(),
            halves.t().view(torch.float16),
            "are the same memory, as BF16 and as F16",
        ),
        "conjugated": (complexes, complexes.conj(), "as C64 and as C64 conjugated"),
        "arrays": (array, array.T, same),
        "reversed arrays": (array, array[::-1], same),
        "array and tensor": (array, torch.from_numpy(array).t(), same),
        "byte orders": (array.T, array.T.view(">f4"), "as F32 and as >f4"),
    }


@pytest.mark.parametrize(
    "which",
    [
        "transposed",
        "shifted",
        "strided",
        "two strided",
        "as_strided",
        "in two dtypes",
        "in two dtypes, strided",
        "conjugated",
        "arrays",
        "reversed arrays",
        "array and tensor",
        "byte orders",
    ],
)
def test_targets_sharing_memory_are_rejected(which: str, tmp_path: Path) -> None:
    torch = require("torch")
    one, other, relation = pairs_that_share()[which]
    path = save(tmp_path / "a.safetensors", {"a": torch.ones(4, 4), "b": torch.full((4, 4), 2.0)})
    with pytest.raises(tload.InvalidRequestError) as caught:
        tload.load_into({"a": one, "b": other}, path, cast=True)
    found = str(caught.value)
    assert relation in found
    assert '"a" and "b" ' in found or '"b" and "a" ' in found
    assert caught.value.hint == "omit one of the tensors that share memory, or give each its own memory"
    assert not one.any(), "nothing was written"
    # One of them alone may be loaded: the other one is a view of it.
    tload.load_into({"a": one, "b": other}, path, cast=True, strict=False, names="a")
    assert (torch.as_tensor(one) == 1).all()


def test_disjoint_views_of_one_memory_are_filled(tmp_path: Path) -> None:
    torch = require("torch")
    fused, turned = torch.zeros(4, 8), torch.zeros(8, 4)
    target = {
        "a": fused[:, 0::2],
        "b": fused[:, 1::2],
        "c": turned[:4].t(),
        "d": turned[4:],
    }
    values = {name: torch.full((4, 4), index + 1.0) + torch.eye(4) for index, name in enumerate(target)}
    tload.load_into(target, save(tmp_path / "a.safetensors", values))
    assert all(torch.equal(target[name], value) for name, value in values.items())


@pytest.mark.parametrize("saved", [("a",), ("b",), ("a", "b")])
@pytest.mark.parametrize("kind", ["transposed", "strided", "array", "array and tensor", "converted"])
def test_tied_tensor_is_filled_once_with_any_strides(kind: str, saved: tuple[str, ...], tmp_path: Path) -> None:
    torch = require("torch")
    np = require("numpy")
    array = np.zeros((4, 4), np.float32)
    base = torch.zeros(8, 8)
    one, other = {
        "transposed": lambda: (base[:4, :4].t(), base[:4, :4].t()),
        "strided": lambda: (base[::2, ::2], base[::2, ::2]),
        "array": lambda: (array.T, array.T),
        "array and tensor": lambda: (array.T, torch.from_numpy(array).t()),
        "converted": lambda: (base.double()[:4, :4],) * 2,
    }[kind]()
    values = torch.arange(16.0).reshape(4, 4)
    path = save(tmp_path / "a.safetensors", dict.fromkeys(saved, values))
    report = tload.load_into({"a": one, "b": other}, path, cast=True)
    assert report.tensors == 1
    assert torch.equal(torch.as_tensor(one).float(), values)
    assert torch.equal(torch.as_tensor(other).float(), values)


def test_unsupported_dtype_rejected_before_writing(every_dtype: Every) -> None:
    torch = require("torch")
    path, tensors = every_dtype
    name = "F6_E2M3.1"
    target = {"F32.4": torch.zeros(7), name: torch.zeros(tensors[name].shape)}
    with pytest.raises(tload.UnsupportedError, match="F6_E2M3"):
        tload.load_into(target, path, strict=False, cast=True)
    assert not target["F32.4"].any()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_callback_exception_ends_load_into(kind: type[BaseException], tmp_path: Path) -> None:
    np = require("numpy")
    path = tmp_path / "a.safetensors"
    write_file(path, {f"t{index}": Content("U8", (MIB,), tile(index, MIB)) for index in range(32)})
    target = {f"t{index}": np.zeros(MIB, np.uint8) for index in range(32)}

    def stop(_: tload.Progress) -> None:
        raise kind("stop")

    before = in_use()
    with pytest.raises(kind, match="stop"):
        tload.load_into(target, path, progress=stop, depth=1)
    assert_nothing_new(before)


def test_unselected_targets_need_no_memory(tmp_path: Path) -> None:
    torch = require("torch")
    path = save(tmp_path / "a.safetensors", {"a.weight": torch.ones(2), "b.weight": torch.ones(2)})
    target = {"a.weight": torch.zeros(2), "b.weight": torch.zeros(2, device="meta"), "c": [1]}
    tload.load_into(target, path, glob="a.*", strict=False)
    assert target["a.weight"].tolist() == [1, 1]
    with pytest.raises(tload.InvalidRequestError, match=r"'b\.weight' is on the meta device"):
        tload.load_into(target, path, strict=False)


def test_extra_state_ignored(tmp_path: Path) -> None:
    torch = require("torch")

    class Extra(torch.nn.Linear):  # type: ignore[name-defined, misc]
        def get_extra_state(self) -> dict[str, int]:
            return {"scale": 1}

    module = Extra(2, 1, bias=False)
    path = save(tmp_path / "a.safetensors", {"weight": torch.full((1, 2), 3.0)})
    tload.load_into(module, path)
    assert module.weight.tolist() == [[3, 3]]


def test_overlapping_strides_are_rejected(tmp_path: Path) -> None:
    torch = require("torch")
    path = save(tmp_path / "a.safetensors", {"window": torch.ones(4, 4), "turned": torch.ones(3, 2)})
    window = {"window": torch.zeros(10).as_strided((4, 4), (1, 1)), "turned": torch.zeros(2, 3).T}
    with pytest.raises(tload.InvalidRequestError, match="'window' has overlapping elements in memory") as caught:
        tload.load_into(window, path)
    assert "turned" not in str(caught.value)


def test_a_lazy_parameter_is_named(tmp_path: Path) -> None:
    torch = require("torch")
    path = save(tmp_path / "a.safetensors", {"weight": torch.ones(2, 2)})
    with pytest.raises(tload.InvalidRequestError, match="'weight' is not initialised yet"):
        tload.load_into(torch.nn.LazyLinear(2, bias=False), path)


@pytest.mark.parametrize("elements", [0, 2, 5])
def test_targets_larger_than_their_storage_are_refused(tmp_path: Path, elements: int) -> None:
    torch = require("torch")
    path = tmp_path / "m.safetensors"
    write_file(path, {"a": Content.random("F32", (6,), 1)})
    shortened, strided = torch.zeros(6), torch.zeros(12)[::2]
    shortened.untyped_storage().resize_(4 * elements)
    strided.untyped_storage().resize_(8 * elements)
    for target in (shortened, strided):
        with pytest.raises(tload.InvalidRequestError, match="'a' is a Tensor without memory of its own"):
            tload.load_into({"a": target}, path)
        with tload.open(path) as checkpoint, pytest.raises(TypeError, match="without memory of its own"):
            checkpoint.reader().read_into({"a": target})


def test_tensor_without_own_memory_is_named(tmp_path: Path) -> None:
    torch = require("torch")
    path = save(tmp_path / "a.safetensors", {"weight": torch.ones(2, 2)})

    class Wrapper(torch.Tensor):  # type: ignore[name-defined, misc]
        @staticmethod
        def __new__(cls: Any, inner: Any) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise NotImplementedError(str(func))

    with pytest.raises(tload.InvalidRequestError, match="'weight' is a Wrapper without memory of its own"):
        tload.load_into({"weight": Wrapper(torch.zeros(2, 2))}, path)


def test_inference_tensors_are_converted_too(tmp_path: Path) -> None:
    torch = require("torch")
    path = save(tmp_path / "a.safetensors", {"weight": torch.ones(2, 2)})
    with torch.inference_mode():
        target = {"weight": torch.zeros(2, 2, dtype=torch.float64)}
    tload.load_into(target, path, cast=True)
    assert target["weight"].tolist() == [[1, 1], [1, 1]]


def test_four_bit_floats_are_not_converted(tmp_path: Path) -> None:
    torch = require("torch")
    path = tmp_path / "a.safetensors"
    write_file(path, {"other": Content("F32", (1,), bytes(4)), "packed": Content("F4", (2, 8), bytes(8))})
    target = {"other": torch.ones(1), "packed": torch.ones(2, 8)}
    with pytest.raises(tload.UnsupportedError, match="4-bit"):
        tload.load_into(target, path, cast=True)
    assert target["other"].tolist() == [1], "nothing was written"


def test_load_into_bumps_version_counter(tmp_path: Path) -> None:
    torch = require("torch")
    module = torch.nn.Linear(2, 1, bias=False)
    path = save(tmp_path / "a.safetensors", {"weight": torch.ones(1, 2)})
    loss = (module.weight * module.weight).sum()
    tload.load_into(module, path)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    # A failure after the first read counts as a change too.
    loss = (module.weight * module.weight).sum()
    with pytest.raises(TypeError, match="progress"):
        tload.load_into(module, path, progress="yes")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("failure", [MemoryError, KeyboardInterrupt])
def test_failed_start_bumps_version_counter(
    failure: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lanes may have written before the load is refused, or the caller interrupted."""
    torch = require("torch")
    target = torch.zeros(2, 2)
    path = save(tmp_path / "a.safetensors", {"weight": torch.ones(2, 2)})
    loader = _tload.Loader

    class Refused:
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            self._raw = loader(*arguments, **keywords)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._raw, name)

        def stream(self, *_: object) -> None:
            raise failure

    monkeypatch.setattr(_tload, "Loader", Refused)
    before = target._version
    with pytest.raises(failure):
        tload.load_into({"weight": target}, path)
    assert target._version > before
