"""LoRA adapters that requests name, without an engine."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import queue
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import tload
from servers import PATIENCE
from tload.vllm import _lora
from tload.vllm._lora_disk import Disk

if TYPE_CHECKING:
    from pathlib import Path

    from servers import S3, Web


def put_adapter(s3: S3, name: str, config: bytes = b'{"peft_type": "LORA"}') -> None:
    s3.put("adapters", f"lora/{name}/adapter_config.json", config)
    s3.put("adapters", f"lora/{name}/adapter_model.safetensors", b"weights of " + name.encode())
    s3.put("adapters", f"lora/{name}/adapter_model.bin", b"a pickle")


@pytest.fixture
def adapters(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _lora.Adapters:
    monkeypatch.setenv("TLOAD_STORE", "\n".join(f"{key}={value}" for key, value in s3.store.items()))
    return _lora.Adapters("s3://adapters/lora/", tmp_path / "adapters")


def files_in(path: Path | None) -> dict[str, bytes]:
    assert path is not None
    return {file.name: file.read_bytes() for file in path.iterdir() if not file.name.startswith(".")}


def test_adapters_are_copied_once_and_again_when_changed(s3: S3, adapters: _lora.Adapters) -> None:
    put_adapter(s3, "team/sql")
    path = adapters.directory / "team/sql"
    config = b'{"peft_type": "LORA"}'
    first = {"adapter_config.json": config, "adapter_model.safetensors": b"weights of team/sql"}
    for _ in range(2):
        assert adapters.fetch("team/sql") == path / "@1"
        assert files_in(path / "@1") == first
    s3.put("adapters", "lora/team/sql/adapter_model.safetensors", b"other weights")
    assert adapters.fetch("team/sql") == path / "@2"
    assert files_in(path / "@2") == {**first, "adapter_model.safetensors": b"other weights"}
    # An engine may still read the other one.
    assert files_in(path / "@1") == first


def test_names_in_requests_lead_nowhere_else(s3: S3, adapters: _lora.Adapters) -> None:
    put_adapter(s3, "sql")
    s3.put("adapters", "lora/other/model.safetensors", b"no adapter")
    names = [
        "",
        ".",
        "..",
        "../lora/sql",
        "sql/..",
        "sql/",
        "/sql",
        "sql//x",
        "s3://adapters/lora/sql",
        "sql?x",
        "sql\n",
    ]
    for name in [*names, "a" * 129, "a/b/c/d/e", "none", "other"]:
        assert adapters.fetch(name) is None, name
    assert not adapters.directory.exists()


def test_names_of_files_in_requests_do_not_block_their_adapter(s3: S3, adapters: _lora.Adapters) -> None:
    put_adapter(s3, "files")
    for name in ("adapter_config.json", "adapter_model.safetensors", "adapter_config.json/x"):
        assert adapters.fetch(f"files/{name}") is None
    assert adapters.fetch("files") == adapters.directory / "files/@1"


def test_what_is_no_adapter_is_an_error(s3: S3, adapters: _lora.Adapters) -> None:
    put_adapter(s3, "ia3", b'{"peft_type": "IA3"}')
    with pytest.raises(tload.InvalidRequestError, match="peft_type is 'IA3', wanted 'LORA'"):
        adapters.fetch("ia3")
    for config in (b"{}", b"[]", b"no JSON", b"[" * 100_000):
        put_adapter(s3, "odd", config)
        with pytest.raises(tload.InvalidRequestError, match="is no configuration of an adapter"):
            adapters.fetch("odd")
    assert not adapters.directory.exists()
    s3.put("adapters", "lora/bare/adapter_config.json", b'{"peft_type": "LORA"}')
    with pytest.raises(tload.NotFoundError, match=r"lora/bare/adapter_model\.safetensors"):
        adapters.fetch("bare")


def test_only_files_of_the_adapter_itself_are_copied(s3: S3, adapters: _lora.Adapters) -> None:
    for name in ("trained", "trained/checkpoint-500", "trained/runs/checkpoint-1000"):
        put_adapter(s3, name)
    path = adapters.fetch("trained")
    assert path == adapters.directory / "trained/@1"
    assert sorted(files_in(path)) == ["adapter_config.json", "adapter_model.safetensors"]
    below = adapters.fetch("trained/checkpoint-500")
    assert below == adapters.directory / "trained/checkpoint-500/@1"


def test_adapters_of_web_servers_are_found_by_their_files_alone(web: Web, tmp_path: Path) -> None:
    web.files["lora/team/sql/adapter_config.json"] = b'{"peft_type": "LORA"}'
    web.files["lora/team/sql/adapter_model.safetensors"] = b"weights"
    adapters = _lora.Adapters(f"{web.url}/lora", tmp_path)
    assert adapters.fetch("team") is None
    assert [request.path for request in web.requests] == ["/lora/team/adapter_config.json"]
    path = adapters.fetch("team/sql")
    assert path == tmp_path / "team/sql/@1"
    assert (path / "adapter_model.safetensors").read_bytes() == b"weights"


def put_files(web: Web, name: str, weights: bytes = b"weights") -> None:
    web.files[f"{name}/adapter_config.json"] = b'{"peft_type": "LORA"}'
    web.files[f"{name}/adapter_model.safetensors"] = weights


class Clock:
    """A clock that stands still, and tells when it was looked at."""

    def __init__(self) -> None:
        self.now, self.looks = 0.0, queue.SimpleQueue[None]()

    def __call__(self) -> float:
        self.looks.put(None)
        return self.now


def test_a_copy_of_an_adapter_waits_for_one_of_another_process(web: Web, tmp_path: Path) -> None:
    put_files(web, "sql")
    clock = Clock()
    # The kernel treats a file that is opened twice like two processes.
    adapters, other = _lora.Adapters(web.url, tmp_path, clock=clock), Disk(tmp_path)
    with ThreadPoolExecutor() as pool:
        with other.locked("sql"):
            fetched = pool.submit(adapters.fetch, "sql")
            for _ in range(20):
                clock.looks.get(timeout=PATIENCE)
            assert other.current("sql") is None
        assert fetched.result(PATIENCE) == tmp_path / "sql/@1"
    with other.locked("sql"):
        passing = itertools.count(0.0, _lora.LOCK_SECONDS / 4)
        late = _lora.Adapters(web.url, tmp_path, clock=lambda: next(passing))
        with pytest.raises(tload.LoadTimeoutError, match="another process has been copying 'sql' for 600 s"):
            late.fetch("sql")


def test_adapter_that_changes_while_it_is_copied_is_copied_again(web: Web, tmp_path: Path) -> None:
    put_files(web, "sql", b"weights 0")

    def change() -> bool:
        """Write another configuration with each request for the weights."""
        if web.requests[-1].path.endswith(".safetensors") and written:
            web.files["sql/adapter_config.json"] = b'{"peft_type": "LORA", "r": %d}' % written.pop()
        return False

    web.refuses, written = change, [3, 2, 1]
    path = _lora.Adapters(web.url, tmp_path / "copies").fetch("sql")
    assert not written
    assert json.loads(files_in(path)["adapter_config.json"])["r"] == 3
    written = [*range(100, 0, -1)]
    with pytest.raises(tload.ChangedError, match="changed during each of 3 copies"):
        _lora.Adapters(web.url, tmp_path / "others").fetch("sql")
    assert not list((tmp_path / "others").rglob("adapter_*"))


def test_failures_are_remembered_for_a_while(web: Web, tmp_path: Path) -> None:
    clock = Clock()
    adapters = _lora.Adapters(web.url, tmp_path, clock=clock)
    web.files["ia3/adapter_config.json"] = b'{"peft_type": "IA3"}'
    for _ in range(3):
        assert adapters.fetch("none") is None
        with pytest.raises(tload.InvalidRequestError, match="'IA3'"):
            adapters.fetch("ia3")
    asked = ["/none/adapter_config.json", "/ia3/adapter_config.json"]
    assert [request.path for request in web.requests] == asked
    put_files(web, "none")
    put_files(web, "ia3")
    clock.now += _lora.FAILURE_SECONDS
    assert adapters.fetch("none") == tmp_path / "none/@1"
    assert adapters.fetch("ia3") == tmp_path / "ia3/@1"
    for number in range(_lora.FAILURES_MAX + 1):
        adapters._failures.add(str(number), None)
    assert len(adapters._failures._known) == _lora.FAILURES_MAX
    assert not adapters._failures.has("0")
    assert adapters._failures.has("1")


def test_adapters_that_nothing_uses_make_way_for_others(web: Web, tmp_path: Path) -> None:
    for name in ("a", "team/b", "c", "d"):
        put_files(web, name, bytes(1000))
    adapters = _lora.Adapters(web.url, tmp_path, limit=2500)

    def here() -> set[str]:
        return {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("@*")}

    first = adapters.fetch("a")
    assert first is not None
    os.utime(first / ".use", (0, 0))
    second = adapters.fetch("team/b")
    assert second is not None
    # Both are used, here or by another process.
    program = """
        import sys, pathlib, tload.vllm._lora
        tload.vllm._lora.Adapters(sys.argv[1], pathlib.Path(sys.argv[2])).fetch("a")
        print(flush=True)
        input()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), web.url, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline()
        adapters.release(first)
        with pytest.raises(tload.IoError, match=r"'c' needs .* in use leave .* of 2\.4 KiB"):
            adapters.fetch("c")
        assert here() == {"a/@1", "team/b/@1"}
        # The kernel ends its use.
        other.kill()
    assert adapters.fetch("d") == tmp_path / "d/@1"
    assert here() == {"team/b/@1", "d/@1"}
    # What nothing uses stays while there is room.
    adapters.release(second)
    assert adapters.fetch("d") == tmp_path / "d/@1"
    assert here() == {"team/b/@1", "d/@1"}


def test_versions_that_nothing_uses_are_removed_with_the_next_one(web: Web, tmp_path: Path) -> None:
    adapters = _lora.Adapters(web.url, tmp_path)
    for number in (1, 2, 3):
        put_files(web, "sql", bytes([number]))
        path = adapters.fetch("sql")
        assert path == tmp_path / f"sql/@{number}"
        assert path is not None
        if number != 2:
            adapters.release(path)
    assert sorted(path.name for path in (tmp_path / "sql").iterdir()) == ["@2", "@3"]


def test_fetching_adapters_leaves_the_threads_of_asyncio_alone(web: Web, tmp_path: Path) -> None:
    put_files(web, "sql")
    adapters = _lora.Adapters(web.url, tmp_path)

    async def fetch() -> list[Path | None]:
        executor = ThreadPoolExecutor()
        asyncio.get_running_loop().set_default_executor(executor)
        executor.shutdown()
        return await asyncio.gather(*(adapters.fetch_soon("sql") for _ in range(20)))

    assert asyncio.run(fetch()) == [tmp_path / "sql/@1"] * 20
    asked = [request.path for request in web.requests]
    assert asked.count("/sql/adapter_model.safetensors") < 50


def test_cancelled_request_uses_no_adapter(web: Web, tmp_path: Path) -> None:
    put_files(web, "sql", bytes(1000))
    web.stall_from = 500
    adapters = _lora.Adapters(web.url, tmp_path)

    async def cancel() -> None:
        request = asyncio.ensure_future(adapters.fetch_soon("sql"))
        await asyncio.to_thread(web.wait_until_stalled, "/sql/adapter_model.safetensors")
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        web.stall_from = None
        web.ended.set()
        async with asyncio.timeout(PATIENCE):
            while Disk(tmp_path).current("sql") is None or adapters._disk._uses:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    asyncio.run(cancel())


def test_locks_of_adapters_stay_in_their_directory(tmp_path: Path) -> None:
    source, long = tmp_path / "source", "/".join(["a" * 128] * 4)
    for name in ("sql", long):
        (source / name).mkdir(parents=True)
        (source / name / "adapter_config.json").write_text('{"peft_type": "LORA"}')
        (source / name / "adapter_model.safetensors").write_bytes(b"weights")
    adapters = _lora.Adapters(str(source), tmp_path / "copies")
    for name in ("sql", long):
        assert adapters.fetch(name) == tmp_path / "copies" / name / "@1"
    assert sorted(path.name for path in adapters.directory.iterdir()) == [".locks", "a" * 128, "sql"]
    locks = list((adapters.directory / ".locks").iterdir())
    assert len(locks) == 2
    for lock in locks:
        assert lock.is_file()
        assert adapters.fetch(f".locks/{lock.name}") is None


def test_local_files_are_no_adapters(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("adapters of the team")
    assert _lora.Adapters(str(tmp_path), tmp_path / "copies").fetch("README") is None


def test_variables_name_source_and_directory() -> None:
    assert _lora.adapters({}) is None
    found = _lora.adapters({"TLOAD_LORA_SOURCE": "s3://b/a", "TLOAD_LORA_DIR": "/d"})
    assert found is not None
    assert (found.source, str(found.directory)) == ("s3://b/a", "/d")
    assert found.limit is None
    both = {"TLOAD_LORA_SOURCE": "s3://b/a", "TLOAD_LORA_DIR": "/d"}
    limited = _lora.adapters({**both, "TLOAD_LORA_LIMIT": "2 GiB"})
    assert limited is not None
    assert limited.limit == 2 << 30
    with pytest.raises(tload.InvalidRequestError, match="TLOAD_LORA_LIMIT: ") as raised:
        _lora.adapters({**both, "TLOAD_LORA_LIMIT": "much"})
    assert '"much" is not a size' in str(raised.value)
    with pytest.raises(tload.InvalidRequestError, match="TLOAD_LORA_DIR is not"):
        _lora.adapters({"TLOAD_LORA_SOURCE": "s3://b/a"})
