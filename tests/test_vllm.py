"""The plugin for vLLM, without vLLM: settings, and selection of tensors. `with_vllm/` has the other
tests."""

from __future__ import annotations

import dataclasses
import json
import logging
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import tload
from conftest import require
from files import Content, tile, write_checkpoint, write_file
from tload import _tload
from tload._sources.opened import show
from tload.vllm import _settings, _weights

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from servers import S3, Web

MIB = 1 << 20
LOGGER = logging.getLogger("tests")
EXPERTS = {f"layers.0.experts.{index}.w.weight": Content.random("BF16", (4, 8), index) for index in range(4)}
DENSE = {f"layers.{index}.norm.weight": Content.random("F32", (5,), index) for index in range(12)}


class Bar:
    """Records the updates of a progress bar."""

    def __init__(self) -> None:
        self.total: int | None = None
        self.seen = 0
        self.closed = False

    @contextmanager
    def open(self, total: int) -> Iterator[Bar]:
        self.total = total
        try:
            yield self
        finally:
            self.closed = True

    def update(self, n: float) -> None:
        self.seen += int(n)


def stream(source: Any, extra: dict[str, Any] | None = None, bar: Bar | None = None, **how: Any) -> Iterator[Any]:
    require("torch")
    return _weights.stream(
        source, _settings.read(extra or {}), shown="the-model", open_bar=(bar or Bar()).open, logger=LOGGER, **how
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve shards in an index, a shard that is in no index, and Mistral's second form of the same
    weights."""
    names = list(DENSE)
    shards: list[Any] = [{name: DENSE[name]} for name in names[:-1]]
    write_checkpoint(tmp_path, [*shards, {names[-1]: DENSE[names[-1]]} | EXPERTS])
    write_file(tmp_path / "stray.safetensors", {"stray": Content.random("F32", (2,), 0)})
    write_file(tmp_path / "consolidated.safetensors", {"tok_embeddings.weight": Content.random("F32", (2,), 0)})
    return tmp_path


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (
            {"concurency": 4},
            r"'concurency' is not a key of tload\n  hint: the keys are source, store, device",
        ),
        ({"memory_limt": 4}, r"'memory_limt' is not a key of tload; did you mean 'memory_limit'\?"),
        ({"writable": True}, r"'writable' is not a key of tload"),
        ({"concurrency": 4}, r"'concurrency' is a key of other loaders: tload tunes this itself\n  hint: leave"),
        ({"enable_multithread_load": True}, r"'enable_multithread_load' is a key of .* tload tunes this itself"),
        ({"num_threads": 8}, r"'num_threads' is a key of other loaders: tload tunes this itself"),
        ({"enable_gds": False}, r"'enable_gds' is a key of other loaders: tload tunes this itself"),
        ({"distributed": True}, r"'distributed' is a key of runai_streamer\n  hint: ranks of a node share by default"),
        ({"missing_weights": "ignore"}, r"missing_weights 'ignore': it can be error, warn, off"),
        ({"plan": "yes"}, r"plan 'yes': it can be auto, on, off"),
        ({"missing_weights": ["warn"]}, r"missing_weights \['warn'\]: it can be"),
        ({"source": 3}, r"source: wanted a path or URL \(str\) or a list of them, found int"),
        ({"source": ["a", None]}, r"source: wanted a path or URL \(str\) or a list of them, found NoneType"),
        ({"source": ""}, r"source: a path or URL is empty"),
        ({"source": []}, r"source: the list is empty"),
        ({"store": "s3"}, r"store: wanted a mapping \(a JSON object\), found str"),
        ({"store": {"endpont": "x"}}, r'store option "endpont" is unknown; valid keys are endpoint'),
        ({"store": {"retries": None}}, r"store\['retries'\]: wanted a str, int, float, bool"),
        ({"device": "cuda:1"}, r"device 'cuda:1': it can be cpu, cuda"),
        ({"device": 0}, r"device 0: it can be cpu, cuda"),
        ({"depth": "8"}, r"depth: wanted a positive int, found str"),
        ({"depth": True}, r"depth: wanted a positive int, found bool"),
        ({"cache": "warm"}, r'cache is "warm"; it can be auto, direct'),
        ({"memory_limit": "4 XB"}, r'memory_limit is "4 XB"; it must lie between'),
        ({"memory_limit": -1}, r"memory_limit -1 is a value of runai_streamer\n  hint: leave it out"),
        ({"memory_limit": 0}, r"memory_limit 0 is a value of runai_streamer\n  hint: leave it out"),
        ({"timeout": "soon"}, r'timeout is "soon"; it must be a positive duration'),
        ({"cache_dir": "/a", "store": {"cache_dir": "/b"}}, "cache_dir= and the key 'cache_dir' of store= differ"),
        ({"mirrors": 3}, "a mirror is not a URL of an object store"),
        ("source", r"wanted a mapping \(a JSON object\), found str"),
    ],
)
def test_wrong_config_is_rejected_and_right_one_named(extra: Any, said: str) -> None:
    with pytest.raises(tload.InvalidRequestError, match=said) as caught:
        _settings.read(extra)
    # vLLM and SGLang raise this class for such a config.
    assert isinstance(caught.value, ValueError)
    assert str(caught.value).startswith("model_loader_extra_config: ")


def test_all_config_keys_accepted() -> None:
    extra: dict[str, Any] = {
        "source": ["s3://bucket/a.safetensors", "/b.safetensors"],
        "store": {"region": "eu-west-1", "headers": {"X-Team": "weights"}},
        "cache_dir": "/cache",
        "cache_limit": "1 TiB",
        "cache_check": "never",
        "mirrors": ["http://a/m", "http://b/m"],
        "peers": "http://c:80/m",
        "hf_cache": True,
        "device": "cuda",
        "missing_weights": "off",
        "sharded_state": True,
        "pattern": "rank-{rank}.safetensors",
        "plan": "off",
        **dict.fromkeys(_settings.OPTION_KEYS),
        "engine": "pread",
        "cache": "drop",
        "order": "ready",
        "in_flight_bytes": "16 MiB",
        "extent_bytes": 1 << 20,
        "memory_limit": "1 GiB",
        "hedge": False,
        "timeout": 60,
        "enable_weights_track": False,
    }
    extra = json.loads(json.dumps(extra))
    settings = _settings.read(extra, engine_keys=["enable_weights_track"])
    assert set(extra) == {*_settings.OWN_KEYS, *_settings.OPTION_KEYS, *_settings.STORE_KEYS, "enable_weights_track"}
    assert settings.source == ("s3://bucket/a.safetensors", "/b.safetensors")
    assert settings.device == "cuda"
    assert settings.store == {**extra["store"], **{key: extra[key] for key in _settings.STORE_KEYS}}
    assert settings.options.engine == "pread"
    assert settings.options.memory_limit == "1 GiB"
    assert settings.engine == {"enable_weights_track": False}
    assert settings.missing_weights == "off"
    assert settings.plan == "off"
    assert settings.for_ranks(8) == settings.options
    assert "eu-west-1" not in repr(settings)
    nothing = _settings.read(None)
    assert (nothing.source, nothing.store, nothing.device) == (None, None, "cpu")
    assert nothing.missing_weights == "error"
    assert nothing.plan == "auto"
    assert (
        _settings.read({"enable_weights_track": False}, engine_keys=["enable_weights_track"]).missing_weights == "warn"
    )
    assert _settings.read({"source": None, "store": None, "depth": None}) == nothing


def test_ranks_that_do_not_share_use_the_page_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = _settings.read({})
    options = tload.Options(order="file")
    assert alone.for_ranks(1) == options
    assert alone.for_ranks(2) == dataclasses.replace(options, cache="buffered")
    assert alone.for_ranks(2, together=True) == options
    assert _settings.read({"cache": "direct"}).for_ranks(2).cache == "direct"
    monkeypatch.setenv("TLOAD_CACHE", "drop")
    monkeypatch.setenv("TLOAD_ORDER", "ready")
    assert alone.for_ranks(2).cache == "buffered"
    assert _settings.read({}).for_ranks(2) == tload.Options(order="ready", cache="drop")


def test_ranks_that_end_up_alone_use_the_page_cache(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    begin = tload.stream

    def begin_alone(*args: Any, options: tload.Options, group: tload.Group | None = None, **how: Any) -> Any:
        seen.append(options.cache)
        if group is not None:
            message = "rank 1 is missing"
            raise tload.PeerError(message)
        return begin(*args, options=options, **how)

    monkeypatch.setattr(tload, "stream", begin_alone)
    # Sharing is on, but there is no process group; or the others do not come.
    dict(stream(str(folder), ranks=8))
    assert seen == ["buffered"]
    group = tload.Group.local(tmp_path_factory.mktemp("group") / "ranks", 0, 1)
    monkeypatch.setattr(_weights, "_group", lambda *_: group)
    dict(stream(str(folder), ranks=8))
    assert seen == ["buffered", None, "buffered"]


def test_ranks_share_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for extra in ({}, {"verify": "off"}, {"verify": "auto"}, {"verify": "require"}):
        assert _settings.read(extra).shares()
        for share in ("node", "cluster", "none"):
            assert _settings.read({"share": share, **extra}).shares() == (share != "none")
    monkeypatch.setenv("TLOAD_SHARE", "none")
    assert not _settings.read({}).shares()


@pytest.mark.parametrize(
    ("extra", "memory_limit", "ignored"),
    [
        ({}, None, ()),
        ({"distributed": False}, None, ()),
        ({"distributed": True, "concurrency": 32}, None, ("concurrency",)),
        ({"memory_limit": -1}, None, ("memory_limit",)),
        ({"memory_limit": 0}, None, ("memory_limit",)),
        ({"memory_limit": 1 << 30}, 1 << 30, ()),
        ({"store": {"region": "x"}, "memory_limit": "1 GiB"}, "1 GiB", ()),
    ],
)
def test_runai_streamer_keys_are_accepted(extra: Any, memory_limit: Any, ignored: Any) -> None:
    given = dict(extra)
    settings = _settings.read(extra, runai=True)
    assert settings.options.memory_limit == memory_limit
    assert settings.ignored == ignored
    assert settings.options.share == {True: "node", False: "none"}.get(extra.get("distributed"))
    assert extra == given


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"distributed": "yes"}, "distributed must be a bool, got 'yes'"),
        ({"concurrency": 0}, "concurrency must be a positive integer, got 0"),
        ({"concurrency": True}, "concurrency must be a positive integer, got True"),
        ({"memory_limit": -2}, "memory_limit is -2"),
        ({"memory_limit": False}, "found bool"),
        ({"pattern": "x"}, "'pattern' is not a key"),
    ],
)
def test_invalid_runai_variables_are_rejected_like_runai(extra: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        _settings.read(extra, runai=True)


def test_replace_runai_variable_must_be_0_or_1() -> None:
    assert _settings.replaces_runai({"TLOAD_REPLACE_RUNAI": "1"})
    for off in ({}, {"TLOAD_REPLACE_RUNAI": ""}, {"TLOAD_REPLACE_RUNAI": "0"}):
        assert not _settings.replaces_runai(off)
    with pytest.raises(tload.InvalidRequestError, match="TLOAD_REPLACE_RUNAI='yes': wanted 1 or 0"):
        _settings.replaces_runai({"TLOAD_REPLACE_RUNAI": "yes"})


def test_urls_are_told_from_paths_and_models() -> None:
    for url in ("s3://bucket/model", "HTTPS://host/x", "hf://org/name"):
        assert _settings.is_url(url)
    for other in ("/a/b", "org/name", "C:/x", "", None):
        assert not _settings.is_url(other)


def test_shards_sorted_naturally() -> None:
    names = ["/m/model-10-of-12.safetensors", "/m/model-2-of-12.safetensors", "s3://b/model-1-of-12.safetensors"]
    assert sorted(names, key=_weights.natural) == names[::-1]


def test_second_copies_are_left_out() -> None:
    both = ["s3://b/m/consolidated-1.safetensors", "s3://b/m/model.safetensors", "s3://b/consolidated/x.safetensors"]
    assert _weights.without_copies(both) == both[1:]
    assert _weights.without_copies(both[:1]) == both[:1]


def test_files_that_engine_leaves_out_are_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tests")
    files = [str(path) for path in folder.glob("model-*.safetensors")]
    (folder / "consolidated.safetensors.index.json").write_text("{}")
    _weights.tell_others(str(folder), files, LOGGER)
    line = caplog.records.pop().getMessage()
    others = "'consolidated.safetensors', 'stray.safetensors', 'consolidated.safetensors.index.json'"
    assert line == f"tload reads 12 files of `{folder}`; left out: {others}"
    (folder / "consolidated.safetensors.index.json").unlink()
    _weights.tell_others(str(folder), [str(path) for path in folder.glob("*.safetensors")], LOGGER)
    assert not [record for record in caplog.records if record.name == "tests"]


def test_index_decides_for_listed_files(folder: Path) -> None:
    """Engines pass files. An older copy of a tensor in one of them is left out, as from the
    directory."""
    name = next(iter(DENSE))
    stale = Content.random(DENSE[name].dtype, DENSE[name].shape, seed=77)
    last = folder / "model-00012-of-00012.safetensors"
    last_names = [*DENSE][-1:]
    write_file(last, {last_names[0]: DENSE[last_names[0]]} | EXPERTS | {name: stale})
    files = sorted(map(str, folder.glob("model-*.safetensors")), key=_weights.natural)
    for source in (str(folder), files):
        got = {key: bytes(tensor.contiguous().view(require("torch").uint8).numpy()) for key, tensor in stream(source)}
        assert got == {key: content.raw for key, content in (DENSE | EXPERTS).items()}


def test_index_selects_tensors_in_file_order(folder: Path) -> None:
    bar = Bar()
    got = dict(stream(str(folder), bar=bar))
    assert list(got) == list(tload.open(folder))
    assert set(got) == {*DENSE, *EXPERTS}
    assert bar.seen == bar.total == sum(len(content.raw) for content in (DENSE | EXPERTS).values())
    assert bar.closed


def test_second_copy_is_skipped_without_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()
    assert set(dict(stream(str(folder)))) == {*DENSE, *EXPERTS}
    assert set(dict(stream([str(folder / "consolidated.safetensors")]))) == {"tok_embeddings.weight"}


def test_tensors_belong_to_caller(folder: Path) -> None:
    torch = require("torch")
    reference = tload.load(folder)
    with torch.device("meta"):  # engines make the default device their GPU meanwhile
        got = dict(stream(str(folder)))
    for name, tensor in got.items():
        assert tensor.device.type == "cpu"
        assert torch.equal(tensor.view(torch.uint8), reference[name].view(torch.uint8))
        tensor.zero_()
    assert all(torch.equal(tload.load(folder)[name], reference[name]) for name in DENSE)


def test_from_an_object_store(s3: S3, folder: Path) -> None:
    torch = require("torch")
    url = s3.put_folder("engines", "m", folder)
    got = dict(stream(url, {"store": s3.store}))
    local = tload.load(folder)
    assert list(got) == list(local)
    assert all(torch.equal(got[name].view(torch.uint8), local[name].view(torch.uint8)) for name in local)


@pytest.mark.parametrize("name", ["model-rank-0-part-0.safetensors", "model-pp-1-tp-0-part-12.safetensors"])
def test_sharded_states_are_no_checkpoints(tmp_path: Path, name: str) -> None:
    write_file(tmp_path / name, {"layers.0.norm.weight": Content.random("F32", (5,), 0)})
    for source in (str(tmp_path), [str(tmp_path / name)]):
        with pytest.raises(RuntimeError, match=f"{name!r} is part of a sharded state, not of a checkpoint") as caught:
            stream(source)
        assert 'set "sharded_state": true' in str(caught.value)
    for other in ("model-rank-0.safetensors", "my-model-rank-0-part-0.safetensors", "rank-0-part-0.safetensors"):
        _weights.refuse_shards([other], "m")


def test_directory_with_gguf_only_is_named(tmp_path: Path) -> None:
    for at in range(6):
        (tmp_path / f"model-{at}.gguf").write_bytes(b"GGUF")
    with pytest.raises(
        tload.InvalidRequestError, match=r"GGUF files only, .*'model-0.gguf', .* and 2 more\n.*--load-format gguf"
    ):
        _weights.refuse_gguf(str(tmp_path), "vLLM")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    _weights.refuse_gguf(str(tmp_path), "vLLM")
    _weights.refuse_gguf("org/name", "vLLM")


def test_opening_comes_before_the_first_tensor(folder: Path) -> None:
    """Engines that reload give the old weights up in between."""
    bar = Bar()
    weights = stream(str(folder), bar=bar)
    assert set(weights.infos) == {*DENSE, *EXPERTS}  # type: ignore[attr-defined]
    assert bar.total is None
    assert len(dict(weights)) == len(DENSE) + len(EXPERTS)
    weights = stream(str(folder))
    weights.close()  # type: ignore[attr-defined]
    assert list(weights) == []
    with pytest.raises(RuntimeError, match="nowhere"):
        stream(str(folder / "nowhere"))


def test_experts_of_others_are_not_read(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tests")
    bar = Bar()

    def keep(name: str) -> bool:
        return "experts" not in name or ".1." in name

    got = dict(stream(str(folder), bar=bar, keep=keep))
    assert set(got) == {*DENSE, "layers.0.experts.1.w.weight"}
    assert bar.total == sum(tensor.nbytes for tensor in got.values())
    [line] = [record.getMessage() for record in caplog.records if record.name == "tests"]
    assert line.startswith("tload read 13 tensors of `the-model` in ")


def test_unused_tensors_are_not_read(folder: Path) -> None:
    def unused(name: str) -> bool:
        return name.startswith("layers.0.")

    assert set(dict(stream(str(folder), unused=unused))) == set(DENSE) - {"layers.0.norm.weight"}
    # As in vLLM: a model that would use no tensor gets all of them.
    assert len(dict(stream(str(folder), unused=lambda _name: True))) == len(DENSE) + len(EXPERTS)
    assert list(stream(str(folder), keep=lambda _name: False)) == []


@pytest.mark.parametrize("harm", ["missing", "truncated", "no index entry", "not there"])
def test_failure_raises_runtime_error_with_cause(folder: Path, harm: str) -> None:
    shard = folder / "model-00003-of-00012.safetensors"
    source = folder
    if harm == "missing":
        shard.unlink()
    elif harm == "truncated":
        shard.write_bytes(shard.read_bytes()[:-1])
    elif harm == "no index entry":
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        index["weight_map"]["layers.99.weight"] = shard.name
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        source = folder / "nowhere"
    with pytest.raises(RuntimeError, match="tload cannot load the model weights of `the-model`: ") as caught:
        list(stream(str(source)))
    assert isinstance(caught.value.__cause__, tload.Error)
    assert str(source if harm == "not there" else shard.name) in str(caught.value)


def test_interrupted_load_stops_reading(folder: Path) -> None:
    bar = Bar()
    weights = stream(str(folder), bar=bar)
    name, tensor = next(weights)
    with pytest.raises(KeyboardInterrupt):
        iter(weights).throw(KeyboardInterrupt)  # type: ignore[attr-defined]
    assert bar.closed
    # Counts the bytes that have arrived, also those of later tensors.
    assert bar.total is not None
    assert tensor.nbytes <= bar.seen <= bar.total
    assert name == "layers.0.norm.weight"
    assert list(weights) == []


def test_load_dropped_midway_closes_its_files(folder: Path) -> None:
    bar = Bar()
    weights = stream(str(folder), bar=bar)
    next(weights)
    weights.close()  # type: ignore[attr-defined]
    assert bar.closed


def test_load_ending_midway_raises_error(web: Web, tmp_path: Path) -> None:
    tensors = {f"t{index}": Content("U8", (4 * MIB,), tile(index, 4 * MIB)) for index in range(16)}
    write_file(tmp_path / "a.safetensors", tensors)
    web.files["a.safetensors"] = (tmp_path / "a.safetensors").read_bytes()
    web.stall_from = 32 * MIB
    got: list[tuple[str, Any]] = []
    # Longer deadlines are for a machine on which nothing arrived within the first.
    for timeout in (2, 10, 50):
        with pytest.raises(RuntimeError, match="tload cannot load the model weights of `the-model`") as caught:
            got.extend(stream(f"{web.url}/a.safetensors", {"timeout": timeout}))
        assert isinstance(caught.value.__cause__, tload.LoadTimeoutError)
        if got:
            break
    # Tensors that were yielded before stay valid.
    first, tensor = got[0]
    assert bytes(tensor.numpy()) == tensors[first].raw


def test_deadline_includes_opening() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = {"endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}", "anonymous": True}
        # Any stage of the opening may be the one that it ends.
        settings = _settings.read({"timeout": 0.2, "store": store})
        with pytest.raises(tload.LoadTimeoutError):
            _weights.open_source("s3://bucket/model", settings)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_engines_and_frameworks_are_imported_on_use(engine: str) -> None:
    program = (
        f"import sys, tload.{engine}; import tload.vllm._settings, tload.vllm._weights; "
        f"sys.exit({{'torch', 'vllm', 'sglang'}} & set(sys.modules) != set())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_url_signature_is_not_shown() -> None:
    require("torch")
    url = "https://127.0.0.1:9/model.safetensors?X-Amz-Signature=hunter2"
    settings = _settings.read({"source": url, "store": {"retries": 0}})
    assert "hunter2" not in repr(settings)
    with pytest.raises(RuntimeError, match=r"model\.safetensors") as caught:
        _weights.stream(url, settings, shown=url, open_bar=Bar().open, logger=LOGGER)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in show([url, url])


def test_bytes_from_the_cache_are_logged(
    s3: S3, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tests")
    url = s3.put_folder("engines", "cached", folder)
    store = {**s3.store, "cache_dir": str(tmp_path / "cache")}
    dict(stream(url, {"store": store}))
    assert _tload.finish_caching(240.0)
    dict(stream(url, {"store": store}))
    assert caplog.records[-1].getMessage().endswith(" from the cache of object stores")
