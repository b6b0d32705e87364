#!/usr/bin/env python3
"""Changes the docs to say that tload is published: the commit after the first publication.

Until then the docs install from a clone. `--check` makes the changes in memory and fails if one of
them no longer applies, so that a page that was rewritten is noticed now; `make check` runs it.
RELEASING.md says when to run it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

README = """\
On Linux, with Python 3.11 or newer:

<!-- not run: installs -->
```bash
pip install tload                   # the Python package and the command
cargo install --locked tload-cli    # or the command alone
cargo add tload                     # in your Rust project
```

PyTorch is optional. The extra `numpy` (`'tload[numpy]'`) adds NumPy, and ml_dtypes for BF16; others
are `torch`, `progress` and `transformers`. If the `tload` of procps comes first on your `PATH`, run
`tensorload`. With a clone, Rust 1.88, make and a C compiler, you can measure and test:
"""

QUICKSTART = """\
You need Python 3.11 or newer on Linux:

<!-- not run: installs -->
```console
$ pip install tload
```

This installs"""

IMAGE = """\
The image of the command is `ghcr.io/tload/tload`. The files that this page names are in the
repository's folder [`deploy/`]"""

TROUBLE = """\
The image is `ghcr.io/tload/tload`, or [one that you build](deploy.md#an-image-of-the-command). In
an image of yours"""

CHANGES = [
    ("README.md", r"On Linux, from a clone.*?To measure and test:\n", README),
    ("docs/quickstart.md", r"You need Python 3\.11 or newer on Linux\. A wheel.*?This installs", QUICKSTART),
    ("docs/quickstart.md", r"pip install '\.\[", "pip install 'tload["),
    ("docs/with/rust.md", r"cargo add tload --path crates/core", "cargo add tload"),
    ("docs/deploy.md", r"No image is published yet:.*?\[`deploy/`\]", IMAGE),
    ("docs/troubleshooting.md", r"No image is published yet:.*?an image of yours", TROUBLE),
    ("deploy/kubernetes/*.yaml", r"registry\.example\.com/tload:", "ghcr.io/tload/tload:"),
]
"""Files, a pattern that each of them has, and what replaces it."""

GONE = ["--find-links", "--path crates", "No image is published"]
"""Texts that none of these files has afterwards."""


def main() -> int:
    texts: dict[Path, str] = {}
    wrong = []
    for name, pattern, text in CHANGES:
        paths = sorted(ROOT.glob(name))
        replaced = 0
        for path in paths:
            before = texts.get(path) or path.read_text()
            texts[path], times = re.subn(pattern, lambda _, text=text: text, before, flags=re.DOTALL)
            replaced += times
        if not replaced:
            wrong.append(f"{name} no longer has {pattern!r}: change it in tools/release/announce.py too")
    for path, text in texts.items():
        wrong += [f"{path.relative_to(ROOT)} would still say {words!r}" for words in GONE if words in text]
        if path.name == "README.md" and text.count("\n") > 150:
            wrong.append("README.md would be longer than 150 lines")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    if not wrong and "--check" not in sys.argv:
        for path, text in texts.items():
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
