"""The search for parameters that a load left without weights, without an engine: what is missing,
what may be, and the names of the tensors that were not there."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import tload
from conftest import require
from tload._engines import reload
from tload._engines.coverage import Columns, Parameter, Writes, describe, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tload._engines.coverage import Verdict


def writes(*ranges: tuple[int, int, int], columns: Iterable[Columns] = ()) -> Writes:
    """Writes of `(start, size, tensor)`."""
    return Writes([one[0] for one in ranges], [one[1] for one in ranges], [one[2] for one in ranges], list(columns))


def missing(verdict: Verdict) -> dict[str, tuple[str, ...]]:
    return {one.name: one.tensors for one in verdict.missing}


GATE_UP = [Parameter(f"layers.{at}.mlp.gate_up_proj.weight", at * 1000, 200) for at in range(3)]
PARTS = {"gate_up_proj": ["gate_proj", "up_proj"]}
NAMES = [f"layers.{layer}.mlp.{part}_proj.weight" for layer in range(3) for part in ("gate", "up")]
FULL = [(1000 * layer + 100 * part, 100, 2 * layer + part) for layer in range(3) for part in range(2)]


def test_complete_parameters_are_not_missing() -> None:
    assert not judge(GATE_UP, writes(*FULL), NAMES).missing
    # In any order, twice, in pieces, and by one write over several parameters.
    assert not judge(GATE_UP, writes(*FULL[::-1], *FULL), NAMES).missing
    assert not judge(GATE_UP, writes((0, 3000, 0)), NAMES).missing
    assert not judge(GATE_UP[:1], writes(*((at, 1, 0) for at in range(200))), NAMES).missing


@pytest.mark.parametrize(
    ("left_out", "named"),
    [
        ([3], {"layers.1.mlp.gate_up_proj.weight": (NAMES[3],)}),
        ([2, 3], {"layers.1.mlp.gate_up_proj.weight": (NAMES[2], NAMES[3])}),
        ([0, 5], {GATE_UP[0].name: (NAMES[0],), GATE_UP[2].name: (NAMES[5],)}),
        # No layer has it: the names of the parts help, less those that are there.
        ([1, 3, 5], {one.name: (NAMES[2 * at + 1],) for at, one in enumerate(GATE_UP)}),
    ],
)
def test_parts_of_stacked_parameters_are_named(left_out: list[int], named: dict[str, tuple[str, ...]]) -> None:
    present = [name for at, name in enumerate(NAMES) if at not in left_out]
    kept = [(start, size, present.index(NAMES[at])) for start, size, at in FULL if at not in left_out]
    assert missing(judge(GATE_UP, writes(*kept), present, present=present, parts=PARTS)) == named


EXPERTS = [Parameter(f"layers.{at}.experts.w13_weight", at * 10_000, 8 * 200, experts=8) for at in range(2)]
EXPERT_NAMES = [f"layers.{layer}.experts.{at}.{part}.weight" for layer in range(2) for at in range(8) for part in "ab"]
EXPERT_WRITES = [
    (10_000 * layer + 200 * at + 100 * part, 100, 16 * layer + 2 * at + part)
    for layer in range(2)
    for at in range(8)
    for part in range(2)
]


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("absent", ["layers.0.experts.3.b.weight", "layers.0.experts.7.a.weight"])
def test_missing_expert_is_named_by_other_layers_or_experts(layers: int, absent: str) -> None:
    at = EXPERT_NAMES.index(absent)
    present = [name for name in EXPERT_NAMES[: 16 * layers] if name != absent]
    kept = [
        (start, size, present.index(EXPERT_NAMES[tensor]))
        for start, size, tensor in EXPERT_WRITES[: 16 * layers]
        if tensor != at
    ]
    verdict = judge(EXPERTS[:layers], writes(*kept), present, present=present)
    assert missing(verdict) == {EXPERTS[0].name: (absent,)}
    assert (verdict.missing[0].written, verdict.missing[0].nbytes) == (1500, 1600)


def test_padding_of_experts_is_no_gap_unless_it_is_in_one_only() -> None:
    padded = [(start, 80, tensor) for start, _, tensor in EXPERT_WRITES]
    verdict = judge(EXPERTS, writes(*padded), EXPERT_NAMES)
    assert not verdict.missing
    assert list(verdict.excused) == ["padding of experts"]
    # Half of every expert is no padding: the second part is missing in all.
    halves = [write for write in EXPERT_WRITES if write[2] % 2 == 0]
    assert set(missing(judge(EXPERTS, writes(*halves), EXPERT_NAMES[::2] * 2))) == {one.name for one in EXPERTS}
    verdict = judge(EXPERTS, writes(*padded[:-1]), EXPERT_NAMES[:-1])
    assert missing(verdict) == {EXPERTS[1].name: (EXPERT_NAMES[-1],)}
    declared = [Parameter("w", 0, 200, needed=160)]
    assert not judge(declared, writes((0, 160, 0)), ["w"]).missing
    assert judge(declared, writes((0, 159, 0)), ["w"]).missing


def test_columns_are_covered_exactly() -> None:
    """Quantised weights are packed with their outputs in columns: parts are side by side."""
    packed = [Parameter(f"layers.{at}.qkv.qweight", 1000 * at, 10 * 60) for at in range(2)]
    names = [f"layers.{layer}.{part}.qweight" for layer in range(2) for part in "qkv"]
    all_ = [
        Columns(1000 * layer + first, run, 60, 10, 3 * layer + part)
        for layer in range(2)
        for part, (first, run) in enumerate([(0, 40), (40, 10), (50, 10)])
    ]
    none = Writes([], [], [])
    assert not judge(packed, Writes([], [], [], all_), names).missing
    for lost in range(6):
        kept = [names[at] for at in range(6) if at != lost]
        left = [
            Columns(c.start, c.run, c.pitch, c.count, kept.index(names[c.tensor])) for c in all_ if c.tensor != lost
        ]
        assert missing(judge(packed, Writes([], [], [], left), kept)) == {packed[lost // 3].name: (names[lost],)}
    # Mixed with rows, and not over all rows.
    mixed = Writes([0], [300], [0], [Columns(300, 40, 60, 5, 0), Columns(340, 20, 60, 5, 0)])
    assert not judge(packed[:1], mixed, names).missing
    mixed = Writes([0], [300], [0], [Columns(300, 40, 60, 5, 0), Columns(340, 20, 60, 4, 0)])
    assert judge(packed[:1], mixed, names).missing[0].written == 580
    assert judge(packed, none, names).missing[0].written == 0


def test_excuses_hold_while_no_layer_has_it() -> None:
    scales = [Parameter(f"layers.{at}.attn.k_scale", 100 * at, 4, excuse="optional") for at in range(3)]
    verdict = judge(scales, writes((5000, 1, 0)), ["x"])
    assert not verdict.missing
    assert verdict.excused == {"optional": [one.name for one in scales]}
    verdict = judge(scales, writes((0, 4, 0), (200, 4, 1)), ["layers.0.attn.k_scale", "layers.2.attn.k_scale"])
    assert missing(verdict) == {scales[1].name: ("layers.1.attn.k_scale",)}


def test_engine_is_believed_only_where_nothing_was_recorded() -> None:
    two = [Parameter("a", 0, 10), Parameter("b", 100, 10)]
    verdict = judge(two, writes((100, 5, 0)), ["b"], loaded={"a", "b"})
    assert missing(verdict) == {"b": ()}


def test_message_names_few_and_counts_the_rest() -> None:
    many = [Parameter(f"layers.{at}.w", 100 * at, 10) for at in range(9)]
    text = describe(judge(many, writes((0, 5, 0)), ["layers.0.w"]), "the-model", "Llama")
    assert text == (
        "`the-model` leaves 9 parameters of Llama without weights: 'layers.0.w' (5 of 10 bytes were written), "
        "'layers.1.w' (nothing was written; no tensor 'layers.1.w'), 'layers.2.w' (nothing was written; no tensor "
        "'layers.2.w'), 'layers.3.w' (nothing was written; no tensor 'layers.3.w') and 5 more"
    )


def recorded(shape: Sequence[int], write: Callable[[Any, Any], None], device: str = "cpu") -> int:
    """Return the number of bytes of a parameter of zeros that count as written, checked by value."""
    torch = require("torch")
    from tload._engines.recorder import Recorder

    parameter = torch.nn.Parameter(torch.zeros(*shape, device=device), requires_grad=False)
    with Recorder([("w", parameter)]) as recorder, torch.device(device):
        write(torch, parameter)
    [known] = recorder.parameters([("w", parameter)], lambda *_: {})
    verdict = judge([known], recorder.writes(), ["w"])
    written = verdict.missing[0].written if verdict.missing else int(parameter.nbytes)
    if device == "cpu":
        assert written == int((parameter != 0).sum()) * 4
    return written


WAYS: dict[str, tuple[Any, int]] = {
    "whole": (lambda torch, w: w.data.copy_(torch.ones(8, 6)), 192),
    "rows": (lambda torch, w: w.data.narrow(0, 2, 3).copy_(torch.ones(3, 6)), 72),
    "columns": (lambda torch, w: w.data.narrow(1, 2, 3).copy_(torch.ones(8, 3)), 96),
    "columns of rows": (lambda torch, w: w.data[1:3, 2:4].copy_(torch.ones(2, 2)), 16),
    "transposed": (lambda torch, w: w.data.t().copy_(torch.ones(6, 8)), 192),
    "part of transposed": (lambda torch, w: w.data.t()[1:3].copy_(torch.ones(2, 8)), 64),
    "reshaped": (lambda torch, w: w.data.view(2, 4, 6)[:, 1].copy_(torch.ones(2, 6)), 48),
    "every second row": (lambda torch, w: w.data[::2].copy_(torch.ones(4, 6)), 96),
    "every second column": (lambda torch, w: w.data[:, ::2].copy_(torch.ones(8, 3)), 96),
    "one element": (lambda torch, w: w.data[3, 3].copy_(torch.tensor(1.0)), 4),
    "cast": (lambda torch, w: w.data[:4].copy_(torch.ones(4, 6, dtype=torch.bfloat16)), 96),
    "filled": (lambda _, w: w.data[6:].fill_(1), 48),
    "assigned rows": (lambda torch, w: w.data.__setitem__(slice(2, 4), torch.ones(2, 6)), 48),
    "assigned element": (lambda _, w: w.data.__setitem__((1, 2), 1.0), 4),
    "parameter itself": (lambda torch, w: w.copy_(torch.ones(8, 6)), 192),
    "for each": (lambda torch, w: torch._foreach_copy_([w.data[0], w.data[2]], [torch.ones(6)] * 2), 48),
    "state": (lambda torch, w: w.data.copy_(torch.ones(8, 6), non_blocking=True), 192),
    "nothing": (lambda torch, w: torch.ones(8, 6).copy_(w.data), 0),
}


@pytest.mark.parametrize("way", WAYS)
def test_writes_are_recorded_exactly(way: str) -> None:
    write, wanted = WAYS[way]
    assert recorded((8, 6), write) == wanted
    # Layers that are reloaded are on `meta`, where tensors have no addresses.
    if "assigned" not in way and way != "nothing":
        assert recorded((8, 6), write, "meta") == wanted


def test_recorder_sees_other_threads_and_leaves_no_trace() -> None:
    torch = require("torch")
    from tload._engines.recorder import FILLING, Recorder

    parameter = torch.nn.Parameter(torch.zeros(64, 128), requires_grad=False)
    with Recorder([("w", parameter)]) as recorder, Recorder([]):

        def copy(first: int) -> None:
            for at in range(first, 64, 8):
                parameter.data[at].copy_(torch.ones(128))

        threads = [threading.Thread(target=copy, args=[first]) for first in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = list(recorder.parameters([("w", parameter)], lambda *_: {}))
    assert not judge(found, recorder.writes(), []).missing
    assert not {*FILLING, "__setitem__"} & set(torch.Tensor.__dict__)
    # Memory that was assigned instead of written is not judged.
    with Recorder([("w", parameter)]) as recorder:
        parameter.data = torch.ones(64, 128)
    assert not list(recorder.parameters([("w", parameter)], lambda *_: {}))


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_recorders_that_overlap_may_end_in_any_order(*, first_ends_first: bool) -> None:
    torch = require("torch")
    from tload._engines.recorder import FILLING, Recorder

    foreach = torch._foreach_copy_
    one, other = (torch.nn.Parameter(torch.zeros(8), requires_grad=False) for _ in range(2))
    recorders = [Recorder([("w", one)]), Recorder([("w", other)])]
    for recorder, parameter in zip(recorders, (one, other), strict=True):
        recorder.__enter__()  # two that overlap, as loads in threads do
        parameter.data[:4].copy_(torch.ones(4))
    order = recorders if first_ends_first else recorders[::-1]
    order[0].__exit__()
    last = one if order[1] is recorders[0] else other
    for parameter in (one, other):
        parameter.data[4:].copy_(torch.ones(4))
    order[1].__exit__()
    assert not {*FILLING, "__setitem__"} & set(torch.Tensor.__dict__)
    assert torch._foreach_copy_ is foreach
    for recorder, parameter in zip(recorders, (one, other), strict=True):
        verdict = judge(recorder.parameters([("w", parameter)], lambda *_: {}), recorder.writes(), [])
        assert bool(verdict.missing) == (parameter is not last)


ENTRIES = {"a.weight": ("BF16", (4, 8)), "b.weight": ("BF16", (8,)), "unused": ("I64", (3,))}
BEFORE = reload.Loaded(ENTRIES, {"a.weight", "b.weight"})


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (ENTRIES, None),
        ({name: ENTRIES[name] for name in ("a.weight", "b.weight")}, None),
        ({**ENTRIES, "more": ("U8", (1,))}, None),
        ({**ENTRIES, "a.weight": ("F32", (4, 8))}, None),
        ({**ENTRIES, "a.weight": ("F8_E4M3", (4, 8))}, r"'a.weight' is F8_E4M3 \[4, 8\], wanted BF16 \[4, 8\]"),
        ({**ENTRIES, "a.weight": ("BF16", (4, 9))}, r"`new`: tensor 'a.weight' is BF16 \[4, 9\], wanted BF16 \[4, 8\]"),
        ({"a.weight": ("BF16", (4, 8))}, "`new` lacks 'b.weight', which the model was loaded from\n"),
        (
            {"x.w": ("BF16", (4, 8)), "y.w": ("BF16", (8,))},
            "`new` lacks 'a.weight', 'b.weight', .*; it has 'x.w', 'y.w' instead\n",
        ),
    ],
)
def test_weights_that_cannot_replace_others_are_refused(found: dict[str, Any], said: str | None) -> None:
    if said is None:
        reload.check(BEFORE, found, "new")
        return
    with pytest.raises(tload.InvalidRequestError, match=said) as caught:
        reload.check(BEFORE, found, "new")
    assert "the model still has its old weights" in str(caught.value.hint)


def test_unrecorded_loads_compare_shapes_only() -> None:
    before = reload.Loaded(ENTRIES, None)
    reload.check(before, {"a.weight": ("BF16", (4, 8))}, "new")
    with pytest.raises(tload.InvalidRequestError):
        reload.check(before, {"a.weight": ("BF16", (1,))}, "new")


def test_reloads_of_wrapped_layers_forget_no_tensor() -> None:
    """With LoRA, vLLM gives parameters other names, so that a reload does not see all that is used."""
    after = reload.Loaded.of(ENTRIES, {"a.weight"}, BEFORE)
    assert after.used == {"a.weight", "b.weight"}
    assert reload.Loaded.of({"b.weight": ENTRIES["b.weight"]}, {"b.weight"}, BEFORE).used == {"b.weight"}
    assert reload.Loaded.of(ENTRIES, {"a.weight", "other"}, None).used == {"a.weight"}
    assert reload.Loaded.of(ENTRIES, None, BEFORE).used is None


def test_only_parameters_of_the_first_load_are_judged() -> None:
    """Engines undo ties while they reload, and add parameters when they process weights."""
    torch = require("torch")
    import logging

    from tload._engines import watch

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, names: Iterable[str]) -> None:
            super().__init__()
            for name in names:
                self.register_parameter(name, torch.nn.Parameter(torch.zeros(2)))

        def load_weights(self, weights: Any) -> None:
            for name, tensor in weights:
                self.get_parameter(name).data.copy_(tensor)

    first: list[Any] = []
    about: dict[str, Any] = {
        "shown": "m",
        "missing_weights": "error",
        "logger": logging.getLogger("tests"),
        "describe": lambda *_: {},
    }
    weights = [("a", torch.ones(2))]
    model = Model("a")
    watch.arm(model, watch.Watch(**about, done=lambda *what: first.extend(what)))
    model.load_weights(iter(weights))
    assert first == [{"a"}, {"a"}]
    model = Model("ab")
    watch.arm(model, watch.Watch(**about, known=first[1]))
    model.load_weights(iter(weights))
    # Those that a first load was let go without are not judged at a reload.
    lacking: list[Any] = []
    warns = {**about, "missing_weights": "warn"}
    watch.arm(model, watch.Watch(**warns, done=lambda *what: lacking.extend(what)))
    model.load_weights(iter(weights))
    assert lacking == [{"a"}, {"a"}]
    watch.arm(model, watch.Watch(**about, known=lacking[1]))
    model.load_weights(iter(weights))
    watch.arm(model, watch.Watch(**about, replaces=True))
    with pytest.raises(ValueError, match=f"'b' .*nothing was written(.*\n)*.*{watch.GONE}"):
        model.load_weights(iter(weights))
    # It is the model's own again, and was never a class's.
    model.load_weights(iter(weights))
    assert "load_weights" not in vars(model)


def test_errors_of_engines_keep_their_class_and_name_the_tensor() -> None:
    torch = require("torch")
    import logging

    from tload._engines import watch

    errors: list[Exception] = [AssertionError(), KeyError("x"), RuntimeError("size"), OSError(5, "two"), MemoryError()]

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def load_weights(self, weights: Any) -> None:
            next(weights)
            raise errors[0]

    while errors:
        model = Model()
        about = watch.Watch(
            shown="m", missing_weights="error", logger=logging.getLogger("tests"), describe=lambda *_: {}
        )
        watch.arm(model, about)
        with pytest.raises(type(errors[0])) as caught:
            model.load_weights(iter([("a.weight", torch.ones(1))]))
        said = [str(caught.value), *getattr(caught.value, "__notes__", [])]
        assert any("while loading 'a.weight' from `m`" in text for text in said), said
        errors.pop(0)
