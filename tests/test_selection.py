"""Selections and frameworks in every form: text, lists, compiled patterns, other names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tload
from conftest import require
from files import Content, write_file

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ["Embed.weight", "layers.0.bias", "layers.0.weight", "layers.1.weight", "norm.weight"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.safetensors"
    write_file(path, {name: Content.random("F32", (4,), 0) for name in NAMES})
    return path


def selected(path: Path, **rules: Any) -> list[str]:
    """Return the names that are loaded, by each way to load."""
    names = list(tload.load(path, framework="dlpack", **rules))
    with tload.stream(path, framework="dlpack", order="file", **rules) as stream:
        assert [name for name, _ in stream] == names
    arrays = {name: np.zeros(4, np.float32) for name in names}
    assert tload.load_into(arrays, path, **rules).tensors == len(names)
    return names


@pytest.mark.parametrize(
    ("rules", "wanted"),
    [
        ({"regex": re.compile("norm")}, ["norm.weight"]),
        ({"regex": re.compile(r"^layers\.\d+\.(?!bias)")}, ["layers.0.weight", "layers.1.weight"]),
        ({"regex": re.compile("embed", re.IGNORECASE)}, ["Embed.weight"]),
        ({"regex": [re.compile("bias$"), "^norm"]}, ["layers.0.bias", "norm.weight"]),
        ({"regex": re.compile("bias"), "names": "norm.weight"}, ["layers.0.bias", "norm.weight"]),
        ({"regex": re.compile("bias"), "glob": "E*"}, ["Embed.weight", "layers.0.bias"]),
    ],
)
def test_compiled_patterns_select_as_in_python(rules: dict[str, Any], wanted: list[str], path: Path) -> None:
    assert selected(path, **rules) == wanted
    if isinstance(rules["regex"], list):
        rules = rules | {"regex": iter(rules["regex"])}
        assert list(tload.load(path, framework="dlpack", **rules)) == wanted


def test_pattern_without_match_is_an_error(path: Path) -> None:
    for pattern in (re.compile("bios"), "bios"):
        with pytest.raises(tload.NoSuchTensorError, match="matches none of 5 tensors") as caught:
            tload.load(path, framework="dlpack", regex=["norm", pattern])
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("call", [tload.load, tload.stream])
@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"names": 3}, "names: wanted a str or several, found int"),
        ({"names": ["a", 3]}, "names: wanted a str or several, found int"),
        ({"names": b"a"}, "names: wanted a str or several, found bytes"),
        ({"names": re.compile("a")}, "names: wanted a str or several, found Pattern"),
        ({"glob": 3}, "glob: wanted a str or several, found int"),
        ({"regex": 3}, "regex: wanted a str, a compiled pattern or several, found int"),
        ({"regex": [None]}, "regex: wanted a str, a compiled pattern or several, found NoneType"),
        ({"regex": re.compile(b"a")}, "regex: wanted a str, a compiled pattern or several, found a pattern of bytes"),
    ],
)
def test_wrong_types_are_named(call: Any, rules: dict[str, Any], message: str, path: Path) -> None:
    with pytest.raises(TypeError) as caught:
        call(path, framework="dlpack", **rules)
    assert str(caught.value) == message


def test_empty_list_selects_nothing(path: Path) -> None:
    with pytest.raises(tload.InvalidRequestError, match="regex is empty, so nothing is selected"):
        tload.load(path, framework="dlpack", regex=[])


@pytest.mark.parametrize(("name", "alias"), [("torch", "pt"), ("numpy", "np")])
def test_frameworks_have_the_names_of_safetensors_too(name: Any, alias: Any, path: Path) -> None:
    require(name)
    wanted = tload.load(path, framework=name)
    with tload.open(path) as checkpoint:
        found = [tload.load(path, framework=alias), dict(tload.stream(path, framework=alias, device="cpu"))]
        found.append({key: checkpoint.read(key, framework=alias) for key in checkpoint})
    for tensors in found:
        assert {key: (type(tensor), tensor.tolist()) for key, tensor in tensors.items()} == {
            key: (type(tensor), tensor.tolist()) for key, tensor in wanted.items()
        }


@pytest.mark.parametrize("framework", [3, ["pt"], None])
def test_framework_of_another_type_is_rejected(framework: Any, path: Path) -> None:
    with pytest.raises(tload.InvalidRequestError, match=r"framework .* is unknown"):
        tload.load(path, framework=framework)


def test_notebooks_show_a_table(tmp_path: Path) -> None:
    path = tmp_path / "<b>.safetensors"
    contents = {"<b>&": Content.random("BF16", (2, 3), 0)}
    write_file(path, contents | {f"t{index}": Content.random("U8", (1,), 0) for index in range(100)})
    shown = tload.open(path)._repr_html_()
    assert "<b>" not in shown
    assert "<tr><td>&lt;b&gt;&amp;</td><td>BF16</td><td>[2, 3]</td><td>12 B</td></tr>" in shown
    assert shown.endswith('<tr><td colspan="4">… and 1 more</td></tr></table>')
    assert shown.count("<tr>") == 102
