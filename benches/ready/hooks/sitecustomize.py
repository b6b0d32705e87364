"""Marks of time in every process of an engine, by being on its path: no change of the engine.

Appends a line of JSON to the file that READY_MARKS names: when the process began, when modules were imported, and when
the model was made, loaded and processed. Wraps one method of vLLM for that, after its import.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import json
import os
import sys
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

MARKS = os.environ.get("READY_MARKS")
LOADER = "vllm.model_executor.model_loader.base_loader"
WATCHED = ("torch", "vllm.v1.engine.llm_engine", "vllm.v1.engine.core", "vllm.v1.worker.cpu_worker", LOADER)


def mark(name: str, **more: float) -> None:
    if MARKS:
        line = {"name": name, "pid": os.getpid(), "at": time.time(), **more}
        with open(MARKS, "a") as file:  # noqa: PTH123
            file.write(json.dumps(line) + "\n")


def _timed(load_weights: Any) -> Any:
    def timed(*arguments: Any, **keywords: Any) -> Any:
        clocks = time.process_time, time.thread_time
        mark("load_weights begins")
        before = [clock() for clock in clocks]
        began = time.perf_counter()
        try:
            return load_weights(*arguments, **keywords)
        finally:
            wall = time.perf_counter() - began
            cpu, thread = (clock() - then for clock, then in zip(clocks, before, strict=True))
            # A thread that is not on a CPU waits: for bytes, for other threads, or for its turn.
            mark("load_weights ends", cpu_seconds=cpu, wait_seconds=max(0.0, wall - thread))

    return timed


def _wrap(module: ModuleType) -> None:
    base = module.BaseModelLoader
    load_model = base.load_model

    @functools.wraps(load_model)
    def marked(self: Any, *arguments: Any, **keywords: Any) -> Any:
        mark("load_model begins")
        self.load_weights = _timed(self.load_weights)
        try:
            return load_model(self, *arguments, **keywords)
        finally:
            del self.load_weights
            mark("load_model ends")

    base.load_model = marked


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules as the others do, and marks the end of their import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in WATCHED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def marked(module: ModuleType) -> None:
                execute(module)
                mark(f"{fullname} imported")
                if fullname == LOADER:
                    _wrap(module)
                elif fullname == "torch" and module.cpu._is_amx_tile_supported():  # noqa: SLF001
                    # vLLM's attention uses tiles before the kernel was asked for them: SIGILL.
                    module.cpu._init_amx()  # noqa: SLF001

            spec.loader.exec_module = marked  # type: ignore[method-assign]
        return spec


if MARKS:
    mark("python begins")
    sys.meta_path.insert(0, _Finder())
