"""Stand-ins for tensors of a checkpoint: shapes, strides and offsets, but no data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch

from tload.plans.plan import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self


class Copy(NamedTuple):
    """A box of a tensor of the checkpoint, and the one of a parameter that it was copied to."""

    place: str
    source_dtype: str
    place_dtype: str
    source_offset: int
    place_offset: int
    shape: tuple[int, ...]
    source_stride: tuple[int, ...]
    place_stride: tuple[int, ...]


@dataclass(slots=True)
class OriginRecord:
    """Copies that a loader makes of a tensor of the checkpoint."""

    name: str
    copies: list[Copy] = field(default_factory=list)
    is_normal: bool = False
    """The loader needs its values."""


class Origin:
    """A tensor of the checkpoint that stand-ins show. Its memory lives as long as they do."""

    __slots__ = ("dtype", "real", "record", "repeats", "shape")

    def __init__(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        """Describe a tensor as torch has it."""
        self.record = OriginRecord(name)
        self.dtype, self.shape = dtype, shape
        self.real: torch.Tensor | None = None
        """Its values, once the loader has needed them."""
        self.repeats: list[tuple[torch.Tensor, StandIn]] = []
        """Copies that were noted, and not done: destinations and stand-ins."""


class StandIn(torch.Tensor):
    """A view of a tensor of the checkpoint.

    `box` has its elements within the memory of the tensor, as a tensor on the meta device; `seen`
    has the strides and the dtype that the loader sees, which differ from those of `box` after a
    copy or a conversion that was not done.
    """

    origin: Origin
    box: torch.Tensor
    seen: torch.Tensor

    @staticmethod
    def __new__(cls: type[Self], origin: Origin, box: torch.Tensor, seen: torch.Tensor, device: torch.device) -> Self:
        """Make the stand-in."""
        made: Self = torch.Tensor._make_wrapper_subclass(  # noqa: SLF001
            cls,
            seen.size(),
            strides=seen.stride(),
            storage_offset=seen.storage_offset(),
            dtype=seen.dtype,
            device=device,
        )
        made.origin, made.box, made.seen = origin, box, seen
        return made

    def __init__(self, *_: object) -> None:
        pass

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

    def materialized(self) -> torch.Tensor:
        """Return the values, of an origin that has them."""
        whole = self.origin.real
        assert whole is not None  # noqa: S101
        box, seen = self.box, self.seen
        row = whole.reshape(-1)
        if box.dtype is not whole.dtype:
            row = row.view(torch.uint8).view(box.dtype)
        values = row.as_strided(box.size(), box.stride(), box.storage_offset())
        if box is not seen:
            made = torch.empty_strided(seen.size(), seen.stride(), dtype=seen.dtype, device="cpu")
            values = made.copy_(values)
        return values.to(self.device)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"StandIn({self.origin.record.name!r}, {tuple(self.seen.shape)}, {self.seen.dtype})"
