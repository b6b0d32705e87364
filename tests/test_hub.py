"""Models of a hub: the same tensors from the cache of `huggingface_hub` as from the hub itself."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hub
import tload
from conftest import require
from files import Content, write_checkpoint, write_file
from tload.vllm import _lora

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = "org/Model-1.5"
URL = f"hf://{MODEL}"
TOKEN = "hf_hunter2"
LAYERS = {f"layer.{index}.weight": Content.random("F32", (40, index + 1), index) for index in range(20)}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Home folder of `huggingface_hub`."""
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def _own_hub(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Hide the caller's hub, token and cache from the tests."""
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_OFFLINE")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(home))
    # Tests in this process may have imported it while it was to be offline.
    if "huggingface_hub.constants" in sys.modules:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[hub.Hub]:
    """A hub, whose URL is in the environment."""
    with hub.hub() as started:
        monkeypatch.setenv("HF_ENDPOINT", started.url)
        yield started


def read(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Files of a model: two shards with an index, another file beside them, and another model in a
    folder."""
    folder = tmp_path_factory.mktemp("model")
    names = list(LAYERS)
    write_checkpoint(folder, [{name: LAYERS[name] for name in half} for half in (names[::2], names[1::2])])
    (folder / "config.json").write_text("{}")
    (folder / ".gitattributes").write_text("*.safetensors filter=lfs")
    (folder / "sub").mkdir()
    write_file(folder / "sub" / "adapter.safetensors", {"adapter": Content.random("F32", (3,), 0)})
    return read(folder)


def raw(tensors: dict[str, Any]) -> dict[str, bytes]:
    return {name: tensor.tobytes() for name, tensor in tensors.items()}


def load(location: str | tload.Checkpoint, **arguments: Any) -> dict[str, bytes]:
    require("numpy")
    return raw(tload.load(location, framework="numpy", **arguments))


WANTED = {name: content.raw for name, content in LAYERS.items()}


def download(served: hub.Hub, cache: Path, **arguments: Any) -> Path:
    """Download the same model with `huggingface_hub`."""
    package = require("huggingface_hub")
    require("huggingface_hub.utils").disable_progress_bars()
    return Path(package.snapshot_download(MODEL, endpoint=served.url, cache_dir=cache, token=False, **arguments))


def test_model_is_loaded_from_hub(served: hub.Hub, files: dict[str, bytes]) -> None:
    commit = served.commit(MODEL, files)
    served.commit(MODEL, files, "refs/pr/1")
    for rest in ("", "@main", "@refs/pr/1", f"@{commit}", "/model.safetensors.index.json"):
        with tload.open(URL + rest) as checkpoint:
            assert checkpoint.location == URL + rest
            assert {shard.location.partition(MODEL)[0] for shard in checkpoint.shards} == {"hf://"}
            assert raw(tload.load(checkpoint, framework="numpy")) == WANTED
    assert list(load(f"{URL}/sub")) == list(load(f"{URL}/sub/adapter.safetensors")) == ["adapter"]
    pinned = {asked.path.split("/resolve/")[1].split("/")[0] for asked in served.asked if "/resolve/" in asked.path}
    assert pinned == {commit}, "never by the name of a branch"


def test_cached_model_is_read_without_hub_requests(
    served: hub.Hub, files: dict[str, bytes], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = served.commit(MODEL, files)
    snapshot = download(served, home / "hub")
    served.asked.clear()
    for rest in ("", "@main", f"@{commit}", "/model.safetensors.index.json"):
        with tload.open(URL + rest) as checkpoint:
            assert checkpoint.location == URL + rest
            assert {Path(shard.location).parent for shard in checkpoint.shards} == {snapshot}
            assert raw(tload.load(checkpoint, framework="numpy")) == WANTED
    assert list(load(f"{URL}/sub")) == list(load(f"{URL}/sub/adapter.safetensors")) == ["adapter"]
    assert served.asked == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert load(URL) == WANTED
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "hub"))
    assert load(URL) == WANTED
    assert served.asked == []


def test_hub_package_download_matches_tload(
    served: hub.Hub, files: dict[str, bytes], tmp_path: Path, home: Path
) -> None:
    safetensors = require("safetensors.numpy")
    served.commit(MODEL, files)
    found = load(URL)
    snapshot = download(served, tmp_path / "elsewhere")
    wanted: dict[str, bytes] = {}
    for path in sorted(snapshot.glob("*.safetensors")):
        wanted |= raw(safetensors.load_file(path))
    assert found == wanted
    copy = tmp_path / "copy"
    run("cp", URL, str(copy), "--hidden")
    assert read(copy) == read(snapshot) == files
    assert not home.exists(), "tload writes nothing into the cache"


@pytest.mark.parametrize("how", ["a load", "an option", "a copy"])
def test_hub_package_finds_model_that_tload_cached(
    how: str, served: hub.Hub, files: dict[str, bytes], tmp_path: Path, home: Path
) -> None:
    package = require("huggingface_hub")
    commit = served.commit(MODEL, files)
    if how == "a load":
        assert load(URL, hf_cache=True) == WANTED
    elif how == "an option":
        assert load(URL, store={"hf_cache": True}) == WANTED
    else:
        run("cp", URL, str(tmp_path / "copy"), "--hf-cache", "--hidden")
    served.asked.clear()
    snapshot = download(served, home / "hub", local_files_only=True)
    assert snapshot.name == commit
    wanted = {name: text for name, text in files.items() if how == "a copy" or not name.startswith("sub/")}
    assert read(snapshot) == wanted
    (cached,) = package.scan_cache_dir(home / "hub").repos
    assert (cached.repo_id, cached.nb_files) == (MODEL, len(wanted))
    # Files that the package downloads itself have the same names.
    assert download(served, home / "hub") == snapshot
    assert not [asked.path for asked in served.asked if asked.host == "files" and asked.path.endswith("2.safetensors")]
    assert read(snapshot) == files
    blobs = sorted(path.name for path in (snapshot.parent.parent / "blobs").iterdir())
    elsewhere = download(served, tmp_path / "elsewhere").parent.parent
    assert blobs == sorted(path.name for path in (elsewhere / "blobs").iterdir())


@pytest.mark.parametrize("missing", ["a shard", "the index", "a revision"])
def test_incomplete_hub_cache_ignored(
    missing: str, served: hub.Hub, files: dict[str, bytes], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.commit(MODEL, files)
    ignored = {"a shard": "*-00002-of-00002.safetensors", "the index": "*.index.json", "a revision": "none"}[missing]
    snapshot = download(served, home / "hub", ignore_patterns=[ignored])
    if missing == "a revision":
        (snapshot.parent.parent / "refs" / "main").unlink()
    served.asked.clear()
    assert load(URL) == WANTED
    assert any(asked.host == "files" for asked in served.asked)
    served.asked.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(tload.NotFoundError, match="HF_HUB_OFFLINE") as caught:
        tload.open(URL)
    assert isinstance(caught.value, FileNotFoundError)
    assert "hf download" in str(caught.value.hint)
    assert served.asked == []


def test_files_of_one_list_are_of_one_commit(served: hub.Hub, files: dict[str, bytes], home: Path) -> None:
    served.commit(MODEL, files)
    download(served, home / "hub", allow_patterns=["*-00001-of-00002.safetensors"])
    other = {name: content[:-1] + b"!" for name, content in files.items()}
    commit = served.commit(MODEL, other)
    served.asked.clear()
    shards = [f"{URL}/{name}" for name in files if name.endswith("-of-00002.safetensors")]
    with tload.open(shards) as checkpoint:
        assert [shard.location for shard in checkpoint.shards] == shards, "none from the cache"
    assert {asked.path.split("/")[2] for asked in served.asked if asked.host == "files"} == {commit}


def test_tokens_are_found_where_the_package_looks(
    served: hub.Hub, files: dict[str, bytes], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.commit(MODEL, files)
    served.gated[MODEL] = TOKEN
    with pytest.raises(tload.PermissionDeniedError, match="gated") as caught:
        tload.open(URL)
    assert "HF_TOKEN" in str(caught.value.hint)
    assert load(URL, store={"token": TOKEN}) == WANTED
    home.mkdir()
    (home / "token").write_text(TOKEN + "\n")
    assert load(URL) == WANTED
    with pytest.raises(tload.PermissionDeniedError):
        tload.open(URL, store={"anonymous": True})
    with pytest.raises(tload.PermissionDeniedError):
        tload.open(URL, store={"environment": False, "endpoint": served.url})
    monkeypatch.setenv("HF_TOKEN", "hf_other_hunter2")
    with pytest.raises(tload.PermissionDeniedError, match="gated") as caught:
        tload.open(URL)
    assert "hunter2" not in repr(caught.value) + str(caught.value) + str(caught.value.hint)
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "token").write_text(TOKEN)
    (home / "token").unlink()
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    assert load(URL) == WANTED
    sent = {asked.host: asked.token for asked in served.asked}
    assert sent == {"hub": f"Bearer {TOKEN}", "files": None}
    assert all(asked.token is None for asked in served.asked if asked.host == "files")


def test_hub_refusals_map_to_exceptions(served: hub.Hub, files: dict[str, bytes]) -> None:
    served.commit(MODEL, files)
    for location in ("hf://org/none", f"{URL}@none", f"{URL}/none.safetensors"):
        with pytest.raises(tload.NotFoundError) as caught:
            tload.open(location)
        assert caught.value.location == location
        assert caught.value.hint
    for location in ("hf://org", "hf://token@org/name", f"{URL}@..", f"{URL}/../x.safetensors"):
        with pytest.raises(tload.InvalidRequestError):
            tload.open(location)
    with pytest.raises(tload.UnsupportedError):
        tload.open("hf://datasets/org/name")


def test_offline_mode_sends_nothing(served: hub.Hub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    served.commit(MODEL, files)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "true")
        with pytest.raises(tload.NotFoundError, match="cache"):
            tload.open(URL)
        monkeypatch.delenv(name)
    assert served.asked == []
    assert load(URL) == WANTED


def run(*arguments: str) -> str:
    """Run the command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tload", *arguments], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_command_takes_a_model(served: hub.Hub, files: dict[str, bytes], tmp_path: Path) -> None:
    served.commit(MODEL, files)
    assert "layer.0.weight" in run("ls", URL)
    digest = run("load", URL, "--digest")
    run("cp", URL, str(tmp_path / "copy"))
    assert read(tmp_path / "copy") == {name: content for name, content in files.items() if name != ".gitattributes"}
    local = run("load", str(tmp_path / "copy"), "--digest")

    def digests(text: str) -> list[str]:
        return [line for line in text.splitlines() if "digest" in line]

    assert digests(digest) == digests(local) != []
    assert "hf: 2 shards" in run("doctor", URL)


def test_copy_uses_complete_cached_files(
    served: hub.Hub, files: dict[str, bytes], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.commit(MODEL, files)
    download(served, home / "hub", ignore_patterns=["config.json"])
    served.asked.clear()
    run("cp", URL, str(tmp_path / "some"), "--hidden")
    assert read(tmp_path / "some") == files
    assert any(asked.host == "files" for asked in served.asked), "the cache is incomplete"
    download(served, home / "hub")
    served.asked.clear()
    run("cp", URL, str(tmp_path / "all"), "--hidden")
    assert read(tmp_path / "all") == files
    assert served.asked == []
    assert "matches" in run("verify", URL)
    assert served.asked == []
    other = {name: content[:-1] + b"!" for name, content in files.items()}
    commit = served.commit(MODEL, other)
    run("cp", f"{URL}@{commit}", str(tmp_path / "other"), "--hidden")
    assert read(tmp_path / "other") == other, "it is not the cached commit"
    served.asked.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run("cp", URL, str(tmp_path / "copy"), "--hidden")
    assert read(tmp_path / "copy") == files
    assert served.asked == []


@pytest.mark.usefixtures("served")
def test_options_with_a_token_show_none() -> None:
    with pytest.raises(tload.NotFoundError) as caught:
        tload.open(URL, store={"token": TOKEN})
    shown = repr(caught.value) + str(caught.value) + str(caught.value.hint) + repr(pickle.dumps(str(caught.value)))
    assert "hunter2" not in shown
    assert "option token" in shown


@pytest.mark.parametrize("place", ["hub", "cache"])
def test_pickled_checkpoint_is_of_the_commit_that_was_open(
    place: str, served: hub.Hub, home: Path, files: dict[str, bytes]
) -> None:
    commit = served.commit(MODEL, files)
    if place == "cache":
        download(served, home / "hub")
    locations: list[Any] = [URL, [f"{URL}/model-00002-of-00002.safetensors", f"{URL}@main/sub/adapter.safetensors"]]
    for source in locations[: 1 if place == "cache" else 2]:
        served.revisions[MODEL, "main"] = commit
        checkpoint = tload.open(source)
        pickled = pickle.dumps(checkpoint)
        # The header stays the same, as with fine-tuned weights.
        changed = {name: content[:-1] + b"!" for name, content in files.items() if name.endswith(".safetensors")}
        served.commit(MODEL, files | changed)
        opened = pickle.loads(pickled)
        assert load(opened) == load(checkpoint)
        assert commit in opened.location


class Moving(dict[tuple[str, str], str]):
    """Revisions of which each look-up finds the other of two commits."""

    def get(self, key: Any, default: Any = None) -> Any:
        found = super().get(key, default)
        if found != default:
            (other,) = self.commits - {found}
            self[key] = other
        return found

    def __init__(self, commits: set[str]) -> None:
        super().__init__({(MODEL, "main"): min(commits)})
        self.commits = commits


def test_adapter_is_copied_from_one_commit(served: hub.Hub, tmp_path: Path) -> None:
    def commit(number: int) -> str:
        config = f'{{"peft_type": "LORA", "r": {number}}}'.encode()
        files = {"sql/adapter_config.json": config, "sql/adapter_model.safetensors": bytes([number])}
        return served.commit(MODEL, {**files, "sql/checkpoint-1/adapter_model.safetensors": b"other"})

    served.revisions = Moving({commit(1), commit(2)})
    adapters = _lora.Adapters(URL, tmp_path / "adapters")
    for _ in range(4):
        path = adapters.fetch("sql")
        assert path is not None
        files = sorted(file.name for file in path.iterdir() if not file.name.startswith("."))
        assert files == ["adapter_config.json", "adapter_model.safetensors"]
        (number,) = (path / "adapter_model.safetensors").read_bytes()
        assert json.loads((path / "adapter_config.json").read_text())["r"] == number
