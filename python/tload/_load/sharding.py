"""One rank's share of a checkpoint: tensor, expert and pipeline parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tload import _tload
from tload._load import load_targets
from tload._load.selection import texts
from tload._sources.opened import open_raw
from tload._tensors import dtensors

if TYPE_CHECKING:
    from typing import Any, Self

    import torch

    from tload.typing import Names, Source


class Sharding:
    """One rank's share of a checkpoint: the tensors that it loads, and the slices of those it splits.

    Made by `Sharding.tp`, `Sharding.ep`, `Sharding.pp` and `Sharding.of`. Pass it as `slices=` to `tload.stream`,
    `load` or `load_into`: of the tensors that are selected, those of the rank are loaded, and of
    those that are split, the rank's slice. `a & b` combines two: `b` divides what `a` leaves to the
    rank.

    Examples:
        >>> attention = tload.Sharding.tp(rank, 8, {"*.q_proj.weight": 0, "*.o_proj.weight": 1})
        >>> experts = tload.Sharding.ep(rank, 8, "*.experts.{}.*")
        >>> state = tload.load("model_dir", slices=attention & experts)
    """

    __slots__ = ("_raw",)

    def __init__(self, raw: _tload.Sharding) -> None:
        """Wrap the sharding that one of the methods made."""
        self._raw = raw

    @classmethod
    def tp(cls, rank: int, size: int, dims: Mapping[str, int]) -> Self:
        """Split tensors along a dimension: tensor parallelism.

        Divides as `torch.chunk` and `Shard` of `DTensor` do: each rank gets the length divided by
        `size`, rounded up, until nothing is left. The last ranks get less, or nothing (a slice of
        length 0), if `size` does not divide the length.

        Args:
            rank: The number of this rank, from 0.
            size: The number of ranks.
            dims: Globs of whole names, each with a dimension. The first one that matches a tensor
                applies. Tensors without a match are loaded whole by every rank.

        Returns:
            The sharding.

        Raises:
            InvalidRequestError: `rank` is not below `size`, or a glob is malformed.
        """
        if not isinstance(dims, Mapping):
            message = f"dims: wanted a mapping of globs to dimensions, found {type(dims).__qualname__}"
            raise TypeError(message)
        return cls(_tload.Sharding.tp(rank, size, list(dims.items())))

    @classmethod
    def ep(cls, rank: int, size: int, pattern: str) -> Self:
        """Divide whole experts among the ranks: expert parallelism.

        The numbers found are divided into contiguous runs of equal length; the first ranks get one
        more if `size` does not divide their count. Experts stacked in one tensor have no numbers:
        split their dimension with `tp`.

        Args:
            rank: The number of this rank, from 0.
            size: The number of ranks.
            pattern: A glob of whole names with `{}` in the place of the expert's number, such as
                `"*.experts.{}.*"`. Tensors that do not match are loaded by every rank.

        Returns:
            The sharding.

        Raises:
            InvalidRequestError: `rank` is not below `size`, or the pattern is malformed.
        """
        return cls(_tload.Sharding.ep(rank, size, pattern))

    @classmethod
    def pp(cls, rank: int, size: int, pattern: str, *, first: Names = (), last: Names = ()) -> Self:
        """Divide whole layers among the ranks: pipeline parallelism.

        Layers are divided as experts are by `ep`.

        Args:
            rank: The number of this rank, from 0.
            size: The number of ranks.
            pattern: A glob of whole names with `{}` in the place of the layer's number, such as
                `"*.layers.{}.*"`. Tensors that match no glob are loaded by every rank.
            first: Globs of tensors outside of layers that only the first rank loads.
            last: Globs of tensors outside of layers that only the last rank loads. Tensors that
                match both, such as tied embeddings, are loaded by both.

        Returns:
            The sharding.

        Raises:
            InvalidRequestError: `rank` is not below `size`, or a pattern is malformed.
        """
        ends = [texts(name, globs) if globs else [] for name, globs in (("first", first), ("last", last))]
        return cls(_tload.Sharding.pp(rank, size, pattern, *ends))

    @classmethod
    def of(cls, target: torch.nn.Module | Mapping[str, Any]) -> Self:
        """Take the parts that this rank holds of DTensors: FSDP, tensor parallelism of torch.

        `load_into` does this by itself for targets that are DTensors. No rank communicates.

        Args:
            target: A `torch.nn.Module` (the tensors of its `state_dict`), or a mapping of names to
                tensors. They may be on the meta device. Tensors that are no DTensors, and those of
                the checkpoint that are not among them, are loaded whole.

        Returns:
            The sharding.

        Raises:
            InvalidRequestError: The part of a DTensor is no slice of the tensor, for example with
                the placement `Partial`; or this rank is not part of its device mesh. When it is
                used: a DTensor has another shape than the checkpoint's tensor.
            UnsupportedError: torch is older than 2.7.
            TypeError: `target` is neither a module nor a mapping of names.

        Examples:
            >>> state = tload.load("model_dir", slices=tload.Sharding.of(model))
        """
        return cls(_tload.Sharding.from_slices(dtensors.parts(dtensors.among(load_targets.by_name(target)))))

    def names(self, source: Source) -> list[str]:
        """Return the names of this rank's tensors, in file order.

        Args:
            source: An open `Checkpoint`, or whatever `tload.open` takes.

        Returns:
            The names.

        Raises:
            NoSuchTensorError: A pattern matches no tensor.
            InvalidRequestError: A tensor does not have the dimension of its rule.
            Error: The checkpoint cannot be opened: see `tload.open`.
        """
        return self._raw.names(open_raw(source, None))

    def slices(self, source: Source) -> dict[str, tuple[slice, ...]]:
        """Return the indices of this rank's tensors that are split, by name.

        Args:
            source: An open `Checkpoint`, or whatever `tload.open` takes.

        Returns:
            The indices, for `slices=`.

        Raises:
            Error: As for `names`.
        """
        return dict(self._raw.slices(open_raw(source, None)))

    def __and__(self, other: object) -> Sharding:
        if not isinstance(other, Sharding):
            return NotImplemented
        return Sharding(self._raw.both(other._raw))
