"""`store=` and `TLOAD_STORE`: accepted values, precedence, errors, and that errors show no
secret."""

from __future__ import annotations

import inspect
import traceback
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch
import transformers

import tload
import tload.metrics
from files import Content, write_file
from tload import _tload
from tload._options import store_options
from tload._options.keywords import StoreKeywords
from tload.dcp import StorageReader
from tload.safetensors import flax as safetensors_flax
from tload.safetensors import numpy as safetensors_numpy
from tload.safetensors import safe_open
from tload.safetensors import torch as safetensors_torch
from tload.transformers import from_pretrained

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers import S3
    from tload.typing import Store

Floats = tuple[Path, dict[str, Content]]

SECRET = "hunter2"
EVERYWHERE = "https://host.invalid/a.safetensors"


def test_values_become_texts() -> None:
    store: Store = {
        "endpoint": "http://127.0.0.1:9000",
        "anonymous": True,
        "tls_verify": False,
        "retries": 3,
        "read_timeout": 2.5,
        "connect_timeout": timedelta(milliseconds=1500),
        "open_timeout": "1m30s",
        "ca_file": Path("/etc/ca.pem"),
        "headers": {"X-A": "b", "X-C": "d"},
        "header.X-E": "f",
    }
    assert store_options.resolve("m", store, {}) == [
        ("endpoint", "http://127.0.0.1:9000"),
        ("anonymous", "true"),
        ("tls_verify", "false"),
        ("retries", "3"),
        ("read_timeout", "2.5"),
        ("connect_timeout", "1.5"),
        ("open_timeout", "1m30s"),
        ("ca_file", "/etc/ca.pem"),
        ("header.X-A", "b"),
        ("header.X-C", "d"),
        ("header.X-E", "f"),
    ]
    store_options.check(store)
    assert store_options.resolve("m", None, {}) == store_options.resolve("m", {}, {}) == []


def test_call_overrides_environment_per_key() -> None:
    environment = {"TLOAD_STORE": "region=eu-west-1\r\n\n  Anonymous =yes\nsas= ?a=b&c=d\nheader.x-a=b"}
    assert store_options.resolve("m", None, environment) == [
        ("region", "eu-west-1"),
        ("Anonymous", "yes"),
        ("sas", "?a=b&c=d"),
        ("header.x-a", "b"),
    ]
    store: Store = {"anonymous": False, "headers": {"X-A": "c"}}
    assert store_options.resolve("m", store, environment) == [
        ("region", "eu-west-1"),
        ("sas", "?a=b&c=d"),
        ("anonymous", "false"),
        ("header.X-A", "c"),
    ]
    assert store_options.resolve("m", {"retries": 1}, {"TLOAD_STORE": "retries=many"}) == [("retries", "1")]


def test_the_environment_reaches_every_call(floats: Floats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TLOAD_STORE", "regoin=eu-west-1")
    calls: list[Any] = [tload.open, tload.stream, tload.load]
    sources: list[Any] = [floats[0], [floats[0]]]
    for call in calls:
        for source in sources:
            with pytest.raises(tload.InvalidRequestError) as caught:
                call(source)
            assert str(caught.value).startswith('environment variable TLOAD_STORE: store option "regoin" is unknown')
            assert caught.value.hint == 'did you mean "region"?'
            assert str(caught.value).endswith('\n  hint: did you mean "region"?')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SECRET, "a store option has no key and no `=`"),
        ("region=", "store option region is empty; it must be a non-empty text"),
        (f"secret_access_key={SECRET}\t", "store option secret_access_key contains a control character"),
        (f"endpoint=user:{SECRET}@host", "store option endpoint is something else; it must be a URL"),
        (f"secret_access_key={SECRET}\udcff", "environment variable TLOAD_STORE is not Unicode"),
    ],
)
def test_invalid_variable_named_in_error(
    text: str, message: str, floats: Floats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TLOAD_STORE", f"retries=1\n{text}")
    with pytest.raises(tload.InvalidRequestError) as caught:
        tload.open(floats[0])
    assert str(caught.value).startswith("environment variable TLOAD_STORE")
    assert message in str(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value)) + repr(caught.value)


@pytest.mark.parametrize(
    ("store", "message"),
    [
        (f"secret_access_key={SECRET}", "store: wanted a mapping, found str"),
        ([("region", "eu-west-1")], "store: wanted a mapping, found list"),
        ({3: SECRET}, "store: wanted keys of type str, found int"),
        (
            {"region": None},
            "store['region']: wanted a str, int, float, bool, timedelta or os.PathLike of str, found NoneType",
        ),
        ({"secret_access_key": SECRET.encode()}, "store['secret_access_key']: wanted a str, int, float, bool"),
        (
            {"token": [SECRET]},
            "store['token']: wanted a str, int, float, bool, timedelta or os.PathLike of str, found list",
        ),
        ({"region": {"a": SECRET}}, "store['region']: wanted a str, int, float, bool"),
        ({"headers": SECRET}, "store['headers']: wanted a mapping of str to str, found str"),
        (
            {"headers": {"Authorization": SECRET.encode()}},
            "store['headers']['Authorization']: wanted a str, found bytes",
        ),
        ({"headers": {b"Authorization": SECRET}}, "store['headers']: wanted names of type str, found bytes"),
    ],
)
def test_wrong_types_are_type_errors_that_name_the_key(store: Any, message: str, floats: Floats) -> None:
    with tload.open(floats[0]) as checkpoint:
        calls = (
            lambda: tload.open(EVERYWHERE, store=store),
            lambda: tload.open([EVERYWHERE], store=store),
            lambda: tload.stream(EVERYWHERE, store=store),
            lambda: tload.load(EVERYWHERE, store=store),
            lambda: tload.load(checkpoint, store=store),
        )
        for call in calls:
            with pytest.raises(TypeError) as caught:
                call()
            assert str(caught.value).startswith(message)
            assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("store", "message", "hint"),
    [
        ({"colour": SECRET}, 'store option "colour" is unknown; valid keys are endpoint, region, ', None),
        ({"acces_key_id": SECRET}, 'store option "acces_key_id" is unknown', 'did you mean "access_key_id"?'),
        ({"secret_access_key": f"{SECRET}\n"}, "store option secret_access_key contains a control character", None),
        ({"secret_access_key": f"{SECRET}\udcff"}, "store['secret_access_key'] is not Unicode", None),
        ({"headers": {"X-A": f"{SECRET}\udcff"}}, "store['headers']['X-A'] is not Unicode", None),
        ({"headers": {"X-A": f"{SECRET}\n"}}, "x-a contains a control character", None),
        ({"headers": {"a b": SECRET}}, "store option header.a b does not name a request header", None),
        ({"retries": 1.0}, 'store option retries is "1.0"; it must be a whole number', None),
        ({"read_timeout": float("nan")}, 'store option read_timeout is "nan"; it must be a positive duration', None),
        ({"anonymous": 2}, 'store option anonymous is "2"; it must be true or false', None),
    ],
)
def test_invalid_store_options_are_rejected_without_secrets(
    store: Any, message: str, hint: str | None, floats: Floats
) -> None:
    for source in (floats[0], EVERYWHERE):
        with pytest.raises(tload.InvalidRequestError) as caught:
            tload.open(source, store=store)
        assert message.lower() in str(caught.value).lower()
        assert caught.value.hint == hint
        assert SECRET not in "".join(traceback.format_exception(caught.value)) + repr(caught.value)


def test_open_checkpoint_rejects_store(floats: Floats) -> None:
    given: Any = {"region": "eu-west-1"}
    with tload.open(floats[0], store=given) as checkpoint:
        calls: list[Callable[..., Any]] = [
            partial(tload.stream, checkpoint),
            partial(tload.load, checkpoint, framework="dlpack"),
            partial(tload.load_into, {}, checkpoint),
            partial(tload.apply_into, {}, checkpoint),
            partial(tload.apply, checkpoint, checkpoint, "out"),
            partial(safe_open, checkpoint, "pt"),
            partial(safetensors_torch.load_file, checkpoint),
            partial(from_pretrained, transformers.AutoModel, checkpoint),
            lambda store: StorageReader(checkpoint, store=store).read_metadata(),
        ]
        for call in calls:
            with pytest.raises(tload.InvalidRequestError, match="store= has no effect on an open checkpoint") as caught:
                call(store=given)
            assert caught.value.hint == "pass store= to tload.open, or pass the location instead of the checkpoint"
        assert len(tload.load(checkpoint, framework="dlpack", store={})) == 12


def test_functions_with_store_take_its_keys_as_keywords(tmp_path: Path) -> None:
    keys = list(StoreKeywords.__annotations__)
    assert set(keys) < {name for name, *_ in _tload.STORE_KEYS}
    functions: list[Any] = [tload.open, tload.stream, tload.load, tload.load_into, tload.copy, tload.list_files]
    functions += [tload.diff, tload.apply, tload.apply_into]
    functions += [tload.verify, safe_open, safetensors_torch.load_file, safetensors_torch.load_model]
    functions += [safetensors_numpy.load_file, safetensors_flax.load_file, StorageReader]
    for function in functions:
        parameters = inspect.signature(function).parameters
        assert "store" in parameters
        assert [name for name in parameters if name in keys] == keys, function
        assert all(each.kind is not each.VAR_KEYWORD for each in parameters.values()), function
    calls: list[Any] = [
        lambda **given: tload.open(EVERYWHERE, **given),
        lambda **given: tload.stream(EVERYWHERE, **given),
        lambda **given: tload.load(EVERYWHERE, **given),
        lambda **given: tload.load_into({}, EVERYWHERE, **given),
        lambda **given: tload.copy(EVERYWHERE, tmp_path, **given),
        lambda **given: tload.list_files(EVERYWHERE, **given),
        lambda **given: tload.verify(EVERYWHERE, **given),
        lambda **given: tload.diff(EVERYWHERE, EVERYWHERE, tmp_path / "patch", **given),
        lambda **given: tload.apply(EVERYWHERE, EVERYWHERE, tmp_path / "out", **given),
        lambda **given: tload.apply_into({}, EVERYWHERE, **given),
        lambda **given: safe_open(EVERYWHERE, "pt", **given),
        lambda **given: safetensors_torch.load_file(EVERYWHERE, **given),
        lambda **given: safetensors_torch.load_model(torch.nn.Linear(1, 1), EVERYWHERE, **given),
        lambda **given: safetensors_numpy.load_file(EVERYWHERE, **given),
        lambda **given: safetensors_flax.load_file(EVERYWHERE, **given),
        lambda **given: StorageReader(EVERYWHERE, **given),
    ]
    for call in calls:
        with pytest.raises(tload.InvalidRequestError, match="cache_dir= and the key 'cache_dir' of store= differ"):
            call(cache_dir=tmp_path, store={"Cache_Dir ": "/elsewhere"})
        with pytest.raises(TypeError, match=r"^mirrors: wanted a str, int, float, bool"):
            call(mirrors=[1])
        with pytest.raises(TypeError, match="unexpected keyword argument 'cache_dri'; did you mean 'cache_dir'"):
            call(cache_dri=tmp_path)


def test_keywords_and_the_same_keys_of_store_are_one_option(tmp_path: Path, floats: Floats) -> None:
    def taken(store: Store | None, **keywords: Any) -> list[tuple[str, str]]:
        return store_options.read(store_options.take(store, StoreKeywords(**keywords)))  # type: ignore[typeddict-item]

    directory = ("cache_dir", str(tmp_path))
    assert taken(None) == taken({}) == taken(None, cache_dir=None) == []
    assert taken(None, cache_dir=tmp_path) == [directory]
    assert taken({"cache_dir": str(tmp_path)}, cache_dir=tmp_path) == [directory]
    assert taken({"region": "x"}, cache_limit=1 << 30, mirrors=["http://a/m", "http://b/m"]) == [
        ("region", "x"),
        ("cache_limit", str(1 << 30)),
        ("mirrors", "http://a/m,http://b/m"),
    ]
    # They override the environment, as `store` does.
    assert store_options.merge("m", taken(None, cache_dir=tmp_path), {"TLOAD_CACHE_DIR": "/elsewhere"}) == [directory]
    with (
        tload.open(floats[0], cache_dir=tmp_path) as checkpoint,
        pytest.raises(tload.InvalidRequestError, match="store= has no effect on an open checkpoint"),
    ):
        tload.load(checkpoint, framework="dlpack", cache_dir=tmp_path)


def test_second_load_with_a_cache_sends_no_request(s3: S3, tmp_path: Path) -> None:
    # More than comes with the header.
    file = tmp_path / "large.safetensors"
    write_file(file, {f"t{seed}": Content.random("F32", (1024, 1024), seed) for seed in range(3)})
    url = s3.put("weights", "cached.safetensors", file.read_bytes())
    cache = tmp_path / "cache"
    written = 'tload_cache_bytes_total{event="written"} '
    checks: list[tuple[Literal["always", "offline"], bool]] = [("always", False), ("always", True), ("offline", True)]
    for check, is_cached in checks:
        before = tload.metrics.text().partition(written)[2].partition("\n")[0]
        with tload.stream(
            url, framework="dlpack", store=s3.store, cache_dir=cache, cache_check=check, cache_limit="1 GiB"
        ) as stream:
            assert len(dict(stream)) == 3
        report = stream.report
        assert report.cache is not None
        assert report.cache.directory == str(cache)
        assert (report.requests == 0) == is_cached
        assert _tload.finish_caching(60.0)
        after = tload.metrics.text().partition(written)[2].partition("\n")[0]
        assert (int(after) == int(before)) == is_cached
