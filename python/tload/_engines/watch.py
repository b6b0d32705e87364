"""Watches one `load_weights` of an engine's model: which parameters it fills, and how it fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tload._engines import coverage, planned
from tload._engines.recorder import Recorder
from tload._errors import Error

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import torch

    from tload._engines.recorder import Describe

MissingWeights = Literal["error", "warn", "off"]

GONE = "the weights that the model had before are gone: reload a complete checkpoint, or restart the engine"

EXTENDED = (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""Errors whose messages are extended. Others, such as those for too little memory, get a note."""


@dataclass(kw_only=True)
class Watch:
    """Settings of the watch over one load."""

    shown: str
    """Name of the source in messages."""
    missing_weights: MissingWeights
    """Treatment of parameters that got no weights."""
    logger: logging.Logger
    describe: Describe
    """Returns the fields of a `coverage.Parameter` that the engine knows."""
    parts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of the modules that a stacked module replaces, by its name."""
    present: Collection[str] = ()
    """Names of the tensors of the checkpoint, if they are known before the load."""
    replaces: bool = False
    """The model had weights before."""
    known: Collection[str] | None = None
    """Names of the parameters of the first load, if this is another one. Engines add parameters when
    they process weights, and undo ties between parameters while they reload: others are not judged."""
    attempt: planned.Attempt | None = None
    """Load by a plan, if the weights allow one."""
    done: Callable[[set[str] | None, Collection[str]], None] = lambda _used, _names: None
    """Called after a load without errors with the names of the tensors that were copied to
    parameters, or `None` if that was not recorded, and with those of the parameters, except such as
    got no weights."""


def arm(model: torch.nn.Module, watch: Watch) -> None:
    """Watch the next call of the model's `load_weights`."""
    disarm(model)
    plain, own = model.load_weights, vars(model).get("load_weights")

    def load_weights(weights: Any, *arguments: Any, **keywords: Any) -> Any:
        disarm(model)
        return _run(model, watch, lambda given: plain(given, *arguments, **keywords), weights)  # type: ignore[operator]

    load_weights._tload_replaced = own  # type: ignore[attr-defined]  # noqa: SLF001
    model.load_weights = load_weights  # type: ignore[assignment]


def disarm(model: torch.nn.Module) -> None:
    """Let the model's `load_weights` be its own again."""
    armed: Any = vars(model).get("load_weights")
    if hasattr(armed, "_tload_replaced"):
        del model.load_weights
        if armed._tload_replaced is not None:  # noqa: SLF001
            model.load_weights = armed._tload_replaced  # noqa: SLF001


def _run(model: torch.nn.Module, watch: Watch, load: Callable[[Any], Any], weights: Any) -> Any:
    parameters = list(model.named_parameters())
    names = frozenset(name for name, _ in parameters) if watch.known is None else watch.known
    attempt = watch.attempt if watch.attempt is not None and watch.attempt.weights is weights else None
    if watch.missing_weights == "off":
        handed: list[str] = []

        def unjudged(given: Any) -> Any:
            return _explained(lambda: load(_noting(given, handed)), handed, watch)

        outcome = None if attempt is None else _by_plan(attempt, model, unjudged, watch)
        loaded = unjudged(weights) if outcome is None else outcome.returned
        watch.done(None, names)
        return loaded
    recorder = Recorder((name, parameter) for name, parameter in parameters if name in names)

    def watched(given: Any) -> Any:
        return _explained(lambda: load(recorder.watch(given)), recorder.handed, watch)

    with recorder:
        outcome = None if attempt is None else _by_plan(attempt, model, watched, watch)
        loaded = watched(weights) if outcome is None else outcome.returned
    known = list(recorder.parameters(model.named_parameters(), watch.describe))
    writes, handed = recorder.writes(), recorder.handed
    used = {handed[at] for at in {*writes.tensors, *(each.tensor for each in writes.columns)} if at >= 0}
    if outcome is not None:
        used = {*(source.name for source in outcome.plan.sources), *outcome.plan.normal}
    if outcome is not None and planned.full(outcome.plan) >= {one.name for one in known if one.nbytes}:
        known = []  # nothing can be missing
    elif outcome is not None and not outcome.recorded:
        writes.add(planned.writes(outcome.plan, known, len(handed)))
        handed = [*handed, *(source.name for source in outcome.plan.sources)]
    verdict = coverage.judge(
        known,
        writes,
        handed,
        present=watch.present,
        loaded=loaded if isinstance(loaded, (set, frozenset)) else (),
        parts=watch.parts,
    )
    _tell(verdict, watch, type(model).__name__)
    watch.done(used, frozenset(names) - {one.name for one in verdict.missing})
    return loaded


def _by_plan(attempt: planned.Attempt, model: torch.nn.Module, load: Callable[[Any], Any], watch: Watch) -> Any:
    """Load by a plan, if there is one. Then no tensor is read in another way."""
    outcome = _explained(lambda: attempt.load(model, load), (), watch)
    if outcome is not None:
        attempt.source.close()
    return outcome


def _noting(weights: Any, handed: list[str]) -> Iterator[Any]:
    for weight in weights:
        handed.append(weight[0])
        yield weight


def _explained(load: Callable[[], Any], handed: Sequence[str], watch: Watch) -> Any:
    """Load, and let errors of the engine name the tensor and the source."""
    try:
        return load()
    except Exception as error:
        own = isinstance(error.__cause__, Error) or isinstance(error, Error)
        after = f"while loading {handed[-1]!r} from `{watch.shown}`" if handed and not own else ""
        gone = GONE if watch.replaces and GONE not in str(error) else ""
        if type(error) in EXTENDED and len(error.args) <= 1 and (after or gone):
            text = str(error.args[0]) if error.args else ""
            found = text or type(error).__name__
            error.args = ("; ".join(filter(None, [f"{after}: {found}" if after else found, gone])),)
        else:
            for note in filter(None, [after, gone]):
                error.add_note(note)
        raise


def _tell(verdict: coverage.Verdict, watch: Watch, model: str) -> None:
    for reason, names in verdict.excused.items():
        watch.logger.info(
            "tload: `%s` has nothing for %d parameters of %s: %s, such as %s",
            watch.shown, len(names), model, reason, names[0],
        )  # fmt: skip
    if not verdict.missing:
        return
    message = coverage.describe(verdict, watch.shown, model)
    if watch.missing_weights == "warn":
        watch.logger.warning("%s: they have arbitrary values", message)
        return
    gone = f"\n  {GONE}" if watch.replaces else ""
    hint = 'complete the checkpoint; "missing_weights": "warn" starts with arbitrary values in their place'
    raise ValueError(f"{message}\n  hint: {hint}{gone}")
