"""The configuration file: what overrides it, which locations it is for, and how wrong ones fail."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tload
from files import Content
from tload._options import load_options, store_options
from tload._options.keywords import OptionKeywords
from tload.safetensors import safe_open

if TYPE_CHECKING:
    from collections.abc import Callable

Floats = tuple[Path, dict[str, Content]]


@pytest.fixture
def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that writes the file that the environment names."""
    path = tmp_path / "config.toml"
    monkeypatch.setenv("TLOAD_CONFIG", str(path))

    def write(text: str) -> Path:
        path.write_text(text)
        path.chmod(0o644)
        return path

    return write


def resolved(**keywords: Any) -> tload.Options:
    return load_options.resolve(None, OptionKeywords(**keywords))  # type: ignore[typeddict-item]


def test_error_about_an_option_names_the_file_that_sets_it(
    configure: Callable[[str], Path], floats: Floats, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = configure("[load]\nmemory_limit = 4096\n")
    with pytest.raises(tload.OutOfMemoryError) as caught:
        tload.load(floats[0])
    assert f"memory_limit ({path}:2 sets 4096)" in str(caught.value)
    monkeypatch.setenv("TLOAD_MEMORY_LIMIT", "4096")
    with pytest.raises(tload.OutOfMemoryError) as caught:
        tload.load(floats[0])
    assert str(path) not in str(caught.value)


def test_every_option_with_a_variable_comes_from_the_file(configure: Callable[[str], Path]) -> None:
    texts = {
        "engine": '"pread"',
        "cache": '"drop"',
        "order": '"file"',
        "share": '"none"',
        "on_peer_loss": '"read"',
        "verify": '"auto"',
        "hedge": "false",
        "timeout": "60",
        "join_timeout": '"1m"',
    }
    names = list(load_options.VARIABLES)
    configure("[load]\n" + "".join(f"{name} = {texts.get(name, '64')}\n" for name in names if name != "extent_bytes"))
    options = resolved()
    for name in names:
        if name != "extent_bytes":
            assert getattr(options, name) is not None, name
    assert (options.engine, options.depth, options.hedge, options.join_timeout) == ("pread", 64, False, 60.0)


def test_arguments_come_before_variables_before_the_file(
    configure: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure('[load]\ndepth = 3\norder = "file"\n')
    assert (resolved().depth, resolved().order) == (3, "file")
    assert load_options.is_chosen("depth")
    assert not load_options.is_chosen("engine")
    monkeypatch.setenv("TLOAD_DEPTH", "4")
    assert (resolved().depth, resolved().order) == (4, "file")
    assert resolved(depth=5).depth == 5
    assert load_options.resolve(tload.Options(depth=6), OptionKeywords()).depth == 6
    assert load_options.resolve(None, OptionKeywords(), variables=("order",)).depth is None
    monkeypatch.setenv("TLOAD_CONFIG", "")
    assert (resolved().depth, resolved().order) == (4, None)


def test_store_options_of_prefixes_come_before_those_of_all(configure: Callable[[str], Path]) -> None:
    configure(
        '[cache]\ndir = "/c"\n[store]\nregion = "a"\nretries = 1\n'
        '[store."s3://m/"]\nregion = "b"\nmirrors = ["http://127.0.0.1:1/m"]\n'
    )

    def found(source: Any, given: Any = None, **environment: str) -> dict[str, str]:
        return dict(store_options.resolve(source, given, environment))

    everywhere = {"cache_dir": "/c", "region": "a", "retries": "1"}
    assert found("/local") == found(Path("/local")) == found("s3://m2/a") == everywhere
    there = {**everywhere, "region": "b", "mirrors": "http://127.0.0.1:1/m/a"}
    assert found("s3://m/a") == there
    assert found(["s3://m/a/1.safetensors", "s3://m/a/2.safetensors"]) == there
    environment = {"TLOAD_STORE": "retries=2", "TLOAD_CACHE_DIR": "/d"}
    assert found("/local", **environment) == {**everywhere, "retries": "2", "cache_dir": "/d"}
    assert found("s3://m/a", {"region": "c"}, **environment)["region"] == "c"
    with pytest.raises(tload.InvalidRequestError, match="different store options"):
        found(["s3://m/1.safetensors", "s3://n/2.safetensors"])


def test_the_file_reaches_every_call(configure: Callable[[str], Path], floats: Floats) -> None:
    path, content = floats
    configure('[load]\nverify = "require"\n')
    with pytest.raises(tload.InvalidRequestError, match="cannot be verified as requested"):
        tload.load(path, framework="numpy")
    with (
        pytest.raises(tload.InvalidRequestError, match="cannot be verified as requested"),
        safe_open(path, "numpy") as file,
    ):
        file.get_tensor(next(iter(content)))
    assert tload.load(path, framework="numpy", verify=False).keys() == content.keys()
    # Read again when it has changed.
    configure("")
    assert tload.load(path, framework="numpy").keys() == content.keys()


def test_wrong_files_name_line_and_key(configure: Callable[[str], Path], floats: Floats) -> None:
    path = floats[0]
    calls: list[Callable[[], object]] = [
        lambda: tload.open(path),
        lambda: tload.load(path),
        lambda: list(tload.stream(path)),
        lambda: tload.verify(path),
        lambda: tload.copy(path, "/nonexistent/copy"),
        lambda: tload.list_files(path.parent),
    ]
    for text, message in (
        ("[load]\ndeepth = 3\n", r':2: key "deepth" in \[load\] is unknown'),
        ("[load]\n\ndepth = true\n", r":3: \[load\] depth: wanted a whole number, found true or false"),
        ('[store]\nsecret_access_key = "hunter2"\n', r":2: \[store\] secret_access_key: secrets are not read"),
    ):
        file = configure(text)
        for call in calls:
            with pytest.raises(tload.InvalidRequestError, match=message) as raised:
                call()
            assert str(file) in str(raised.value)
            assert "hunter2" not in f"{raised.value!r} {raised.value.hint}"
    assert "AWS_SECRET_ACCESS_KEY" in str(raised.value.hint)
    file = configure("")
    file.chmod(0o666)
    with pytest.raises(tload.PermissionDeniedError, match="mode 0666"):
        tload.open(path)
    file.unlink()
    with pytest.raises(tload.NotFoundError):
        tload.open(path)


def test_the_users_own_file_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, floats: Floats) -> None:
    monkeypatch.delenv("TLOAD_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert resolved().depth is None
    (tmp_path / "tload").mkdir()
    (tmp_path / "tload" / "config.toml").write_text("[load]\ndepth = 3\n")
    os.chmod(tmp_path / "tload" / "config.toml", 0o600)  # noqa: PTH101
    assert resolved().depth == 3
    with tload.open(floats[0]) as checkpoint:
        assert pickle.loads(pickle.dumps(checkpoint)).keys() == checkpoint.keys()


def test_threads_read_the_file_at_once(configure: Callable[[str], Path]) -> None:
    configure("[load]\ndepth = 3\n")
    found: list[int | None] = []
    threads = [threading.Thread(target=lambda: found.append(resolved().depth)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [3] * 8
