"""Processes of `torch.distributed`, for tests of what ranks do together."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from conftest import require
from servers import unused_port

if TYPE_CHECKING:
    from collections.abc import Callable


def start_ranks(size: int, act: Callable[..., None], *arguments: Any) -> None:
    """Call `act(rank, *arguments)` in each of `size` processes of a gloo group, and wait for them.

    `act` must be a function of a module. An exception of any rank is raised here.
    """
    torch = require("torch")
    torch.multiprocessing.spawn(_rank, (size, unused_port(), act, arguments), nprocs=size)


def _rank(rank: int, size: int, port: int, act: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    import torch.distributed

    for name in list(os.environ):
        if name.startswith("RUNAI_STREAMER_"):
            del os.environ[name]
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    act(rank, *arguments)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
