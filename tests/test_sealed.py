"""Sealed checkpoints. Oracles: Tink for Python in both directions, and a reader of the format's description."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import sealed_reader
import tload
from conftest import require
from files import Content, write_checkpoint
from ranks import start_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import servers

VECTORS = Path(__file__).parent.parent / "crates/sealed/tests/vectors.json"


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    line = [sys.executable, "-m", "tload", *(os.fspath(argument) for argument in arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A checkpoint of two files, one of which has several segments."""
    sizes = (1_500_000, 10, 1_200_001)
    shards = [
        {f"a{index}": Content.random("U8", (size,), seed=index) for index, size in enumerate(sizes)},
        {f"b{index}": Content.random("U8", (500,), seed=index) for index in range(40)},
    ]
    (tmp_path / "plain").mkdir()
    write_checkpoint(tmp_path / "plain", shards)
    (tmp_path / "plain" / "config.json").write_text("{}")
    return tmp_path / "plain"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A path for a new key."""
    return tmp_path / "key.json"


@pytest.fixture
def sealed(plain: Path, key: Path) -> Path:
    """The checkpoint, sealed with a keyset."""
    target = plain.with_name("sealed")
    ran = command("seal", plain, target, "--new-key-file", key)
    assert ran.returncode == 0, ran.stderr
    return target


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files below a directory."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def tensors(source: Any, **keywords: Any) -> dict[str, bytes]:
    """Load everything."""
    return {name: array.tobytes() for name, array in tload.load(source, framework="numpy", **keywords).items()}


def primitive(keyset: str) -> Any:
    """Return Tink's streaming AEAD."""
    streaming_aead = require("tink.streaming_aead")
    tink, token = require("tink"), require("tink.secret_key_access").TOKEN
    streaming_aead.register()
    handle = tink.json_proto_keyset_format.parse(keyset, token)
    return handle.primitive(streaming_aead.StreamingAead)


def associated(folder: Path, name: str) -> bytes:
    """Return the associated data of a file."""
    checkpoint = json.loads((folder / "sealed.json").read_text())["id"]
    return f"tload-sealed/1\0{checkpoint}\0{name}".encode()


def test_tink_opens_every_file_at_any_place(plain: Path, sealed: Path, key: Path) -> None:
    aead = primitive(key.read_text())
    for name, wanted in contents(plain).items():
        with (sealed / name).open("rb") as file:
            opened = aead.new_decrypting_stream(file, associated(sealed, name))
            assert opened.read() == wanted
        with pytest.raises(require("tink").TinkError), (sealed / name).open("rb") as file:
            aead.new_decrypting_stream(file, associated(sealed, f"{name}x")).read()


def test_files_that_tink_sealed_are_loaded(plain: Path, sealed: Path, key: Path) -> None:
    aead = primitive(key.read_text())

    def seal(name: str, file: bytes) -> bytes:
        kept = io.BytesIO()
        kept.close = lambda: None  # type: ignore[method-assign]
        with aead.new_encrypting_stream(kept, associated(sealed, name)) as stream:
            stream.write(file)
        (sealed / name).write_bytes(kept.getvalue())
        return kept.getvalue()

    manifest = json.loads(
        sealed_reader.open_bytes(
            sealed_reader.key_of(key.read_text()),
            associated(sealed, "sealed.manifest"),
            (sealed / "sealed.manifest").read_bytes(),
        )
    )
    for entry in manifest["files"]:
        again = seal(entry["name"], (plain / entry["name"]).read_bytes())
        entry["header"] = again[: again[0]].hex()
    seal("sealed.manifest", json.dumps(manifest).encode())
    wanted = tensors(plain)
    assert tensors(sealed, key=key) == wanted
    with tload.open(sealed, key=key) as checkpoint:
        for start, end in ((0, 1), (1_048_000, 1_049_000), (1_199_999, 1_200_001)):
            cut = checkpoint.read("a2", slice(start, end), framework="numpy")
            assert cut.tobytes() == wanted["a2"][start:end]


def test_independent_reader_opens_the_checkpoint_and_repeats_the_vectors(plain: Path, sealed: Path, key: Path) -> None:
    assert sealed_reader.open_checkpoint(sealed, key.read_text()) == contents(plain)
    for vector in json.loads(VECTORS.read_text()):
        file = bytes(at * 31 % 251 for at in range(vector["bytes"]))
        main, of_file = sealed_reader.key_of(vector["keyset"]), bytes.fromhex(vector["associated"])
        found = sealed_reader.seal_bytes(main, of_file, bytes.fromhex(vector["header"]), file)
        assert len(found) == vector["sealed_bytes"]
        assert hashlib.sha256(found).hexdigest() == vector["sealed_sha256"]
        assert sealed_reader.open_bytes(main, of_file, found) == file


def keys_of(path: Path) -> Sequence[Any]:
    """Return every form of a key."""
    text = path.read_text()
    return [path, text, text.encode(), lambda: text, text.encode]


def test_every_form_of_a_key_opens(plain: Path, sealed: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = tensors(plain)
    for form in keys_of(key):
        assert tensors(sealed, key=form) == wanted
        with tload.open(sealed, key=form) as checkpoint:
            assert len(checkpoint) == len(wanted)
            assert checkpoint.read("a2", framework="numpy").tobytes() == wanted["a2"]
            with pytest.raises(tload.InvalidRequestError, match="key= has no effect"):
                tload.load(checkpoint, key=form)
    for name, value in (
        ("TLOAD_KEY", key.read_text()),
        ("TLOAD_KEY_FILE", str(key)),
        ("TLOAD_KEY_COMMAND", f"cat '{key}'"),
    ):
        with monkeypatch.context() as patched:
            patched.setenv(name, value)
            assert tensors(sealed) == wanted
            ran = command("load", sealed, "--digest")
            assert ran.returncode == 0, ran.stderr
    monkeypatch.setenv("TLOAD_KEY", "a")
    monkeypatch.setenv("TLOAD_KEY_FILE", "b")
    with pytest.raises(tload.InvalidRequestError, match="TLOAD_KEY and TLOAD_KEY_FILE"):
        tload.open(sealed)


def test_wrong_missing_and_strange_keys(plain: Path, sealed: Path, key: Path, tmp_path: Path) -> None:
    with pytest.raises(tload.PermissionDeniedError, match="missing key"):
        tload.open(sealed)
    command("seal", plain, tmp_path / "other", "--new-key-file", tmp_path / "other.json")
    with pytest.raises(tload.PermissionDeniedError, match="wrong key"):
        tload.open(sealed, key=tmp_path / "other.json")
    with pytest.raises(tload.InvalidRequestError, match="is not sealed"):
        tload.open(plain, key=key)
    for strange in (7, object(), lambda: None):
        with pytest.raises(TypeError, match="wanted a str or bytes"):
            tload.open(sealed, key=strange)  # type: ignore[arg-type]
    with pytest.raises(tload.InvalidRequestError) as caught:
        tload.open(sealed, key="hunter2")
    assert "hunter2" not in str(caught.value)


def test_checkpoints_with_secret_keys_are_not_pickled(sealed: Path, key: Path) -> None:
    import pickle

    with tload.open(sealed, key=key) as checkpoint:
        again = pickle.loads(pickle.dumps(checkpoint))
        assert list(again) == list(checkpoint)
    with tload.open(sealed, key=key.read_text()) as checkpoint, pytest.raises(tload.InvalidRequestError, match="key="):
        pickle.dumps(checkpoint)


def test_unseal_and_rekey(plain: Path, sealed: Path, key: Path, tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    ran = command("unseal", sealed, opened, "--key-file", key)
    assert ran.returncode == 0, ran.stderr
    assert contents(opened) == contents(plain)
    assert command("unseal", sealed, tmp_path / "none").returncode != 0
    before = contents(sealed)
    recipient = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"
    ran = command("rekey", sealed, "--recipient", recipient, "--key-file", key)
    assert ran.returncode == 0, ran.stderr
    after = contents(sealed)
    assert after.pop("sealed.json") != before.pop("sealed.json")
    assert after == before
    assert tensors(sealed, key=key) == tensors(plain)


def load_as_rank(rank: int, sealed: Path, key: Path, share: Any, target: Path) -> None:
    """Load as one of several ranks, and write digests and what the rank read."""
    digests = {}
    with tload.stream(sealed, framework="numpy", key=key, group=tload.Group.torch(), share=share) as stream:
        for name, array in stream:
            digests[name] = hashlib.sha256(array.tobytes()).hexdigest()
    assert stream.report.group is not None
    (target / f"{rank}.json").write_text(json.dumps([digests, stream.report.group.read_bytes]))


@pytest.mark.parametrize("share", ["node", "cluster", "none"])
def test_ranks_load_together(plain: Path, sealed: Path, key: Path, share: str, tmp_path: Path) -> None:
    start_ranks(2, load_as_rank, sealed, key, share, tmp_path)
    wanted = {name: hashlib.sha256(raw).hexdigest() for name, raw in tensors(plain).items()}
    answers = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [digests for digests, _ in answers] == [wanted, wanted]


def test_destinations_of_the_caller(plain: Path, sealed: Path, key: Path) -> None:
    wanted = tensors(plain)
    targets = {name: np.zeros(len(raw), np.uint8) for name, raw in wanted.items()}
    tload.load_into(targets, sealed, key=key)
    assert {name: target.tobytes() for name, target in targets.items()} == wanted
    converted = tload.load(sealed, key=key, memory_limit="8MiB", verify="auto")
    assert {name: bytes(tensor.numpy()) for name, tensor in converted.items()} == wanted


def test_served_files_stay_sealed_on_the_way_and_in_the_cache(
    plain: Path, sealed: Path, key: Path, tmp_path: Path
) -> None:
    line = [sys.executable, "-m", "tload", "serve", os.fspath(sealed), "--listen", "127.0.0.1:0"]
    wanted = tensors(plain)
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            lines = (re.findall(r"http://127\S+?(?=[/,;\s]|$)", text) for text in server.stdout)
            url = next(found[0] for found in lines if found)
            files = [f"{url}/{path.name}" for path in sorted(sealed.glob("*.safetensors"))]
            store = {"cache_dir": os.fspath(tmp_path / "cache"), "cache_wait": "true"}
            assert tensors(files, key=key, store=store) == wanted
            with pytest.raises(tload.PermissionDeniedError, match="missing key"):
                tload.open(files)
        finally:
            server.terminate()
    cached = contents(tmp_path / "cache")
    assert sum(len(raw) for raw in cached.values()) > sum(len(raw) for raw in wanted.values())
    for raw in cached.values():
        assert not any(tensor[-64:] in raw for tensor in wanted.values() if len(tensor) >= 64)
        assert b"data_offsets" not in raw


def test_copies_stay_sealed_and_verification_compares_them(
    plain: Path, sealed: Path, key: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    ran = command("cp", sealed, copy)
    assert ran.returncode == 0, ran.stderr
    assert tensors(copy, key=key) == tensors(plain)
    assert tload.verify(copy, key=key)
    ran = command("verify", copy, "--key-file", key)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "the sealed manifest" in ran.stdout
    for write in (True, tmp_path / "manifest.json"):
        with pytest.raises(tload.InvalidRequestError, match="would show the names"):
            tload.verify(copy, key=key, write=write)
    name = next(path.name for path in sorted(sealed.glob("*.safetensors")))
    raw = bytearray((copy / name).read_bytes())
    raw[len(raw) // 2] ^= 4
    (copy / name).write_bytes(raw)
    report = tload.verify(copy, key=key)
    assert not report
    assert "segment 1 is damaged" in str(report)
    ran = command("verify", copy, "--key-file", key)
    assert ran.returncode == 11, ran.stdout + ran.stderr


def test_nothing_maps_sealed_files(plain: Path, sealed: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tload.safetensors import numpy as package
    from tload.safetensors import safe_open

    with tload.open(sealed, key=key) as checkpoint, tload.open(plain) as other:
        assert checkpoint.is_sealed
        assert not other.is_sealed
    wanted = tensors(plain)
    monkeypatch.setenv("TLOAD_KEY_FILE", os.fspath(key))
    for path in sorted(sealed.glob("*.safetensors")):
        with safe_open(path, "numpy") as file:
            found = {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
            cut = file.get_slice(next(iter(found)))[2:9].tobytes()
        assert found == {name: wanted[name] for name in found}
        assert cut == wanted[next(iter(found))][2:9]
        assert {name: array.tobytes() for name, array in package.load_file(path).items()} == found


RECIPIENT = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"
"""The recipient of the documentation of age."""


@pytest.mark.usefixtures("sealed")
def test_saved_checkpoints_are_sealed_on_the_way(plain: Path, key: Path, tmp_path: Path) -> None:
    given = tload.load(plain, framework="numpy")
    written, copy = tmp_path / "written", tmp_path / "copy"
    report = tload.save(given, written, key=key, max_shard_size="1MiB")
    tload.save(given, copy, max_shard_size="1MiB", plain_names=True)
    assert len(report.files) > 1
    assert tensors(written, key=key) == tensors(plain)
    assert tload.verify(written, key=key)
    # An independent reader finds what is written without a key.
    assert sealed_reader.open_checkpoint(written, key.read_text()) == contents(copy)
    single = tmp_path / "single"
    assert tload.save({"a": given["a1"]}, single, key=key.read_bytes).files == ("model.safetensors",)
    assert tensors(single, key=key) == {"a": given["a1"].tobytes()}
    assert sorted(contents(single)) == ["model.safetensors", "sealed.json", "sealed.manifest"]


def test_saved_checkpoints_are_sealed_to_recipients(plain: Path, tmp_path: Path) -> None:
    pyrage = require("pyrage")
    identity = pyrage.x25519.Identity.generate()
    given = tload.load(plain, framework="numpy")
    tload.save(given, tmp_path / "wrapped", recipients=[RECIPIENT, str(identity.to_public())])
    assert tensors(tmp_path / "wrapped", key=str(identity)) == tensors(plain)
    stranger = pyrage.x25519.Identity.generate()
    with pytest.raises(tload.PermissionDeniedError, match="wrong key"):
        tload.open(tmp_path / "wrapped", key=str(stranger))


@pytest.mark.parametrize(
    ("location", "keywords", "match"),
    [
        ("other", {"manifest": True}, "with a manifest of its own"),
        ("other.safetensors", {}, "a sealed checkpoint is a directory"),
        ("other", {"recipients": ["age1x"]}, '"age1x" is no recipient'),
        ("full", {}, "not empty"),
        ("full", {"replace": True}, "plain names are for a new directory"),
        ("other", {"key": "{}"}, "keyset"),
    ],
)
@pytest.mark.usefixtures("sealed")
def test_refused_ways_to_seal(location: str, keywords: dict[str, Any], match: str, key: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "config.json").touch()
    before = contents(tmp_path)
    with pytest.raises(tload.InvalidRequestError, match=match):
        tload.save({"a": np.zeros(2)}, tmp_path / location, **{"key": key, **keywords})
    assert contents(tmp_path) == before


@pytest.mark.usefixtures("sealed")
def test_tensors_that_are_not_known_are_not_sealed(key: Path, tmp_path: Path) -> None:
    with pytest.raises(tload.InvalidRequestError, match="sealing needs the names and shapes of all tensors first"):
        tload.save(iter([("a", np.zeros(2))]), tmp_path / "other", key=key)
    with pytest.raises(TypeError, match="recipients=: wanted a list of str"):
        tload.save({"a": np.zeros(2)}, tmp_path / "other", recipients=RECIPIENT)
    assert not (tmp_path / "other").exists()


def test_key_of_other_checkpoints_is_not_wrapped_to_recipients(
    plain: Path, sealed: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyrage = require("pyrage")
    recipient = str(pyrage.x25519.Identity.generate().to_public())
    for name, value in (("TLOAD_KEY_FILE", str(key)), ("TLOAD_KEY", key.read_text()), ("TLOAD_KEY_COMMAND", "cat k")):
        with monkeypatch.context() as environment:
            environment.setenv(name, value)
            ran = command("seal", plain, sealed.with_name("other"), "--recipient", recipient)
            assert ran.returncode == 2, name
            assert "a key for reading is set in the environment" in ran.stderr
            assert not sealed.with_name("other").exists()
    # On purpose, it is.
    ran = command("seal", plain, sealed.with_name("other"), "--recipient", recipient, "--key-file", key)
    assert ran.returncode == 0, ran.stderr


def test_recipients_that_are_keys_are_not_shown(plain: Path, sealed: Path, key: Path, tmp_path: Path) -> None:
    value = json.loads(key.read_text())["key"][0]["keyData"]["value"]
    for number, text in enumerate((key.read_text(), "ab" * 32, "correct horse battery")):
        listed = tmp_path / f"recipients{number}"
        listed.write_text(f"# mine\n{text}\n")
        target, new = sealed.with_name("other"), tmp_path / "new.json"
        for given in (("-R", listed), ("--recipient", text)):
            ran = command("seal", plain, target, *given, "--new-key-file", new)
            assert ran.returncode == 2
            assert not any(secret in ran.stderr for secret in (value, "ab" * 8, "horse")), ran.stderr
            assert "is no recipient of age" in ran.stderr
            assert not target.exists()
            # The corrected command creates it.
            assert not new.exists()
        assert f"{listed}:2" in command("seal", plain, target, "-R", listed).stderr


def test_files_without_a_usable_name_are_not_left_out(plain: Path, key: Path) -> None:
    (plain / os.fsdecode(b"\xff.json")).touch()
    ran = command("seal", plain, plain.with_name("sealed"), "--new-key-file", key)
    assert ran.returncode == 2, ran.stderr
    assert not plain.with_name("sealed").exists()
    assert not key.exists()


def test_directory_with_a_file_of_its_name_is_sealed(plain: Path, key: Path) -> None:
    (plain / plain.name).write_text("notes")
    ran = command("seal", plain, plain.with_name("sealed"), "--new-key-file", key)
    assert ran.returncode == 0, ran.stderr
    ran = command("unseal", plain.with_name("sealed"), plain.with_name("back"), "--key-file", key)
    assert ran.returncode == 0, ran.stderr
    assert contents(plain.with_name("back")) == contents(plain)


def test_index_that_a_web_server_lacks_is_missed(sealed: Path, key: Path, web: servers.Web) -> None:
    # A reader that finds no index would take this file for the model.
    for path in sealed.iterdir():
        web.files[f"model/{path.name}"] = path.read_bytes()
    assert tload.open(f"{web.url}/model", key=key)
    del web.files["model/model.safetensors.index.json"]
    with pytest.raises(tload.NotFoundError, match=r'lacks its file "model\.safetensors\.index\.json"'):
        tload.open(f"{web.url}/model", key=key)
