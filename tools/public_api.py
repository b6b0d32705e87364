#!/usr/bin/env python3
"""Compares the public interface of the crate `tload` with `crates/core/public-api.txt`.

Reads the pages that `cargo doc` has written: the names of all items, the signatures of functions,
and the traits that types implement. What is hidden from the docs is not part of the interface. With
`--write`, replaces the list.

`cargo public-api` is not used: it needs a nightly compiler, and one version of it for each version
of rustdoc's JSON.
"""

import difflib
import html
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "target" / "doc" / "tload"
LIST = ROOT / "crates" / "core" / "public-api.txt"

SKIPPED = {"internal"}
"""Modules that are hidden."""

MEMBER = re.compile(r'<section id="(method|tymethod|associatedconstant)\.[^"]*"[^>]*>(.*?)</section>', re.DOTALL)
FIELD = re.compile(r'<(?:span|section) id="(?:structfield|variant)\.[^"]*"[^>]*>(.*?)</(?:span|section)>', re.DOTALL)
HEADER = re.compile(r'<h[34] class="code-header">(.*?)</h[34]>', re.DOTALL)
IMPL = re.compile(r'<section id="impl-[^"]*" class="impl">(.*?)</section>', re.DOTALL)
TRAITS = re.compile(r'<div id="trait-implementations-list">(.*?)<h2 id="(?:synthetic|blanket)', re.DOTALL)
AUTOMATIC = re.compile(r"(Clone|Copy|Debug|Default|Eq|Hash|Ord|PartialEq|PartialOrd|StructuralPartialEq)\b(?!<)")


def text(fragment: str) -> str:
    """Returns the text of HTML on one line."""
    fragment = re.sub(
        r'<(?:a|div|span)[^>]*class="[^"]*(?:src|anchor|where-note)[^"]*"[^>]*>.*?</(?:a|div|span)>', "", fragment
    )
    fragment = fragment.replace('<div class="where">', " ")
    words = html.unescape(re.sub(r"<[^>]*>", "", fragment)).replace("\u200b", "").replace("§", "").split()
    return " ".join(words).replace("( ", "(").replace(", )", ")")


def item(page: Path) -> list[str]:
    """Returns the lines of an item: its path, its members, the traits that it implements."""
    kind, name = page.name.removesuffix(".html").split(".", 1)
    path = "::".join(["tload", *page.parent.relative_to(DOCS).parts, name])
    content = page.read_text()
    declaration = re.search(r'<pre class="rust item-decl"><code>(.*?)</code></pre>', content, re.DOTALL)
    if 'http-equiv="refresh"' in content:
        # The place of an item in a private module.
        return []
    if kind in {"fn", "type", "constant"} and declaration:
        return [f"{path}: {text(declaration[1])}"]
    lines = [f"{path}: {kind}"]
    inherent = content.split('<div id="trait-implementations-list">')[0]
    inherent = inherent.split('id="deref-methods')[0]
    lines += [f"{path}: {text(found[1])}" for found in FIELD.finditer(inherent)]
    for member in MEMBER.finditer(inherent):
        header = HEADER.search(member[2])
        if header:
            lines.append(f"{path}: {text(header[1])}")
    traits = TRAITS.search(content)
    for found in IMPL.finditer(traits[1] if traits else ""):
        header = HEADER.search(found[1])
        if header and not AUTOMATIC.match(re.sub(r"^impl(<.*?>)? ", "", text(header[1]))):
            lines.append(f"{path}: {text(header[1])}")
    return lines


def main() -> int:
    """Compares, or writes with `--write`."""
    if not (DOCS / "index.html").exists():
        print("public_api: there are no docs: run `make doc` first", file=sys.stderr)
        return 1
    pages = [page for page in DOCS.rglob("*.*.html") if page.relative_to(DOCS).parts[0] not in SKIPPED]
    found = "".join(f"{line}\n" for line in sorted({line for page in pages for line in item(page)}))
    if "--write" in sys.argv[1:]:
        LIST.write_text(found)
        return 0
    listed = LIST.read_text() if LIST.exists() else ""
    if found == listed:
        return 0
    names = (str(LIST.relative_to(ROOT)), "the docs")
    changes = difflib.unified_diff(listed.splitlines(), found.splitlines(), *names, n=0, lineterm="")
    print(*changes, sep="\n")
    print("public_api: the interface has changed: if it should, run `tools/public_api.py --write`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
