"""Steps of mkdocs that no plugin of the site has: see `hooks` in mkdocs.yml."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
COLUMNS_MAX = 2
"""Most columns that fit on a phone. Rows of wider tables become cards there (assets/site.css)."""

NAME_MAX = 36
"""Most characters of a name that is kept in one piece in a table of a desktop."""

TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
HEAD = re.compile(r"<th[^>]*>(.*?)</th>", re.DOTALL)
ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)


DEPLOY = re.compile(r"https://github\.com/tload/tload/blob/main/(deploy/[^)]+)")


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the changelog, which is at the root of the repository, and the files of `deploy/`, so that
    links to them work without a network."""
    files.append(File.generated(config, "changes.md", abs_src_path=str(ROOT / "CHANGELOG.md")))
    for path in sorted((ROOT / "deploy").rglob("*")):
        if path.is_file() and path.suffix != ".md":
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links to files of `deploy/` lead to those of the site."""
    return DEPLOY.sub("../" * page.file.src_uri.count("/") + r"\1", markdown)


def on_page_content(html: str, **_: Any) -> str:
    return TABLE.sub(lambda found: dense(cards(found[0])), html)


def on_post_template(output_content: str, **_: Any) -> str:
    """Treat 404.html like a page."""
    return on_post_page(output_content)


def on_post_page(output: str, **_: Any) -> str:
    """Name the dialog of the search, which the theme leaves without a name."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def cards(table: str) -> str:
    """Label the cells of a wide table with the heads of their columns."""
    heads = [re.sub(r"<[^>]+>", "", head) for head in HEAD.findall(table)]
    if len(heads) <= COLUMNS_MAX:
        return table

    def label(row: re.Match[str]) -> str:
        names = iter(heads)
        return re.sub("<td", lambda _: f'<td data-label="{next(names)}"', row[0])

    return ROW.sub(label, table).replace("<table", "<table data-cards", 1)


def dense(table: str) -> str:
    """Mark a table with many columns or long names."""
    names = re.findall(r"<code>(.*?)</code>", table, re.DOTALL)
    is_dense = len(HEAD.findall(table)) > 4 or any(len(name) > NAME_MAX for name in names)
    return table.replace("<table", "<table data-dense", 1) if is_dense else table
