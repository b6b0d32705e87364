"""The streams of the plugins for vLLM and SGLang on several ranks, without these engines."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import tload
from files import Content, tile, write_checkpoint
from ranks import start_ranks
from tload.vllm import _settings, _weights

if TYPE_CHECKING:
    from servers import Web

MIB = 1 << 20

TENSORS = {
    f"{index}.weight": Content("U8", (size,), tile(index, size)) for index, size in enumerate([5 * MIB, 99, MIB])
}
TOTAL = sum(len(content.raw) for content in TENSORS.values())


@pytest.fixture
def folder(tmp_path: Path) -> str:
    first, *others = TENSORS.items()
    write_checkpoint(tmp_path, [dict([first]), dict(others)])
    return str(tmp_path)


class Log(logging.Handler):
    """Keeps messages."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def stream(
    source: str, extra: dict[str, Any] | None = None, group: Any = None, **how: Any
) -> tuple[dict[str, Any], list[str]]:
    """Return the tensors, and what was logged."""
    import torch.distributed

    log = Log()
    logger = logging.getLogger("tests")
    logger.setLevel(logging.INFO)
    logger.handlers = [log]
    bar = SimpleNamespace(update=lambda _: None)
    settings = _settings.read(extra)
    tensors = _weights.stream(
        source,
        settings,
        shown="the-model",
        open_bar=lambda _: nullcontext(bar),
        logger=logger,
        process_group=group or torch.distributed.group.WORLD,
        **how,
    )
    return dict(tensors), log.lines


def check(tensors: dict[str, Any], names: set[str] | None = None) -> None:
    assert set(tensors) == (set(TENSORS) if names is None else names)
    for name, tensor in tensors.items():
        assert tensor.numpy().tobytes() == TENSORS[name].raw, name


def test_ranks_read_once(folder: str, web: Web) -> None:
    for path in Path(folder).iterdir():
        web.files[f"bucket/{path.name}"] = path.read_bytes()
    start_ranks(2, read_once, folder, web.url)
    assert TOTAL <= web.bytes_requested() < 1.001 * TOTAL
    # One rank opens for both.
    assert web.openings() == sorted(web.files)


def read_once(rank: int, folder: str, endpoint: str) -> None:
    store = {"endpoint": endpoint, "anonymous": True, "region": "us-east-1"}
    for source, extra in ((folder, {}), ("s3://bucket/model.safetensors.index.json", {"store": store})):
        tensors, (line,) = stream(source, extra)
        check(tensors)
        assert "shared by the ranks of this node" in line
        # Where they are read: on one rank.
        way = "through the page cache" if source == folder else "from object stores"
        assert (way in line or "past the page cache" in line) == (rank == 0), line
        # A model may write to them, and no other rank sees it.
        for tensor in tensors.values():
            tensor.fill_(rank)
    # Different experts, and a rank that wants nothing: the other one does without it.
    check(stream(folder, keep=lambda name: name.startswith(f"{rank}."))[0], {f"{rank}.weight"})
    names = {"2.weight"} if rank else set()
    tensors, lines = stream(folder, keep=lambda name: name in names)
    check(tensors, names)
    assert any("rank 0 of 2 has left the group" in line for line in lines) == (rank == 1)


def test_ranks_that_do_not_load_together_read_alone(folder: str) -> None:
    start_ranks(2, read_alone, folder)


def read_alone(rank: int, folder: str) -> None:
    import torch.distributed

    if rank == 0:
        # The other rank does not come: a busy machine only takes longer.
        tensors, lines = stream(folder, {"join_timeout": 0.2})
        check(tensors)
        assert lines[0].startswith("tload reads on every rank, as they do not load together: rank 1 of 2 did not join")
    torch.distributed.barrier()
    if rank == 1:
        # The other one waits for it no more.
        check(stream(folder)[0])
    # If the other rank began its next load before that, of the same files, this one could take it
    # for the one that it is late for, and be one load behind from then on.
    torch.distributed.barrier()
    # The next load is together again.
    for share in ("node", "none"):
        tensors, lines = stream(folder, {"share": share})
        check(tensors)
        assert any("shared" in line for line in lines) == (share == "node"), lines
    # Ranks with different files must not make a model of them.
    source = str(Path(folder, "model-00001-of-00002.safetensors")) if rank else folder
    with pytest.raises(RuntimeError, match="the ranks disagree on the number of files") as caught:
        stream(source)
    assert isinstance(caught.value.__cause__, tload.PeerError)
    torch.distributed.barrier()
    # A process group that torch does not know any more.
    gone = torch.distributed.new_group()
    torch.distributed.destroy_process_group(gone)
    tensors, lines = stream(folder, group=gone)
    check(tensors)
    assert lines[0].startswith("tload reads on every rank, as the process group cannot be used: ")


def test_reading_rank_verifies_for_all(folder: str) -> None:
    tload.verify(folder, write=True)
    start_ranks(2, verify_together, folder)


def verify_together(rank: int, folder: str) -> None:
    import torch.distributed

    for mode in ("require", "auto"):
        tensors, lines = stream(folder, {"verify": mode})
        check(tensors)
        assert any("shared by the ranks of this node" in line for line in lines), lines
        assert any("the page cache" in line for line in lines) == (rank == 0), lines
        # Each rank has a use for another file, of which the manifest has one digest.
        check(stream(folder, {"verify": mode}, keep=lambda name: name.startswith(f"{rank}."))[0], {f"{rank}.weight"})
    torch.distributed.barrier()
    shard = min(Path(folder).glob("*.safetensors"))
    if rank == 0:
        contents = bytearray(shard.read_bytes())
        contents[-1] ^= 1
        # In place: ranks find the same file.
        shard.write_bytes(contents)
    torch.distributed.barrier()
    for mode in ("require", "auto"):
        with pytest.raises(RuntimeError, match="tload cannot load the model weights") as caught:
            stream(folder, {"verify": mode})
        assert isinstance(caught.value.__cause__, tload.CorruptError), caught.value
        torch.distributed.barrier()
