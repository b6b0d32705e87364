"""Caches of `huggingface_hub` that were moved, linked or are incomplete: what that package finds is
loaded."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import tload
from conftest import require
from files import Content, write_checkpoint, write_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODEL = "org/name"
URL = f"hf://{MODEL}"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
INDEX = "model.safetensors.index.json"
LAYERS = {f"layer.{index}.weight": Content.random("F32", (4, index + 1), index) for index in range(6)}


@dataclass
class Cache:
    """A cache with one model, as `huggingface_hub` makes it."""

    root: Path
    """Value of `HF_HUB_CACHE`."""
    outside: Path
    """A directory elsewhere, as on another disk."""

    @property
    def repository(self) -> Path:
        return self.root / "models--org--name"

    @property
    def snapshot(self) -> Path:
        return self.repository / "snapshots" / COMMIT

    @property
    def blobs(self) -> list[Path]:
        return sorted(self.repository.joinpath("blobs").iterdir())

    def move_out(self, path: Path) -> None:
        """Move a file or directory elsewhere, and leave a link."""
        place = self.outside / f"{len(list(self.outside.iterdir()))}-moved"
        path.rename(place)
        path.symlink_to(place)

    def files(self) -> list[Path]:
        return sorted(self.snapshot.iterdir())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    made = Cache(tmp_path / "home" / "hub", tmp_path / "outside")
    made.outside.mkdir()
    written = tmp_path / "written"
    written.mkdir()
    names = list(LAYERS)
    write_checkpoint(written, [{name: LAYERS[name] for name in half} for half in (names[::2], names[1::2])])
    (written / "config.json").write_text("{}")
    made.snapshot.mkdir(parents=True)
    (made.repository / "blobs").mkdir()
    (made.repository / "refs").mkdir()
    (made.repository / "refs" / "main").write_text(COMMIT)
    for number, path in enumerate(sorted(written.iterdir())):
        blob = made.repository / "blobs" / f"{number:064x}"
        path.rename(blob)
        (made.snapshot / path.name).symlink_to(f"../../blobs/{blob.name}")
    monkeypatch.setenv("HF_HUB_CACHE", str(made.root))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return made


def as_downloaded(_: Cache) -> None:
    pass


def cache_is_linked(cache: Cache) -> None:
    cache.move_out(cache.root)


def repository_is_linked(cache: Cache) -> None:
    cache.move_out(cache.repository)


def snapshots_are_linked(cache: Cache) -> None:
    # Links in a snapshot are absolute then: relative ones would lead elsewhere.
    links_are_absolute(cache)
    cache.move_out(cache.repository / "snapshots")


def snapshot_is_linked(cache: Cache) -> None:
    links_are_absolute(cache)
    cache.move_out(cache.snapshot)


def blobs_are_linked(cache: Cache) -> None:
    cache.move_out(cache.repository / "blobs")


def each_blob_is_linked(cache: Cache) -> None:
    for blob in cache.blobs:
        cache.move_out(blob)


def one_blob_is_linked(cache: Cache) -> None:
    cache.move_out(cache.blobs[-1])


def blobs_are_shared(cache: Cache) -> None:
    # `huggingface_hub` 2.4 keeps files once for all repositories of a cache.
    store = cache.root / "blobs"
    store.mkdir()
    (store / ".huggingface-shared-blobs").write_text("1\n")
    for blob in cache.blobs:
        shared = store / blob.name[:2] / blob.name
        shared.parent.mkdir(exist_ok=True)
        blob.rename(shared)
        blob.symlink_to(os.path.relpath(shared, blob.parent))


def links_are_absolute(cache: Cache) -> None:
    for path in cache.files():
        target = path.resolve()
        path.unlink()
        path.symlink_to(target)


def links_are_copied(cache: Cache) -> None:
    for path in cache.files():
        target = path.resolve()
        path.unlink()
        shutil.copyfile(target, path)
    shutil.rmtree(cache.repository / "blobs")


def one_file_is_copied(cache: Cache) -> None:
    path = cache.files()[-1]
    target = path.resolve()
    path.unlink()
    shutil.copyfile(target, path)


def one_file_is_linked_elsewhere(cache: Cache) -> None:
    path = cache.files()[-1]
    target = path.resolve()
    path.unlink()
    path.symlink_to(shutil.copyfile(target, cache.outside / "shard"))


def cache_is_moved(cache: Cache) -> None:
    cache.root.rename(cache.outside / "hub")
    cache.root = cache.outside / "hub"


def cache_with_absolute_links_is_moved(cache: Cache) -> None:
    links_are_absolute(cache)
    cache_is_moved(cache)


def one_shard_is_missing(cache: Cache) -> None:
    cache.files()[-2].unlink()


def one_blob_is_missing(cache: Cache) -> None:
    cache.files()[-2].resolve().unlink()


def reference_is_missing(cache: Cache) -> None:
    (cache.repository / "refs" / "main").unlink()


LAYOUTS = [
    as_downloaded,
    cache_is_linked,
    repository_is_linked,
    snapshots_are_linked,
    snapshot_is_linked,
    blobs_are_linked,
    each_blob_is_linked,
    one_blob_is_linked,
    blobs_are_shared,
    links_are_absolute,
    links_are_copied,
    one_file_is_copied,
    one_file_is_linked_elsewhere,
    cache_is_moved,
    cache_with_absolute_links_is_moved,
    one_shard_is_missing,
    one_blob_is_missing,
    reference_is_missing,
]

BROKEN = {cache_with_absolute_links_is_moved, one_shard_is_missing, one_blob_is_missing, reference_is_missing}
"""Those that `huggingface_hub` does not load either."""

ORACLE = """
import json, sys
from huggingface_hub import hf_hub_download
from safetensors.numpy import load_file
index = json.load(open(hf_hub_download("org/name", "model.safetensors.index.json", local_files_only=True)))
found = {}
for name in sorted(set(index["weight_map"].values())):
    found |= {key: value.tobytes().hex() for key, value in
              load_file(hf_hub_download("org/name", name, local_files_only=True)).items()}
print(json.dumps(found))
"""


def by_package(cache: Cache) -> dict[str, bytes] | None:
    """Return the tensors that `huggingface_hub` and safetensors find, or `None` if they do not."""
    require("huggingface_hub")
    require("safetensors")
    environment = {**os.environ, "HF_HUB_CACHE": str(cache.root), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", ORACLE], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        assert "LocalEntryNotFoundError" in done.stderr or "FileNotFoundError" in done.stderr, done.stderr
        return None
    json = importlib.import_module("json")
    return {name: bytes.fromhex(text) for name, text in json.loads(done.stdout).items()}


def raw(tensors: dict[str, Any]) -> dict[str, bytes]:
    return {name: tensor.tobytes() for name, tensor in tensors.items()}


@pytest.mark.parametrize("change", LAYOUTS)
def test_caches_are_read_as_by_huggingface_hub(
    change: Callable[[Cache], None], cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("numpy")
    change(cache)
    monkeypatch.setenv("HF_HUB_CACHE", str(cache.root))
    expected = by_package(cache)
    assert (expected is None) == (change in BROKEN)
    if expected is None:
        with pytest.raises(tload.NotFoundError):
            tload.load(URL, framework="numpy")
        return
    assert expected == {name: content.raw for name, content in LAYERS.items()}
    # As a model of the Hub, and by the path that `snapshot_download` returns.
    for source in (URL, cache.snapshot, cache.snapshot / INDEX):
        assert raw(tload.load(source, framework="numpy")) == expected
        # Digests beside the weights are found where the weights are.
        with tload.open(source) as checkpoint:
            assert list(checkpoint) == list(tload.open(sorted(cache.snapshot.glob("*.safetensors"))))


def test_shared_blobs_are_read_from_a_cache_elsewhere(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    require("numpy")
    blobs_are_shared(cache)
    monkeypatch.setenv("HF_HUB_CACHE", str(cache.outside))
    assert raw(tload.load(cache.snapshot, framework="numpy")) == {name: it.raw for name, it in LAYERS.items()}
    # Only the store that the package marks as its own.
    (cache.root / "blobs" / ".huggingface-shared-blobs").unlink()
    with pytest.raises(tload.PermissionDeniedError):
        tload.load(cache.snapshot, framework="numpy")


@pytest.mark.parametrize("change", [blobs_are_linked, each_blob_is_linked, one_file_is_linked_elsewhere])
def test_links_out_of_a_directory_that_looks_like_a_cache_need_permission(
    change: Callable[[Cache], None], cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody can pack such a directory: only the cache that the Hub's tools use is trusted."""
    change(cache)
    monkeypatch.setenv("HF_HUB_CACHE", str(cache.outside))
    with pytest.raises(tload.PermissionDeniedError):
        tload.open(cache.snapshot)
    tload.open(cache.snapshot, follow_symlinks=True).close()
    # Neither does the path of the cache make a path in it that leads out of it.
    monkeypatch.setenv("HF_HUB_CACHE", str(cache.root))
    beside = cache.outside / "model"
    beside.mkdir()
    (beside / "model.safetensors").symlink_to("/etc/passwd")
    with pytest.raises(tload.PermissionDeniedError):
        tload.open(cache.snapshot.joinpath(*5 * [".."], "outside", "model"))


def test_single_file_beside_an_index_is_enough_for_transformers(cache: Cache, tmp_path: Path) -> None:
    """Its rule chooses the file, and its tools download nothing else."""
    from tload._checkpoint.opening import open_for

    write_file(tmp_path / "single", {"single": Content.random("F32", (2,), 0)})
    for path in cache.files():
        if path.name.startswith("model-"):
            path.unlink()
    (cache.snapshot / "model.safetensors").symlink_to(tmp_path / "single")
    with pytest.raises(tload.NotFoundError, match="model-00001-of-00002"):
        tload.open(URL)
    with open_for(URL, None, None, follow_symlinks=None, single_file_first=True) as checkpoint:
        assert list(checkpoint) == ["single"]
