"""Loads of an engine's model by a load plan: one from an earlier start, or one that is recorded.

Whatever speaks against a plan is one log line, and the engine's loader then loads as it would have.
Imports no engine.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from tload import _tload, plans
from tload._engines import form
from tload._engines.coverage import Writes
from tload._engines.recorder import writes_of
from tload._errors import Error, PeerError
from tload._load.collections import no_collections
from tload._options import store_options
from tload._ranks.group import raw_group
from tload.plans.plan import DTYPES, FIXED, PLACE, PLACE_DTYPE, PLACE_OFFSET, TENSOR
from tload.vllm._weights import how

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tload._engines.coverage import Parameter
    from tload.plans import Plan
    from tload.plans.run import Loaded
    from tload.vllm._weights import Weights as Source

    Weights = Iterator[tuple[str, torch.Tensor]]
    Load = Callable[[Weights], object]

FILES_MAX = 128
"""Most plans and refusals that are kept, the last ones that were used."""

JOIN_SECONDS = 30.0
"""Time for which a rank waits for what the others say, without `join_timeout`."""

PASSING = (MemoryError, OSError, torch.OutOfMemoryError)
"""Errors of a loader that say nothing about its plan: the next start tries again."""


@dataclass(frozen=True, kw_only=True)
class About:
    """An engine's description of a load of a model's own weights."""

    engine: str
    """Its name and version."""
    facts: Mapping[str, object]
    """Facts that a plan may depend on besides the form of the model: see `tload.plans.key`."""
    against: str | None = None
    """Reason against a plan for this load, if the engine knows one."""


@dataclass(frozen=True, kw_only=True)
class _Found:
    """Way in which a rank can load a model."""

    way: str = "normal"
    """`"plan"`, `"record"` or `"normal"`."""
    reason: str = ""
    """Reason against a plan, if it is the normal way."""
    key: str = ""
    path: Path = Path()
    headers: str = ""
    """Digest of the headers of the checkpoint."""
    before: form.Form = field(default_factory=dict)
    """Form of the model before the load."""
    plan: Plan | None = None


class Outcome(NamedTuple):
    """A load by a plan."""

    returned: object
    """Value that the loader returned."""
    plan: Plan
    recorded: bool


@dataclass(kw_only=True)
class Attempt:
    """A load that may go by a plan."""

    weights: Weights
    """The iterator that the engine was given. If its model gets another one, the engine changes
    tensors on the way, and there is no plan."""
    source: Source
    """The open weights."""
    about: Callable[[torch.nn.Module], About]
    records: bool
    """True if a plan may be recorded: not for a model whose weights were processed already."""
    folder: Path
    shown: str
    logger: logging.Logger

    def load(self, model: torch.nn.Module, load: Load) -> Outcome | None:
        """Load a model by a plan; `None` if the engine's loader has to load it.

        Raises:
            RuntimeError: The checkpoint cannot be read, with the `tload.Error` as its cause.
        """
        with no_collections():
            return self._load(model, load)

    def _load(self, model: torch.nn.Module, load: Load) -> Outcome | None:
        opened = self.source.opened
        found = self._found(model)
        if not self._agreed(found.way):
            # Ranks that load in different ways do not wait for each other.
            opened.leave_group()
        if found.way == "normal":
            self._tell(found.reason)
            return None
        try:
            if found.plan is not None:
                return self._run(found, found.plan, model, load)
            # A recording may be refused on one rank only.
            opened.leave_group()
            return self._record(found, model, load)
        except Error as error:
            raise opened.failure(error) from error

    def _found(self, model: torch.nn.Module) -> _Found:
        """Return how this rank can load the model."""
        opened, found = self.source.opened, _Found()
        try:
            about = self.about(model)
            reason = about.against or self._against(model)
            if reason is not None:
                return replace(found, reason=reason)
            before, headers = form.of(model), plans.headers_of(opened.checkpoint)
            key = plans.key(
                about.engine,
                headers=headers,
                form=form.digest(before),
                names=opened.names,
                device=opened.device,
                **about.facts,
            )
        except Exception as error:  # noqa: BLE001  # versions of engines differ: this one is described in other ways
            return replace(found, reason=f"{type(error).__name__}: {error}")
        path = self.folder / f"{key[:40]}.plan"
        found = replace(found, key=key, path=path, before=before, headers=headers)
        plan = plans.restore(path, key)
        if plan is not None:
            return replace(found, way="plan", plan=plan)
        known = plans.refusal(path, key)
        if known is not None or not self.records:
            return replace(found, reason=known or "none was recorded for a model of this form")
        return replace(found, way="record")

    def _agreed(self, way: str) -> bool:
        """Return whether all ranks that opened the checkpoint together load it in this way."""
        opened = self.source.opened
        if opened.group is None:
            return True
        limit = opened.settings.options.join_timeout
        seconds = JOIN_SECONDS if limit is None else _tload.seconds("join_timeout", limit)
        try:
            return set(raw_group(opened.group).exchange(way.encode(), seconds)) == {way.encode()}  # type: ignore[union-attr]
        except PeerError as error:
            self.logger.warning("tload loads on every rank alone: %s", error)
            return False

    def _run(self, found: _Found, plan: Plan, model: torch.nn.Module, load: Load) -> Outcome | None:
        start, opened = time.perf_counter(), self.source.opened
        try:
            loaded = self._loaded(plan, found.headers, model, load)
        except plans.RefusedError as error:
            opened.leave_group()
            self._tell(str(error))
            return None
        with contextlib.suppress(OSError):
            os.utime(found.path)
        self.logger.info(
            "tload loaded %d tensors of `%s` by a load plan in %.2f seconds%s: %s",
            len(plan.sources) + len(plan.normal),
            self.shown,
            time.perf_counter() - start,
            _normally(plan),
            how(loaded.reports, loaded.straight_bytes),
        )
        return Outcome(None if plan.loaded is None else set(plan.loaded), plan, recorded=False)

    def _loaded(self, plan: Plan, headers: str, model: torch.nn.Module, load: Load) -> Loaded:
        """Load by a plan, with the other ranks if they can."""
        opened = self.source.opened
        if opened.group is not None:
            try:
                return plans.run(
                    plan,
                    model,
                    opened.checkpoint,
                    load,
                    device=opened.device,
                    headers=headers,
                    options=opened.options(together=True),
                    group=opened.group,
                )
            except PeerError as error:
                # A plan that runs again writes the same. Other files on some ranks are an error.
                if error.expected is not None:
                    raise
                self.logger.warning("tload loads on every rank alone: %s", error)
                opened.leave_group()
        options = opened.options(together=False)
        return plans.run(plan, model, opened.checkpoint, load, device=opened.device, headers=headers, options=options)

    def _record(self, found: _Found, model: torch.nn.Module, load: Load) -> Outcome | None:
        start, opened = time.perf_counter(), self.source.opened
        key, path = found.key, found.path
        returned: list[object] = []

        def noting(weights: Weights) -> object:
            returned.append(load(weights))
            return returned[-1]

        try:
            plan = plans.record(
                model,
                opened.checkpoint,
                noting,
                key=key,
                names=opened.names,
                device=opened.device,
                headers=found.headers,
                options=opened.options(together=False),
            )
            _require_repeatable(returned[0], found.before, form.of(model))
        except plans.RefusedError as error:
            self._tell(str(error))
            if not isinstance(error.__cause__, PASSING) and plans.save_refusal(path, key, str(error)):
                _prune(path.parent)
            return None
        if plans.save(plan, path):
            _prune(path.parent)
        self.logger.info(
            "tload loaded %d tensors of `%s` in %.2f seconds, and recorded a load plan for the next start%s",
            len(plan.sources) + len(plan.normal), self.shown, time.perf_counter() - start, _normally(plan),
        )  # fmt: skip
        return Outcome(returned[0], plan, recorded=True)

    def _against(self, model: torch.nn.Module) -> str | None:
        """Return what speaks against a plan, whatever the engine."""
        if any(parameter.is_meta for parameter in model.parameters()):
            return "parameters get their memory during the load"
        kinds = {parameter.device.type for parameter in model.parameters()} - {"cpu"}
        if kinds and self.source.opened.settings.plan == "auto":
            return f'parameters are in memory of kind {min(kinds)}: "plan": "on" uses one'
        return None

    def _tell(self, reason: str) -> None:
        self.logger.info("tload uses no load plan for `%s`: %s", self.shown, reason)


def folder(source: Any, store: Mapping[str, Any] | None, plan: str) -> Path | None:
    """Return the directory of plans: in the directory of the cache, or in that of the user.

    `None` if the setting `plan` is `"off"`, or if it is `"auto"` and no directory of a cache is given:
    recording takes time, which a start in a container without a lasting directory would spend in vain.
    """
    if plan == "off":
        return None
    given = dict(store_options.merge(source, store_options.read(store), os.environ))
    if given.get("cache_dir"):
        return Path(given["cache_dir"]) / "plans"
    if plan == "auto":
        return None
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path("~/.cache").expanduser()) / "tload" / "plans"  # noqa: PTH117


def writes(plan: Plan, parameters: Iterable[Parameter], first: int) -> Writes:
    """Return what a load by a plan has written to parameters.

    Args:
        plan: The plan.
        parameters: The parameters, by which addresses are found.
        first: The number of the plan's first tensor among those that were handed over.
    """
    found = {one.name: one.start for one in parameters}
    dims = plan.dims
    made = Writes([], [], [])
    for row in plan.rows.tolist():
        start = found.get(plan.places[row[PLACE]].name)
        if start is not None:
            size = DTYPES[plan.dtypes[row[PLACE_DTYPE]]].itemsize
            at = start + row[PLACE_OFFSET] * size
            shape, stride = row[FIXED : FIXED + dims], row[FIXED + 2 * dims :]
            writes_of(made, at, shape, stride, size, first + row[TENSOR])
    return made


def full(plan: Plan) -> set[str]:
    """Return the names of the parameters that a plan writes completely."""
    return {plan.places[index].name for index in plan.full()}


def _prune(directory: Path) -> None:
    """Remove all plans and refusals but the `FILES_MAX` that were used last."""
    with contextlib.suppress(OSError):
        known = sorted(directory.glob("*.plan"), key=lambda each: each.stat().st_mtime, reverse=True)
        for each in known[FILES_MAX:]:
            each.unlink(missing_ok=True)


def _normally(plan: Plan) -> str:
    return f"; {len(plan.normal)} by the engine's loader" if plan.normal else ""


def _require_repeatable(returned: object, before: form.Form, after: form.Form) -> None:
    """Require that a load left nothing in the model but the contents of its parameters.

    Raises:
        RefusedError: It did.
    """
    changed = form.difference(before, after)
    if changed is not None:
        message = f"the loader changes {changed!r}, which no plan repeats"
        raise plans.RefusedError(message)
    names = cast("set[Any]", returned) if isinstance(returned, (set, frozenset)) else None
    if returned is not None and (names is None or not all(isinstance(name, str) for name in names)):
        message = f"the loader returns a value of type {type(returned).__qualname__}"
        raise plans.RefusedError(message)
