"""`Options`, keyword arguments and `TLOAD_*` variables: accepted values, precedence, and errors."""

from __future__ import annotations

import dataclasses
import inspect
import os
import pydoc
import re
import subprocess
import sys
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tload
from files import Content
from tload._options import load_options
from tload._options.keywords import LoadKeywords, OptionKeywords

Floats = tuple[Path, dict[str, Content]]


def report(path: Path, **keywords: Any) -> tload.Report:
    stream = tload.stream(path, framework="dlpack", **keywords)
    list(stream)
    return stream.report


def test_help_explains_every_field() -> None:
    shown = pydoc.plain(pydoc.render_doc(tload.Options))
    for field in dataclasses.fields(tload.Options):
        assert re.search(rf"\n \|      {field.name}:\n \|          [A-Z].{{20}}", shown), field.name
    # Texts of several lines keep their lists.
    assert '- `"direct"`: Read with direct I/O, or fail.' in shown
    assert "InvalidRequestError: A value is invalid for every load." in shown
    assert tload.Options().__doc__ == tload.Options.__doc__


def test_options_are_values() -> None:
    options = tload.Options(engine="pread", depth=4)
    assert options == tload.Options(engine="pread", depth=4)
    assert hash(options) == hash(tload.Options(engine="pread", depth=4))
    assert dataclasses.replace(options, depth=5).engine == "pread"
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.depth = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        tload.Options("pread")  # type: ignore[call-arg]


def test_options_reach_the_load(floats: Floats) -> None:
    got = report(
        floats[0],
        engine="pread",
        cache="buffered",
        depth=3,
        in_flight_bytes="2 MiB",
        extent_bytes=65536,
        lanes=2,
        memory_limit="64 MiB",
    )
    assert (got.engine.name, got.engine.requested) == ("pread", "pread")
    assert got.depth == 3
    assert got.in_flight_bytes == 2 << 20
    assert got.lanes == 2
    assert got.memory_limit == 64 << 20
    assert got.extent_bytes <= 65536
    assert got.direct_bytes == 0


def test_keywords_override_options_override_environment(floats: Floats, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"engine": "pread", "depth": "3", "memory_limit": "1MiB"}.items():
        monkeypatch.setenv(load_options.VARIABLES[name], text)
    got = report(floats[0])
    assert (got.engine.requested, got.depth, got.memory_limit) == ("pread", 3, 1 << 20)
    options = tload.Options(depth=4, memory_limit="2 MiB")
    got = report(floats[0], options=options)
    assert (got.engine.requested, got.depth, got.memory_limit) == ("pread", 4, 2 << 20)
    got = report(floats[0], options=options, depth=5)
    assert (got.engine.requested, got.depth, got.memory_limit) == ("pread", 5, 2 << 20)
    monkeypatch.setenv("TLOAD_DEPTH", "")
    assert report(floats[0]).depth != 3, "an empty variable has no effect"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30.0), ("2m", 120.0), ("1 h", 3600.0), ("1.5", 1.5), ("2 min", 120.0), ("1e1", 10.0)],
)
def test_environment_timeout_accepts_units(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TLOAD_TIMEOUT", text)
    assert load_options.resolve(None, {}).timeout == seconds


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("TLOAD_ORDER", "random", "it can be ready, file"),
        ("TLOAD_DEPTH", "x", "it must lie between 1 and 4096"),
        ("TLOAD_DEPTH", "-1", "it must lie between 1 and 4096"),
        ("TLOAD_DEPTH", "1_0", "it must lie between 1 and 4096"),
        ("TLOAD_DEPTH", "1000000", "it must lie between 1 and 4096"),
        ("TLOAD_LANES", "0", "it must lie between 1 and 256"),
        ("TLOAD_RETRIES", "-1", "it must lie between 0 and 4294967295"),
        ("TLOAD_RETRIES", "often", "it must lie between 0 and 4294967295"),
        ("TLOAD_HEDGE", "maybe", "it must be true or false"),
        *(
            (
                "TLOAD_MEMORY_LIMIT",
                text,
                (
                    "it must lie between 1 and 18446744073709551615 bytes, written as a number or with a unit "
                    'such as "4 MiB"'
                ),
            )
            for text in ("0", "4 XB")
        ),
        *(
            ("TLOAD_TIMEOUT", text, "it must be a positive duration such as 500ms, 30s, 2m or 1h30m")
            for text in ("2 days", "soon", "m", "0", "-1", "nan", "inf", "1e400", "1.2.3")
        ),
    ],
)
def test_invalid_variable_named_in_error(
    variable: str, text: str, message: str, floats: Floats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(tload.InvalidRequestError) as caught:
        tload.stream(floats[0], framework="dlpack")
    assert str(caught.value) == f'environment variable {variable} is "{text}"; {message}'


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"engine": "aio"}, 'engine is "aio"; it can be auto, uring, pread'),
        ({"cache": "no"}, 'cache is "no"; it can be auto, direct, buffered, drop, map'),
        ({"order": "random"}, 'order is "random"; it can be ready, file'),
        ({"share": "all"}, 'share is "all"; it can be node, cluster, none'),
        ({"on_peer_loss": "wait"}, 'on_peer_loss is "wait"; it can be error, read'),
        ({"join_timeout": 0}, "join_timeout is 0; it must be a positive duration"),
        ({"depth": -1}, "depth is -1; it must lie between 1 and 4096"),
        ({"depth": 0}, "depth is 0; it must lie between 1 and 4096"),
        ({"lanes": -1}, "lanes is -1; it must lie between 1 and 256"),
        ({"lanes": 0}, "lanes is 0; it must lie between 1 and 256"),
        ({"memory_limit": -1}, "memory_limit is -1; it must lie between 1 and"),
        ({"memory_limit": 0}, "memory_limit is 0; it must lie between 1 and"),
        ({"memory_limit": 1 << 64}, "memory_limit is 18446744073709551616; it must lie between 1 and"),
        ({"in_flight_bytes": 0}, "in_flight_bytes is 0; it must lie between 1 and"),
        ({"extent_bytes": 0}, "extent_bytes is 0; it must lie between 4096 and"),
        ({"extent_bytes": "4 XB"}, 'extent_bytes is "4 XB"; it must lie between 4096 and'),
        ({"retries": -1}, "retries is -1; it must lie between 0 and 4294967295"),
        ({"retries": 10**5000}, 'retries is "a number of thousands of digits"; it must lie between'),
        ({"cache": "m ap"}, 'cache is "m ap"; it can be'),
        ({"retries": 1 << 32}, "retries is 4294967296; it must lie between 0 and 4294967295"),
        ({"timeout": -1}, "timeout is -1; it must be a positive duration"),
        ({"timeout": 0.0}, "timeout is 0; it must be a positive duration"),
        ({"timeout": float("nan")}, "timeout is NaN; it must be a positive duration"),
        ({"timeout": "soon"}, 'timeout is "soon"; it must be a positive duration such as 500ms, 30s, 2m or 1h30m'),
        ({"timeout": 10**400}, "it must be a positive duration"),
        ({"timeout": 10**5000}, 'timeout is "a number of thousands of digits"; it must be a positive duration'),
        ({"timeout": timedelta(0)}, "timeout is 0; it must be a positive duration"),
        ({"timeout": timedelta(seconds=-1.5)}, "timeout is -1.5; it must be a positive duration"),
        ({"memory_limit": 1e300}, "it must lie between 1 and"),
        ({"memory_limit": -1.0}, "memory_limit is -1; it must lie between 1 and"),
        ({"verify": ""}, 'verify is ""; it can be off, auto, require, sha256, sha256:MANIFEST'),
    ],
)
def test_invalid_values_are_rejected_by_options_and_calls(
    keywords: dict[str, Any], message: str, floats: Floats
) -> None:
    for make in (lambda: tload.Options(**keywords), lambda: tload.stream(floats[0], framework="dlpack", **keywords)):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            make()
        assert isinstance(caught.value, tload.InvalidRequestError)
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"depth": "3"}, "depth: wanted a positive int, found str"),
        ({"engine": 3}, "engine: wanted a str, found int"),
        ({"memory_limit": 1.5}, "memory_limit: wanted a number of bytes"),
        ({"timeout": [3]}, r"timeout: wanted seconds \(float\), a text such as .* or a timedelta, found list"),
        ({"retries": 1.0}, "retries: wanted an int, 0 or more, found float"),
        ({"retries": False}, "retries: wanted an int, 0 or more, found bool"),
        ({"depth": True}, "depth: wanted a positive int, found bool"),
        ({"lanes": False}, "lanes: wanted a positive int, found bool"),
        ({"memory_limit": True}, "memory_limit: wanted a number of bytes .* found bool"),
        ({"hedge": 1}, "hedge: wanted a bool, found int"),
        ({"timeout": True}, r"timeout: wanted seconds \(float\), .* found bool"),
        ({"cache": True}, "cache: wanted a str, found bool"),
        ({"writable": "no"}, "writable: wanted a bool, found str"),
        ({"writable": 1}, "writable: wanted a bool, found int"),
        ({"private": "no"}, "private: wanted a bool, found str"),
    ],
)
def test_wrong_types_are_type_errors(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        tload.Options(**keywords)


def test_zero_retries_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tload.Options(retries=0).retries == 0
    monkeypatch.setenv("TLOAD_RETRIES", "0")
    assert load_options.resolve(None, {}).retries == 0
    assert load_options.resolve(tload.Options(retries=2), {}).retries == 2
    assert load_options.resolve(tload.Options(retries=2), {"retries": 1}).retries == 1


def test_options_of_another_type_are_a_type_error(floats: Floats) -> None:
    with pytest.raises(TypeError, match=r"options: wanted tload\.Options, found dict"):
        tload.stream(floats[0], options={"depth": 3})  # type: ignore[call-overload]


def test_unknown_keyword_names_called_function(floats: Floats) -> None:
    for function, name in ((tload.load, "load"), (tload.stream, "stream")):
        with pytest.raises(TypeError) as caught:
            function(floats[0], framework="dlpack", deepth=3)  # type: ignore[call-overload]
        message = f"{name}() got an unexpected keyword argument 'deepth'; did you mean 'depth'?"
        assert str(caught.value) == message


def test_options_of_stores_are_told_from_unknown_keywords(floats: Floats, tmp_path: Path) -> None:
    calls: list[tuple[str, Any, tuple[Any, ...]]] = [
        ("load", tload.load, (floats[0],)),
        ("stream", tload.stream, (floats[0],)),
        ("load_into", tload.load_into, ({}, floats[0])),
        ("copy", tload.copy, (floats[0], tmp_path)),
        ("verify", tload.verify, (floats[0],)),
    ]
    for name, call, arguments in calls:
        with pytest.raises(TypeError) as caught:
            call(*arguments, endpoint="http://127.0.0.1:1")
        wanted = (
            f"{name}() got an unexpected keyword argument 'endpoint'; options of stores are passed as store={{...}}"
        )
        assert str(caught.value) == wanted


def test_unknown_keywords_of_copy_verify_and_options_suggest_nearest(tmp_path: Path) -> None:
    here = tmp_path
    cases: list[tuple[Any, tuple[Path, ...], str, str, str]] = [
        (tload.copy, (here, here), "copy", "inclued", "include"),
        (tload.verify, (here,), "verify", "signatur", "signature"),
        (tload.Options, (), "Options.__init__", "memroy_limit", "memory_limit"),
    ]
    for call, arguments, name, wrong, near in cases:
        with pytest.raises(TypeError) as caught:
            call(*arguments, **{wrong: None})
        assert str(caught.value) == f"{name}() got an unexpected keyword argument {wrong!r}; did you mean {near!r}?"
        assert near in inspect.signature(call).parameters


def test_help_of_load_names_every_keyword() -> None:
    text = inspect.getdoc(tload.load) or ""
    parameters = dict(inspect.signature(tload.stream).parameters)
    for name in ("source", "framework"):
        del parameters[name]
    options = {field.name for field in dataclasses.fields(tload.Options)}
    assert set(parameters) == LoadKeywords.__optional_keys__
    for name, parameter in parameters.items():
        if name in options:
            continue
        default = "None" if parameter.default is None else f'"{parameter.default}"'
        assert f"`{name}={default}`" in text


def test_signatures_list_every_keyword() -> None:
    signatures = [inspect.signature(function) for function in (tload.stream, tload.load, tload.load_into)]
    for signature in signatures:
        assert all(each.kind is not each.VAR_KEYWORD for each in signature.parameters.values())
        fields = {field.name for field in dataclasses.fields(tload.Options)}
        assert {name for name in fields if signature.parameters[name].default is None} == fields
    assert list(signatures[0].parameters) == list(signatures[1].parameters)


@pytest.mark.parametrize(
    "timeout",
    [5, 5.0, Fraction(5, 1), np.float32(5), np.int64(5), "5", " 5s ", "1m30s", "5000 ms", timedelta(seconds=5)],
)
def test_numbers_of_any_type_are_timeouts(timeout: Any, floats: Floats) -> None:
    assert report(floats[0], timeout=timeout).outcome == "complete"


@pytest.mark.parametrize(
    "size", [67108864, 67108864.0, np.int64(67108864), np.float32(67108864), "64 MiB", "67.108864e6"]
)
def test_numbers_of_any_type_and_text_are_sizes(size: Any, floats: Floats, monkeypatch: pytest.MonkeyPatch) -> None:
    assert report(floats[0], memory_limit=size).memory_limit == 64 << 20
    if isinstance(size, str):
        monkeypatch.setenv("TLOAD_MEMORY_LIMIT", size)
        assert report(floats[0]).memory_limit == 64 << 20


def test_truth_values_of_verify_are_modes(floats: Floats, monkeypatch: pytest.MonkeyPatch) -> None:
    for off in (False, "false", "0", "off", " off"):
        assert report(floats[0], verify=off).verification is None
        monkeypatch.setenv("TLOAD_VERIFY", str(off))
        assert report(floats[0]).verification is None
    for auto in (True, "true", "1", "auto", "auto "):
        for each in (report(floats[0], verify=auto), report(floats[0], options=tload.Options(verify=auto))):
            assert each.verification is not None
            assert each.verification.unverified, "nothing is known of the file, which is no error"
        monkeypatch.setenv("TLOAD_VERIFY", str(auto))
        assert report(floats[0]).verification is not None
        assert report(floats[0], verify=False).verification is None


def test_blanks_around_values_do_not_count(floats: Floats) -> None:
    assert report(floats[0], engine=" pread ", cache="buffered\n").engine.name == "pread"


UNKNOWN = """
import sys, tload
tload.list_files(sys.argv[1])
for _ in range(2):
    tload.load(sys.argv[1], framework="dlpack")
"""


def test_misspelt_variables_are_reported_once(floats: Floats) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TLOAD_")}
    environment |= {"TLOAD_DEPTHH": "3", "TLOAD_CACHE": "auto", "TLOAD_REQUIRE": "", "TLOAD_\udcff": "x"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", UNKNOWN, str(floats[0])],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    assert done.stderr.splitlines() == [
        "environment variable TLOAD_DEPTHH is unknown and has no effect; did you mean TLOAD_DEPTH?"
    ]


def test_options_are_those_of_the_core() -> None:
    fields = {field.name for field in dataclasses.fields(tload.Options)}
    assert fields == OptionKeywords.__optional_keys__
    assert fields == {*load_options.VARIABLES, "writable", "private", "dtype"}


def test_options_show_what_was_set() -> None:
    assert repr(tload.Options()) == "tload.Options()"
    assert "hunter2" not in repr(tload.Options(verify="https:/user:hunter2@host/manifest.json"))
    assert repr(tload.Options(memory_limit="1 GiB", depth=3)) == "tload.Options(depth=3, memory_limit='1 GiB')"
