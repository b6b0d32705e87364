"""Pickles, copies and forks of checkpoints and options: opened again as they were, without secrets."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import tload
from conftest import require
from files import Content, tile, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from servers import S3, Web

PATIENCE = 240.0
"""Seconds: a script that takes longer hangs."""

CONTENT = {f"t{index}": Content("U8", (1000 + index,), tile(index, 1000 + index)) for index in range(8)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    names = list(CONTENT)
    write_checkpoint(folder, [{name: CONTENT[name] for name in half} for half in (names[::2], names[1::2])])
    return folder


def again(value: Any) -> Any:
    """Return a value after a round trip."""
    return pickle.loads(pickle.dumps(value))


def contents(checkpoint: tload.Checkpoint) -> dict[str, bytes]:
    require("numpy")
    return {name: array.tobytes() for name, array in tload.load(checkpoint, framework="np").items()}


WANTED = {name: content.raw for name, content in CONTENT.items()}

WORKERS = """
import sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of threads and fork
import torch
from torch.utils.data import DataLoader, Dataset
import tload

class Tensors(Dataset):
    def __init__(self, checkpoint):
        self.checkpoint, self.names = checkpoint, list(checkpoint)
    def __len__(self):
        return len(self.names)
    def __getitem__(self, index):
        name = self.names[index]
        read = self.checkpoint.read(name)
        loaded = tload.load(self.checkpoint, names=name)[name]
        assert read.equal(loaded)
        return int(read.sum())

if __name__ == "__main__":
    source, method, *store = sys.argv[1:]
    checkpoint = tload.open(source, store=dict(pair.split("=") for pair in store))
    wanted = [int(tensor.sum()) for tensor in tload.load(checkpoint).values()]
    loader = DataLoader(
        Tensors(checkpoint),
        batch_size=None,
        num_workers=2,
        multiprocessing_context=method,
        timeout=200,
        persistent_workers=method == "spawn",  # each of these imports torch
    )
    for _ in range(2):
        assert list(map(int, loader)) == wanted
    assert [int(tensor.sum()) for tensor in tload.load(checkpoint).values()] == wanted, "usable in the parent"
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("place", ["disk", "store"])
def test_workers_of_a_data_loader_use_an_open_checkpoint(
    place: str, method: str, folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    require("torch")
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    source, store, environment = str(folder), [], dict(os.environ)
    if place == "store":
        s3: S3 = request.getfixturevalue("s3")
        source = s3.put_folder("pickles", f"{method}/model", folder)
        options = dict(s3.store)
        if method == "spawn":  # secrets that were passed are not pickled
            environment["AWS_ACCESS_KEY_ID"] = options.pop("access_key_id")
            environment["AWS_SECRET_ACCESS_KEY"] = options.pop("secret_access_key")
        store = [f"{key}={value}" for key, value in options.items()]
    done = subprocess.run(
        [sys.executable, str(script), source, method, *store],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_unpickled_checkpoint_is_open(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    with tload.open("model") as checkpoint:
        pickled = pickle.dumps(checkpoint)
        monkeypatch.chdir(folder)
        with pickle.loads(pickled) as opened:
            assert dict(opened) == dict(checkpoint)
            assert (opened.location, opened.metadata) == (str(folder), checkpoint.metadata)
            assert contents(opened) == contents(again(opened)) == WANTED
    files = sorted(folder.glob("*.safetensors"), reverse=True)
    listed = again(tload.open(files))
    assert [shard.location for shard in listed.shards] == list(map(str, files))
    assert contents(listed) == WANTED


def test_relative_paths_are_those_of_the_opening(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    opened = [tload.open("../model"), tload.open(files)]
    monkeypatch.chdir("/")
    for checkpoint in opened:
        assert contents(again(checkpoint)) == WANTED
        assert not checkpoint.location.startswith("/"), "messages show it as the caller wrote it"
    assert again(opened[1]).shards[0].location == str(folder / files[0])


def test_symbolic_links_are_followed_again(folder: Path, tmp_path: Path) -> None:
    farm = tmp_path / "farm"
    farm.mkdir()
    for path in folder.iterdir():
        (farm / path.name).symlink_to(path)
    with pytest.raises(tload.PermissionDeniedError):
        tload.open(farm)
    assert contents(again(tload.open(farm, follow_symlinks=True))) == WANTED


@pytest.mark.parametrize("change", ["header", "contents", "index"])
def test_changed_files_are_not_read(change: str, folder: Path) -> None:
    pickled = pickle.dumps(tload.open(folder))
    if change == "index":
        path = folder / "model.safetensors.index.json"
        path.write_text(path.read_text() + "\n")
    else:
        path = min(folder.glob("*.safetensors"))
        raw = bytearray(path.read_bytes())
        if change == "header":
            raw[:] = raw.replace(b'"U8"', b'"I8"')
            path.write_bytes(raw)
        else:
            before = path.stat()
            raw[-1] ^= 1
            path.write_bytes(raw)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    with pytest.raises(tload.ChangedError, match=r"found length .*, expected length") as caught:
        pickle.loads(pickled)
    assert caught.value.location == str(path)
    assert "open the location again" in str(caught.value.hint)


def test_missing_files_are_named(folder: Path) -> None:
    pickled = pickle.dumps(tload.open(folder))
    path = min(folder.glob("*.safetensors"))
    path.unlink()
    with pytest.raises(tload.NotFoundError, match=path.name):
        pickle.loads(pickled)


def test_objects_are_compared_too(web: Web, folder: Path) -> None:
    web.files["a.safetensors"] = min(folder.glob("*.safetensors")).read_bytes()
    url = f"{web.url}/a.safetensors"
    with tload.open(url, store={"connect_timeout": timedelta(seconds=20), "read_timeout": "1m"}) as checkpoint:
        pickled = pickle.dumps(checkpoint)
        assert contents(pickle.loads(pickled)) == contents(checkpoint)
        web.files["a.safetensors"] = web.files["a.safetensors"][:-1] + b"!"
        with pytest.raises(tload.ChangedError, match="ETag"):
            pickle.loads(pickled)


@pytest.mark.parametrize(
    ("store", "named"),
    [
        ({"access_key_id": "a", "secret_access_key": "hunter2-hunter2"}, "access_key_id, secret_access_key"),
        ({"headers": {"Authorization": "hunter2-hunter2"}}, "header.authorization"),
        ({"proxy": "http://user:hunter2-hunter2@127.0.0.1:1"}, "proxy"),
        ({"aws_session_token": "hunter2-hunter2"}, "aws_session_token"),
    ],
)
def test_secrets_are_not_pickled(store: dict[str, Any], named: str, folder: Path) -> None:
    checkpoint = tload.open(folder, store=store)
    with pytest.raises(tload.InvalidRequestError) as caught:
        pickle.dumps(checkpoint)
    assert f"{folder}: cannot pickle a checkpoint that was opened with secrets: store= has {named}" in str(caught.value)
    assert "TLOAD_STORE" in str(caught.value.hint)
    assert contents(copy.copy(checkpoint)) == WANTED


def test_secrets_of_urls_are_not_pickled(web: Web, folder: Path) -> None:
    web.files["a.safetensors"] = min(folder.glob("*.safetensors")).read_bytes()
    host = web.url.removeprefix("http://")
    for url in (f"{web.url}/a.safetensors?sig=hunter2-hunter2", f"http://user:hunter2-hunter2@{host}/a.safetensors"):
        for source in (url, [url]):
            with pytest.raises(tload.InvalidRequestError, match="a URL has a user, a password or a query"):
                pickle.dumps(tload.open(source))


def test_pickle_holds_no_secret_of_the_environment(s3: S3, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = s3.put_folder("pickles", "environment/model", folder)
    monkeypatch.setenv("TLOAD_STORE", "\n".join(f"{key}={value}" for key, value in s3.store.items()))
    pickled = pickle.dumps(tload.open(url, store={"read_timeout": 20}))
    assert s3.secret_access_key.encode() not in pickled
    assert contents(pickle.loads(pickled)) == WANTED


def test_closed_checkpoint_is_not_pickled(folder: Path) -> None:
    checkpoint = tload.open(folder)
    checkpoint.close()
    with pytest.raises(tload.InvalidRequestError, match="the checkpoint is closed"):
        pickle.dumps(checkpoint)
    assert dict(copy.copy(checkpoint)) == dict(checkpoint)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_share_files_and_close_alone(copied: Any, folder: Path) -> None:
    checkpoint = tload.open(folder)
    other = copied(checkpoint)
    assert other != checkpoint
    assert other.metadata == checkpoint.metadata
    assert other.metadata is not checkpoint.metadata
    checkpoint.close()
    assert contents(other) == WANTED


def test_options_are_pickled() -> None:
    options = tload.Options(memory_limit=1e9, timeout=timedelta(minutes=1), verify=True, depth=3)
    assert again(options) == copy.deepcopy(options) == copy.copy(options) == options
    assert again(tload.Options(verify="sha256:s3://b/m.json")).verify == "sha256:s3://b/m.json"
    for verify in ("https://host/m.json?sig=hunter2-hunter2", "sha256:https://user:hunter2-hunter2@host/m.json"):
        options = tload.Options(verify=verify)
        assert dataclasses.replace(options, depth=3) == copy.copy(dataclasses.replace(options, depth=3))
        with pytest.raises(tload.InvalidRequestError, match="cannot pickle options") as caught:
            pickle.dumps(options)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_streams_and_tensors_say_what_to_do_instead(take: Any, folder: Path) -> None:
    with tload.stream(folder, framework="dlpack") as stream:
        with pytest.raises(TypeError, match=r"cannot pickle or copy a tload\.TensorStream.*pass the location"):
            take(stream)
        _, tensor = next(stream)
        with pytest.raises(TypeError, match=r"cannot pickle or copy the tload\.Tensor .*from_dlpack"):
            take(tensor)
        assert again(stream.progress) == stream.progress
    assert again(stream.report) == stream.report
