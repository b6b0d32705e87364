"""Reads the code blocks of Markdown pages, and the comments about them.

A comment `<!-- not run: why -->` right before a block says that it cannot run in a test. The Python
code of a comment that starts with `<!-- run before:` is run at its position among the blocks: code
that they need and readers do not.
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
    """First line of its code, counted from 1."""
    language: str
    text: str
    reason: str | None
    """Reason why it is not run, or `None` if it is."""

    @property
    def commands(self) -> list[str]:
        """Return the commands of a shell block. In a `console`, those are the lines after `$ `."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip() and not line.startswith("#")]


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page from top to bottom. Hidden ones are Python like others."""
    text = page.read_text()
    blocks = []
    for match in _FENCE.finditer(text):
        group = "text" if match["hidden"] is None else "hidden"
        language = "python" if match["hidden"] is not None else match["language"].strip()
        line = text.count("\n", 0, match.start(group)) + 1
        blocks.append(Block(page, line, language, textwrap.dedent(match[group]), match["reason"]))
    return blocks
