"""Runs a command under a seccomp profile, as a container runtime does: `confine.py PROFILE COMMAND…`.

The profile has the form of the OCI's runtime specification, which all runtimes read. This is a
program of its own because a filter stays for the rest of a process.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pyseccomp


def load(profile: dict[str, Any]) -> None:
    """Filter the system calls of this process and its children."""
    actions = {"SCMP_ACT_ALLOW": lambda _: pyseccomp.ALLOW, "SCMP_ACT_ERRNO": pyseccomp.ERRNO}
    kept = pyseccomp.SyscallFilter(actions[profile["defaultAction"]](profile["defaultErrnoRet"]))
    for name in profile["architectures"]:
        architecture = getattr(pyseccomp.Arch, name.removeprefix("SCMP_ARCH_"))
        if not kept.exist_arch(architecture):
            kept.add_arch(architecture)
    for rule in profile["syscalls"]:
        arguments = [
            pyseccomp.Arg(
                given["index"],
                getattr(pyseccomp, given["op"].removeprefix("SCMP_CMP_")),
                given["value"],
                given.get("valueTwo", 0),
            )
            for given in rule.get("args", [])
        ]
        for name in rule["names"]:
            # Runtimes leave out what their libseccomp does not know, too.
            with contextlib.suppress(ValueError, OSError):
                kept.add_rule(actions[rule["action"]](rule.get("errnoRet", 1)), name, *arguments)
    kept.load()


if __name__ == "__main__":
    load(json.loads(Path(sys.argv[1]).read_text()))
    os.execv(sys.argv[2], sys.argv[2:])
