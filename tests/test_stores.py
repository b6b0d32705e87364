"""Typed options of object stores: the same as dicts, checked when they are made, shown without secrets."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tload
from files import Content, tile, write_file
from tload import _tload
from tload._options import store_options, stores
from tload.safetensors import safe_open

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servers import S3, Web

SECRET = "hunter2"

PROTOCOLS: dict[str, Any] = {
    "S3": tload.S3,
    "Gcs": tload.GCS,
    "Azure": tload.Azure,
    "Http": tload.HTTP,
    "Hub": tload.HuggingFace,
    "Oci": tload.OCI,
}

VALUES: dict[str, Any] = {
    "endpoint": "http://127.0.0.1:9000",
    "addressing": "path",
    "proxy": "http://127.0.0.1:3128",
    "service_account": Path("/etc/key.json"),
    "ca_file": Path("/etc/ca.pem"),
    "connect_timeout": 2.5,
    "read_timeout": "1m",
    "open_timeout": 10,
    "retries": 3,
    "cache_dir": Path("/var/cache/tload"),
    "cache_limit": "1 GiB",
    "cache_check": "never",
    "mirrors": ["http://a/m", "http://b/m"],
    "peers": ("http://c/m",),
    "headers": {"X-Team": "weights"},
}
"""A value for each key whose value is neither a flag nor a text of any kind."""

FLAGS = {
    "anonymous",
    "request_payer",
    "express",
    "tls_verify",
    "allow_unversioned",
    "cache_wait",
    "cache_shared",
    "hf_cache",
    "environment",
}

EVERY = pytest.mark.parametrize("protocol", PROTOCOLS)


def keys_of(protocol: str) -> set[str]:
    return {name for name, _, protocols in _tload.STORE_KEYS if protocol in protocols} | {"headers"}


def values_of(protocol: str) -> dict[str, Any]:
    keys = sorted(keys_of(protocol))
    values = {key: VALUES.get(key, key in FLAGS or f"text-{key}") for key in keys}
    secrets = _tload.store_secrets(store_options.read(values))
    return {**values, **{key: f"{SECRET}-{key}" for key in keys if key in secrets}}


def test_each_protocol_of_the_core_has_a_class() -> None:
    assert {protocol for _, _, protocols in _tload.STORE_KEYS for protocol in protocols} == set(PROTOCOLS)
    kinds = [
        kind for kind in vars(stores).values() if isinstance(kind, type) and issubclass(kind, stores.CommonOptions)
    ]
    typed = [kind for kind in kinds if kind.__name__ in tload.__all__]
    assert set(typed) == set(PROTOCOLS.values())


@EVERY
def test_keywords_are_the_keys_of_the_protocol(protocol: str) -> None:
    cls = PROTOCOLS[protocol]
    parameters = inspect.signature(cls).parameters
    assert set(parameters) == keys_of(protocol)
    assert all(each.kind is each.KEYWORD_ONLY and each.default is None for each in parameters.values())
    own = [name for name in parameters if name in cls.__annotations__]
    assert list(parameters)[: len(own)] == own, "its own come first"


@EVERY
def test_help_names_every_key_and_its_default(protocol: str) -> None:
    text = " ".join((inspect.getdoc(PROTOCOLS[protocol]) or "").split()) + " "
    defaults = {name: default for name, default, protocols in _tload.STORE_KEYS if protocol in protocols}
    for name, default in {**defaults, "headers": "none"}.items():
        assert re.search(rf" {name}: [^`]*? Default: {re.escape(default)}\. ", text), f"{name}, default {default}"


@EVERY
def test_typed_options_are_those_of_a_dict(protocol: str) -> None:
    values = values_of(protocol)
    typed = PROTOCOLS[protocol](**values)
    assert dict(typed) == values
    assert len(typed) == len(values)
    assert sorted(store_options.read(typed)) == sorted(store_options.read(values))
    assert {**typed, "retries": 0} == {**values, "retries": 0}
    assert not PROTOCOLS[protocol]()
    assert dict(PROTOCOLS[protocol](retries=None)) == {}
    with pytest.raises(KeyError):
        PROTOCOLS[protocol]()["retries"]
    with pytest.raises(KeyError):
        typed["get"]


@EVERY
def test_repr_shows_no_secret(protocol: str) -> None:
    typed = PROTOCOLS[protocol](**values_of(protocol))
    shown = repr(typed)
    secrets = set(_tload.store_secrets(store_options.read(typed)))
    assert secrets >= {"header.x-team", "mirror_token"}
    for key, value in values_of(protocol).items():
        assert f"{key}=" in shown
        if key in secrets:
            assert f"{key}='***'" in shown
        elif key != "headers":
            assert f"{key}={value!r}" in shown
    assert "weights" not in shown
    assert shown.startswith(f"tload.{PROTOCOLS[protocol].__name__}(")
    assert SECRET not in repr(tload.S3(proxy=f"http://user:{SECRET}@host", mirrors=[f"http://a/m?sig={SECRET}"]))


@EVERY
def test_equal_options_stay_equal_in_copies_and_pickles(protocol: str) -> None:
    cls = PROTOCOLS[protocol]
    values = values_of(protocol)
    typed = cls(**values)
    assert typed == cls(**values) == copy.copy(typed) == copy.deepcopy(typed)
    secrets = _tload.store_secrets(store_options.read(typed))
    plain = cls(**{key: value for key, value in values.items() if key not in {*secrets, "headers"}})
    pickled = pickle.dumps(plain)
    assert pickle.loads(pickled) == plain
    assert type(pickle.loads(pickled)) is cls
    assert typed != cls(**{**values, "retries": 4})
    others = [other() for other in PROTOCOLS.values() if other is not cls]
    assert cls() == cls()
    assert all(cls() != other for other in others)
    assert typed != values
    with pytest.raises(AttributeError):
        typed.retries = 0
    with pytest.raises(TypeError, match="unhashable"):
        hash(typed)


@EVERY
def test_secrets_of_stores_are_not_pickled(protocol: str) -> None:
    typed = PROTOCOLS[protocol](**values_of(protocol))
    kind = type(typed).__name__
    with pytest.raises(tload.InvalidRequestError, match=f"cannot pickle a tload.{kind} with secrets") as caught:
        pickle.dumps(typed)
    assert all(key in str(caught.value) for key in _tload.store_secrets(store_options.read(typed)))
    assert "TLOAD_STORE" in str(caught.value.hint)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: tload.S3(regoin="x"),  # type: ignore[call-arg]
            "S3.__init__() got an unexpected keyword argument 'regoin'; did you mean 'region'?",
        ),
        (lambda: tload.Azure(acount="x"), "did you mean 'account'?"),  # type: ignore[call-arg]
        (lambda: tload.HTTP(cache_dri="x"), "did you mean 'cache_dir'?"),  # type: ignore[call-arg]
        (lambda: tload.GCS(request_payer=True), "GCS.__init__() got an unexpected keyword argument 'request_payer'"),  # type: ignore[call-arg]
        (lambda: tload.S3("s3://bucket"), "positional argument"),  # type: ignore[call-arg]
        (
            lambda: tload.S3(secret_access_key=SECRET.encode()),  # type: ignore[arg-type]
            "secret_access_key: wanted a str, int, float, bool, timedelta or os.PathLike of str, found bytes",
        ),
        (lambda: tload.OCI(token=[SECRET]), "token: wanted a str"),  # type: ignore[arg-type]
        (lambda: tload.HTTP(headers={"X-A": 1}), "headers['X-A']: wanted a str, found int"),  # type: ignore[dict-item]
        (lambda: tload.HTTP(headers=SECRET), "headers: wanted a mapping of str to str, found str"),  # type: ignore[arg-type]
    ],
)
def test_wrong_keywords_and_types_are_type_errors(make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)) as caught:
        make()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tload.S3(endpoint="host:9000"), "store option endpoint is something else; it must be a URL"),
        (lambda: tload.S3(addressing="dns"), 'store option addressing is "dns"; it must be path or virtual'),  # type: ignore[arg-type]
        (lambda: tload.GCS(connect_timeout=0), 'store option connect_timeout is "0"; it must be a positive duration'),
        (lambda: tload.HuggingFace(token=f"{SECRET}\n"), "store option token contains a control character"),
    ],
)
def test_malformed_values_fail_where_they_are_written(make: Any, message: str) -> None:
    with pytest.raises(tload.InvalidRequestError, match=re.escape(message)) as caught:
        make()
    assert SECRET not in str(caught.value)


CONTENT = {f"t{index}": Content("U8", (1000 + index,), tile(index, 1000 + index)) for index in range(3)}


def loaded(source: Any, store: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in tload.load(source, framework="np", store=store).items()}


WANTED = {name: content.raw for name, content in CONTENT.items()}


def test_functions_take_typed_options(s3: S3, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_file(folder / "model.safetensors", CONTENT)
    url = s3.put_folder("typed", "model", folder)
    given: dict[str, Any] = dict(s3.store)
    store = tload.S3(**given)
    assert loaded(url, store) == loaded(url, s3.store) == WANTED
    # A keyword and the store are one mapping.
    assert len(tload.load(url, framework="dlpack", store=store, cache_dir=tmp_path / "cache")) == 3
    with pytest.raises(tload.InvalidRequestError, match="cache_dir= and the key 'cache_dir' of store= differ"):
        tload.open(url, store=tload.S3(cache_dir="/elsewhere"), cache_dir=tmp_path)
    assert [file.path for file in tload.list_files(url, store=store)] == ["model.safetensors"]
    assert tload.copy(url, tmp_path / "copy", store=store).copied_files == 1
    assert tload.verify(url, store=store).location == url
    with safe_open(url, "np", store=store) as file:
        assert sorted(file.keys()) == sorted(CONTENT)
    with tload.open(url, store=store) as checkpoint, pytest.raises(tload.InvalidRequestError, match="cannot pickle"):
        pickle.dumps(checkpoint)
    with pytest.raises(tload.RemoteError):
        tload.open(url, store=tload.S3(endpoint="http://127.0.0.1:1", retries=0, anonymous=True))


def test_headers_of_typed_options_are_sent(web: Web, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_file(path, CONTENT)
    web.files["a.safetensors"] = path.read_bytes()
    url = f"{web.url}/a.safetensors"
    assert loaded(url, tload.HTTP(headers={"X-Team": "weights"})) == WANTED


@EVERY
def test_files_and_environment_are_as_with_dicts(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    write_file(path, CONTENT)
    with tload.open(path, store=PROTOCOLS[protocol](retries=1)) as checkpoint:
        assert sorted(checkpoint) == sorted(CONTENT)
        assert sorted(pickle.loads(pickle.dumps(checkpoint))) == sorted(CONTENT)
    typed = PROTOCOLS[protocol](retries=1)
    monkeypatch.setenv("TLOAD_STORE", "retries=7\nread_timeout=9")
    assert store_options.resolve("m", typed, {"TLOAD_STORE": "retries=7\nread_timeout=9"}) == [
        ("read_timeout", "9"),
        ("retries", "1"),
    ]
