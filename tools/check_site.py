"""Checks the docs site that mkdocs has built, without a browser.

Every link leads to a page and a heading of the site, pages ask no other host for anything, copy
buttons copy code without prompts, and the search index can be loaded from a folder.
"""

from __future__ import annotations

import posixpath
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

PROMPT = re.compile(r"^(\$|>>>) ", re.MULTILINE)


class Page(HTMLParser):
    """Links, resources, anchors and code blocks of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.anchors: set[str] = set()
        self.blocks: list[str] = []
        self._open: list[str] = []
        """Classes of the open elements `code` and `span` of a block."""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in {"img", "script", "iframe"} and "src" in given:
            self.resources.append(given["src"])
        if tag == "link" and given.get("rel") in {"stylesheet", "icon", "preconnect", "preload"}:
            self.resources.append(given["href"])
        if tag == "pre":
            self._open = ["pre"]
            self.blocks.append("")
        elif self._open and tag in {"code", "span"}:
            self._open.append(given.get("class", ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "pre":
            self._open = []
        elif self._open and tag in {"code", "span"}:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        # docs/assets/site.css hides prompts (gp) and output (go) while a block is copied.
        if self._open and not {"gp", "go"} & set(self._open):
            self.blocks[-1] += data


def main() -> int:
    site = Path(sys.argv[1])
    pages = {str(path.relative_to(site)): Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    wrong = []
    for name, page in pages.items():
        wrong += [f"{name}: {text}" for text in check(name, page, pages, site)]
    if not (site / "search/search_index.js").exists():
        wrong.append("search/search_index.js is missing: search would not work without a server")
    if "[data-md-copying] :is(.gp, .go)" not in (site / "assets/site.css").read_text():
        wrong.append("assets/site.css does not hide prompts from copy buttons")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{len(pages)} pages, {sum(len(page.links) for page in pages.values())} links, {len(wrong)} problems")
    return bool(wrong)


def check(name: str, page: Page, pages: dict[str, Page], site: Path) -> list[str]:
    """Return the problems of one page."""
    wrong = [f"asks for {url}" for url in page.resources if urlsplit(url).netloc]
    wrong += [f"the block copies a prompt: {block[:60]!r}" for block in page.blocks if PROMPT.search(block)]
    for url in page.links + page.resources:
        if urlsplit(url).scheme or urlsplit(url).netloc:
            continue
        path, anchor = urldefrag(unquote(url))
        if name == "404.html" and path:
            # Servers show it at any depth, so its links begin with the path of `site_url`.
            if not path.startswith("/"):
                wrong.append(f"{url} depends on the address of the missing page")
                continue
            path = path.removeprefix(base(pages))
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
        if (site / target).is_dir():
            target = posixpath.normpath(posixpath.join(target, "index.html"))
        if not (site / target).exists():
            wrong.append(f"{url} leads nowhere")
        elif anchor and target in pages and anchor not in pages[target].anchors:
            wrong.append(f"{url} leads to no heading")
    return wrong


def base(pages: dict[str, Page]) -> str:
    """Return the path below which 404.html expects the site."""
    first = next(url for url in pages["404.html"].resources if url.endswith(".css"))
    return first.partition("assets/")[0]


sys.exit(main())
