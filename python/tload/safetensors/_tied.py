"""Tied tensors of a module: a file holds one name of each group that shares memory."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import torch


def removed_names(state: Mapping[str, torch.Tensor], preferred: Collection[str]) -> list[str]:
    """Return the names that a file may omit: all but one of each group that shares memory.

    The kept name is the first in alphabetical order that covers its whole storage, or the first
    such name in `preferred`, if there is one.

    Raises:
        RuntimeError: No name of a group covers its storage.
    """
    removed = []
    for group in _groups(state):
        if len(group) < 2:  # noqa: PLR2004
            continue
        whole = {name for name in group if _is_whole(state[name])}
        if not whole:
            raise RuntimeError(
                "Error while trying to find names to remove to save state dict, but found no suitable name to keep for "
                f"saving amongst: {group}. None is covering the entire storage. Refusing to save/load the model since "
                "you could be storing much more memory than needed. Please refer to "
                "https://huggingface.co/docs/safetensors/torch_shared_tensors for more information. Or open an issue."
            )
        kept = min(whole & set(preferred) or whole)
        removed += sorted(group - {kept})
    return removed


def _groups(state: Mapping[str, torch.Tensor]) -> list[set[str]]:
    """Group the names by storage, and split each group where neighbours do not overlap."""
    storages: defaultdict[tuple[object, int, int], list[str]] = defaultdict(list)
    for name, tensor in state.items():
        if tensor.device.type == "meta":
            continue
        storage = tensor.untyped_storage()
        if storage.data_ptr() and storage.nbytes():
            storages[tensor.device, storage.data_ptr(), storage.nbytes()].append(name)
    groups = []
    for names in storages.values():
        areas = sorted((*_area(state[name]), name) for name in names)
        end = areas[0][0]
        for start, stop, name in areas:
            if start >= end:
                groups.append({name})
            else:
                groups[-1].add(name)
            end = stop
    return groups


def _area(tensor: torch.Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    return start, start + _extent_bytes(tensor)


def _extent_bytes(tensor: torch.Tensor) -> int:
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _is_whole(tensor: torch.Tensor) -> bool:
    storage = tensor.untyped_storage()
    return tensor.data_ptr() == storage.data_ptr() and tensor.nbytes == storage.nbytes()
