"""Checkpoints that `tload.save` writes, compared with those of safetensors and huggingface_hub."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import servers

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")


def every_dtype() -> dict[str, Any]:
    """Return tensors of all dtypes of torch that files have, in an order that is not theirs."""
    from tload._tensors.torch_tensors import dtype_names

    state = {"scalar": torch.tensor(3.5), "empty": torch.empty((0, 4), dtype=torch.int64)}
    for dtype, name in dtype_names().items():
        count = 6 * dtype.itemsize
        bytes_ = torch.arange(count, dtype=torch.uint8)
        state[f"z.{name}"] = (bytes_ % 2 if name == "BOOL" else bytes_).view(dtype).reshape(2, 3)
    return state


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("keywords", "kind", "words"),
    [
        ({"max_shard_size": "big"}, tload.InvalidRequestError, "max_shard_size: "),
        ({"metadata": {"step": 1}}, TypeError, "metadata['step']: wanted a str, found int"),
        ({"metadata": {"a": "\udcff"}}, tload.InvalidRequestError, "metadata['a'] is not Unicode"),
    ],
)
def test_wrong_argument_is_named(keywords: dict[str, Any], kind: type[Exception], words: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=re.escape(words)) as caught:
        tload.save({"a": torch.ones(1)}, tmp_path / "model", **keywords)
    assert "environment" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("metadata", [{}, {"format": "pt"}])
def test_file_has_bytes_of_safetensors(tmp_path: Path, metadata: dict[str, str]) -> None:
    state = every_dtype()
    assert len(state) > 18
    safetensors_torch.save_file(state, tmp_path / "theirs.safetensors", metadata=metadata or None)
    report = tload.save(state, tmp_path / "ours.safetensors", metadata=metadata)
    ours, theirs = ((tmp_path / f"{name}.safetensors").read_bytes() for name in ("ours", "theirs"))
    assert ours == theirs
    assert (report.tensors, report.file_bytes) == (len(state), len(theirs))
    assert report.files == ("ours.safetensors",)


def test_file_has_bytes_of_safetensors_for_numpy(tmp_path: Path) -> None:
    safetensors_numpy = pytest.importorskip("safetensors.numpy")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    state = {
        "f": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.ones(5, dtype=ml_dtypes.bfloat16),
        "i": np.arange(3, dtype=np.uint16),
        "s": np.array(7, dtype=np.int64),
    }
    safetensors_numpy.save_file(state, tmp_path / "theirs.safetensors")
    tload.save({**state, "i": state["i"].astype(">u2")}, tmp_path / "ours.safetensors")
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()


@pytest.mark.parametrize("size", ["1KB", "20KB", 35_000, "5GB"])
def test_shards_are_those_of_huggingface_hub(tmp_path: Path, size: str | int) -> None:
    hub = pytest.importorskip("huggingface_hub")
    generator = torch.Generator().manual_seed(1)
    state = {
        f"layer.{index}": torch.randn(int(torch.randint(1, 5000, (), generator=generator)), generator=generator)
        for index in range(20)
    }
    (tmp_path / "theirs").mkdir()
    hub.save_torch_state_dict(state, tmp_path / "theirs", max_shard_size=size)
    tload.save(state, tmp_path / "ours", max_shard_size=size, plain_names=True)
    ours, theirs = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("ours", "theirs")
    )
    assert ours == theirs
    loaded = tload.load(tmp_path / "ours")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())


def test_tied_weights_are_stored_as_by_save_model(tmp_path: Path) -> None:
    from tload.safetensors.torch import load_model

    model = torch.nn.Module()
    model.embed = torch.nn.Embedding(5, 3)
    model.head = torch.nn.Linear(3, 5, bias=False)
    model.head.weight = model.embed.weight
    safetensors_torch.save_model(model, tmp_path / "theirs.safetensors")
    tload.save(model, tmp_path / "ours.safetensors", metadata={})
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()
    with torch.no_grad():
        kept = model.embed.weight.clone()
        model.embed.weight.zero_()
    load_model(model, tmp_path / "ours.safetensors")
    assert torch.equal(model.head.weight, kept)
    # Several files have the names in the index.
    tload.save(model, tmp_path / "sharded", max_shard_size=1)
    state = {**model.state_dict(), "other": torch.ones(3)}
    tload.save(state, tmp_path / "sharded", max_shard_size=1, replace=True)
    index = json.loads((tmp_path / "sharded/model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 72, "head.weight": "embed.weight"}


@pytest.mark.parametrize("form", [list, dict])
def test_tied_weights_of_models_keep_the_name_that_transformers_keeps(tmp_path: Path, form: type) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, tie_word_embeddings=True)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "theirs")
    assert isinstance(model._tied_weights_keys, dict)
    # Earlier versions of transformers have a list.
    model._tied_weights_keys = form(model._tied_weights_keys)
    tload.save(model, tmp_path / "ours")
    ours, theirs = (tload.load(tmp_path / name) for name in ("ours", "theirs"))
    assert ours.keys() == theirs.keys()
    assert "model.embed_tokens.weight" in ours
    assert tload.open(tmp_path / "ours").metadata["lm_head.weight"] == "model.embed_tokens.weight"


@pytest.mark.parametrize("name", ["format", "total_size", "mine"])
@pytest.mark.parametrize("shards", [1, 2])
def test_aliases_whose_name_is_taken_are_stored_whole(tmp_path: Path, name: str, shards: int) -> None:
    kept = torch.ones(3)
    state = {"a": kept, "b": kept, name: kept, "other": torch.zeros(3)}
    metadata = {"format": "pt", "mine": "x"}
    tload.save(state, tmp_path / "model", metadata=metadata, max_shard_size="5GB" if shards == 1 else 12)
    loaded = tload.load(tmp_path / "model")
    assert loaded.keys() == state.keys() - {"b"}
    assert torch.equal(loaded[name], kept)


def test_tensors_that_overlap_are_stored_whole(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    state = {"all": base, "rows": base[1:], "turned": base.T, "strided": base[:, ::2]}
    # Torch notes these changes in the tensor: the memory is the same.
    complex_ = base + 1j
    conj = complex_.conj()
    state |= {"complex": complex_, "conj": conj, "imag": complex_.imag, "negative": conj.imag}
    assert complex_.data_ptr() == conj.data_ptr()
    tload.save(state, tmp_path / "model")
    loaded = tload.load(tmp_path / "model")
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())


def test_large_tensors_are_copied_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tload._tensors import stored

    monkeypatch.setattr(stored, "PIECE_BYTES", 1000)
    state = {
        "turned": torch.arange(30_000).reshape(100, 300).T,
        "row": torch.arange(9000.0).reshape(3000, 3).T[None],
        "numpy": np.arange(20_000).reshape(100, 200).T,
        "swapped": np.arange(700, dtype=">i4"),
    }
    for name in ("turned", "row"):
        pieces = list(stored.described(name, state[name]).pieces())
        assert len(pieces) > 9
        assert all(len(piece) <= 1000 for piece in pieces)
    tload.save(state, tmp_path / "model")
    loaded = tload.load(tmp_path / "model", framework="numpy")
    for name, tensor in state.items():
        np.testing.assert_array_equal(loaded[name], np.asarray(tensor))


def test_iterator_is_written_while_it_produces(tmp_path: Path) -> None:
    source = {f"{index}": torch.full((50_000,), float(index)) for index in range(30)}
    written: list[int] = []

    def produced() -> Iterator[tuple[str, Any]]:
        for name, tensor in source.items():
            # The shards of earlier tensors are there before later ones exist.
            written.append(sum(1 for _ in tmp_path.glob(".model.tload-*/*")))
            yield name, tensor

    report = tload.save(produced(), tmp_path / "model", max_shard_size="1MB")
    assert written[0] == 0
    assert written[-1] >= 5
    assert len(report.files) == written[-1]
    loaded = tload.load(tmp_path / "model")
    assert list(loaded) == list(source)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in source.items())


def test_manifest_lets_loads_verify(tmp_path: Path) -> None:
    tload.save({"a": torch.ones(5), "b": torch.zeros(3)}, tmp_path / "model", manifest=True, max_shard_size=1)
    assert tload.verify(tmp_path / "model").ok
    tload.load(tmp_path / "model", verify="require")


def test_replaced_checkpoint_is_kept_until_it_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "model"
    tload.save({"a": torch.zeros(3)}, path)
    (path / "config.json").write_text("{}")
    with pytest.raises(tload.InvalidRequestError, match=r"not empty\n.*option replace"):
        tload.save({"a": torch.ones(3)}, path)
    report = tload.save({"a": torch.ones(3)}, path, replace=True)
    assert report.replaced is not None
    assert names(path) == ["config.json", "model.safetensors"]
    assert torch.equal(tload.load(path)["a"], torch.ones(3))
    assert torch.equal(tload.load(report.replaced)["a"], torch.zeros(3))
    assert tload.remove_incomplete(path) == [(report.replaced, True)]
    assert names(tmp_path) == ["model"]


class Wrapper(torch.Tensor):  # type: ignore[name-defined,misc]
    """Tensor whose values are in others, as those of quantisers are."""

    @staticmethod
    def __new__(cls: Any, inner: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if "detach" in str(function) else NotImplemented


def resized(elements: int) -> Any:
    """Return a tensor of more memory than its storage has, as those of modules that are freed."""
    tensor = torch.ones(30_000_000)
    tensor.untyped_storage().resize_(elements * tensor.element_size())
    return tensor


def nested() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype of torch
        return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])


def pair() -> Any:
    """Return a tensor without dimensions, of a dtype with two elements in one."""
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no 4-bit floats")
    return torch.zeros((), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)


WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "list": (lambda: {"a": [1.0]}, tload.InvalidRequestError, "found list"),
    "meta": (lambda: {"a": torch.empty(3, device="meta")}, tload.InvalidRequestError, "device meta"),
    "freed": (lambda: {"a": resized(0)}, tload.InvalidRequestError, r'tensor "a": .*no memory'),
    "cut": (lambda: {"a": resized(9)}, tload.InvalidRequestError, r'tensor "a": .*no memory'),
    "wrapper": (lambda: {"a": Wrapper(torch.ones(3))}, tload.InvalidRequestError, r'tensor "a": .*no memory'),
    "sparse": (lambda: {"a": torch.eye(3).to_sparse()}, tload.InvalidRequestError, "to_dense"),
    "dtype": (lambda: {"a": torch.zeros(3, dtype=torch.complex128)}, tload.UnsupportedError, "complex128"),
    "numpy dtype": (lambda: {"a": np.zeros(3, dtype="U2")}, tload.UnsupportedError, "<U2"),
    "reserved": (lambda: {"__metadata__": torch.zeros(3)}, tload.InvalidRequestError, "reserves"),
    "twice": (lambda: iter([("a", torch.ones(1))] * 2), tload.InvalidRequestError, "comes twice"),
    "masked": (
        lambda: {"a": np.ma.array([1.0, 2.0], mask=[True, False])},
        tload.InvalidRequestError,
        'tensor "a": .*masked',
    ),
    "nested": (lambda: {"a": nested()}, tload.InvalidRequestError, 'tensor "a": is a nested tensor'),
    "half a pair": (lambda: {"a": pair()}, tload.UnsupportedError, 'tensor "a": has no dimension'),
    "surrogate": (lambda: {"a\udcff": torch.ones(1)}, tload.InvalidRequestError, r"'a\\udcff', is not Unicode"),
    "name": (lambda: {1: torch.ones(1)}, TypeError, "found int"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_tensors_leave_nothing(tmp_path: Path, case: str) -> None:
    tensors, error, text = WRONG[case]
    with pytest.raises(error, match=text):
        tload.save(tensors(), tmp_path / "model")
    assert names(tmp_path) == []


def test_failure_of_producer_leaves_old_checkpoint(tmp_path: Path) -> None:
    tload.save({"a": torch.zeros(3)}, tmp_path / "model")

    def failing() -> Iterator[tuple[str, Any]]:
        yield "a", torch.ones(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tload.save(failing(), tmp_path / "model", replace=True)
    assert names(tmp_path) == ["model"]
    assert torch.equal(tload.load(tmp_path / "model")["a"], torch.zeros(3))


def test_forked_child_leaves_files_to_parent(tmp_path: Path) -> None:
    # The fork is in a program of its own: this process has threads.
    program = """
import os, sys, torch, tload
def produced():
    yield "a", torch.ones(3)
    child = os.fork()
    if child == 0:
        raise SystemExit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    yield "b", torch.ones(3)
tload.save(produced(), sys.argv[1])
"""
    path = tmp_path / "model"
    subprocess.run([sys.executable, "-W", "ignore", "-c", program, str(path)], check=True)
    assert list(tload.load(path)) == ["a", "b"]
    assert names(tmp_path) == ["model"]


def test_killed_program_leaves_old_checkpoint(tmp_path: Path) -> None:
    program = """
import os, signal, sys, torch, tload
def produced():
    yield "a", torch.ones(3_000_000)
    os.kill(os.getpid(), signal.SIGKILL)
tload.save(produced(), sys.argv[1], replace=True)
"""
    path = tmp_path / "model"
    tload.save({"a": torch.zeros(3)}, path)
    killed = subprocess.run([sys.executable, "-W", "ignore", "-c", program, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert torch.equal(tload.load(path)["a"], torch.zeros(3))
    (left,) = tmp_path.glob(".model.tload-*")
    refused = subprocess.run([sys.executable, "-m", "tload", "rm", str(path)], check=False, capture_output=True)
    assert refused.returncode == 2
    assert left.exists()
    command = [sys.executable, "-W", "ignore", "-m", "tload", "rm", "--incomplete", str(path)]
    removed = subprocess.run(command, check=True, capture_output=True, text=True)
    assert removed.stdout.split() == ["removed", str(left)]
    assert names(tmp_path) == ["model"]


def test_checkpoint_in_a_store_is_written_and_replaced(s3: servers.S3) -> None:
    s3.put("models", "other", b"x")
    url = "s3://models/saved"
    state = {f"{index}": torch.full((3_000_000,), float(index)) for index in range(3)}
    first = tload.save(state, url, store=s3.store, max_shard_size="20MB")
    assert all(first.id in name for name in first.files)
    loaded = tload.load(url, store=s3.store)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
    with pytest.raises(tload.InvalidRequestError, match="there is a checkpoint"):
        tload.save(state, url, store=s3.store)
    second = tload.save({"a": torch.ones(3)}, url, store=s3.store, replace=True)
    assert second.replaced == url
    assert list(tload.load(url, store=s3.store)) == ["a"]
    assert all(removed or first.id in location for location, removed in tload.remove_incomplete(url, store=s3.store))
    assert list(tload.load(url, store=s3.store)) == ["a"]


def test_memory_is_bounded(tmp_path: Path) -> None:
    """800 MB pass through a program that may hold some 200 more than the import of torch."""
    program = """
import resource, sys, torch, tload
tload.save({"a": torch.ones(4)}, sys.argv[1] + "/warm")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
tensors = ((str(index), torch.full((5_000_000,), float(index))) for index in range(40))
tload.save(tensors, sys.argv[1] + "/model")
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) // 1024)
"""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(tmp_path)], check=True, capture_output=True, text=True
    )
    assert int(run.stdout) < 200
