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
    from collections.abc import Sequence

    from torch.distributed import ProcessGroup

POLL_SECONDS_MIN = 0.0005
POLL_SECONDS_MAX = 0.02
"""Bounds of the time between two looks at the store."""

POLL_SHARE = 0.1
"""Time between two looks, as a share of the time waited so far."""

RANKS_SHOWN = 8
"""Most ranks that a message lists."""


class StoreExchange:
    """The ranks of a process group, seen from one of them.

    The n-th object of one rank meets the n-th of every other rank of the same process group.
    """

    def __init__(self, pg: ProcessGroup | None, timeout: float | None) -> None:
        """Join the ranks of `pg`; no exchange takes longer than `timeout`."""
        distributed = _distributed()
        self.rank, self.size, store = _members(distributed, pg)
        # Another thread may wait in the store's own connection, which is locked meanwhile.
        with contextlib.suppress(AttributeError, NotImplementedError):
            store = store.clone()
        number = store.add(f"tload/groups/{self.rank}", 1)
        self._store: Any = distributed.PrefixStore(f"tload/group/{number}", store)
        self._lost_connection = distributed.DistNetworkError
        self._timeout = timeout
        self._exchanges = 0
        self._failed = False
        self._interrupted = threading.Event()

    def exchange(self, message: bytes, timeout: float) -> list[bytes]:
        """Send a message to every rank, and return those of all ranks."""
        if self._failed:
            hint = "make a new one on every rank"
            raise advise(InvalidRequestError, "the group cannot be used after an error of it", hint)
        if self._timeout is not None:
            timeout = min(timeout, self._timeout)
        number = self._exchanges
        self._exchanges += 1
        try:
            return self._exchange(number, message, timeout)
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

    def interrupt(self) -> None:
        """Make a waiting `exchange` raise `CancelledError`. May be called from any thread."""
        self._interrupted.set()

    def close(self) -> None:
        """Leave the group. Ranks that wait for this one in a later exchange get a `PeerError`."""
        self._failed = True
        # The store may be gone.
        with contextlib.suppress(RuntimeError):
            self._record(self._exchanges, [self.rank], f"rank {self.rank} of {self.size} has left the group")
            if self._store.add("closed", 1) == self.size:
                # A rank that failed may have sent one message more.
                sent = range(max(self._exchanges - 2, 0), self._exchanges + 1)
                messages = (_key(number, rank) for number in sent for rank in range(self.size))
                for key in ("failure", "closed", *messages):
                    self._store.delete_key(key)

    def _exchange(self, number: int, message: bytes, timeout: float) -> list[bytes]:
        keys = [_key(number, rank) for rank in range(self.size)]
        self._store.set(keys[self.rank], message)
        began = time.monotonic()
        while not self._store.check(keys):
            self._check(number)
            waited = time.monotonic() - began
            if waited >= timeout:
                self._give_up(number, keys, timeout)
            # Not the store's own wait: a slice of it that times out prints warnings, and cannot be
            # interrupted.
            step = min(waited * POLL_SHARE, POLL_SECONDS_MAX, timeout - waited)
            if self._interrupted.wait(max(step, POLL_SECONDS_MIN)):
                reason = "the exchange of messages between the ranks was interrupted"
                raise CancelledError(reason)
        # The others may have given up before this rank came.
        self._check(number)
        messages: list[bytes] = self._store.multi_get(keys)
        if number > 0:
            # Every rank has sent its message, and so has received those of the exchange before.
            self._store.delete_key(_key(number - 1, self.rank))
        return messages

    def _check(self, number: int) -> None:
        """Raise the failure of this exchange or an earlier one, if there is one."""
        if self._store.check(["failure"]):
            failure = json.loads(self._store.get("failure"))
            if failure["exchange"] <= number:
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
