"""Object stores: the same tensors as from a disk, and errors that help."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import traceback
from typing import TYPE_CHECKING, Any

import pytest

import tload
from conftest import require
from files import Content, tile, write_checkpoint, write_file
from servers import unused_port

if TYPE_CHECKING:
    from pathlib import Path

    from servers import S3, Web

MIB = 1 << 20
LAYERS = {f"layer.{index}.weight": Content.random("F32", (40, index + 1), index) for index in range(20)}
LAYERS |= {f"large.{index}": Content("U8", (3 * MIB + index,), tile(index, 3 * MIB + index)) for index in range(4)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of two shards with an index, beside a file that the index does not name."""
    folder = tmp_path_factory.mktemp("model")
    names = list(LAYERS)
    write_checkpoint(folder, [{name: LAYERS[name] for name in half} for half in (names[::2], names[1::2])])
    write_file(folder / "other.safetensors", {"other": Content.random("F32", (3,), 0)})
    return folder


@pytest.fixture(scope="module")
def url(s3: S3, folder: Path) -> str:
    """URL of the same checkpoint in an object store."""
    return s3.put_folder("models", "a/model", folder)


@pytest.mark.parametrize("framework", ["torch", "numpy"])
@pytest.mark.parametrize("way", ["load", "stream", "open"])
def test_object_store_load_equals_disk_load(way: str, framework: Any, s3: S3, url: str, folder: Path) -> None:
    require(framework)
    local = tload.load(folder, framework=framework)
    if way == "load":
        got = tload.load(url, framework=framework, store=s3.store)
        assert list(got) == list(local)
    elif way == "stream":
        got = dict(tload.stream(url, framework=framework, store=s3.store))
    else:
        with tload.open(url, store=s3.store) as remote, tload.open(folder) as disk:
            assert dict(remote) == dict(disk)
            assert remote.location == url
            assert [shard.location for shard in remote.shards] == [f"{url}/{path.name}" for path in shards(folder)]
            got = tload.load(remote, framework=framework)
    assert {name: (value.dtype, value.shape) for name, value in got.items()} == {
        name: (value.dtype, value.shape) for name, value in local.items()
    }
    arrays = {name: tensor.numpy() if framework == "torch" else tensor for name, tensor in got.items()}
    assert {name: array.tobytes() for name, array in arrays.items()} == {name: c.raw for name, c in LAYERS.items()}
    for tensor in got.values():
        tensor[...] = 0  # the caller's own: it may be written to


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("model-*.safetensors"))


def test_report_counts_remote_and_local_bytes(s3: S3, url: str) -> None:
    stream = tload.stream(url, framework="dlpack", store=s3.store)
    total = sum(tensor.nbytes for _, tensor in stream)
    report = stream.report
    assert report.outcome == "complete"
    assert report.location == url
    assert report.engine.name == "object"
    assert report.remote_bytes == report.read_bytes >= total == report.tensor_bytes
    assert (report.direct_bytes, report.buffered_bytes) == (0, 0)
    assert report.requests > 0
    assert re.search(rf" in {report.requests} requests?\b", str(report))
    assert report.to_dict()["requests"] == report.requests
    assert s3.secret_access_key not in str(report) + repr(report)


def test_the_report_counts_the_requests_for_tensors(web: Web, folder: Path) -> None:
    web.files["a.safetensors"] = shards(folder)[0].read_bytes()
    with tload.open(f"{web.url}/a.safetensors") as checkpoint:
        opening = len(web.requests)
        stream = tload.stream(checkpoint, framework="dlpack", extent_bytes=MIB)
        list(stream)
    assert opening > 0
    assert stream.report.requests == len(web.requests) - opening > 1


def test_index_selects_objects(s3: S3, url: str, folder: Path) -> None:
    for source in (url, f"{url}/", f"{url}/model.safetensors.index.json"):
        assert set(tload.open(source, store=s3.store)) == set(LAYERS)
    without = s3.put("models", "b/one.safetensors", shards(folder)[0].read_bytes()).removesuffix("/one.safetensors")
    s3.put("models", "b/other.safetensors", (folder / "other.safetensors").read_bytes())
    names = {*tload.open(shards(folder)[0]), "other"}
    assert set(tload.open(without, store=s3.store)) == names


def test_one_load_takes_files_and_objects(s3: S3, url: str, folder: Path, web: Web) -> None:
    first, second = shards(folder)
    web.files["c d.safetensors"] = (folder / "other.safetensors").read_bytes()
    sources: list[str | Path] = [first, f"{url}/{second.name}", f"{web.url}/c%20d.safetensors"]
    got = tload.load(sources, framework="dlpack", store=s3.store)
    assert set(got) == {*LAYERS, "other"}
    require("numpy")
    stream = tload.stream(sources, framework="numpy", store=s3.store, names=list(LAYERS))
    assert {name: array.tobytes() for name, array in stream} == {name: c.raw for name, c in LAYERS.items()}
    report = stream.report
    assert report.engine.name in {"uring + object", "pread + object"}
    assert min(report.remote_bytes, report.direct_bytes + report.buffered_bytes) > 0
    assert report.read_bytes == report.remote_bytes + report.direct_bytes + report.buffered_bytes


def test_store_overrides_environment(s3: S3, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_access_key)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    assert len(tload.open(url)) == len(LAYERS)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unused_port()}")
    assert len(tload.open(url, store={"endpoint": s3.endpoint})) == len(LAYERS)
    monkeypatch.setenv("TLOAD_STORE", f"endpoint={s3.endpoint}\nregion=us-east-1")
    assert len(tload.open(url)) == len(LAYERS)
    monkeypatch.setenv("TLOAD_STORE", f"endpoint=http://127.0.0.1:{unused_port()}")
    assert len(tload.open(url, store={"endpoint": s3.endpoint})) == len(LAYERS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert len(tload.open(url, store=s3.store)) == len(LAYERS)


def test_public_buckets_need_no_credentials(s3: S3, folder: Path) -> None:
    path = shards(folder)[0]
    url = s3.put("public", path.name, path.read_bytes())
    store: dict[str, Any] = {"endpoint": s3.endpoint, "anonymous": True}
    with pytest.raises(PermissionError) as caught:
        tload.open(url, store=store)
    assert isinstance(caught.value, tload.PermissionDeniedError)
    assert (caught.value.status, caught.value.credentials) == (403, "anonymous")
    s3.make_public("public")
    assert set(tload.open(url, store=store)) == set(tload.open(path))


def test_headers_and_options_reach_the_server(web: Web, folder: Path) -> None:
    web.files["b/a.safetensors"] = shards(folder)[0].read_bytes()
    store: dict[str, Any] = {"endpoint": web.url, "anonymous": True, "headers": {"X-Team": "weights"}}
    tload.load("s3://b/a.safetensors", framework="dlpack", store=store)
    assert {request.path for request in web.requests} == {"/b/a.safetensors"}
    assert {request.headers.get("x-team") for request in web.requests} == {"weights"}
    assert not any("authorization" in request.headers for request in web.requests)


def test_wrong_credentials_are_a_permission_error_without_the_secret(
    s3: S3, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    store = s3.store | {"secret_access_key": "swordfish-swordfish"}
    with pytest.raises(PermissionError) as caught:
        tload.load(url, framework="dlpack", store=store)
    error = caught.value
    assert isinstance(error, tload.PermissionDeniedError)
    assert error.status == 403
    assert error.code == "SignatureDoesNotMatch"
    assert error.attempts == 1, "trying again does not help"
    assert error.credentials
    assert error.operation in {"LIST", "GET"}
    assert error.location is not None
    assert error.location.startswith(url)
    assert error.credentials in str(error)
    shown = "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error)) + caplog.text
    assert "swordfish" not in shown


def test_secret_in_url_is_not_shown(web: Web, folder: Path) -> None:
    web.files["a.safetensors"] = shards(folder)[0].read_bytes()
    host = web.url.removeprefix("http://")
    url = f"http://user:hunter2@{host}/a.safetensors?signature=hunter2"
    checkpoint = tload.open(url)
    stream = tload.stream(checkpoint, framework="dlpack")
    list(stream)
    shown = [repr(checkpoint), checkpoint.location, repr(checkpoint.shards), repr(stream), str(stream.report)]
    shown += [repr(stream.report)]
    assert any("signature=hunter2" in request.path for request in web.requests), "but the server receives it"
    with pytest.raises(FileNotFoundError) as caught:
        tload.open(url.replace("a.safetensors", "b.safetensors"))
    shown += [*traceback.format_exception(caught.value), repr(vars(caught.value))]
    assert "hunter2" not in "".join(shown)


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("models/a/model/none.safetensors", "NoSuchKey"),
        ("models/none", "NoSuchKey"),
        ("nowhere/a.safetensors", "NoSuchBucket"),
        ("nowhere/model", "NoSuchBucket"),
        ("nowhere", "NoSuchBucket"),
    ],
)
def test_missing_object_raises_not_found(place: str, code: str, s3: S3, url: str) -> None:
    assert url.startswith("s3://models/")
    with pytest.raises(FileNotFoundError) as caught:
        tload.open(f"s3://{place}", store=s3.store)
    assert isinstance(caught.value, tload.NotFoundError)
    assert caught.value.status == 404
    assert caught.value.code == code
    assert caught.value.location == caught.value.filename == f"s3://{place}"


def test_missing_web_page_raises_not_found_error(web: Web) -> None:
    with pytest.raises(tload.NotFoundError) as caught:
        tload.open(f"{web.url}/none.safetensors")
    assert caught.value.status == 404


@pytest.mark.parametrize("retries", [None, 0])
def test_refused_connection_raises_connection_error(retries: int | None) -> None:
    endpoint = f"http://127.0.0.1:{unused_port()}"
    store: dict[str, Any] = {"endpoint": endpoint, "access_key_id": "a", "secret_access_key": "hunter2"}
    if retries is not None:
        store["retries"] = retries
    for source in ("s3://bucket/model", f"{endpoint}/a.safetensors"):
        with pytest.raises(ConnectionError) as caught:
            tload.open(source, store=store)
        error = caught.value
        assert isinstance(error, tload.RemoteError)
        assert (error.status, error.code, error.request_id) == (None, None, None)
        assert error.attempts is not None
        assert error.attempts == 1 if retries == 0 else error.attempts > 1
        assert "hunter2" not in "".join(traceback.format_exception(error))


FORK = """
import gc, os, sys, warnings
import tload
warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of threads and fork, and is right

url, endpoint, key, secret = sys.argv[1:]
store = {"endpoint": endpoint, "access_key_id": key, "secret_access_key": secret}
checkpoint = tload.open(url, store=store)  # with secrets, which a fork inherits
stream = tload.stream(checkpoint, framework="dlpack")
next(stream)

child = os.fork()
if child == 0:
    try:
        try:
            next(stream)
        except tload.InvalidRequestError as error:
            assert f"is used in process {os.getpid()}, a fork of it" in str(error), error
        else:
            raise AssertionError("no error")
        assert len(checkpoint) == int(os.environ["COUNT"]), "headers can be read"
        for source in (checkpoint, checkpoint, url):
            again = tload.load(source, framework="dlpack", store=store if source is url else None)
            assert len(again) == int(os.environ["COUNT"]), "the inherited checkpoint works, as does a load of its own"
        grandchild = os.fork()
        if grandchild == 0:
            os._exit(len(tload.load(checkpoint, framework="dlpack")))
        assert os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) == int(os.environ["COUNT"])
        checkpoint.close()
        del stream, checkpoint
        gc.collect()
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    sys.exit(0)  # with atexit, unlike a forked child of multiprocessing
_, status = os.waitpid(child, 0)
assert status == 0, status
assert 1 + len(list(stream)) == len(tload.load(checkpoint, framework="dlpack")) == int(os.environ["COUNT"])
"""


def test_store_checkpoint_works_after_fork(s3: S3, url: str) -> None:
    arguments = [url, s3.endpoint, s3.access_key_id, s3.secret_access_key]
    environment = os.environ | {"COUNT": str(len(LAYERS))}
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", FORK, *arguments],
            timeout=300,
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        assert done.returncode == 0, done.stderr


KEPT = """
import os, sys, warnings
import tload
warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of threads and fork, and is right

url, endpoint, key, secret = sys.argv[1:]
count = int(os.environ["COUNT"])
store = {"endpoint": endpoint, "access_key_id": key, "secret_access_key": secret}
tload.load(url, framework="dlpack", store=store)  # its threads and connections are kept
for _ in range(3):
    child = os.fork()
    if child == 0:
        os._exit(len(tload.load(url, framework="dlpack", store=store)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == count
assert len(tload.load(url, framework="dlpack", store=store)) == count
"""


def test_kept_connections_are_not_used_after_fork(s3: S3, url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KEPT, url, s3.endpoint, s3.access_key_id, s3.secret_access_key],
        timeout=300,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"COUNT": str(len(LAYERS))},
    )
    assert done.returncode == 0, done.stderr


def test_changed_variables_count_for_the_next_opening(s3: S3, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.endpoint)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_access_key)
    for _ in range(2):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key_id)
        assert len(tload.load(url, framework="dlpack")) == len(LAYERS)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOTHER")
        with pytest.raises(tload.PermissionDeniedError):
            tload.open(url)


def test_changed_object_is_not_read_after_fork(web: Web, folder: Path) -> None:
    web.files["a.safetensors"] = shards(folder)[0].read_bytes()
    script = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of threads and fork, and is right
import tload
checkpoint = tload.open(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
if os.fork() == 0:
    try:
        tload.load(checkpoint, framework="dlpack")
    except tload.ChangedError as error:
        assert "found length" in str(error) and "ETag" in str(error), error
        os._exit(0)
    os._exit(1)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, f"{web.url}/a.safetensors"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        web.files["a.safetensors"] = web.files["a.safetensors"][:-1] + b"!"
        _, said = process.communicate("\n", timeout=300)
    assert process.returncode == 0, said


def test_reader_reads_objects_into_buffers(s3: S3, url: str) -> None:
    names = [*LAYERS][::3]
    with tload.open(url, store=s3.store) as checkpoint, checkpoint.reader() as reader:
        buffers = {name: bytearray(len(LAYERS[name].raw)) for name in names}
        reader.read_into(buffers)
        assert buffers == {name: LAYERS[name].raw for name in names}
        row = bytearray(4 * 5)
        reader.read_into({("layer.4.weight", 7): row})
        assert row == LAYERS["layer.4.weight"].raw[7 * 20 : 8 * 20]
