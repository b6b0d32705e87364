"""Form of a model: classes, their sources, attributes, shapes, at which its loader may look.

A load plan is for a model of the same form, and no loader may change the form while it is recorded:
a load by the plan would leave that out. Knows no engine.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Form: TypeAlias = "dict[str, object]"
"""Facts by the name of the module or parameter, and that of the attribute."""

PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.Size, enum.Enum)
"""Types whose values are facts."""

OPENED = ("quant_method", "scheme", "quant_config")
"""Attributes of modules whose own attributes are facts too: how their weights are stored."""

TORCH = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training")
"""Attributes of modules of torch that are looked at in other ways."""

VERSIONED = frozenset({"torch", "tload", *sys.stdlib_module_names})
"""Packages whose version stands for their sources."""

MAP = "_map"
"""End of the names of tensors whose values are facts: which experts a rank has. Other tensors may
have arbitrary values before they are loaded."""


class Function(NamedTuple):
    """A function or method."""

    module: str
    name: str


def of(model: torch.nn.Module) -> Form:
    """Return the form of a model."""
    return dict(_facts(model))


def digest(form: Form) -> str:
    """Return a digest of a form, and of the sources of all classes and functions in it.

    Those of what these use count too, as far as it is in the same packages.
    """
    found = hashlib.sha256()
    for name, fact in sorted(form.items()):
        if isinstance(fact, type):
            found.update(f"{name}={_class(fact)}\n".encode())
        else:
            found.update(f"{name}={fact!r}\n".encode())
    for content in sorted(hashlib.sha256(Path(file).read_bytes()).digest() for file in _sources(form)):
        found.update(content)
    return found.hexdigest()


def difference(before: Form, after: Form) -> str | None:
    """Return the name of a fact that differs.

    A new container that is empty is no difference: loaders make some for themselves, and empty them.
    """
    if before == after:
        return None
    changed = (name for name in (*before, *after) if before.get(name, ...) != after.get(name, ...))
    return next((name for name in changed if name in before or not _is_empty(after[name])), None)


def _facts(model: torch.nn.Module) -> Iterator[tuple[str, object]]:
    for path, module in model.named_modules():
        yield f"{path}.", type(module)
        for name, value in vars(module).items():
            if name in TORCH:
                continue
            yield from _attribute(f"{path}.{name}", value)
            if name in OPENED and value is not None:
                for inner, its in _attributes(value):
                    yield from _attribute(f"{path}.{name}.{inner}", its)
        for own in (module._parameters, module._buffers):  # noqa: SLF001
            for name, tensor in own.items():
                if tensor is None:
                    continue
                yield from _attribute(f"{path}.{name}", tensor)
                yield f"{path}.{name}:place", (str(tensor.device), tuple(tensor.stride()) if _strided(tensor) else None)
                for inner, its in _attributes(tensor):
                    yield from _attribute(f"{path}.{name}.{inner}", its)


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    yield from getattr(value, "__dict__", {}).items()


def _attribute(name: str, value: Any) -> Iterator[tuple[str, object]]:
    if isinstance(value, PLAIN):
        yield name, value
    elif isinstance(value, torch.Tensor):
        lazy = torch.nn.parameter.is_lazy(value)
        yield name, (_class(type(value)), str(value.dtype), None if lazy else tuple(value.shape))
        yield f"{name}:class", type(value)
        if name.endswith(MAP) and not lazy and not value.is_meta:
            yield f"{name}:values", tuple(value.detach().reshape(-1).tolist())
    elif isinstance(value, torch.nn.Module):
        yield name, type(value)
    elif isinstance(value, (tuple, list, set, frozenset, dict)):
        yield name, (_class(type(value)), len(value))
        if isinstance(value, (tuple, list)) and all(isinstance(each, PLAIN) for each in value):
            yield f"{name}:values", tuple(value)
    elif callable(value) and hasattr(value, "__qualname__"):
        yield name, Function(getattr(value, "__module__", None) or "", value.__qualname__)
        owner = getattr(value, "__self__", None)
        if owner is not None:
            yield f"{name}:of", type(owner)
    else:
        yield name, type(value)
        if isinstance(value, functools.partial):
            yield from _attribute(f"{name}:func", value.func)


def _is_empty(fact: object) -> bool:
    return isinstance(fact, tuple) and (not fact or (fact[-1] == 0 and isinstance(fact[0], str)))


def _strided(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not torch.nn.parameter.is_lazy(tensor)


def _class(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _sources(form: Form) -> set[str]:
    """Return the files of all classes and functions of a form, and of what they use."""
    names = {fact.module for fact in form.values() if isinstance(fact, Function)}
    names |= {kind.__module__ for fact in form.values() if isinstance(fact, type) for kind in fact.__mro__}
    packages = {name.partition(".")[0] for name in names} - VERSIONED
    files, seen = set(), set[str]()
    while names:
        name = names.pop()
        if name in seen or name.partition(".")[0] not in packages:
            continue
        seen.add(name)
        module: Any = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if file is None or not file.endswith(".py"):
            continue
        files.add(file)
        for value in list(vars(module).values()):
            # Without `isinstance`: it would let modules that are imported when they are used be so.
            if issubclass(type(value), (type, types.FunctionType)):
                names.add(getattr(value, "__module__", None) or "")
    return files


def plain(values: Mapping[str, object]) -> dict[str, object]:
    """Return the plain values of a mapping as JSON has them."""
    return {
        name: value if isinstance(value, (bool, int, str, type(None))) else str(value)
        for name, value in values.items()
        if isinstance(value, PLAIN)
    }
