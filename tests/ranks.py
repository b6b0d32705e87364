"""Processes of `torch.distributed`, for tests of what ranks do together."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from forked import start_processes
from servers import unused_port

if TYPE_CHECKING:
    from collections.abc import Callable


def start_ranks(size: int, act: Callable[..., None], *arguments: Any, fresh: bool = False) -> None:
    """Call `act(rank, *arguments)` in each of `size` processes of a gloo group, and wait for them.

    `act` must be a function of a module. An exception of any rank is raised here. `fresh` as for
    `start_processes`.
    """
    start_processes(size, _rank, size, unused_port(), act, arguments, fresh=fresh)


def _rank(rank: int, size: int, port: int, act: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    import torch.distributed

    torch.set_num_threads(1)
    values = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": size, "RANK": rank, "LOCAL_RANK": rank}
    os.environ.update({name: str(value) for name, value in values.items()})
    torch.distributed.init_process_group("gloo")
    act(rank, *arguments)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
