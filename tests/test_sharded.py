"""Sharded states, without an engine: names of their files, and loads into tensors by name.
`with_vllm/` and `with_sglang/` have the tests against the engines' own."""

from __future__ import annotations

import logging
import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import tload
from conftest import require
from files import Content, write_file
from tload._engines.sharded import Numbers, Pattern, Ranks
from tload.vllm import _settings, _state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from servers import S3, Web

LOGGER = logging.getLogger("tests")
SHAPES = {"model.qkv_proj.weight": (6, 4), "model.norm.weight": (4,), "lm_head.weight": (3, 4)}
SETTINGS = _settings.read({"sharded_state": True})
PLAIN = "model-rank-{rank}-part-{part}.safetensors"


@pytest.mark.parametrize(
    ("text", "ranks", "said"),
    [
        ("model-{part}.safetensors", Ranks(1, 2), r"it has no \{rank\}: 2 ranks would share 'model-0.safetensors'"),
        ("model.safetensors", Ranks(0, 4), r"it has no \{rank\}: 4 ranks would share 'model.safetensors'"),
        (PLAIN, Ranks(0, 2, 1, 3), r"no \{pp_rank\}: 3 ranks would share 'model-rank-0-part-0.safetensors'"),
        ("pp-{pp_rank}-{part}", Ranks(0, 2, 1, 3), r"it has no \{rank\}: 2 ranks would share 'pp-0-0'"),
        ("m-{rank}{part}", Ranks(), r"'m-\d+' would be a file of two ranks"),
        ("m-{part}{rank}", Ranks(0, 2), r"'m-\d+' would be a file of two ranks"),
        ("{pp_rank}{tp_rank}-{part}", Ranks(0, 2, 0, 2), r"'\d+-0' would be a file of two ranks"),
        ("{pp_rank}0{tp_rank}-{part}", Ranks(0, 2, 0, 2), r"'\d+-0' would be a file of two ranks"),
        ("m-{rank}-{shard}", Ranks(), r"\{shard\} is no field of it"),
        ("m-{rank:03d}-{part}", Ranks(), r"\{rank:03d\} is no field of it"),
        ("m-{rank!r}-{part}", Ranks(), r"\{rank!r\} is no field of it"),
        ("m-{}-{part}", Ranks(), r"\{\} is no field of it"),
        ("m-{rank", Ranks(), "expected '}' before end of string"),
        ("../m-{rank}-{part}", Ranks(), "it is no path below the source"),
        ("/m-{rank}-{part}", Ranks(), "it is no path below the source"),
    ],
)
def test_patterns_with_which_ranks_share_a_file_are_refused(text: str, ranks: Ranks, said: str) -> None:
    with pytest.raises(tload.InvalidRequestError, match=said) as caught:
        Pattern(text, ranks)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (None, ["model-rank-0-part-0.safetensors", "model-rank-1-part-12.safetensors"]),
        ("model-{tp_rank}.safetensors", ["model-0.safetensors", "model-1.safetensors"]),
        ("{{rank}}-{rank}/{part}", ["{rank}-0/0", "{rank}-1/12"]),
        ("r{rank}/model-rank-{rank}-part-{part}", ["r0/model-rank-0-part-0", "r1/model-rank-1-part-12"]),
    ],
)
def test_names_have_the_numbers_that_they_were_made_of(text: str | None, names: list[str]) -> None:
    pattern = Pattern(text, Ranks(0, 2))
    for name, numbers in zip(names, [Numbers(0, 0, 0), Numbers(0, 1, 12)], strict=True):
        assert pattern.render(numbers) == name
        assert pattern.render(pattern.numbers(name) or Numbers(9, 9, 9)) == name
    for other in ("model-rank-00-part-0.safetensors", "r0/model-rank-1-part-0", names[0] + "x", "x" + names[0]):
        assert pattern.numbers(other) is None


def test_each_rank_has_its_own_files() -> None:
    names = [f"model-rank-{rank}-part-{part}.safetensors" for rank in range(2) for part in reversed(range(11))]
    others = ["config.json", "model-rank-0-part-0.safetensors.tmp", "sub/model-rank-7-part-0.safetensors"]
    chosen = [Pattern(None, Ranks(rank, 2)).choose([*names, *others], "m") for rank in range(2)]
    assert [name.count("rank-1") for name in chosen[1]] == [1] * 11
    assert chosen[0] == [f"model-rank-0-part-{part}.safetensors" for part in range(11)]
    assert not set(chosen[0]) & set(chosen[1])


def files(*numbers: tuple[int, int], pattern: str = PLAIN) -> list[str]:
    return [pattern.format(rank=rank, part=part) for rank, part in numbers]


@pytest.mark.parametrize(
    ("names", "ranks", "error", "said"),
    [
        ([], Ranks(), tload.NotFoundError, "`m` has no file of a sharded state: none is named as 'model-rank-0-part-0"),
        (["model.safetensors"], Ranks(), tload.NotFoundError, r"; it has 'model.safetensors'\n.* leave sharded_state"),
        (files((0, 0)), Ranks(1, 2), tload.NotFoundError, "lacks 'model-rank-1-part-0.safetensors', for 2 ranks of"),
        (files((0, 0)), Ranks(0, 2), tload.NotFoundError, "lacks 'model-rank-1-part-0.safetensors', for 2 ranks of"),
        (files((1, 0)), Ranks(1, 2), tload.NotFoundError, "lacks 'model-rank-0-part-0.safetensors', for 2 ranks of"),
        (
            files((0, 0), (1, 0)),
            Ranks(),
            tload.InvalidRequestError,
            "saved by more ranks than load it: 'model-rank-1-part-0.safetensors' is of none of 1 ranks",
        ),
        *[
            (
                files((0, 0), (0, 2), (1, 0)),
                Ranks(rank, 2),
                tload.NotFoundError,
                "lacks 'model-rank-0-part-1.safetensors', but has 'model-rank-0-part-2.safetensors'",
            )
            for rank in range(2)
        ],
        (
            ["model-pp-0-tp-0-part-0.safetensors"],
            Ranks(0, 1, 1, 2),
            tload.NotFoundError,
            "lacks 'model-pp-1-tp-0-part-0.safetensors', for 1 ranks of tensor parallelism and 2 of pipeline",
        ),
    ],
)
def test_states_of_other_ranks_and_incomplete_ones_are_errors(
    names: list[str], ranks: Ranks, error: type[tload.Error], said: str
) -> None:
    with pytest.raises(error, match=said):
        Pattern(None, ranks).choose(names, "m")


class Bar:
    """A progress bar."""

    def __init__(self) -> None:
        self.total = self.seen = 0

    @contextmanager
    def open(self, total: int) -> Iterator[Bar]:
        self.total = total
        yield self

    def update(self, n: float) -> None:
        self.seen += int(n)


def content(rank: int) -> dict[str, Content]:
    return {name: Content.random("BF16", shape, 7 * rank + at) for at, (name, shape) in enumerate(SHAPES.items())}


def write_state(folder: Path, ranks: int, pattern: str = PLAIN) -> Path:
    """Write two files for each rank."""
    for rank in range(ranks):
        tensors = list(content(rank).items())
        for part, some in enumerate((tensors[:1], tensors[1:])):
            path = folder / pattern.format(rank=rank, part=part)
            path.parent.mkdir(exist_ok=True)
            write_file(path, dict(some))
    return folder


def load(source: Any, extra: dict[str, Any] | None = None, ranks: Ranks = Ranks(), bar: Bar | None = None) -> Any:  # noqa: B008
    """Load into zeroed tensors of this rank, and return their bytes."""
    torch = require("torch")
    settings = _settings.read({"sharded_state": True} | (extra or {}))
    state = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in SHAPES.items()}
    pattern = Pattern(settings.pattern, ranks)
    _state.load(source, state, settings, pattern, open_bar=(bar or Bar()).open, logger=LOGGER)
    return {name: bytes(tensor.view(torch.uint8).numpy()) for name, tensor in state.items()}


def expected(rank: int) -> dict[str, bytes]:
    return {name: each.raw for name, each in content(rank).items()}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_gets_its_state_from_every_source(tmp_path: Path, s3: S3, web: Web, rank: int) -> None:
    folder, ranks = write_state(tmp_path, 2), Ranks(rank, 2)
    bar = Bar()
    assert load(str(folder), ranks=ranks, bar=bar) == expected(rank)
    assert bar.total == bar.seen == sum(map(len, expected(rank).values()))
    assert load([str(path) for path in folder.iterdir()], ranks=ranks) == expected(rank)
    url = s3.put_folder("states", f"m{rank}", folder)
    assert load(url, {"store": s3.store}, ranks) == expected(rank)
    for path in folder.iterdir():
        web.files[f"m/{path.name}"] = path.read_bytes()
    assert load(f"{web.url}/m", ranks=ranks) == expected(rank)


def test_a_pattern_is_enough_and_may_have_directories(tmp_path: Path) -> None:
    pattern = "rank-{rank}/{part}.safetensors"
    folder = write_state(tmp_path, 2, pattern)
    assert load(str(folder), {"sharded_state": None, "pattern": pattern}, Ranks(1, 2)) == expected(1)
    with pytest.raises(RuntimeError, match="a list of files has no directories"):
        load([str(folder / "rank-0/0.safetensors")], {"pattern": pattern})


def test_a_server_without_listings_is_asked_for_the_files_of_all_ranks(tmp_path: Path, web: Web) -> None:
    for path in write_state(tmp_path, 2).iterdir():
        web.files[f"m/{path.name}"] = path.read_bytes()
    with pytest.raises(RuntimeError, match=r"saved by more ranks than load it: 'model-rank-1-part-0\.safetensors'"):
        load(f"{web.url}/m")
    with pytest.raises(RuntimeError, match=r"lacks 'model-rank-2-part-0\.safetensors', for 3 ranks"):
        load(f"{web.url}/m", ranks=Ranks(0, 3))
    del web.files["m/model-rank-0-part-1.safetensors"]
    with pytest.raises(RuntimeError, match=r"lm_head\.weight"):
        load(f"{web.url}/m", ranks=Ranks(0, 2))


def changed(**tensors: Content | None) -> Callable[[Path], Any]:
    """Return a function that writes the state again, in one file, with some tensors replaced or left out."""

    def change(folder: Path) -> None:
        for path in folder.iterdir():
            path.unlink()
        kept = {name: each for name, each in (content(0) | tensors).items() if each is not None}
        write_file(folder / FIRST, kept)

    return change


FIRST, SECOND, THIRD = files((0, 0), (0, 1), (0, 2))
FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no directory": (shutil.rmtree, "cannot open|No such file|not exist"),
    "missing first file": (lambda folder: (folder / FIRST).unlink(), f"lacks {FIRST!r}, but has {SECOND!r}"),
    "missing last file": (lambda folder: (folder / SECOND).unlink(), r'"lm_head\.weight"'),
    "truncated": (lambda folder: os.truncate(folder / SECOND, 150), f"{SECOND}.*file ends too early"),
    "missing tensor": (changed(**{"model.norm.weight": None}), r'"model\.norm\.weight"'),
    "extra tensor": (changed(extra=Content.random("BF16", (2,), 0)), '"extra"'),
    "smaller": (changed(**{"lm_head.weight": Content.random("BF16", (2, 4), 0)}), r'"lm_head\.weight"'),
    "transposed": (changed(**{"lm_head.weight": Content.random("BF16", (4, 3), 0)}), r'"lm_head\.weight"'),
    "other dtype": (changed(**{"lm_head.weight": Content.random("I16", (3, 4), 0)}), r'"lm_head\.weight"'),
    "twice": (lambda folder: shutil.copy(folder / SECOND, folder / THIRD), "no index says which"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found_before_a_parameter_is_written(tmp_path: Path, fault: str) -> None:
    torch = require("torch")
    folder = tmp_path / "m"
    folder.mkdir()
    write_state(folder, 1)
    change, said = FAULTS[fault]
    change(folder)
    state = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in SHAPES.items()}
    said = f"(?s)tload cannot load the sharded state of `{folder}`: .*({said})"
    with pytest.raises(RuntimeError, match=said) as caught:
        _state.load(str(folder), state, SETTINGS, Pattern(None, Ranks()), open_bar=Bar().open, logger=LOGGER)
    assert isinstance(caught.value.__cause__, tload.Error)
    assert "cast" not in str(caught.value)
    assert not any(tensor.any() for tensor in state.values())


def test_other_floats_are_converted_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch = require("torch")
    write_state(tmp_path, 1)
    state = {name: torch.zeros(shape, dtype=torch.float32) for name, shape in SHAPES.items()}
    with caplog.at_level(logging.INFO):
        _state.load(str(tmp_path), state, SETTINGS, Pattern(None, Ranks()), open_bar=Bar().open, logger=LOGGER)
    whole = tload.load(str(tmp_path / PLAIN.format(rank=0, part=0)))
    assert torch.equal(state["model.qkv_proj.weight"], whole["model.qkv_proj.weight"].float())
    assert "3 tensors are converted, such as 'model.qkv_proj.weight' from BF16 to torch.float32" in caplog.text
    assert "tload read 3 tensors of" in caplog.text


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"sharded_state": "yes"}, "sharded_state: wanted a bool, found str"),
        ({"pattern": 3}, "pattern: wanted a str, found int"),
        ({"sharded_state": False, "pattern": PLAIN}, "pattern names the files of a sharded state, and sharded_state"),
    ],
)
def test_wrong_settings_are_errors(extra: dict[str, Any], said: str) -> None:
    with pytest.raises(tload.InvalidRequestError, match=said):
        _settings.read(extra)
