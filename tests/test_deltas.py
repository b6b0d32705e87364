"""Patches of checkpoints: made, applied to files, and applied to tensors in place."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tload
from files import Content, tile, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    import servers

ROWS, ROW = 64, 1000
COUNT = 4


def versions(folder: Path) -> None:
    """Write two versions of a model in two shards, of which three tensors differ."""
    for version in ("base", "new"):
        (folder / version).mkdir()
        tensors = {}
        for index in range(COUNT):
            raw = bytearray(tile(index, ROWS * ROW))
            if version == "new" and index < COUNT - 2:
                raw[0], raw[-1] = raw[0] ^ 1, raw[-1] ^ 1
            if version == "new" and index == COUNT - 2:
                raw = bytearray(byte ^ 1 for byte in raw)
            tensors[f"t{index}"] = Content("U8", (ROWS, ROW), bytes(raw))
        half = COUNT // 2
        pairs = list(tensors.items())
        write_checkpoint(folder / version, [dict(pairs[:half]), dict(pairs[half:])])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    versions(tmp_path)
    tload.diff(tmp_path / "base", tmp_path / "new", tmp_path / "patch.safetensors")
    return tmp_path


def arrays(path: Path) -> dict[str, Any]:
    return dict(tload.load(path, framework="numpy", writable=True))


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def there(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_patch_leads_from_base_to_new(folder: Path) -> None:
    seen: list[tload.Progress] = []
    made = tload.diff(folder / "base", folder / "new", folder / "again.safetensors", progress=seen.append)
    assert (made.tensors, made.sparse, made.whole, made.removed, made.elements) == (4, 2, 1, 0, 4)
    assert (made.total_bytes, made.patch_bytes) == (COUNT * ROWS * ROW, 4 * 5 + ROWS * ROW)
    assert seen[-1].bytes_done == seen[-1].bytes_total > 0
    assert (folder / "again.safetensors").read_bytes() == (folder / "patch.safetensors").read_bytes()
    with tload.open(folder / "patch.safetensors") as patch:
        applied = tload.apply(folder / "base", patch, folder / "out", timeout="10m")
    assert applied == made
    assert there(folder / "out") == there(folder / "new")
    assert tload.diff(folder / "out", folder / "new", folder / "none").patch_bytes == 0


@pytest.mark.parametrize("kind", ["torch", "numpy", "module"])
def test_tensors_are_changed_in_place(folder: Path, kind: str) -> None:
    state: Any
    wanted = arrays(folder / "new")
    if kind == "numpy":
        state = arrays(folder / "base") | {"unknown": object()}
        tensors = state
    else:
        torch = pytest.importorskip("torch")
        tensors = {name: torch.from_numpy(array) for name, array in arrays(folder / "base").items()}
        if kind == "module":
            state = torch.nn.Module()
            for name, tensor in tensors.items():
                state.register_buffer(name, tensor)
        else:
            state = tensors
    places = {name: tensors[name] for name in wanted}
    report = tload.apply_into(state, folder / "patch.safetensors")
    assert (report.tensors, report.sparse, report.whole) == (4, 2, 1)
    assert equal({name: np.asarray(place) for name, place in places.items()}, wanted)


def test_tied_tensors_are_changed_once_and_others_may_not_share(folder: Path) -> None:
    state = arrays(folder / "base")
    wanted = arrays(folder / "new")
    alias = state["t0"].view()
    tload.apply_into({**state, "lm_head": alias, "t0": alias}, folder / "patch.safetensors")
    assert np.array_equal(alias, wanted["t0"])
    memory = np.zeros(ROWS * ROW + 1, np.uint8)
    before = memory.copy()
    shared = {"t0": memory[:-1].reshape(ROWS, ROW), "t1": memory[1:].reshape(ROWS, ROW)}
    with pytest.raises(tload.InvalidRequestError, match="shares a part of its memory"):
        tload.apply_into({**arrays(folder / "base"), **shared}, folder / "patch.safetensors")
    state = arrays(folder / "base")
    with pytest.raises(tload.InvalidRequestError, match="the patch changes one of them"):
        tload.apply_into({**state, "t3": state["t0"]}, folder / "patch.safetensors")
    assert np.array_equal(memory, before)
    assert equal(state, arrays(folder / "base"))


def other(state: dict[str, Any]) -> dict[str, Any]:
    state["t3"][5, 5] ^= 1
    return state


def wide(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"t1": np.repeat(state["t1"], 2, axis=1)[:, ::2]}


def read_only(state: dict[str, Any]) -> dict[str, Any]:
    state["t1"].flags.writeable = False
    return state


FAULTS: dict[str, tuple[Any, type[Exception], str]] = {
    "another base": (other, tload.CorruptError, "nothing was written: the tensor is not that of the patch's base"),
    "missing": (lambda it: {name: it[name] for name in it if name != "t1"}, tload.NoSuchTensorError, "not given"),
    "short": (lambda it: it | {"t1": it["t1"][1:]}, tload.CorruptError, r"has 63000 bytes, and U8 \[64, 1000\]"),
    "strided": (wide, tload.UnsupportedError, "not contiguous"),
    "read-only": (read_only, tload.InvalidRequestError, "read-only"),
    "no tensor": (lambda it: it | {"t1": b"x"}, tload.InvalidRequestError, "not a tensor or array"),
    "no mapping": (lambda it: list(it.values()), TypeError, "wanted a torch.nn.Module or a mapping"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_unfit_memory_stays_as_it_is(folder: Path, name: str) -> None:
    change, kind, text = FAULTS[name]
    state = arrays(folder / "base")
    changed = change(state)
    before = {name: value.copy() for name, value in state.items()}
    with pytest.raises(kind, match=text):
        tload.apply_into(changed, folder / "patch.safetensors")
    assert equal(state, before)


def test_memory_on_a_gpu_is_refused(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    state = {name: torch.empty((ROWS, ROW), dtype=torch.uint8, device="meta") for name in ("t0", "t1", "t2")}
    with pytest.raises(tload.InvalidRequestError, match="meta"):
        tload.apply_into(state, folder / "patch.safetensors")


def test_files_are_all_or_nothing(folder: Path) -> None:
    patch = folder / "patch.safetensors"
    names = sorted(path.name for path in folder.iterdir())
    with pytest.raises(tload.CorruptError, match="after the patch already"):
        tload.apply(folder / "new", patch, folder / "out")
    with pytest.raises(tload.FormatError, match="is no patch"):
        tload.apply(folder / "base", folder / "base", folder / "out")
    with pytest.raises(tload.InvalidRequestError, match="exists already"):
        tload.diff(folder / "base", folder / "new", patch)
    with pytest.raises(tload.NotFoundError):
        tload.apply(folder / "base", patch, folder / "none" / "out")
    raw = patch.read_bytes()
    patch.write_bytes(raw[:-1])
    with pytest.raises(tload.FormatError):
        tload.apply(folder / "base", patch, folder / "out")
    patch.write_bytes(raw)

    def stop(_: tload.Progress) -> None:
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        tload.apply(folder / "base", patch, folder / "late", progress=stop)
    names.append("late")  # the exception came with the last call
    assert sorted(path.name for path in folder.iterdir()) in (sorted(names), sorted(names[:-1]))


def test_stores_are_read(folder: Path, s3: servers.S3) -> None:
    for version in ("base", "new"):
        s3.put_folder("bucket", version, folder / version)
    s3.put("bucket", "patch.safetensors", (folder / "patch.safetensors").read_bytes())
    store = s3.store
    made = tload.diff("s3://bucket/base", "s3://bucket/new", folder / "again.safetensors", store=store)
    assert (folder / "again.safetensors").read_bytes() == (folder / "patch.safetensors").read_bytes()
    url = "s3://bucket/patch.safetensors"
    assert tload.apply("s3://bucket/base", url, folder / "out", store=store) == made
    assert there(folder / "out") == there(folder / "new")
    for base, patch in (
        (tload.open(folder / "base"), url),
        ("s3://bucket/base", tload.open(folder / "patch.safetensors")),
    ):
        assert tload.apply(base, patch, folder / f"out of {type(patch).__name__}", store=store) == made
    state = arrays(folder / "base")
    assert dataclasses.replace(tload.apply_into(state, url, store=store)) == made
    assert equal(state, arrays(folder / "new"))


def test_interrupted_call_leaves_tensors_of_one_version(folder: Path) -> None:
    """Ctrl-C arrives with the first report of progress, which is made before or after the change."""
    state = arrays(folder / "base")

    def interrupt(_: tload.Progress) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    assert threading.current_thread() is threading.main_thread()
    with pytest.raises(KeyboardInterrupt):
        tload.apply_into(state, folder / "patch.safetensors", progress=interrupt)
    assert equal(state, arrays(folder / "base")) or equal(state, arrays(folder / "new"))


def test_store_that_stalls_is_not_waited_for(folder: Path, web: servers.Web) -> None:
    web.files["patch.safetensors"] = (folder / "patch.safetensors").read_bytes()
    state = arrays(folder / "base")
    with tload.open(f"{web.url}/patch.safetensors") as patch:
        web.stall_from, before = 0, len(web.requests)
        # Longer ones are for a machine on which nothing was requested within the first.
        for timeout in (1, 5, 25):
            with pytest.raises(tload.LoadTimeoutError):
                tload.apply_into(state, patch, timeout=timeout)
            if len(web.requests) > before:
                break
    # Nine attempts are made of a read that is waited for.
    assert 0 < len(web.requests) - before < 9
    assert equal(state, arrays(folder / "base"))
