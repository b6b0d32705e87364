#!/usr/bin/env python3
"""Checks the manifests in `deploy/kubernetes` without a cluster.

Kinds of Kubernetes are compared with the schemas of the package `kubernetes-validate`, others with
those in `deploy/kubernetes/schemas.json`; in both, unknown fields are errors. Then come rules that
no schema has: containers are confined and have limits, volumes and ports that are named exist, flags
and variables are those of the command, and the versions of images are those of this repository.
"""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import kubernetes_validate
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
MANIFESTS = ROOT / "deploy" / "kubernetes"
HELP = ROOT / "crates" / "cli" / "tests" / "it" / "help"
KUBERNETES = "1.37"
"""Version of the schemas, the newest of the package."""

SERVERS = {"Deployment", "DaemonSet", "InferenceService"}
"""Kinds whose pods serve requests, and have to say when they are ready."""


def main() -> int:
    paths = sorted(MANIFESTS.glob("*.yaml"))
    documents = [(path, each) for path in paths for each in yaml.safe_load_all(path.read_text())]
    wrong = [f"{path.name}: {document['kind']}: {text}" for path, document in documents for text in check(document)]
    labels = [pod["metadata"]["labels"] for _, document in documents if "metadata" in (pod := pod_of(document) or {})]
    for path, document in documents:
        selector = selector_of(document)
        if selector and not any(selector.items() <= each.items() for each in labels):
            wrong.append(f"{path.name}: {document['kind']}: selects no pod of these files: {selector}")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{len(documents)} manifests in {len(paths)} files, {len(wrong)} problems")
    return bool(wrong)


def check(document: dict[str, Any]) -> Iterator[str]:
    """Return the problems of one manifest."""
    kind = f"{document['apiVersion']}/{document['kind']}"
    schemas = json.loads((MANIFESTS / "schemas.json").read_text())
    if kind in schemas["kinds"]:
        schema = {**schemas["kinds"][kind], "$defs": schemas["$defs"]}
        for error in jsonschema.Draft202012Validator(schema).iter_errors(document):
            yield f"{error.json_path}: {error.message}"
    else:
        try:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{'.'.join(map(str, error.path))}: {error.message}"
            return
    pod = (pod_of(document) or {}).get("spec")
    if pod is None:
        return
    # KServe's own servers have no containers here.
    for container in pod.get("initContainers", []) + pod.get("containers", []):
        for text in check_container(container, pod):
            yield f"{container['name']}: {text}"
    if document["kind"] in SERVERS:
        for container in pod.get("containers", []):
            if "readinessProbe" not in container:
                yield f"{container['name']}: has no readiness probe"


def pod_of(document: dict[str, Any]) -> dict[str, Any] | None:
    """Return the template of a manifest's pods."""
    spec = document["spec"]
    match document["kind"]:
        case "InferenceService":
            return {"spec": spec["predictor"]}
        case "LLMInferenceService":
            return {"spec": spec["template"]}
        case "ClusterStorageContainer":
            return {"spec": {"containers": [spec["container"]]}}
        case "Pod":
            return document
    template: dict[str, Any] | None = spec.get("template")
    return template


def selector_of(document: dict[str, Any]) -> dict[str, str]:
    spec = document["spec"]
    match document["kind"]:
        case "Service":
            return dict(spec["selector"])
        case "NetworkPolicy":
            return dict(spec["podSelector"]["matchLabels"])
        case "Deployment" | "DaemonSet" | "InferencePool":
            return dict(spec["selector"]["matchLabels"])
    return {}


def check_container(container: dict[str, Any], pod: dict[str, Any]) -> Iterator[str]:
    """Return what is wrong with a container of a pod."""
    yield from check_confinement(container, pod)
    yield from check_names(container, pod)
    name, _, tag = container["image"].rpartition("/")[2].partition(":")
    if tag != versions()[name]:
        yield f"image {name} has version {tag}, and this repository {versions()[name]}"
    for variable in container.get("env", []):
        if variable["name"].startswith("TLOAD_") and variable["name"] not in variables():
            yield f"nothing reads {variable['name']}"
    if name == "tload":
        yield from check_arguments([*container.get("command", [])[1:], *container.get("args", [])])


def check_confinement(container: dict[str, Any], pod: dict[str, Any]) -> Iterator[str]:
    """Return what a container may do too much of."""
    own, shared = container.get("securityContext", {}), pod.get("securityContext", {})
    if own.get("allowPrivilegeEscalation") is not False or own.get("capabilities", {}).get("drop") != ["ALL"]:
        yield "may gain privileges, or has capabilities"
    for key in ("runAsNonRoot", "seccompProfile"):
        if not (own.get(key) or shared.get(key)):
            yield f"has no {key}"
    resources = container["resources"]
    if "memory" not in resources.get("limits", {}) or not {"cpu", "memory"} <= set(resources.get("requests", {})):
        yield "has no limit of memory, or requests no memory or processors"


def check_names(container: dict[str, Any], pod: dict[str, Any]) -> Iterator[str]:
    """Return the volumes and ports that a container names and its pod lacks."""
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    for mount in container.get("volumeMounts", []):
        if mount["name"] not in volumes:
            yield f"mounts {mount['name']}, which is no volume of the pod"
    ports = {port.get("name") for port in container.get("ports", [])}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        port = container.get(probe, {}).get("httpGet", {}).get("port")
        if isinstance(port, str) and port not in ports:
            yield f"{probe}: there is no port {port}"


@cache
def versions() -> dict[str, str]:
    cargo, vllm = (ROOT / "Cargo.toml").read_text(), (ROOT / "deploy/Dockerfile.vllm").read_text()
    return {
        "tload": re.findall(r'^version = "(.*)"$', cargo, re.MULTILINE)[0],
        "vllm-tload": re.findall(r"^ARG VLLM=(.*)$", vllm, re.MULTILINE)[0],
    }


@cache
def variables() -> set[str]:
    """Return the variables of the command, and those that only the plugin for vLLM reads."""
    texts = [path.read_text() for path in HELP.glob("*.txt")]
    plugin = (ROOT / "docs/with/vllm.md").read_text()
    return set(re.findall(r"TLOAD_[A-Z_]+", "\n".join([*texts, plugin])))


def check_arguments(arguments: list[str]) -> Iterator[str]:
    """Return what is wrong with the arguments of the command, by its help texts."""
    command = "-".join(arguments[:2] if any(HELP.glob(f"{arguments[0]}-*.txt")) else arguments[:1])
    if not (HELP / f"{command}.txt").exists():
        yield f"tload has no command {command}"
        return
    known = (HELP / f"{command}.txt").read_text()
    for word in arguments:
        if word.startswith("--") and not re.search(rf"^ +(-\w, )?{re.escape(word)}\b", known, re.MULTILINE):
            yield f"tload {command} has no {word}"


if __name__ == "__main__":
    sys.exit(main())
