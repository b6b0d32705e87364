#!/usr/bin/env python3
"""Checks that every place that names tload's version names the same one; `--set VERSION` changes them.

The version is that of the workspace in `Cargo.toml`; CHANGELOG.md begins with it, and a tag of the
current commit is `vVERSION`.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

PLACES = {
    "Cargo.toml": [
        r'(?m)^version = "([^"]+)"$',
        r'(?m)^tload(?:-[a-z-]+)? = \{ path = "[^"]*", version = "=?([^"]+)"',
    ],
    "Cargo.lock": [r'(?m)^name = "tload(?:-[a-z-]+)?"\nversion = "([^"]+)"$'],
    "fuzz/Cargo.lock": [r'(?m)^name = "tload(?:-(?!fuzz)[a-z-]+)?"\nversion = "([^"]+)"$'],
    "CHANGELOG.md": [r"\A# Changes\n(?:(?!## ).*\n)*## ([0-9][^ \n]*)"],
}
"""Files with patterns whose group is the version. Each has to be found at least once."""

ANYWHERE = ["deploy", "docs", "README.md", "RELEASING.md"]
"""Files, and folders of files, that name versions of packages: `tload-VERSION-…`, `tload:VERSION`."""

NAMED = re.compile(r"\b(?:tload|tensorload)[-_:=]{1,2}([0-9]+\.[0-9]+\.[0-9]+)\b")


def sites() -> list[tuple[Path, re.Match[str]]]:
    """Returns the matches of every pattern, or fails if one has none."""
    found = []
    for name, patterns in PLACES.items():
        path = ROOT / name
        for pattern in patterns:
            matches = list(re.finditer(pattern, path.read_text()))
            if not matches:
                sys.exit(f"{name}: found no {pattern}")
            found += [(path, match) for match in matches]
    for name in ANYWHERE:
        root = ROOT / name
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if path.is_file() and path.suffix in {"", ".md", ".yaml", ".yml", ".vllm"}:
                found += [(path, match) for match in NAMED.finditer(path.read_text())]
    return found


def main() -> None:
    if sys.argv[1:2] == ["--set"]:
        wanted = sys.argv[2]
        for path, match in reversed(sites()):
            if path.name != "CHANGELOG.md":
                text = path.read_text()
                path.write_text(text[: match.start(1)] + wanted + text[match.end(1) :])
        return
    first = re.search(PLACES["Cargo.toml"][0], (ROOT / "Cargo.toml").read_text())
    version = first[1] if first else ""
    wrong = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start(1)) + 1}: {match[1]}, expected {version}"
        for path, match in sites()
        if match[1] != version
        for text in [match.string]
    ]
    tags = subprocess.run(
        ["git", "tag", "--points-at", "HEAD", "v*"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    wrong += [f"tag {tag} of the current commit: expected v{version}" for tag in tags if tag != f"v{version}"]
    heading = (ROOT / "CHANGELOG.md").read_text().partition("\n## ")[2].partition("\n")[0]
    if tags and "not released" in heading:
        wrong.append(f"CHANGELOG.md: {heading!r}, expected the date of tag {tags[0]}")
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"every place names version {version}")


if __name__ == "__main__":
    main()
