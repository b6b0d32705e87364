"""Stand-ins for tensors of a checkpoint: shapes, strides and offsets, but no data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch

from tload.plans.plan import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable


VIEWS_MAX = 1 << 12
"""Most views of a form that are kept."""

_SHORT = ("narrow", "select", "unbind", "unsqueeze", "squeeze", "t", "transpose", "permute", "view", "chunk")
"""Methods whose results for integers are looked up in Python: calls of torch take several times as long."""


class Origin:
    """A tensor of the checkpoint that stand-ins show. Its memory lives as long as they do."""

    __slots__ = ("copies", "name", "number", "real")

    def __init__(self, number: int, name: str) -> None:
        """Name a tensor, the `number`-th that the loader gets."""
        self.number, self.name = number, name
        self.real: torch.Tensor | None = None
        """Its values, once the loader has needed them."""
        self.copies: tuple[int, ...] = ()
        """Numbers of its copies, which were noted and not done."""


class Form:
    """Form of a view of a tensor. Many tensors have equal ones.

    `box` has its elements within the memory of the tensor, as a tensor on the meta device; `seen`
    has the strides and the dtype that the loader sees, which differ from those of `box` after a
    copy or a conversion that was not done.
    """

    __slots__ = ("box", "derived", "device", "dtype", "offset", "seen", "size", "stride")

    def __init__(self, box: torch.Tensor, seen: torch.Tensor, device: torch.device) -> None:
        """Describe a view."""
        self.box, self.seen, self.device = box, seen, device
        # Asking torch for them takes longer than the attributes.
        self.size, self.stride, self.offset, self.dtype = seen.size(), seen.stride(), seen.storage_offset(), seen.dtype
        self.derived: dict[Any, Form | tuple[Form, ...]] = {}
        """Forms of views, by the operation and its arguments."""

    def keep(self, key: Any, made: Form | tuple[Form, ...]) -> None:
        """Keep the form of a view."""
        if len(self.derived) < VIEWS_MAX:
            self.derived[key] = made


class StandIn(torch.Tensor):
    """A view of a tensor of the checkpoint."""

    origin: Origin
    form: Form

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # noqa: SLF001

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Callable[..., Any],
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> NoReturn:
        # While the loader runs, the recorder comes first.
        message = f"{func} is called on a tensor of a recording that is over"
        raise RefusedError(message)

    @property
    def is_copy(self) -> bool:
        """Return whether it shows a copy of elements, not the elements themselves."""
        return self.form.box is not self.form.seen

    def materialized(self) -> torch.Tensor:
        """Return the values, of an origin that has them."""
        whole = self.origin.real
        assert whole is not None  # noqa: S101
        box, seen = self.form.box, self.form.seen
        row = whole.reshape(-1)
        if box.dtype is not whole.dtype:
            row = row.view(torch.uint8).view(box.dtype)
        values = row.as_strided(box.size(), box.stride(), box.storage_offset())
        if box is not seen:
            made = torch.empty_strided(seen.size(), seen.stride(), dtype=seen.dtype, device="cpu")
            values = made.copy_(values)
        return values.to(self.device)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"StandIn({self.origin.name!r}, {tuple(self.form.size)}, {self.form.dtype})"


def stand_in(origin: Origin, form: Form) -> StandIn:
    """Return a view of a tensor.

    A function, because the class of all tensors takes longer to call than this.
    """
    made = _WRAP(StandIn, form.size, form.stride, form.offset, None, form.dtype, torch.strided, form.device)
    made.origin, made.form = origin, form
    return made


_WRAP: Callable[..., StandIn] = torch.Tensor._make_wrapper_subclass  # noqa: SLF001


def _short(name: str) -> Callable[..., Any]:
    """Return a method of stand-ins that does what torch's does, and remembers the form of its result."""
    plain = getattr(torch.Tensor, name)

    def method(self: StandIn, *args: Any, **keywords: Any) -> Any:
        form = self.form
        known: Any
        try:
            known = form.derived[name, args]
        except (KeyError, TypeError):  # a list has no hash
            known = None
        if known is not None and not keywords:
            if type(known) is tuple:
                return tuple([stand_in(self.origin, each) for each in known])
            return stand_in(self.origin, known)
        made = plain(self, *args, **keywords)
        if not keywords and all(type(each) is int for each in args):
            if type(made) is StandIn and made.origin is self.origin:
                form.keep((name, args), made.form)
            elif type(made) is tuple and all(type(each) is StandIn and each.origin is self.origin for each in made):
                form.keep((name, args), tuple(each.form for each in made))
        return made

    return method


for _name in _SHORT:
    setattr(StandIn, _name, _short(_name))
