"""Exchange of messages through the key-value store of a process group of `torch.distributed`.

No collective is called: one that a rank does not join may hang. Imported by `Group.torch` only.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn

from tload._errors import CancelledError, InvalidRequestError, PeerError, UnsupportedError, advise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.distributed import ProcessGroup

    from tload._ranks.torch_transport import GlooTransport

POLL_SECONDS_MIN = 0.0005
POLL_SECONDS_MAX = 0.02
"""Bounds of the time between two looks at the store."""

POLL_SHARE = 0.1
"""Time between two looks, as a share of the time waited so far."""

LATE_SECONDS = 5.0
"""Time for which a rank that is late for the second time in a row looks for the others in a later group."""

RANKS_SHOWN = 8
"""Most ranks that a message lists."""


class StoreExchange:
    """The ranks of a process group, seen from one of them.

    The n-th object of one rank meets the n-th of every other rank of the same process group, except
    for a rank that has left one out: see `_catch_up`.
    """

    def __init__(self, pg: ProcessGroup | None, timeout: float | None) -> None:
        """Join the ranks of `pg`; no exchange takes longer than `timeout`."""
        distributed = _distributed()
        self.rank, self.size, store = _members(distributed, pg)
        # Another thread may wait in the store's own connection, which is locked meanwhile.
        with contextlib.suppress(AttributeError, NotImplementedError):
            store = store.clone()
        self._base = store
        self._number = store.add(f"tload/groups/{self.rank}", 1)
        self._store: Any = self._group(self._number)
        self._lost_connection = distributed.DistNetworkError
        self._timeout = timeout
        self._exchanges = 0
        self._connected: list[str] = []
        """This rank's keys for its last connections."""
        self._failed = False
        self._interrupted = threading.Event()

    def _group(self, number: int) -> Any:
        """Return the store of a group."""
        return _distributed().PrefixStore(f"tload/group/{number}", self._base)

    def _catch_up(self, message: bytes) -> None:
        """Go on to the group that the others are in, if they have given up this one. `message` begins a load.

        The others give up a group that a rank does not join in time. A rank that is late has made as
        many groups as they have: it reads alone, and must not wait in their next one, which is for
        their next load. A rank that has left a group out is behind in every later one: there, the
        others have given it up for another load. If all loads are of the same files, nothing tells
        the two apart: a rank that is late for the second time in a row then joins the others, if they
        wait for it with such a load.

        It goes on to groups that it makes itself. If this process has made a later one already, the
        others may have made theirs as early: the rank then stays, and the load fails.
        """
        late = f"tload/late/{self.rank}"
        while True:
            load = self._given_up()
            if load is None:
                self._base.delete_key(late)
                return
            if self._base.add(f"tload/groups/{self.rank}", 0) != self._number:
                return
            number: int | None = self._number + 1
            if load in {b"", _load_of(message)}:
                is_again = self._base.add(late, 1) > 1
                number = self._waiting(_load_of(message)) if is_again else None
            if number is None:
                return
            while self._number < number:
                self.close()
                self._number = self._base.add(f"tload/groups/{self.rank}", 1)
                self._store = self._group(self._number)
            self._failed = False

    def _given_up(self) -> bytes | None:
        """Return the load for which the others waited for this rank in vain, or `None` if they did not."""
        return self._load_in(self._store) if self._is_given_up(self._store) else None

    def _is_given_up(self, store: Any) -> bool:
        if not store.check(["failure"]):
            return False
        failure = json.loads(store.get("failure"))
        return failure["exchange"] == 0 and self.rank in failure["ranks"]

    def _load_in(self, store: Any) -> bytes | None:
        """Return the load that others have begun in a group, or `None` if none has; `b""` if they do not tell."""
        load = None
        for rank in range(self.size):
            if rank != self.rank and store.check([_key(0, rank)]):
                load = _load_of(store.get(_key(0, rank))) or load or b""
        return load

    def _waiting(self, load: bytes) -> int | None:
        """Return the later group in which others wait for this rank with this load, if they do so soon."""
        deadline = time.monotonic() + LATE_SECONDS
        number = self._number + 1
        while True:
            store = self._group(number)
            begun = self._load_in(store)
            if begun is not None and self._is_given_up(store):
                number += 1
                continue
            if begun is not None:
                # Messages that name no load are of anything.
                return number if begun and begun == load else None
            left = deadline - time.monotonic()
            if left <= 0 or self._interrupted.wait(min(left, POLL_SECONDS_MAX)):
                return None

    def exchange(self, message: bytes, timeout: float) -> list[bytes]:
        """Send a message to every rank, and return those of all ranks."""
        if self._failed:
            hint = "make a new one on every rank"
            raise advise(InvalidRequestError, "the group cannot be used after an error of it", hint)
        if self._timeout is not None:
            timeout = min(timeout, self._timeout)
        with self._joining(self._exchanges):
            if self._exchanges == 0:
                self._catch_up(message)
            number = self._exchanges
            self._exchanges += 1
            return self._exchange(number, message, timeout)

    def transport(self, ranks: Sequence[int], timeout: float) -> GlooTransport | None:
        """Connect this rank with the others of `ranks`, which do the same for the same load.

        Returns `None` if torch cannot do that.
        """
        if not _distributed().is_gloo_available():
            return None
        from tload._ranks.torch_transport import GlooTransport

        if self._timeout is not None:
            timeout = min(timeout, self._timeout)
        with self._joining(self._exchanges):
            transport = GlooTransport(ranks, self.rank)
            self._connect(transport, ranks, timeout)
            return transport

    def interrupt(self) -> None:
        """Make a waiting `exchange` raise `CancelledError`. May be called from any thread."""
        self._interrupted.set()

    def close(self) -> None:
        """Leave the group. Ranks that wait for this one in a later exchange get a `PeerError`."""
        self._failed = True
        # The store may be gone.
        with contextlib.suppress(RuntimeError):
            self._record(self._exchanges, [self.rank], f"rank {self.rank} of {self.size} has left the group")
            # Others may still connect with this one: the last rank deletes them.
            self._store.set(f"connected/{self.rank}", json.dumps(self._connected))
            if self._store.add("closed", 1) == self.size:
                # A rank that failed may have sent one message more.
                sent = range(max(self._exchanges - 2, 0), self._exchanges + 1)
                messages = (_key(number, rank) for number in sent for rank in range(self.size))
                lists = [f"connected/{rank}" for rank in range(self.size)]
                connected = (key for each in lists for key in json.loads(self._store.get(each)))
                for key in ("failure", "closed", *messages, *connected, *lists):
                    self._store.delete_key(key)

    @contextlib.contextmanager
    def _joining(self, number: int) -> Iterator[None]:
        """Fail the group with the block, and raise a `PeerError` if the store is gone.

        Other ranks see the failure of this one in exchange `number`.
        """
        try:
            yield
        except self._lost_connection as error:
            self._failed = True
            hint = "the process that hosts the store has probably ended: usually rank 0, or the agent of torchrun"
            raise advise(PeerError, "the store of the process group cannot be reached", hint) from error
        except PeerError:
            self._failed = True
            raise
        except BaseException:
            self._failed = True
            with contextlib.suppress(RuntimeError):
                self._record(number, [self.rank], f"rank {self.rank} of {self.size} was interrupted while it joined")
            raise

    def _connect(self, transport: GlooTransport, ranks: Sequence[int], timeout: float) -> None:
        from tload._ranks.torch_transport import reason

        distributed = _distributed()
        deadline = time.monotonic() + timeout
        # Every rank has exchanged as many messages before this load.
        prefix = f"transport/{self._exchanges}"
        self._store.set(f"{prefix}/{self.rank}", b"")
        keys = {rank: f"{prefix}/{rank}" for rank in ranks}
        # A rank that leads no node may have left since: it takes no part in this.
        awaited = list(keys.values())
        self._await(awaited, deadline, lambda: self._not_connected(keys, timeout), self._exchanges, ranks)
        # The others have left the connections of an earlier load behind them.
        for key in self._connected:
            self._store.delete_key(key)
        self._connected = [keys[self.rank]]
        try:
            # In ascending order on every rank, so that pairs never wait for each other in a circle.
            for peer in ranks:
                if peer != self.rank:
                    pair = f"{prefix}/{min(self.rank, peer)}/{max(self.rank, peer)}"
                    # A store that gloo waits in is locked.
                    store = distributed.PrefixStore(pair, self._copy_of_store())
                    # Gloo's key with the address of this rank: both of them wait for both keys.
                    self._connected.append(f"{pair}/0/{int(self.rank > peer)}")
                    transport.connect(store, peer, deadline - time.monotonic())
        except self._lost_connection:
            raise
        except RuntimeError as error:
            hint = "see whether their processes run, and the network between the nodes (GLOO_SOCKET_IFNAME)"
            message = f"rank {self.rank} cannot connect with rank {peer}: {reason(error)}"
            raise advise(PeerError, message, hint, ranks=[peer]) from None

    def _exchange(self, number: int, message: bytes, timeout: float) -> list[bytes]:
        keys = [_key(number, rank) for rank in range(self.size)]
        self._store.set(keys[self.rank], message)
        deadline = time.monotonic() + timeout
        self._await(keys, deadline, lambda: self._give_up(number, keys, timeout), number)
        # The others may have given up before this rank came.
        self._check(number)
        messages: list[bytes] = self._store.multi_get(keys)
        if number > 0:
            # Every rank has sent its message, and so has received those of the exchange before.
            self._store.delete_key(_key(number - 1, self.rank))
        return messages

    def _await(
        self,
        keys: list[str],
        deadline: float,
        give_up: Callable[[], NoReturn],
        number: int,
        ranks: Sequence[int] | None = None,
    ) -> None:
        """Wait until the store has all keys, and stop if exchange `number` fails meanwhile: as `_check`."""
        began = time.monotonic()
        while not self._store.check(keys):
            self._check(number, ranks)
            now = time.monotonic()
            if now >= deadline:
                give_up()
            # Not the store's own wait: a slice of it that times out prints warnings, and cannot be
            # interrupted.
            step = min((now - began) * POLL_SHARE, POLL_SECONDS_MAX, deadline - now)
            if self._interrupted.wait(max(step, POLL_SECONDS_MIN)):
                reason = "the exchange of messages between the ranks was interrupted"
                raise CancelledError(reason)

    def _not_connected(self, keys: dict[int, str], timeout: float) -> NoReturn:
        missing = [rank for rank, key in keys.items() if not self._store.check([key])]
        message = f"{_listed(missing)} of {self.size} did not connect with other nodes within {timeout:g} s"
        _raise({"message": message, "ranks": missing})

    def _copy_of_store(self) -> Any:
        """Return the same store over a connection of its own, where that is possible."""
        with contextlib.suppress(AttributeError, NotImplementedError):
            return self._store.clone()
        return self._store

    def _check(self, number: int, ranks: Sequence[int] | None = None) -> None:
        """Raise the failure of this exchange or an earlier one, if there is one, of any of `ranks` or of any rank."""
        if self._store.check(["failure"]):
            failure = json.loads(self._store.get("failure"))
            is_theirs = ranks is None or not set(ranks).isdisjoint(failure["ranks"])
            if failure["exchange"] <= number and is_theirs:
                _raise(failure)

    def _give_up(self, number: int, keys: list[str], timeout: float) -> NoReturn:
        missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
        # All may have come in the last moment, but others may have given up already.
        message = f"{_listed(missing)} of {self.size} did not join the load within {timeout:g} s"
        _raise(self._record(number, missing, message))

    def _record(self, number: int, ranks: Sequence[int], message: str) -> dict[str, Any]:
        """Record a failure for all ranks, and return the one that was recorded first."""
        failure = {"exchange": number, "ranks": ranks, "message": message}
        recorded: dict[str, Any] = json.loads(self._store.compare_set("failure", "", json.dumps(failure)))
        return recorded


def _distributed() -> Any:
    try:
        import torch.distributed
    except ImportError as error:
        message = f"Group.torch needs torch, and it cannot be imported ({error})"
        raise advise(UnsupportedError, message, "install torch, or use Group.local") from error
    if not torch.distributed.is_available():
        message = f"torch {torch.__version__} was built without torch.distributed"
        raise advise(UnsupportedError, message, "install another build of torch, or use Group.local")
    return torch.distributed


def _members(distributed: Any, pg: ProcessGroup | None) -> tuple[int, int, Any]:
    """Return the rank of this process, the number of ranks, and the store."""
    c10d = distributed.distributed_c10d
    if pg is None:
        if not distributed.is_initialized():
            message = "torch.distributed has no default process group"
            hint = "call torch.distributed.init_process_group first, or use Group.local"
            raise advise(InvalidRequestError, message, hint)
        pg = distributed.group.WORLD
    if pg == distributed.GroupMember.NON_GROUP_MEMBER:
        message = "this process is not in the process group"
        raise advise(InvalidRequestError, message, "make the Group only on the ranks of the process group")
    if not isinstance(pg, distributed.ProcessGroup):
        message = f"pg: wanted a torch.distributed.ProcessGroup, found {type(pg).__qualname__}"
        raise TypeError(message)
    # torch has no public way to it; the attribute is as old as subgroups.
    _, store = c10d._world.pg_map.get(pg, (None, None))  # noqa: SLF001
    if store is None:
        message = "torch.distributed has no store for this process group"
        hint = "pass one that init_process_group or new_group made, before destroy_process_group"
        raise advise(InvalidRequestError, message, hint)
    return pg.rank(), pg.size(), store


def _key(number: int, rank: int) -> str:
    return f"message/{number}/{rank}"


def _load_of(message: bytes) -> bytes:
    """Return the load that the first message of a rank begins: a digest of its files; `b""` if it begins none."""
    try:
        return str(json.loads(message)["load"]).encode()
    except (ValueError, TypeError, KeyError):
        return message


def _listed(ranks: Sequence[int]) -> str:
    if not ranks:
        return "no rank"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = [str(rank) for rank in ranks[:RANKS_SHOWN]]
    if len(ranks) > RANKS_SHOWN:
        shown.append(f"{len(ranks) - RANKS_SHOWN} more")
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"


def _raise(failure: dict[str, Any]) -> NoReturn:
    hint = "start the same loads on all ranks, in the same order, and look at the ranks that did not"
    raise advise(PeerError, failure["message"], hint, ranks=failure["ranks"])
