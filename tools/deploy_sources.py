#!/usr/bin/env python3
"""Writes the files of `deploy/` that are derived from packages of other projects, pinned here:

* `deploy/seccomp/tload.json` from Docker's default profile,
* `deploy/kubernetes/schemas.json` from the resource definitions of KServe and of the Gateway API's
  inference extension.

All three packages are Go modules under Apache-2.0. With `--check`, nothing is written, and a file
that differs is an error. Needs Go and PyYAML.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent

MOBY = "github.com/moby/profiles/seccomp@v0.3.0"
KSERVE = "github.com/kserve/kserve@v0.20.0"
INFERENCE = "sigs.k8s.io/gateway-api-inference-extension@v1.6.0"

DEFINITIONS = [
    (KSERVE, "config/crd/full/clusterstoragecontainer/serving.kserve.io_clusterstoragecontainers.yaml", "v1alpha1"),
    (KSERVE, "config/crd/full/serving.kserve.io_inferenceservices.yaml", "v1beta1"),
    (KSERVE, "config/crd/full/llmisvc/serving.kserve.io_llminferenceservices.yaml", "v1alpha2"),
    (INFERENCE, "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml", "v1"),
]

RING_CALLS = ["io_uring_enter", "io_uring_register", "io_uring_setup"]

CAPABILITIES = {
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
}
"""Capabilities of a container that adds none and drops none."""

ARCHES = {"amd64", "arm64"}

SHARED_MIN = 120
"""Characters of a part of a schema from which it is written once and referred to."""


def main() -> int:
    written = {
        ROOT / "deploy/seccomp/tload.json": seccomp_profile(),
        ROOT / "deploy/kubernetes/schemas.json": schemas(),
    }
    stale = [path for path, text in written.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if "--check" in sys.argv:
            print(f"{path.relative_to(ROOT)} differs from what its package says: run tools/deploy_sources.py")
        else:
            path.write_text(text := written[path])
            print(f"wrote {path.relative_to(ROOT)}, {len(text)} bytes")
    return int(bool(stale) and "--check" in sys.argv)


def module(name: str) -> Path:
    """Return the folder of a Go module, which is downloaded if it is not in Go's cache."""
    command = ["go", "mod", "download", "-json", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    answer = json.loads(done.stdout)
    if "Error" in answer:
        sys.exit(f"{name}: {answer['Error']}")
    return Path(answer["Dir"])


def seccomp_profile() -> str:
    """Return Docker's default profile with the calls of io_uring, in the form that all runtimes read.

    Docker's own form has conditions (capabilities, kernels, processors) that containerd ignores: it
    would then allow everything that any container may do. So the conditions are evaluated here, for
    a container with the default capabilities on x86-64 or on aarch64.
    """
    default = json.loads((module(MOBY) / "default.json").read_text())
    architectures = []
    for entry in default["archMap"]:
        if entry["architecture"] in {"SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"}:
            architectures += [entry["architecture"], *entry["subArchitectures"]]
    rules = []
    for rule in default["syscalls"]:
        if not applies(rule):
            continue
        names = rule["names"]
        if set(names) & set(RING_CALLS):
            sys.exit(f"{MOBY}: the default profile allows io_uring now")
        kept = {key: value for key, value in rule.items() if key in {"action", "errnoRet", "args"}}
        rules.append({"names": names, **kept})
    rules.append({"names": RING_CALLS, "action": "SCMP_ACT_ALLOW"})
    head = {key: default[key] for key in ("defaultAction", "defaultErrnoRet")}
    return json.dumps({**head, "architectures": architectures, "syscalls": rules}, indent=1) + "\n"


def applies(rule: dict[str, Any]) -> bool:
    includes, excludes = rule.get("includes", {}), rule.get("excludes", {})
    if not CAPABILITIES.issuperset(includes.get("caps", [])) or CAPABILITIES & set(excludes.get("caps", [])):
        return False
    # Conditions on the kernel are met: they name 4.8, and every kernel with io_uring is newer.
    return not includes.get("arches") or bool(ARCHES & set(includes["arches"]))


def schemas() -> str:
    """Return one JSON schema for each kind, without descriptions; equal parts are shared."""
    import yaml

    kinds = {}
    for name, path, version in DEFINITIONS:
        definition = yaml.load((module(name) / path).read_text(), Loader=yaml.CSafeLoader)["spec"]
        (found,) = (each for each in definition["versions"] if each["name"] == version)
        kinds[f"{definition['group']}/{version}/{definition['names']['kind']}"] = closed(
            found["schema"]["openAPIV3Schema"]
        )
    parts: dict[str, Any] = {}
    uses: Counter[str] = Counter()
    for schema in kinds.values():
        count(schema, uses)
    shared = {kind: share(schema, uses, parts) for kind, schema in kinds.items()}
    sources = {name: "Apache-2.0" for name, _, _ in DEFINITIONS}
    return (
        json.dumps({"sources": sources, "kinds": shared, "$defs": parts}, separators=(",", ":"), sort_keys=True) + "\n"
    )


def closed(schema: Any) -> Any:
    """Return a schema without texts, in which unknown fields are errors."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        key: {name: closed(each) for name, each in value.items()} if key == "properties" else closed(value)
        for key, value in schema.items()
        if key not in {"description", "default", "example", "format"} and not key.startswith("x-kubernetes-")
    }
    if schema.get("x-kubernetes-int-or-string"):
        kept["type"] = ["integer", "string"]
        kept.pop("anyOf", None)
    if "properties" in kept and not schema.get("x-kubernetes-preserve-unknown-fields"):
        kept["additionalProperties"] = False
    return kept


def key_of(part: Any) -> str:
    return json.dumps(part, sort_keys=True, separators=(",", ":"))


def inner(schema: dict[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    """Return the entries of a schema, and whether each is a mapping of names to schemas."""
    return ((key, value, key == "properties") for key, value in schema.items())


def count(schema: Any, uses: Counter[str]) -> None:
    """Count how often each schema occurs. One inside of equal schemas counts once."""
    if isinstance(schema, list):
        for each in schema:
            count(each, uses)
    if not isinstance(schema, dict):
        return
    key = key_of(schema)
    uses[key] += 1
    if uses[key] > 1:
        return
    for _, value, is_mapping in inner(schema):
        for each in value.values() if is_mapping else [value]:
            count(each, uses)


def share(schema: Any, uses: Counter[str], parts: dict[str, Any]) -> Any:
    """Return a schema in which large ones that occur more than once are references."""
    if isinstance(schema, list):
        return [share(each, uses, parts) for each in schema]
    if not isinstance(schema, dict):
        return schema
    small = {
        key: {name: share(each, uses, parts) for name, each in value.items()}
        if is_mapping
        else share(value, uses, parts)
        for key, value, is_mapping in inner(schema)
    }
    key = key_of(schema)
    if len(key) < SHARED_MIN or uses[key] < 2:
        return small
    name = hashlib.sha256(key.encode()).hexdigest()[:8]
    parts[name] = small
    return {"$ref": f"#/$defs/{name}"}


if __name__ == "__main__":
    sys.exit(main())
