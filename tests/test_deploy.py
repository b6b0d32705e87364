"""Manifests and units of `deploy/`: runs their commands, with a store and directories of the test in
place of theirs. `tools/check_manifests.py` checks the manifests themselves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import servers
from conftest import require, skip_loudly
from test_docs import make_model_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

DEPLOY = servers.ROOT / "deploy"
COMMAND = str(Path(sysconfig.get_path("scripts")) / "tensorload")


def containers(file: str) -> dict[str, dict[str, Any]]:
    """Return the containers of a manifest that run the command, by their names."""
    found: dict[str, dict[str, Any]] = {}

    def walk(part: Any) -> None:
        if isinstance(part, dict):
            if "/tload:" in str(part.get("image")):
                found[part["name"]] = part
            for each in part.values():
                walk(each)
        elif isinstance(part, list):
            for each in part:
                walk(each)

    walk(list(require("yaml").safe_load_all((DEPLOY / "kubernetes" / file).read_text())))
    return found


class Node:
    """A machine with a bucket `models`: runs containers without a container engine."""

    def __init__(self, folder: Path, s3: servers.S3) -> None:
        self.folder = folder
        self.environment = {
            "AWS_ENDPOINT_URL": s3.endpoint,
            "AWS_ACCESS_KEY_ID": s3.access_key_id,
            "AWS_SECRET_ACCESS_KEY": s3.secret_access_key,
            "AWS_REGION": servers.REGION,
        }

    def command(self, container: dict[str, Any], *arguments: str, **places: str) -> tuple[list[str], dict[str, str]]:
        """Return the command line of a container and its variables, with `places` put in."""
        places = {"/cache": str(self.folder / "cache"), **places}
        program = ["/usr/bin/tload", *container.get("command", ["/usr/bin/tload"])[1:]]
        words = [*program, *container.get("args", []), *arguments]
        variables = {each["name"]: each["value"] for each in container.get("env", [])}
        for here, there in places.items():
            words = [word.replace(here, there) for word in words]
            variables = {name: value.replace(here, there) for name, value in variables.items()}
        return [COMMAND, *words[1:]], {**os.environ, **self.environment, **variables}

    def run(self, container: dict[str, Any], *arguments: str, **places: str) -> str:
        words, variables = self.command(container, *arguments, **places)
        done = subprocess.run(
            words, env=variables, capture_output=True, text=True, check=False, timeout=servers.PATIENCE
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout


@pytest.fixture
def node(tmp_path: Path, s3: servers.S3) -> Iterator[Node]:
    make_model_dir(tmp_path)
    s3.put_folder("models", "llama", tmp_path / "model_dir")
    yield Node(tmp_path, s3)
    shutil.rmtree(s3.buckets / "models")


@pytest.mark.parametrize("file", ["vllm.yaml", "warm.yaml"])
def test_init_container_and_job_warm_the_cache(file: str, node: Node) -> None:
    node.run(containers(file)["warm"])
    # The reads of vLLM then need no request.
    variables = {"TLOAD_CACHE_DIR": str(node.folder / "cache"), "TLOAD_CACHE_CHECK": "offline"}
    done = subprocess.run(
        [COMMAND, "load", "s3://models/llama"], env={**os.environ, **node.environment, **variables}, check=False
    )
    assert done.returncode == 0


def test_relays_serve_loads_and_answer_their_probes(node: Node) -> None:
    peers = containers("peers.yaml")
    words, variables = node.command(peers["serve"], **{"0.0.0.0:8080": "127.0.0.1:0"})
    probe = peers["serve"]["readinessProbe"]["httpGet"]["path"]
    with subprocess.Popen(words, env=variables, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1].removesuffix("/")
            assert b"tload_" in get(url + probe)
            places = {"http://tload-peers:8080": url}
            _, of_load = node.command(peers["load"], **places)
            model = of_load["TLOAD_STORE"].removeprefix("peers=")
            index = "model.safetensors.index.json"
            assert get(f"{model}/{index}") == (node.folder / "model_dir" / index).read_bytes()
            report = node.run(peers["load"], **places)
        finally:
            server.terminate()
    assert server.returncode == 0, "SIGTERM stops a relay"
    assert re.search(rf"^mirror .* from {model}$", report, re.MULTILINE), report


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=servers.PATIENCE) as answer:
        body: bytes = answer.read()
    return body


def test_storage_container_of_kserve_copies_a_model(node: Node) -> None:
    # KServe has mounted the folder, so it exists.
    models = node.folder / "models"
    models.mkdir()
    node.run(containers("kserve.yaml")["storage-initializer"], "s3://models/llama", str(models))
    copied = {path.name for path in models.iterdir()}
    assert copied >= {path.name for path in (node.folder / "model_dir").iterdir()}


def test_systemd_unit_is_valid(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze") or skip_loudly("systemd-analyze", "systemd is not installed")
    text = (DEPLOY / "systemd" / "tload-serve.service").read_text()
    (line,) = re.findall(r"^ExecStart=(\S+) (\w+)", text, re.MULTILINE)
    assert line == ("/usr/local/bin/tensorload", "serve")
    unit = tmp_path / "tload-serve.service"
    unit.write_text(text.replace(line[0], COMMAND))
    done = subprocess.run([program, "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
