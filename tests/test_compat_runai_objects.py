"""`tload.compat.runai` with object stores: listing, pulling and streaming, with the caller's
credentials only."""

from __future__ import annotations

import fcntl
import fnmatch
import importlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import tload
from conftest import require
from files import Content, write_file
from servers import REGION
from tload._options import store_options
from tload.compat.runai import FileStreamer, ObjectStorageModel, environment, list_safetensors, pull_files
from tload.compat.runai.stores import Kind, S3Credentials

if TYPE_CHECKING:
    from pathlib import Path

    from servers import S3, Web

TENSORS = {"a": Content.random("F32", (3, 5), 1), "b": Content.random("BF16", (70,), 2)}
NAMES = [
    "model.safetensors",
    "config.json",
    "tokenizer.model",
    ".gitattributes",
    "sub/config.json",
    "sub/more.safetensors",
    "original/params.json",
    "original/deep/weights.bin",
]


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("RUNAI_STREAMER_", "CLOUD_STORAGE_")):
            monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def bodies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a model, by name."""
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    write_file(path, TENSORS)
    return {name: path.read_bytes() if name.endswith("safetensors") else name.encode() * 99 for name in NAMES}


@pytest.fixture(scope="module")
def url(s3: S3, bodies: dict[str, bytes]) -> str:
    """URL of the model in an object store, beside another object."""
    for name, body in bodies.items():
        s3.put("runai", f"models/tiny/{name}", body)
    s3.put("runai", "models/config.json", b"of another")
    return "s3://runai/models/tiny"


@pytest.fixture
def credentials(s3: S3) -> S3Credentials:
    return S3Credentials(s3.access_key_id, s3.secret_access_key, region_name=REGION, endpoint=s3.endpoint)


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_tensors_are_streamed_with_credentials_and_without(
    url: str, s3: S3, credentials: S3Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = require("torch")
    runai = importlib.import_module("tload.compat.runai")

    def check(given: S3Credentials | None) -> None:
        with runai.SafetensorsStreamer() as streamer:
            streamer.stream_file(f"{url}/model.safetensors", given)
            streamed = dict(streamer.get_tensors())
        assert {name: bytes(tensor.view(torch.uint8).numpy()) for name, tensor in streamed.items()} == {
            name: content.raw for name, content in TENSORS.items()
        }

    check(credentials)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_access_key)
    monkeypatch.setenv("RUNAI_STREAMER_S3_ENDPOINT", s3.endpoint)
    monkeypatch.setenv("RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", "0")
    check(None)
    monkeypatch.setenv("RUNAI_STREAMER_S3_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    check(None)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("RUNAI_STREAMER_OVERRIDE_ENDPOINT_URL", s3.endpoint)
    check(None)
    with pytest.raises(ValueError, match="does not accept the signature") as caught:
        check(S3Credentials(s3.access_key_id, "wrong", endpoint=s3.endpoint))
    assert isinstance(caught.value.__cause__, tload.PermissionDeniedError)


def test_safetensors_are_listed_right_below_a_prefix(url: str, credentials: S3Credentials) -> None:
    for prefix in (url, f"{url}/"):
        assert list_safetensors(prefix, credentials) == [f"{url}/model.safetensors"]
    assert list_safetensors(f"{url}/original", credentials) == []
    assert list_safetensors("s3://runai/nowhere/", credentials) == []
    with pytest.raises(tload.NotFoundError, match="no such bucket"):
        list_safetensors("s3://no-such-bucket/model", credentials)


def test_list_safetensors_opens_no_file(s3: S3, credentials: S3Credentials) -> None:
    """Neither an index nor the name of the prefix has an effect."""
    s3.put("runai", "odd.json/model.safetensors.index.json", b'{"weight_map": {"a": "gone.safetensors"}}')
    for name in (".hidden.safetensors", "b.safetensors"):
        s3.put("runai", f"odd.json/{name}", b"no header")
    wanted = ["s3://runai/odd.json/.hidden.safetensors", "s3://runai/odd.json/b.safetensors"]
    assert list_safetensors("s3://runai/odd.json", credentials) == wanted
    assert list_safetensors(wanted[1], credentials) == [], "nothing is below an object"


def test_objects_are_listed(url: str, bodies: dict[str, bytes], s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_access_key)
    monkeypatch.setenv("RUNAI_STREAMER_S3_ENDPOINT", s3.endpoint)
    streamer = FileStreamer()

    def check(names: list[str], **arguments: Any) -> None:
        found = streamer.list_files(url, **arguments)
        assert found == [(f"{url}/{name}", len(bodies[name])) for name in sorted(names)]

    check(NAMES)
    check([name for name in NAMES if "/" not in name], is_recursive=False)
    check(["config.json", "sub/config.json"], allow_patterns=["*.json"], ignore_patterns=["*/original/*"])
    check(["config.json"], allow_patterns=[f"{url}/config.json", "config.json"])
    check(NAMES, allow_patterns=[], ignore_patterns=[])
    assert streamer.list_files(f"{url}/") == streamer.list_files(url)
    assert streamer.list_files("s3://runai/models/tin") == [], "a folder is meant, not a prefix of a name"
    with pytest.raises(ValueError, match="no such bucket") as caught:
        streamer.list_files("s3://no-such-bucket")
    assert isinstance(caught.value.__cause__, tload.NotFoundError)


def test_safetensors_are_listed_in_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "mod[e]l"
    for name in ("b.safetensors", "a.safetensors", "a.json", "sub/c.safetensors"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    assert list_safetensors(str(folder)) == [str(folder / "a.safetensors"), str(folder / "b.safetensors")]
    assert list_safetensors(str(tmp_path / "missing")) == []


PATTERNS: list[tuple[list[str] | None, list[str] | None]] = [
    (None, None),
    (["*.model", "*.py", "*.json"], None),  # vLLM's
    (None, ["*.pt", "*.safetensors", "*.bin", "*.tensors", "*.pth"]),  # SGLang's
    (["*"], ["*/original/*"]),
    (["models/tiny/tok*", "tokenizer.model"], None),
    (["models/tiny/config.json", "config.json"], None),  # vLLM's for an index: by its key, by its name
    (None, ["models/tiny/config.json", "m*tiny/[!c]?n*"]),
    (["*sub*json", "*/.git*"], ["*config*"]),
    (["models/t?ny/[co]*/*"], ["models/tiny/original/d*"]),
    (["*inal/deep*", "m*y/sub?*"], None),
    (["tokenizer.model"], None),
    ([], None),
]


@pytest.mark.parametrize(("allow", "ignore"), PATTERNS)
def test_pull_files_matches_whole_keys(  # noqa: PLR0917
    allow: list[str] | None,
    ignore: list[str] | None,
    url: str,
    bodies: dict[str, bytes],
    credentials: S3Credentials,
    tmp_path: Path,
) -> None:
    pull_files(url, str(tmp_path / "target"), allow, ignore, credentials)

    def wanted(key: str) -> bool:
        allowed = allow is None or any(fnmatch.fnmatch(key, pattern) for pattern in allow)
        return allowed and not any(fnmatch.fnmatch(key, pattern) for pattern in ignore or ())

    assert files_in(tmp_path) == {
        f"target/{name}": body for name, body in bodies.items() if wanted(f"models/tiny/{name}")
    }


def test_invalid_pull_raises(url: str, s3: S3, credentials: S3Credentials, tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match="only be pulled from object stores"):
        pull_files(str(tmp_path), str(tmp_path / "target"))
    with pytest.raises(tload.NotFoundError, match="no such bucket"):
        pull_files("s3://no-such-bucket/model", str(tmp_path), s3_credentials=credentials)
    pull_files("s3://runai/nowhere", str(tmp_path / "target"), s3_credentials=credentials)
    wrong = S3Credentials(s3.access_key_id, "not-the-secret", region_name=REGION, endpoint=s3.endpoint)
    with pytest.raises(tload.PermissionDeniedError) as caught:
        pull_files(url, str(tmp_path), s3_credentials=wrong)
    assert "not-the-secret" not in str(caught.value)
    assert "not-the-secret" not in repr(wrong)
    assert files_in(tmp_path) == {}


def test_keys_escaping_target_rejected(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = "".join(
        f"<Contents><Key>{key}</Key><LastModified>2026-11-20T12:00:00.000Z</LastModified>"
        f"<ETag>&quot;1&quot;</ETag><Size>4</Size></Contents>"
        for key in ("model/config.json", "model/../../evil")
    )
    web.files["bucket"] = f"<ListBucketResult><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>".encode()
    web.files["bucket/model/config.json"] = web.files["bucket/model/../../evil"] = b"evil"
    monkeypatch.setenv("RUNAI_STREAMER_S3_UNSIGNED", "1")
    # `tload.list_files` leaves the other key out.
    pull_files("s3://bucket/model", str(tmp_path / "a" / "b"), s3_credentials=S3Credentials(endpoint=web.url))
    assert files_in(tmp_path) == {"a/b/config.json": b"evil"}


ENVIRONMENTS: list[tuple[Kind, dict[str, str], dict[str, Any]]] = [
    (Kind.FILE, {"RUNAI_STREAMER_S3_UNSIGNED": "1", "RUNAI_STREAMER_OVERRIDE_ENDPOINT_URL": "http://x"}, {}),
    (Kind.S3, {}, {}),
    (Kind.S3, {"RUNAI_STREAMER_S3_UNSIGNED": "1"}, {"anonymous": True}),
    (Kind.S3, {"RUNAI_STREAMER_S3_UNSIGNED": "0"}, {}),
    (Kind.S3, {"RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "1"}, {"addressing": "virtual"}),
    (Kind.S3, {"RUNAI_STREAMER_S3_MAX_RETRIES": "0"}, {}),
    (Kind.S3, {"RUNAI_STREAMER_S3_MAX_RETRIES": "3"}, {"retries": 3}),
    (Kind.S3, {"RUNAI_STREAMER_S3_REQUEST_TIMEOUT_MS": "1500"}, {"read_timeout": 1.5}),
    (Kind.S3, {"AWS_ENDPOINT_URL_S3": "http://y", "RUNAI_STREAMER_S3_ENDPOINT": "http://x"}, {}),
    (Kind.GCS, {"RUNAI_STREAMER_S3_ENDPOINT": "http://x", "RUNAI_STREAMER_S3_UNSIGNED": "1"}, {}),
    (Kind.GCS, {"RUNAI_STREAMER_GCS_CREDENTIAL_FILE": "/key.json"}, {"service_account": "/key.json"}),
    (
        Kind.GCS,
        {"RUNAI_STREAMER_GCS_USE_ANONYMOUS_CREDENTIALS": "True", "CLOUD_STORAGE_EMULATOR_ENDPOINT": "http://x"},
        {"anonymous": True, "endpoint": "http://x"},
    ),
    (
        Kind.AZURE,
        {"AZURE_STORAGE_ACCOUNT_NAME": "me", "AZURE_STORAGE_ENDPOINT_SUFFIX": "blob.core.chinacloudapi.cn"},
        {"endpoint": "https://me.blob.core.chinacloudapi.cn"},
    ),
    (Kind.AZURE, {"RUNAI_STREAMER_OVERRIDE_ENDPOINT_URL": "http://x"}, {"endpoint": "http://x"}),
]


@pytest.mark.parametrize(("kind", "variables", "wanted"), ENVIRONMENTS)
def test_environment_sets_store_options(
    kind: Kind, variables: dict[str, str], wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    store = environment.store(kind, None)
    assert store == wanted
    store_options.check(store)


def test_concurrent_processes_copy_model_once(
    url: str, bodies: dict[str, bytes], s3: S3, credentials: S3Credentials, tmp_path: Path
) -> None:
    script = """
import sys
from tload.compat.runai import ObjectStorageModel
from tload.compat.runai.stores import Kind, S3Credentials
url, target, *words = sys.argv[1:]
with ObjectStorageModel(url, target, S3Credentials(*words[:2], endpoint=words[2])) as model:
    model.pull_files(allow_pattern=["*.json"])
    model.pull_files(ignore_pattern=["*.json", "*.safetensors"])
    print(model._skip)
"""
    target = tmp_path / "model"
    words = [url, f"{target}/", s3.access_key_id, s3.secret_access_key, s3.endpoint]
    children = [
        subprocess.Popen([sys.executable, "-c", script, *words], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    skipped = [child.communicate()[0].strip() for child in children]
    assert [child.returncode for child in children] == [0] * 4
    assert sorted(skipped) == ["False", "True", "True", "True"]
    wanted = {name: body for name, body in bodies.items() if not name.endswith("safetensors")}
    assert files_in(target) == wanted | {".runai_complete": b""}
    assert (tmp_path / "model.lock").exists(), "beside the folder, which may be removed"
    with ObjectStorageModel(url, str(target), credentials) as model:
        model.pull_files()
    assert files_in(target) == wanted | {".runai_complete": b""}, "complete is complete"


def may_lock(path: Path) -> bool:
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_failed_copy_restarts(url: str, credentials: S3Credentials, tmp_path: Path) -> None:
    target, lock = tmp_path / "model", tmp_path / "model.lock"
    target.mkdir()
    (target / "stale").touch()
    with pytest.raises(KeyboardInterrupt), ObjectStorageModel(url, str(target), credentials) as model:  # noqa: PT012
        assert not may_lock(lock)
        assert not files_in(target)
        model.pull_files(["*.json"])
        raise KeyboardInterrupt
    assert may_lock(lock)
    assert ".runai_complete" not in files_in(target)
    with pytest.raises(RuntimeError, match="no files were copied from s3://runai/models/tiny/"):
        ObjectStorageModel(url, str(target), credentials).__exit__(None, None, None)
    assert may_lock(lock)
    model = ObjectStorageModel(url, str(target), credentials)
    assert not may_lock(lock)
    del model
    assert may_lock(lock), "also when it is only dropped"


def test_model_outside_store_is_rejected_first(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not in an object store"):
        ObjectStorageModel(str(tmp_path), str(tmp_path / "target"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", ["", "/", "//", "/..", "link", "link/"])
def test_root_directory_is_never_emptied(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str] = []
    monkeypatch.setattr("shutil.rmtree", removed.append)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("/")
    with pytest.raises(ValueError, match="other than the root directory"):
        ObjectStorageModel("s3://bucket/model", target)
    assert removed == []
