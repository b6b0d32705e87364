"""Groups of ranks: the processes that load one checkpoint together."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tload import _tload
from tload._exit import at_exit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from torch.distributed import ProcessGroup

    from tload._options.load_options import Options
    from tload.typing import Duration


# Seconds for which the end of a process waits for ranks that it still reads for.
_SERVING_SECONDS = 30.0


class Group:
    """The processes that load together, seen from one of them. Made by `Group.torch` or `Group.local`.

    Pass it as `group=` to `tload.stream`, `load` or `load_into`: the ranks of a node then read the
    storage once, and share what they read. Every rank starts the same loads, of the same files, in
    the same order; the selections, slices, devices and targets of a load may differ from rank to
    rank. A group serves any number of loads, one after the other; for loads at the same time, each
    needs a group of its own. After a `PeerError` for a rank that is missing or has left, every rank
    needs a new group.

    A group belongs to its process: it cannot be pickled, nor used after a fork.
    """

    __slots__ = ("_about", "_raw")

    def __init__(self, raw: _tload.Group, about: str) -> None:
        """Wrap the group that `Group.torch` or `Group.local` joined."""
        self._raw = raw
        self._about = about
        # A process that ends takes what it reads for others with it.
        at_exit(_finish_serving)

    @classmethod
    def torch(cls, pg: ProcessGroup | None = None, *, timeout: Duration | None = None) -> Self:
        """Make a group of the ranks of a process group of `torch.distributed`.

        The process group may be of any backend. Messages go through its key-value store, and no
        collective is called, so a rank that is missing is an error after `join_timeout` and does
        not hang the others. Several groups may be made of one process group, in the same order on
        every rank.

        Args:
            pg: The process group. Default: the default process group.
            timeout: Limit of the time that the ranks have to begin a load together, in addition to
                the load's `join_timeout`. Default: none.

        Returns:
            The group. Its ranks are those of the process group, from 0.

        Raises:
            InvalidRequestError: There is no default process group; this process is not in `pg`; or
                `pg` was destroyed.
            UnsupportedError: torch is not installed, or was built without `torch.distributed`.
            TypeError: `pg` is not a process group.
        """
        from tload._ranks import torch_group

        limit = None if timeout is None else _tload.seconds("timeout", timeout)
        return cls(_tload.Group.over(torch_group.StoreExchange(pg, limit)), "of torch.distributed")

    @classmethod
    def local(cls, path: str | os.PathLike[str], rank: int, size: int, *, timeout: Duration = 30) -> Self:
        """Join the processes of this node that meet at a path, and return when all have joined.

        Does not need torch.

        Args:
            path: The path of a Unix socket, which rank 0 makes, with access for this user only.
                Each group needs a path of its own.
            rank: The number of this process, from 0.
            size: The number of processes.
            timeout: Time in which all processes must have joined. Default: 30 seconds.

        Returns:
            The group.

        Raises:
            PeerError: A process did not join in time, or left again; two have the same rank; sizes
                differ; or another group is alive at the path.
            InvalidRequestError: `rank` or `size` is invalid.
        """
        raw = _tload.Group.local(path, rank, size, _tload.seconds("timeout", timeout))
        return cls(raw, f"at {os.fspath(path)!r}")

    @property
    def rank(self) -> int:
        """The number of this process in the group, from 0."""
        return self._raw.rank

    @property
    def size(self) -> int:
        """The number of processes of the group."""
        return self._raw.size

    def close(self) -> None:
        """Leave the group. Loads of this rank that run go on.

        Ranks that start another load with the group get a `PeerError`.
        """
        self._raw.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        message = "cannot pickle or copy a tload.Group, which belongs to its process: make one in each process"
        raise TypeError(message)

    def __repr__(self) -> str:
        closed = ", closed" if self._raw.is_closed else ""
        return f"<tload.Group {self._about}: rank {self.rank} of {self.size}{closed}>"


def _finish_serving() -> None:
    """Wait until this process reads for no other rank any more."""
    _tload.finish_serving(_SERVING_SECONDS)


@contextmanager
def beginning(group: object, options: Options) -> Iterator[_tload.Group | None]:
    """Provide the group of the extension module for a load that begins.

    An error is told to the other ranks, which then do not wait for this one.
    """
    raw = raw_group(group)
    try:
        yield raw
    except Exception as error:
        if raw is not None:
            raw.give_up(error, options)
        raise


def raw_group(group: object) -> _tload.Group | None:
    """Return the group of the extension module, or raise `TypeError` for another type."""
    if group is None:
        return None
    if not isinstance(group, Group):
        message = f"group: wanted a tload.Group, found {type(group).__qualname__}"
        raise TypeError(message)
    return group._raw  # noqa: SLF001
