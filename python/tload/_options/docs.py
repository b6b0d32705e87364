"""Docs of fields for `help`, which does not show the strings below them in the source."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

C = TypeVar("C", bound=type)


def documents_fields(cls: C) -> C:
    """Decorate a class whose `help` is to list its fields with their docs."""
    cls.__doc__ = _FieldDocs(cls.__doc__ or "")  # type: ignore[assignment]
    return cls


class _FieldDocs:
    """Docstring that ends with the docs of the fields, which are read when it is first used."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._is_complete = False

    def __get__(self, _instance: object, owner: type) -> str:
        if not self._is_complete:
            self._is_complete = True
            self._text = _with_fields(self._text, owner)
        return self._text


def _with_fields(text: str, cls: type) -> str:
    # Only `help` needs them.
    import inspect
    import textwrap

    documented = [kind for kind in cls.__mro__ if isinstance(vars(kind).get("__doc__"), _FieldDocs)]
    lines = []
    for name, doc in (field for kind in documented for field in _fields(kind)):
        lines += [f"{name}:", textwrap.indent(doc, "    ")]
    fields = textwrap.indent("\n".join(lines), "    ")
    return f"{inspect.cleandoc(text)}\n\nAttributes:\n{fields}" if lines else text


def _fields(cls: type) -> Iterator[tuple[str, str]]:
    """Yield the fields that a class adds to those of its bases, with their docs."""
    import ast
    import inspect
    import textwrap
    from itertools import pairwise

    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError, ValueError, SyntaxError):
        return  # The source is not installed.
    for field, doc in pairwise(node.body if isinstance(node, ast.ClassDef) else ()):
        match field, doc:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(said))):
                yield name, inspect.cleandoc(said)
