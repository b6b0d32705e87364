"""Whole checkpoints compared with known digests. Oracles: `hashlib`, `huggingface_hub`,
model-signing."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import tload
from conftest import require
from files import Content, write_checkpoint, write_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import servers

MANIFEST = "tload-manifest.json"


def crc64_nvme(content: bytes) -> str:
    """Compute the CRC bit by bit from its definition: the polynomial of NVMe, reflected."""
    crc = 0xFFFFFFFFFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x9A6C9329AC4BC9B5 if crc & 1 else 0)
    return f"{crc ^ 0xFFFFFFFFFFFFFFFF:016x}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of two shards with an index."""
    path = tmp_path / "model"
    path.mkdir()
    shards: list[Mapping[str, Content]] = [
        {"a": Content("F32", (4,), bytes(range(16))), "empty": Content("U8", (0,), b"")},
        {"b": Content("U8", (3, 5), bytes(range(15)))},
    ]
    write_checkpoint(path, shards)
    return path


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_manifest_digests_match_hashlib(folder: Path) -> None:
    report = tload.verify(folder, write=True)
    assert report.ok
    assert report.written == str(folder / MANIFEST)
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["tload_manifest"] == 1
    assert manifest["files"].keys() == {path.name for path in folder.iterdir()} - {MANIFEST}
    seen = set()
    for name, said in manifest["files"].items():
        content = (folder / name).read_bytes()
        assert said["bytes"] == len(content)
        assert said["sha256"] == hashlib.sha256(content).hexdigest()
        assert said["crc64nvme"] == crc64_nvme(content)
        if name.endswith(".safetensors"):
            header = int.from_bytes(content[:8], "little") + 8
            assert said["header"]["bytes"] == header
            assert len(bytes.fromhex(said["header"]["blake3"])) == 32
        for tensor, of in said.get("tensors", {}).items():
            own = content[of["begin"] : of["end"]]
            assert len(bytes.fromhex(of["blake3"])) == 32
            assert of["sha256"] == hashlib.sha256(own).hexdigest()
            assert of["crc64nvme"] == crc64_nvme(own)
            seen.add(tensor)
    assert seen == {"a", "b", "empty"}
    report = tload.verify(folder)
    assert report
    report.check()
    assert {file.outcome for file in report.files} == {"matches"}
    assert report.bytes == sum(file.bytes or 0 for file in report.files)


def test_flipped_bit_raises_error_naming_tensor(folder: Path) -> None:
    tload.verify(folder, write=True).check()
    shard = sorted(folder.glob("*.safetensors"))[1]
    flip(shard, -1)
    report = tload.verify(folder)
    assert not report.ok
    assert not report
    assert (
        repr(report) == f"<tload.VerifyReport of {folder}: not ok; files: 1 differs, {len(report.files) - 1} matches>"
    )
    assert str(report).count("expected crc64nvme:") == 1
    assert str(report).startswith("file ")
    shown = report._repr_html_()
    assert "<table" in shown
    for text in ("not ok", "differs", shard.name, "Differences", f"manifest {folder / MANIFEST}"):
        assert text in shown
    with pytest.raises(tload.CorruptError, match="expected crc64nvme:") as caught:
        report.check()
    assert caught.value.tensor == "b"
    bad = next(file for file in report.files if file.outcome != "matches")
    assert (bad.name, bad.outcome) == (shard.name, "differs")
    mismatch = bad.mismatches[0]
    assert mismatch.tensor == "b"
    assert mismatch.range[1] == shard.stat().st_size
    assert mismatch.by == f"manifest {folder / MANIFEST}"
    os.truncate(shard, 8)
    bad = next(file for file in tload.verify(folder).files if file.name == shard.name)
    assert bad.mismatches[0].found == "8 bytes"
    shard.unlink()
    assert [file.outcome for file in tload.verify(folder).files].count("missing") == 1


def test_patterns_and_shards_require_files_of_the_manifest(tmp_path: Path) -> None:
    for name in "ab":
        content = Content("F32", (4, 4), bytes(range(64)))
        write_file(tmp_path / f"{name}.safetensors", {name: content})
    tload.verify(tmp_path, write=True)
    (tmp_path / "b.safetensors").unlink()
    verify = str(tmp_path / MANIFEST)
    shard = tload.Sharding.tp(0, 1, {})
    patterns: list[dict[str, Any]] = [{}, {"regex": re.compile(".")}, {"regex": "."}]
    whole = [*patterns, {"slices": shard}, {"glob": "*", "slices": shard}]
    for selected in whole:
        with pytest.raises(tload.CorruptError, match=r"b\.safetensors"):
            tload.load(tmp_path, verify=verify, **selected)
    parts: list[dict[str, Any]] = [{"names": "a"}, {"names": "a", "slices": shard}]
    for selected in parts:
        assert tload.load(tmp_path, verify=verify, **selected).keys() == {"a"}


def test_equal_notes_are_one_line(folder: Path) -> None:
    report = tload.verify(folder)
    assert not report
    notes = [line for line in str(report).splitlines() if line.startswith("note: ")]
    assert len(notes) == 1, notes
    assert f" and {len(report.files) - 1} more files: " in notes[0]


def test_manifest_is_written_to_the_store(s3: servers.S3, folder: Path) -> None:
    url = s3.put_folder("models", "verified", folder)
    elsewhere = "s3://models/manifests/it.json"
    keywords: Any = {"store": s3.store}
    for write, written in ((True, f"{url}/{MANIFEST}"), (elsewhere, elsewhere)):
        report = tload.verify(url, write=write, **keywords)
        report.check()
        assert report.written == written
        assert f"wrote {written}" in str(report)
        report = tload.verify(url, manifest=written, **keywords)
        assert {file.outcome for file in report.files} == {"matches"}
        with pytest.raises(tload.InvalidRequestError, match="already exists"):
            tload.verify(url, write=write, **keywords)
    shard = min(path.name for path in folder.glob("*.safetensors"))
    flip(folder / shard, -1)
    s3.put("models", f"verified/{shard}", (folder / shard).read_bytes())
    # The manifest shows the difference, and none is written; one that is replaced is not compared
    # with.
    report = tload.verify(url, write=elsewhere, force=True, **keywords)
    assert not report
    assert report.written is None
    tload.verify(url, write=True, force=True, **keywords).check()
    tload.verify(url, **keywords).check()
    with pytest.raises(tload.CorruptError):
        tload.verify(url, manifest=elsewhere, **keywords).check()
    with pytest.raises(tload.UnsupportedError, match="no manifest can be written to"):
        tload.verify(folder, write="http://127.0.0.1:1/it.json")


def test_manifest_of_one_object_is_beside_it(s3: servers.S3, tmp_path: Path) -> None:
    keywords: Any = {"store": s3.store}
    file = tmp_path / "model.safetensors"
    save_file({"a": np.arange(12, dtype=np.float32)}, file)
    # Names of objects need no end, and may have that of another format.
    for at, name in enumerate(("model.safetensors", "weights", "model.v2")):
        s3.put("models", f"single{at}/{name}", file.read_bytes())
        url = f"s3://models/single{at}/{name}"
        assert tload.verify(url, write=True, **keywords).written == f"s3://models/single{at}/{MANIFEST}"
        assert list(tload.load(url, **keywords)) == ["a"]
        report = tload.verify(url, **keywords)
        assert {each.outcome for each in report.files} == {"matches"}
    # A path may be written as a URL.
    local = tmp_path / "it.json"
    assert tload.verify(url, write=local.as_uri(), **keywords).written == str(local)
    tload.verify(url, manifest=local, **keywords).check()


def test_timeout_bounds_the_question_whether_a_manifest_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store: Any = {"endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}", "anonymous": True}
        # Any stage may be the one that it ends: nothing is answered.
        with pytest.raises(tload.LoadTimeoutError):
            tload.verify("s3://models/m", write=True, timeout=0.5, store=store)


def test_manifest_is_written_to_given_path(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "m.json"
    assert tload.verify(folder, write=elsewhere).written == str(elsewhere)
    tload.verify(str(folder), manifest=str(elsewhere)).check()
    with pytest.raises(tload.InvalidRequestError, match="already exists"):
        tload.verify(folder, write=str(elsewhere))
    assert tload.verify(folder, write=elsewhere, force=True).ok
    assert not (folder / MANIFEST).exists()
    with pytest.raises(tload.NotFoundError, match="there is no manifest"):
        tload.verify(folder, manifest=tmp_path / "none.json")
    with pytest.raises(tload.NotFoundError, match="did you mean verify=require"):
        tload.load(folder, verify="requrie")
    with pytest.raises(tload.UnsupportedError, match="no digest is known for"):
        tload.verify(folder).check()
    (folder / MANIFEST).write_text("{}")
    with pytest.raises(tload.FormatError, match="is not a tload manifest"):
        tload.verify(folder)


def cached(cache: Path, files: dict[str, bytes]) -> Path:
    """A download in the hub's cache, with links made by the hub's own code."""
    file_download = require("huggingface_hub.file_download")
    storage = cache / "models--org--name"
    snapshot = storage / "snapshots" / ("0" * 40)
    for name, content in files.items():
        large = name.endswith(".safetensors")
        git = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        blob = storage / "blobs" / (hashlib.sha256(content).hexdigest() if large else git)
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        file_download._create_symlink(str(blob), str(snapshot / name), new_blob=True)
    return snapshot


def test_hub_cache_states_digests(folder: Path, tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    snapshot = cached(tmp_path / "hub", files)
    report = tload.verify(snapshot)
    report.check()
    for file in report.files:
        assert file.outcome == ("matches" if file.is_shard else "unverified")
        assert any("git's SHA-1" in why for why in file.silent) != file.is_shard
    shard = min(snapshot.glob("*.safetensors"))
    flip(shard.resolve(), 20)
    with pytest.raises(tload.CorruptError, match="the name of its blob in the hub's cache"):
        tload.verify(snapshot).check()
    # Its digest is not recorded either.
    report = tload.verify(snapshot, write=tmp_path / "m.json")
    assert report.written is None


def downloaded(folder: Path) -> None:
    """A download by `hf download --local-dir`, with the metadata that the hub's own code writes."""
    local_folder = require("huggingface_hub._local_folder")
    for path in list(folder.iterdir()):
        if path.is_file():
            etag = hashlib.sha256(path.read_bytes()).hexdigest()
            local_folder.write_download_metadata(folder, path.name, "0" * 40, etag)


def test_download_to_directory_states_digests(folder: Path) -> None:
    local_folder = require("huggingface_hub._local_folder")
    downloaded(folder)
    report = tload.verify(folder)
    report.check()
    assert all(file.verified_by[0].endswith(".metadata") for file in report.files)
    shard = min(folder.glob("*.safetensors"))
    before = shard.stat()
    flip(shard, -1)
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert local_folder.read_download_metadata(folder, shard.name) is not None
    with pytest.raises(tload.CorruptError):
        tload.verify(folder).check()
    # A deliberate change, as far as `huggingface_hub` knows: neither it nor tload compare the file
    # any more.
    later = time.time() + 100
    os.utime(shard, (later, later))
    assert local_folder.read_download_metadata(folder, shard.name) is None
    with pytest.raises(tload.UnsupportedError, match="no digest is known for"):
        tload.verify(folder).check()


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """A private key for signing, and its public key."""
    ec = require("cryptography.hazmat.primitives.asymmetric.ec")
    from cryptography.hazmat.primitives import serialization as form

    key = ec.generate_private_key(ec.SECP256R1())
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    pem = form.Encoding.PEM
    private.write_bytes(key.private_bytes(pem, form.PrivateFormat.PKCS8, form.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(pem, form.PublicFormat.SubjectPublicKeyInfo))
    return private, public


def sign(folder: Path, private: Path) -> None:
    signing = require("model_signing.signing")
    hashing = require("model_signing.hashing")
    config = signing.Config().use_elliptic_key_signer(private_key=private)
    config.set_hashing_config(hashing.Config().set_ignored_paths(paths=[folder / "model.sig"]))
    config.sign(folder, folder / "model.sig")


@pytest.fixture
def signed(folder: Path, keys: tuple[Path, Path]) -> tuple[Path, dict[str, Any]]:
    """A signed model with files other than weights, and the trusted signer."""
    require("model_signing.verifying")
    (folder / "config.json").write_text("{}")
    (folder / "code").mkdir()
    (folder / "code" / "model.py").write_text("pass")
    sign(folder, keys[0])
    return folder, {"public_key": keys[1]}


def official(folder: Path, public: Path) -> None:
    """Return the verdict of model-signing itself on a folder."""
    verifying = require("model_signing.verifying")
    verifying.Config().use_elliptic_key_verifier(public_key=public).verify(folder, folder / "model.sig")


def test_signed_model_is_verified(signed: tuple[Path, dict[str, Any]]) -> None:
    folder, trusted = signed
    official(folder, trusted["public_key"])
    report = tload.verify(folder, signature=trusted)
    report.check()
    assert {file.name for file in report.files} > {"config.json", "code/model.py"}
    assert {file.verified_by for file in report.files} == {(f"signature {folder / 'model.sig'}",)}
    shard = next(folder.glob("*.safetensors"))
    report = tload.verify(shard, signature=trusted)
    report.check()
    assert [file.name for file in report.files] == [shard.name]
    assert report.notes

    good = shard.read_bytes()
    flip(shard, -1)
    with pytest.raises(tload.CorruptError, match="expected sha256:") as caught:
        tload.verify(folder, signature=trusted).check()
    assert caught.value.by == f"signature {folder / 'model.sig'}"
    assert caught.value.found == f"sha256:{hashlib.sha256(shard.read_bytes()).hexdigest()}"
    with pytest.raises(tload.CorruptError, match="expected sha256:"):
        tload.verify(folder).check()
    shard.write_bytes(good)
    tload.verify(folder, signature=trusted).check()


def test_other_signatures_are_rejected(signed: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, trusted = signed
    stranger = tmp_path / "stranger.pem"
    ec = require("cryptography.hazmat.primitives.asymmetric.ec")
    from cryptography.hazmat.primitives import serialization as form

    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    stranger.write_bytes(key.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(tload.CorruptError, match="signature is not valid"):
        tload.verify(folder, signature={"public_key": stranger})
    bundle = json.loads((folder / "model.sig").read_text())
    (folder / "model.sig").unlink()
    with pytest.raises(tload.NotFoundError, match="there is no signature"):
        tload.verify(folder, signature=trusted)
    bundle["dsseEnvelope"]["payload"] = bundle["dsseEnvelope"]["payload"][:-8] + "AAAAAAA="
    (folder / "model.sig").write_text(json.dumps(bundle))
    with pytest.raises(tload.CorruptError, match="signature is not valid"):
        tload.verify(folder, signature=trusted)


def test_unsigned_files_are_rejected_like_model_signing(signed: tuple[Path, dict[str, Any]]) -> None:
    folder, trusted = signed

    def refused(name: str, outcome: str) -> None:
        with pytest.raises(ValueError, match="Signature mismatch"):
            official(folder, trusted["public_key"])
        report = tload.verify(folder, signature=trusted)
        assert [(file.name, file.outcome) for file in report.files if file.outcome != "matches"] == [(name, outcome)]
        with pytest.raises(tload.CorruptError):
            report.check()

    for name in ("config.json", "code/model.py"):
        good = (folder / name).read_bytes()
        (folder / name).write_bytes(b"evil")
        refused(name, "differs")
        (folder / name).unlink()
        refused(name, "missing")
        (folder / name).write_bytes(good)
    for name in ("evil.py", "code/evil.py", ".hidden", "more.safetensors"):
        (folder / name).write_bytes(b"evil")
        refused(name, "extra")
        ignored = {**trusted, "ignore_paths": [name]}
        if not name.endswith("safetensors"):
            tload.verify(folder, signature=ignored).check()
        (folder / name).unlink()
    # A manifest is such a file, and a note says so when it is written there.
    report = tload.verify(folder, write=True)
    assert "sign the model again" in report.notes[0]
    refused(MANIFEST, "extra")
    (folder / MANIFEST).unlink()
    # Git's own files are ignored.
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("x")
    (folder / ".gitattributes").write_text("x")
    official(folder, trusted["public_key"])
    tload.verify(folder, signature=trusted).check()


def test_replaced_signature_is_not_used(
    signed: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An attacker who may write to the folder shows the real signature first, and replaces it after
    it was read."""
    folder, trusted = signed
    genuine = (folder / "model.sig").read_bytes()
    shard = next(folder.glob("*.safetensors"))
    flip(shard, -1)
    forger = tmp_path / "forger.pem"
    forge_key(forger)
    (folder / "model.sig").unlink()
    sign(folder, forger)
    forged = (folder / "model.sig").read_bytes()
    (folder / "model.sig").write_bytes(genuine)

    from tload import _tload

    read = _tload.read_signature

    def swapped(*args: Any, **options: Any) -> tuple[str, bytes]:
        found: tuple[str, bytes] = read(*args, **options)
        (folder / "model.sig").write_bytes(forged)
        return found

    monkeypatch.setattr(_tload, "read_signature", swapped)
    report = tload.verify(folder, signature=trusted)
    assert (folder / "model.sig").read_bytes() == forged
    with pytest.raises(tload.CorruptError, match="expected sha256:"):
        report.check()
    # Two envelopes in one file, of which each reader may take another, do not help either.
    monkeypatch.undo()
    real, false = (json.loads(text)["dsseEnvelope"] for text in (genuine, forged))
    for order in ({"dsseEnvelope": false, "dsse_envelope": real}, {"dsse_envelope": real, "dsseEnvelope": false}):
        bundle = {**json.loads(genuine), **order}
        bundle = {name: bundle[name] for name in [*(set(bundle) - set(order)), *order]}
        (folder / "model.sig").write_text(json.dumps(bundle))
        with pytest.raises(tload.CorruptError):
            tload.verify(folder, signature=trusted).check()


def forge_key(path: Path) -> None:
    ec = require("cryptography.hazmat.primitives.asymmetric.ec")
    from cryptography.hazmat.primitives import serialization as form

    key = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()))


def test_signature_is_read_from_every_location(
    signed: tuple[Path, dict[str, Any]], web: servers.Web, request: pytest.FixtureRequest
) -> None:
    folder, trusted = signed
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    web.files.update(files)
    report = tload.verify(web.url, signature=trusted)
    report.check()
    assert {file.name for file in report.files} == files.keys() - {"model.sig"}
    assert any("web servers do not list directories" in note for note in report.notes)
    web.files["config.json"] = b"evil"
    with pytest.raises(tload.CorruptError, match="expected sha256:"):
        tload.verify(web.url, signature=trusted).check()

    s3 = request.getfixturevalue("s3")
    for name, content in files.items():
        s3.put("signed", f"model/{name}", content)
    url = "s3://signed/model"
    report = tload.verify(url, signature=trusted, store=s3.store)
    report.check()
    assert any("hidden files" in note for note in report.notes)
    s3.put("signed", "model/code/evil.py", b"evil")
    report = tload.verify(url, signature=trusted, store=s3.store)
    assert [file.name for file in report.files if file.outcome == "extra"] == ["code/evil.py"]
    with pytest.raises(tload.CorruptError, match="is not signed"):
        report.check()


def test_signature_requires_signer_and_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "model.sig").write_text("{}")
    monkeypatch.setitem(sys.modules, "model_signing", None)
    with pytest.raises(tload.UnsupportedError, match=r"\(.*model_signing.*\): pip install model-signing"):
        tload.verify(folder, signature={"public_key": "key.pub"})


def test_options_of_signatures_are_checked(folder: Path) -> None:
    require("model_signing.verifying")
    (folder / "model.sig").write_text("{}")
    for options in (
        {},
        {"trust": "me"},
        {"public_key": "none.pem", "more": 1},
        {"public_key": "none.pem", "ignore_paths": "one"},
        {"public_key": "none.pem", "ignore_paths": ["/absolute"]},
    ):
        with pytest.raises(tload.InvalidRequestError, match="signature="):
            tload.verify(folder, signature=options)
