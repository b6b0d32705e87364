"""Watches the operations of a loader.

Notes copies of stand-ins into parameters, and what else it writes to parameters, and refuses what no
plan can repeat.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from tload.plans.places import Owners, require_plain, storage_of
from tload.plans.plan import DIMS_MAX, DTYPES, RefusedError, Written, joined
from tload.plans.reads import Box
from tload.plans.run import copy
from tload.plans.stand_in import Form, StandIn, stand_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tload._checkpoint.checkpoint import Checkpoint
    from tload.plans.places import Owner
    from tload.plans.stand_in import Origin

_ATEN = torch.ops.aten

_COPY = _ATEN.copy_.default
_ITEM = _ATEN._local_scalar_dense.default  # noqa: SLF001
_FILLS = {_ATEN.fill_.Scalar, _ATEN.fill_.Tensor, _ATEN.zero_.default}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Tags of operations whose results tell Python something about values."""

_DECIDES = "what the loader does may depend on values of the checkpoint"

_LIKE = {
    _ATEN.empty_like.default,
    _ATEN.zeros_like.default,
    _ATEN.ones_like.default,
    _ATEN.full_like.default,
    _ATEN.rand_like.default,
    _ATEN.randn_like.default,
    _ATEN.new_empty.default,
    _ATEN.new_empty_strided.default,
    _ATEN.new_zeros.default,
    _ATEN.new_ones.default,
    _ATEN.new_full.default,
}
"""Operations that read no values of their first argument."""

_COPIES = {_ATEN.clone.default, _ATEN._to_copy.default}  # noqa: SLF001
_LOGICAL = {_ATEN._unsafe_view.default: _ATEN.view.default}  # noqa: SLF001
"""Operations that are views of memory that nothing else has, and the views that they are."""

_OF_MEMORY = {_ATEN.as_strided.default, _ATEN.view.dtype, _ATEN.view_as_real.default, _ATEN.view_as_complex.default}
"""Views that depend on the order of memory, not only on indices."""


class Write(NamedTuple):
    """A box of a parameter that was written to."""

    place: str
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def box(self) -> Written:
        """Return the box, with the bytes of its elements."""
        return Written(self.offset, self.shape, self.stride, DTYPES[self.dtype].itemsize)


class Pair(NamedTuple):
    """A box of a tensor, and one of a parameter, which is somewhere in it: many copies have equal ones."""

    source_dtype: str
    place_dtype: str
    source_offset: int
    shape: tuple[int, ...]
    source_stride: tuple[int, ...]
    place_stride: tuple[int, ...]


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of torch on the thread of the loader, while it is entered."""

    def __init__(self, module: torch.nn.Module, checkpoint: Checkpoint) -> None:
        """Record loads of `checkpoint` into `module`."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.module = module
        self.owners = Owners(module)
        self.names: list[str] = []
        """Tensors that the loader got, by number."""
        self.normal: dict[int, None] = {}
        """Numbers of the tensors whose values the loader needs."""
        self.copies = array("q")
        """Copies that were noted: the numbers of tensor, parameter and pair, and the offset in the parameter."""
        self.pairs: dict[Pair, int] = {}
        self.written: dict[str, Owner] = {}
        """Parameters that are written to in any way, in the order of their first writes."""
        self.read: list[Owner] = []
        """Buffers whose values were read."""
        self.writes: dict[Write, None] = {}
        """Boxes that the normal way writes."""
        self.fills: dict[Write, float | int | bool] = {}
        """Boxes that get constants, which depend on no values of the checkpoint."""
        self.state = self.owners.state()
        self.refused: RefusedError | None = None
        self.failed: Exception | None = None
        """Error of reading the checkpoint."""
        self._checkpoint = checkpoint
        self._computed_with: set[int] = set()
        """Storages of tensors with values of the checkpoint, and of what was computed with them."""
        self._number: object = None
        self._views: set[Callable[..., Any]] = set()
        """Operations that neither read nor write memory."""
        self._starts: dict[str, tuple[int, int]] = {}
        """Number of each parameter that was written to, and its first byte in its storage."""
        self._pairs: dict[Any, int | None] = {}
        """Numbers of pairs by what the stand-in and its destination look like."""

    def read_tensor(self, name: str) -> torch.Tensor:
        """Read a whole tensor of the checkpoint."""
        try:
            return self._checkpoint.read(name)
        except Exception as error:
            self.failed = error
            raise

    def watch(self, tensor: torch.Tensor) -> None:
        """Note that a tensor that is no stand-in has values of the checkpoint."""
        self._computed_with.add(storage_of(tensor))

    def _dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            if types and StandIn in types:
                return self._stand_in(func, args, kwargs or {})
            if func in self._views:
                return func._op(*args, **kwargs) if kwargs else func._op(*args)  # noqa: SLF001
            return self._ordinary(func, args, kwargs or {})
        except RefusedError as error:
            self.refused = self.refused or error
            raise

    def _stand_in(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        first = args[0] if args else None
        if func is _COPY:
            return self._copy(first, args[1], args, kwargs)
        if isinstance(first, StandIn):
            if func in _LIKE:
                return func(first.form.seen, *args[1:], **{"device": first.device, **kwargs})
            made = None
            if func.is_view or func in _LOGICAL:
                made = self._view(func, first, args[1:], kwargs)
            elif func in _COPIES:
                made = self._converted(first, kwargs)
            if made is not None:
                return made
            if func._schema.is_mutable and self._changes_memory(first):  # noqa: SLF001
                self._ordinary(func, *self._materialized(func, args, kwargs))
                return first
        return self._ordinary(func, *self._materialized(func, args, kwargs))

    def _changes_memory(self, first: StandIn) -> bool:
        """Return whether a change of a stand-in changes the tensor that it shows: it is no copy.

        Stand-ins of a tensor that was read show its memory from then on, with all changes.
        """
        if first.is_copy or first.device.type != "cpu":
            return False
        self._materialize(first.origin)
        return True

    def _view(self, func: Any, first: StandIn, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Return the view of a stand-in, or `None` if its values are needed."""
        key = (func, tuple(args))
        try:
            made, is_kept = first.form.derived.get(key), not kwargs
        except TypeError:  # a list
            made, is_kept = None, False
        if made is None or not is_kept:
            made = _form(func, first.form, args, kwargs)
            if made is None:
                return None
            if is_kept:
                first.form.keep(key, made)
        if isinstance(made, Form):
            return stand_in(first.origin, made)
        # Like torch, which returns a list of several views.
        return [stand_in(first.origin, each) for each in made]

    def _converted(self, first: StandIn, kwargs: dict[str, Any]) -> StandIn | None:
        """Return a copy of a stand-in, or `None` if its values are needed."""
        form, box = first.form, first.form.box
        dtype = kwargs.get("dtype") or form.dtype
        is_converted = form.dtype is not box.dtype
        if kwargs.get("layout") not in (None, torch.strided) or (is_converted and dtype is not form.dtype):
            return None
        device = kwargs.get("device")
        order = kwargs.get("memory_format") or torch.preserve_format
        seen = form.seen.to(dtype=dtype, copy=True, memory_format=order)
        return stand_in(first.origin, Form(box, seen, form.device if device is None else torch.device(device)))

    def _copy(self, target: Any, source: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if isinstance(target, StandIn):
            message = f"the loader writes to the tensor {target.origin.name!r} of the checkpoint"
            raise RefusedError(message)
        if target.numel() == 0:
            return target
        origin, form = source.origin, source.form
        owner = self._owner(target)
        if owner is None:
            message = f"tensor {origin.name!r} is copied to memory of no parameter"
            raise RefusedError(message)
        key = (form, target.size(), target.stride(), target.dtype, target.is_conj(), target.is_neg())
        pair = self._pairs.get(key, -1)
        if pair == -1:
            pair = self._pairs[key] = self._pair(origin, form, target, owner)
        offset = self._offset(owner, target)
        if pair is None or origin.number in self.normal:
            return self._ordinary(_COPY, *self._materialized(_COPY, args, kwargs))
        origin.copies += (len(self.copies) // 4,)
        self.copies.extend((origin.number, self._starts[owner.name][0], pair, offset))
        return target

    def _pair(self, origin: Origin, form: Form, target: torch.Tensor, owner: Owner) -> int | None:
        """Return the number of the pair of boxes of a copy, or `None` if values are needed."""
        box = form.box
        number = box.numel()
        if box.shape != target.shape:
            box = box.expand(target.size())
        again = any(step == 0 and n > 1 for n, step in zip(box.shape, box.stride(), strict=True))
        if again or number != target.numel():
            message = f"tensor {origin.name!r} is repeated in parameter {owner.name!r}"
            raise RefusedError(message)
        is_converted = form.dtype is not box.dtype
        is_odd = box.is_conj() or box.is_neg() or target.is_conj() or target.is_neg()
        if is_odd or (is_converted and form.dtype is not target.dtype):
            return None
        shape, source_stride, place_stride = joined(box.shape, box.stride(), target.stride())
        if len(shape) > DIMS_MAX:
            message = f"the copy of {origin.name!r} has {len(shape)} dimensions"
            raise RefusedError(message)
        dtypes = _NAMES[box.dtype], _NAMES[target.dtype]
        pair = Pair(*dtypes, int(box.storage_offset()), shape, source_stride, place_stride)
        return self.pairs.setdefault(pair, len(self.pairs))

    def _ordinary(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Do an operation on real tensors, and note what it does to parameters."""
        if func.is_view or func in _LIKE:
            self._views.add(func)
            return func(*args, **kwargs)
        if func is _COPY or func in _FILLS:
            target = args[0]
            if len(args) > 1 and isinstance(args[1], torch.Tensor):
                self._reads(func, args[1])
            owner = self._owner(target) if target.numel() else None
            if owner is not None:
                self._constant(func, self._write(owner, target), args)
                return func(*args, **kwargs)
            return self._computed(func, args, kwargs)
        for tensor in tree_flatten((args, kwargs))[0]:
            if isinstance(tensor, torch.Tensor):
                self._reads(func, tensor)
        return self._computed(func, args, kwargs)

    def _computed(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Do an operation that writes to no parameter, and note whether it computes with values."""
        tensors = tree_flatten((args, kwargs))[0] if self._computed_with else ()
        storages = {storage_of(it) for it in tensors if isinstance(it, torch.Tensor) and it.layout is torch.strided}
        made = func(*args, **kwargs)
        if not storages.isdisjoint(self._computed_with):
            if not _VALUES.isdisjoint(func.tags):
                self._note_number(func, made)
            written = storages if func._schema.is_mutable else ()  # noqa: SLF001
            results = [it for it in tree_flatten(made)[0] if isinstance(it, torch.Tensor)]
            self._computed_with.update(written, (storage_of(it) for it in results if it.layout is torch.strided))
        return made

    def _note_number(self, func: Any, number: object) -> None:
        """Note that the loader gets a number that is a value of the checkpoint, or depends on some.

        It may only fill a parameter with it: what it does next must not depend on it.
        """
        self.require_no_number()
        if func is not _ITEM:
            raise RefusedError(_DECIDES)
        self._number = number

    def require_no_number(self) -> None:
        """Require that the loader has filled parameters with all numbers that it has got."""
        if self._number is not None:
            raise RefusedError(_DECIDES)

    def _constant(self, func: Any, write: Write, args: Sequence[Any]) -> None:
        """Note what writes to a parameter without a stand-in."""
        is_constant = func is _ATEN.zero_.default
        if func is _ATEN.fill_.Scalar:
            is_constant = self._number is None or self._number != args[1]
            if not is_constant:
                self._number = None
        if is_constant and write not in self.writes:
            value = args[1] if len(args) > 1 else 0
            if self.fills.setdefault(write, value) == value:
                return
            message = f"parameter {write.place!r} gets two constants"
            raise RefusedError(message)
        self.writes[write] = None

    def _reads(self, func: Any, tensor: torch.Tensor) -> None:
        """Note that an operation reads a tensor, or writes to it in an unusual way."""
        if tensor.numel() == 0 or tensor.layout is not torch.strided:
            return
        owner = self.owners.meets(tensor)
        if owner is None:
            return
        if owner.is_parameter or func._schema.is_mutable:  # noqa: SLF001
            message = f"{func} reads or changes parameter {owner.name!r}"
            raise RefusedError(message)
        self.read.append(owner)

    def _owner(self, tensor: torch.Tensor) -> Owner | None:
        if tensor.layout is not torch.strided:
            return None
        owner = self.owners.find(tensor)
        if owner is None:
            # The loader may have made it.
            self.owners.refresh()
            owner = self.owners.find(tensor)
        return owner

    def _write(self, owner: Owner, target: torch.Tensor) -> Write:
        """Return the box of a parameter that is written to."""
        offset = self._offset(owner, target)
        shape, stride, _ = joined(target.shape, target.stride(), target.stride())
        return Write(owner.name, _NAMES[target.dtype], offset, shape, stride)

    def _offset(self, owner: Owner, target: torch.Tensor) -> int:
        """Return the position in a parameter that is written to, in elements of the target."""
        known = self._starts.get(owner.name)
        if known is None:
            require_plain(owner)
            start = int(owner.tensor.storage_offset()) * owner.tensor.element_size()
            known = self._starts[owner.name] = (len(self.written), start)
            self.written[owner.name] = owner
        size = target.element_size()
        offset, rest = divmod(int(target.storage_offset()) * size - known[1], size)
        if rest:
            message = f"parameter {owner.name!r} is written to at an odd address"
            raise RefusedError(message)
        return offset

    def _materialized(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the arguments with values in place of stand-ins."""
        if func._schema.is_mutable:  # noqa: SLF001
            for argument, value in zip(func._schema.arguments, args, strict=False):  # noqa: SLF001
                is_written = argument.alias_info is not None and argument.alias_info.is_write
                if is_written and isinstance(value, StandIn) and (value is not args[0] or value.is_copy):
                    message = f"the loader changes the tensor {value.origin.name!r} of the checkpoint"
                    raise RefusedError(message)

        def values_of(one: Any) -> Any:
            if not isinstance(one, StandIn):
                return one
            self._materialize(one.origin)
            values = one.materialized()
            self.watch(values)
            return values

        return tree_map(values_of, args), tree_map(values_of, kwargs)

    def _materialize(self, origin: Origin) -> None:
        """Read a tensor. From now on it goes the normal way, with what was copied of it before."""
        if origin.real is None:
            origin.real = self.read_tensor(origin.name)
        if origin.number in self.normal:
            return
        self.normal[origin.number] = None
        pairs, owners = list(self.pairs), list(self.written.values())
        for index in origin.copies:
            _, place, pair, offset = self.copies[index * 4 : index * 4 + 4]
            noted, owner = pairs[pair], owners[place]
            shape, stride, _ = joined(noted.shape, noted.place_stride, noted.place_stride)
            self.writes[Write(owner.name, noted.place_dtype, offset, shape, stride)] = None
            copy(origin.real, Box(place, *noted[:3], offset, *noted[3:]), owner.tensor.detach())


def _form(func: Any, form: Form, args: Sequence[Any], kwargs: dict[str, Any]) -> Form | tuple[Form, ...] | None:
    """Return the form of a view, or `None` if it cannot be told without values."""
    seen = box = func(form.seen, *args, **kwargs)
    if form.box is not form.seen:
        if func in _OF_MEMORY:
            return None
        try:
            box = _LOGICAL.get(func, func)(form.box, *args, **kwargs)
        except RuntimeError:
            return None
    if isinstance(seen, torch.Tensor):
        return Form(box, seen, form.device)
    return tuple(Form(one, its, form.device) for one, its in zip(box, seen, strict=True))


# Not in the class: torch would wrap it for its compiler, which imports that, and takes 2 µs a call.
Recorder.__torch_dispatch__ = Recorder._dispatch  # type: ignore[assignment,method-assign]  # noqa: SLF001
