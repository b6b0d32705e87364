"""`tload.Group`: messages between ranks, missing and interrupted ranks, and errors."""

from __future__ import annotations

import copy
import multiprocessing.util
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import tload
from conftest import require
from files import Content, tile, write_file
from forked import start_processes
from tload import _tload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

SHORT = 0.3
"""Seconds that ranks wait for one that does not come."""

LONG = 240.0
"""Seconds after which a test hangs."""

PARTS = 40
PART = 1 << 20


class Members:
    """Two ranks in one process, of which the other one sends what it gets."""

    rank = 1
    size = 2

    def __init__(self, act: Callable[[], object] = lambda: None) -> None:
        self.act = act
        self.calls: list[str] = []
        self.interrupted = threading.Event()

    def exchange(self, message: bytes, timeout: float) -> list[bytes]:
        assert 0 < timeout <= LONG
        self.act()
        self.calls.append("exchanged")
        return [message, message]

    def transport(self, ranks: Sequence[int], timeout: float) -> None:
        raise AssertionError(ranks, timeout)

    def interrupt(self) -> None:
        self.calls.append("interrupted")
        self.interrupted.set()

    def close(self) -> None:
        self.calls.append("closed")


def group_of(members: Members) -> tload.Group:
    return tload.Group(_tload.Group.over(members), "of a test")


def exchange(group: tload.Group, message: bytes, timeout: float = LONG) -> list[bytes]:
    return group._raw.exchange(message, timeout)


def raising(error: BaseException, cause: BaseException | None = None) -> Callable[[], object]:
    def act() -> None:
        raise error from cause

    return act


def test_group_is_context_manager_of_its_process() -> None:
    members = Members()
    with group_of(members) as group:
        assert (group.rank, group.size) == (1, 2)
        assert repr(group) == "<tload.Group of a test: rank 1 of 2>"
        assert exchange(group, b"\0\xff") == [b"\0\xff", b"\0\xff"]
        for spread in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=r"cannot pickle or copy a tload\.Group, which belongs to its process"):
                spread(group)
    group.close()
    assert members.calls == ["exchanged", "closed"]
    assert repr(group) == "<tload.Group of a test: rank 1 of 2, closed>"
    with pytest.raises(tload.InvalidRequestError, match="the group is closed"):
        exchange(group, b"")


def test_error_of_peer_keeps_ranks_hint_and_cause() -> None:
    cause = OSError("no route")
    error = tload.PeerError("ranks 0, 3 are gone\n  hint: look there", hint="look there", ranks=(0, 3))
    with pytest.raises(tload.PeerError) as caught:
        exchange(group_of(Members(raising(error, cause))), b"")
    assert (caught.value.kind, caught.value.ranks, caught.value.hint) == ("peer", (0, 3), "look there")
    assert str(caught.value) == str(error)
    assert caught.value.__cause__ is cause


def test_other_exceptions_are_causes() -> None:
    error = KeyError("a")
    with pytest.raises(tload.InvalidRequestError, match="exchange of messages between the ranks failed") as caught:
        exchange(group_of(Members(raising(error))), b"")
    assert caught.value.__cause__ is error
    assert caught.value.ranks == ()
    with pytest.raises(SystemExit):
        exchange(group_of(Members(raising(SystemExit(3)))), b"")


def test_interrupt_ends_the_exchange() -> None:
    def act() -> None:
        signal.raise_signal(signal.SIGINT)
        assert members.interrupted.wait(LONG)

    members = Members(act)
    with pytest.raises(KeyboardInterrupt):
        exchange(group_of(members), b"")
    assert members.calls == ["interrupted", "exchanged"], "no thread is left in Python"


def test_group_is_refused_in_a_fork() -> None:
    members = Members()
    group = group_of(members)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            exchange(group, b"")
        except tload.InvalidRequestError as error:
            if f"the group was joined in process {os.getppid()} and is used in process" in str(error):
                group.close()
                status = len(members.calls)
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.safetensors"
    write_file(path, {"t": Content("U8", (100_000,), tile(0, 100_000))})
    return path


def test_group_of_another_type_is_a_type_error(path: Path) -> None:
    for call in (tload.stream, tload.load):
        with pytest.raises(TypeError, match=r"group: wanted a tload\.Group, found Members"):
            call(path, framework="dlpack", group=Members())  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"group: wanted a tload\.Group, found int"):
        tload.load_into({}, path, group=3)  # type: ignore[arg-type]


def test_options_of_groups_have_no_effect_without_one(path: Path) -> None:
    keywords: Any = {"share": "cluster", "join_timeout": 1, "on_peer_loss": "read", "private": True}
    with tload.stream(path, framework="dlpack", **keywords) as tensors:
        ((_, tensor),) = tensors
    assert tensor.writable
    assert tensors.report.group is None


@pytest.fixture
def _old_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch one that cannot import read-only memory."""
    torch = require("torch")
    monkeypatch.setattr(torch.Tensor, "__dlpack__", lambda self, stream=None: (self, stream))


@pytest.mark.usefixtures("_old_torch")
def test_old_torch_loads_what_no_rank_shares(path: Path) -> None:
    def load(rank: int, size: int, **keywords: Any) -> None:
        with tload.Group.local(path.parent / f"ranks-{size}", rank, size, timeout=LONG) as group:
            loaded.append(tload.load(path, group=group, private=False, join_timeout=LONG, **keywords))

    loaded: list[dict[str, Any]] = []
    load(0, 1)
    other = threading.Thread(target=load, args=(1, 2), kwargs={"share": "none"})
    other.start()
    load(0, 2, share="none")
    other.join()
    assert [each["t"].numpy().tobytes() for each in loaded] == [tile(0, 100_000)] * 3


@pytest.mark.usefixtures("_old_torch")
def test_old_torch_refuses_what_ranks_share_before_the_load(path: Path) -> None:
    members = Members()
    with pytest.raises(tload.UnsupportedError, match="read-only view of a file or of memory that ranks share"):
        tload.load(path, group=group_of(members), private=False, device="cpu")


@pytest.mark.parametrize("private", [True, False])
def test_ranks_receive_their_columns_without_a_copy(tmp_path: Path, *, private: bool) -> None:
    numpy = require("numpy")
    raw = tile(1, 2048 * 512 * 4)
    path = tmp_path / "matrix.safetensors"
    write_file(path, {"w": Content("I32", (2048, 512), raw)})
    matrix = numpy.frombuffer(raw, numpy.int32).reshape(2048, 512)
    shares = [numpy.s_[:, :200], numpy.s_[:, 200:512]]
    loaded: dict[int, Any] = {}

    def load(rank: int) -> None:
        with tload.Group.local(tmp_path / "ranks", rank, 2, timeout=LONG) as group:
            keywords: Any = {"group": group, "private": private, "join_timeout": LONG}
            with tload.stream(path, framework="numpy", slices={"w": shares[rank]}, **keywords) as tensors:
                loaded[rank] = dict(tensors)["w"], tensors.report

    other = threading.Thread(target=load, args=(1,))
    other.start()
    load(0)
    other.join()
    for rank, share in enumerate(shares):
        array, report = loaded[rank]
        assert numpy.array_equal(array, matrix[share])
        assert array.flags.writeable == private
        assert (report.received_bytes, report.copied_bytes) == (array.nbytes, 0)
    assert loaded[1][1].read_bytes == 0


def test_ranks_of_torch_meet(path: Path) -> None:
    """Four ranks, one start of processes for all that they do."""
    torch = require("torch")
    # Not hosted by a rank: another process may take a port that was chosen before they start, and
    # the host may end before another rank has finished.
    host = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    start_processes(4, four_ranks, host.port, path)


def four_ranks(rank: int, port: int, path: Path) -> None:
    import torch.distributed

    with pytest.raises(tload.InvalidRequestError, match=r"torch\.distributed has no default process group"):
        tload.Group.torch()
    # Documented, and not in `__all__`.
    distributed: Any = torch.distributed
    store = distributed.TCPStore("127.0.0.1", port)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=4)
    with pytest.raises(TypeError, match=r"pg: wanted a torch\.distributed\.ProcessGroup, found int"):
        tload.Group.torch(3)  # type: ignore[arg-type]
    messages_of_two_groups(rank)
    subgroup_has_its_own_ranks(rank)
    load_with_group(path)
    rank_that_cannot_begin_is_named(path, rank)
    missing_rank_is_named_on_every_rank(rank)
    rank_that_left_is_named(rank)
    interrupted_rank_is_named(rank)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def messages_of_two_groups(rank: int) -> None:
    """Messages of two groups over one process group do not mix, and none are left in the store."""
    import torch.distributed

    from tload._ranks.torch_group import StoreExchange

    first, second = StoreExchange(None, None), tload.Group.torch(timeout=timedelta(seconds=LONG))
    groups = [group_of(first), second]  # type: ignore[arg-type]
    assert [(group.rank, group.size) for group in groups] == [(rank, 4)] * 2
    assert repr(second) == f"<tload.Group of torch.distributed: rank {rank} of 4>"
    for turn in range(5):
        for number, group in enumerate(groups):
            got = exchange(group, bytes([0, 255, number, turn, rank]))
            assert got == [bytes([0, 255, number, turn, each]) for each in range(4)]
    torch.distributed.barrier()
    kept = [key for key in first._store.underlying_store.list_keys() if "/message/" in key]
    assert len(kept) == 2 * 4, "only the last message of each rank"
    torch.distributed.barrier()
    for group in groups:
        group.close()
    torch.distributed.barrier()
    kept = [key for key in first._store.underlying_store.list_keys() if "tload/group/" in key]
    assert kept == []
    # No rank begins with groups of its own before all of them have looked.
    torch.distributed.barrier()


def subgroup_has_its_own_ranks(rank: int) -> None:
    import torch.distributed

    members: Any = torch.distributed.new_group([1, 3])
    if rank not in (1, 3):
        with pytest.raises(tload.InvalidRequestError, match="this process is not in the process group"):
            tload.Group.torch(members)
        return
    with tload.Group.torch(members) as group:
        assert (group.rank, group.size) == (rank // 2, 2)
        assert exchange(group, str(rank).encode()) == [b"1", b"3"]


def load_with_group(path: Path) -> None:
    with tload.Group.torch() as group:
        loaded = tload.load(path, framework="numpy", group=group, private=False)
        assert not loaded["t"].flags.writeable
        assert loaded["t"].tobytes() == tile(0, 100_000)
        with tload.stream(path, framework="numpy", group=group) as tensors:
            ((_, tensor),) = tensors
        assert tensor.flags.writeable
        assert tensor.tobytes() == tile(0, 100_000)
        import torch

        # No rank sees what another one writes.
        tensor[::2] = group.rank
        torch.distributed.barrier()
        assert tensor[1::2].tobytes() == tile(0, 100_000)[1::2]
        assert set(tensor[::2].tolist()) == {group.rank}
        shared = tensors.report.group
        assert shared is not None
        assert (shared.rank, shared.size, shared.node_ranks) == (group.rank, 4, (0, 1, 2, 3)), shared.reason
        assert shared.unique_bytes == 100_000
        assert (shared.read_bytes > 0) == (shared.rank == shared.leader)
        target = {"t": torch.zeros(100_000, dtype=torch.uint8)}
        tload.load_into(target, path, group=group)
        assert target["t"].numpy().tobytes() == tile(0, 100_000)
        temporary_tensors_can_be_written_to(path, group)


def temporary_tensors_can_be_written_to(path: Path, group: tload.Group) -> None:
    """They are imported as capsules, since versions of torch before 2.9 cannot import others."""
    import torch
    from torch.utils import dlpack

    target = {"t": torch.zeros(100_000)}
    imported = []
    real = dlpack.from_dlpack

    def from_dlpack(value: object) -> Any:
        imported.append(value)
        return real(value)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dlpack, "from_dlpack", from_dlpack)
        tload.load_into(target, path, group=group, cast=True, private=False)
    assert target["t"].to(torch.uint8).numpy().tobytes() == tile(0, 100_000)
    assert imported
    assert not any(isinstance(value, tload.Tensor) for value in imported)


def rank_that_cannot_begin_is_named(path: Path, rank: int) -> None:
    """The others do not wait until the limit, and the group can be used for another load."""
    with tload.Group.torch() as group:
        for load in (tload.load, load_into_zeros):
            keywords: Any = {"group": group, "join_timeout": 10 * LONG}
            if rank == 1:
                with pytest.raises(tload.NotFoundError):
                    load(path.parent / "nowhere", **keywords)
            else:
                with pytest.raises(tload.PeerError, match=r"rank 1 did not begin the load: .*nowhere") as caught:
                    load(path, **keywords)
                assert caught.value.ranks == (1,)
        assert set(tload.load(path, framework="numpy", group=group)) == {"t"}


def load_into_zeros(path: Path, **keywords: Any) -> None:
    import torch

    tload.load_into({"t": torch.zeros(100_000, dtype=torch.uint8)}, path, **keywords)


def missing_rank_is_named_on_every_rank(rank: int) -> None:
    import torch.distributed

    from tload._ranks.torch_group import StoreExchange

    members = StoreExchange(None, SHORT if rank == 0 else LONG)
    group = group_of(members)  # type: ignore[arg-type]
    if rank == 2:
        torch.distributed.barrier()
    if rank == 0:
        # Else the others may be missing, too: they have been started, and may be late.
        members._store.wait(["message/0/1", "message/0/3"])
    started = time.monotonic()
    with pytest.raises(tload.PeerError) as caught:
        exchange(group, b"")
    # Rank 2 comes too late, and gets the error of the others.
    assert caught.value.ranks == (2,)
    assert str(caught.value).startswith(f"rank 2 of 4 did not join the load within {SHORT} s\n  hint: ")
    assert time.monotonic() - started < LONG
    with pytest.raises(tload.InvalidRequestError, match="the group cannot be used after an error of it"):
        exchange(group, b"")
    if rank != 2:
        torch.distributed.barrier()


def rank_that_left_is_named(rank: int) -> None:
    group = tload.Group.torch()
    assert len(exchange(group, b"")) == 4
    if rank == 3:
        group.close()
        return
    with pytest.raises(tload.PeerError, match="rank 3 of 4 has left the group") as caught:
        exchange(group, b"")
    assert caught.value.ranks == (3,)


def interrupted_rank_is_named(rank: int) -> None:
    from tload._ranks.torch_group import StoreExchange

    class Signal(threading.Event):
        """Interrupts the process as soon as the exchange waits, once: a second interrupt may arrive
        after the first was caught."""

        is_raised = False

        def wait(self, timeout: float | None = None) -> bool:
            if not self.is_raised:
                self.is_raised = True
                signal.raise_signal(signal.SIGINT)
            return super().wait(timeout)

    if rank == 0:
        # Does not come.
        StoreExchange(None, None)
        return
    members = StoreExchange(None, None)
    if rank == 1:
        members._interrupted = Signal()
        with pytest.raises(KeyboardInterrupt):
            exchange(group_of(members), b"")  # type: ignore[arg-type]
        return
    with pytest.raises(tload.PeerError, match="rank 1 of 4 was interrupted while it joined") as caught:
        exchange(group_of(members), b"")  # type: ignore[arg-type]
    assert caught.value.ranks == (1,)


LOCAL = """
import sys
import tload
path, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with tload.Group.local(path, rank, size, timeout="4m") as group:
    assert (group.rank, group.size) == (rank, size)
    assert repr(group) == f"<tload.Group at {path!r}: rank {rank} of {size}>"
    for turn in range(3):
        got = group._raw.exchange(bytes([0, turn, rank]), 240.0)
        assert got == [bytes([0, turn, each]) for each in range(size)], got
assert "torch" not in sys.modules
"""


def test_ranks_of_one_node_meet_without_torch(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOCAL, str(tmp_path / "ranks.sock")]
    ranks = [subprocess.Popen([*command, str(rank), "3"], stderr=subprocess.PIPE, text=True) for rank in range(3)]
    for rank in ranks:
        _, stderr = rank.communicate(timeout=LONG)
        assert rank.returncode == 0, stderr


def test_invalid_local_groups_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ranks.sock"
    with pytest.raises(tload.InvalidRequestError, match="rank is -1; it must not be negative"):
        tload.Group.local(path, -1, 2)
    with pytest.raises(tload.InvalidRequestError, match="rank"):
        tload.Group.local(path, 2, 2, timeout=SHORT)
    with pytest.raises(tload.InvalidRequestError, match="timeout"):
        tload.Group.local(path, 0, 2, timeout=-1)
    with pytest.raises(TypeError):
        tload.Group.local(path, "0", 2)  # type: ignore[arg-type]
    with pytest.raises(tload.PeerError):
        tload.Group.local(path, 1, 2, timeout=SHORT)


def test_leader_that_ends_first_reads_on_for_others(tmp_path: Path) -> None:
    """Such children of multiprocessing end without atexit."""
    path = tmp_path / "large.safetensors"
    write_file(path, {f"t{index:02}": Content("U8", (PART,), tile(index, PART)) for index in range(PARTS)})
    context = multiprocessing.get_context("forkserver")
    has_returned = context.Event()
    ranks = [
        context.Process(target=load_one_or_all, args=(rank, path, tmp_path / "ranks.sock", has_returned))
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(LONG)
    assert [rank.exitcode for rank in ranks] == [0, 0]


def load_one_or_all(rank: int, path: Path, socket: Path, has_returned: Any) -> None:
    """Load one tensor on the leader, and then all of them on the other rank."""
    group = tload.Group.local(socket, rank, 2, timeout=LONG)
    names = None if rank else ["t00"]
    with tload.stream(path, names=names, framework="dlpack", group=group, memory_limit=8 * PART) as tensors:
        if rank:
            # The rest does not fit.
            assert has_returned.wait(LONG)
        assert len(list(tensors)) == (PARTS if rank else 1)
        shared = tensors.report.group
        assert shared is not None
        assert shared.leader == 0, shared.reason
    if not rank:
        # Called before tload's at the end of the process.
        multiprocessing.util.Finalize(None, has_returned.set, exitpriority=1)
