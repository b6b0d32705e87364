"""Reads the code blocks of Markdown pages, and what comments beside them say.

A comment `<!-- not run: why -->` right before a block says that it cannot run in a test. The Python of a comment that
begins with `<!-- run before:` is run in its place among the blocks: what they need, and readers need not see.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_FENCE = re.compile(
    r"(?:^ *<!-- not run: (?P<reason>[^\n]*?) -->\n+)?"
    r"^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$"
    r"|^<!-- run before:\n(?P<hidden>.*?)^-->$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A code block."""

    page: Path
    line: int
    """Where its code begins, counted from 1."""
    language: str
    text: str
    reason: str | None
    """Why it is not run, or `None` if it is."""

    @property
    def commands(self) -> list[str]:
        """The commands of a block of the shell's. In a `console`, those are the lines after `$ `."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip() and not line.startswith("#")]


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page from top to bottom. Hidden ones are Python like others."""
    text = page.read_text()
    blocks = []
    for match in _FENCE.finditer(text):
        group = "text" if match["hidden"] is None else "hidden"
        language = "python" if match["hidden"] is not None else match["language"].strip()
        line = text.count("\n", 0, match.start(group)) + 1
        blocks.append(Block(page, line, language, textwrap.dedent(match[group]), match["reason"]))
    return blocks
