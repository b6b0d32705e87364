"""Processes that tests fork from one that has imported torch.

An import of torch takes three seconds of CPU time, and twice that with transformers or all of
`torch.distributed`. Tests of start and exit begin with a new interpreter instead.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING, Any

from conftest import require

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkServerProcess

IMPORTED = ["pytest", "torch", "torch.distributed.checkpoint", "torch.distributed.fsdp"]


def process(act: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    """Return a process that calls `act(*arguments)`, with the variables of this one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context.Process(target=_call, args=(dict(os.environ), act, arguments))


def start_processes(size: int, act: Callable[..., None], *arguments: Any, fresh: bool = False) -> None:
    """Call `act(number, *arguments)` in each of `size` processes, and wait for them.

    An exception of any of them is raised here, and ends the others. With `fresh`, they begin with a
    new interpreter and end through Python's own exit.
    """
    torch = require("torch")
    multiprocessing.set_forkserver_preload(IMPORTED)
    torch.multiprocessing.start_processes(
        _call_with_number,
        (dict(os.environ), act, arguments),
        nprocs=size,
        start_method="spawn" if fresh else "forkserver",
    )


def _call(environment: dict[str, str], act: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    # Those of the test that started the server are set.
    os.environ.clear()
    os.environ.update(environment)
    act(*arguments)


def _call_with_number(
    number: int, environment: dict[str, str], act: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    _call(environment, act, (number, *arguments))
