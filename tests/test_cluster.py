"""`share="cluster"` over gloo: two nodes, which are network namespaces joined by a pair of virtual
interfaces, with two ranks each. The kernel counts the bytes between them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from conftest import require, skip_loudly
from files import Content, tile, write_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = 240.0
"""Seconds after which a test hangs."""

TENSORS = 24
TENSOR_BYTES = 2 << 20
ALL_BYTES = TENSORS * TENSOR_BYTES

RANK = """
import hashlib, json, sys
import torch.distributed as dist
import tload

rank, address, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=rank, world_size=4)
group = tload.Group.torch()

def say(**answer):
    print("rank:", json.dumps(answer), flush=True)

say(joined=True)
for line in sys.stdin:
    options = json.loads(line)
    hold = options.pop("hold", False)
    try:
        digests = {}
        with tload.stream(path, framework="numpy", group=group, share="cluster", **options) as tensors:
            for name, tensor in tensors:
                digests[name] = hashlib.sha256(tensor).hexdigest()
                if hold and len(digests) == 1:
                    say(holds=True)
                    sys.stdin.readline()
        report = tensors.report.group
        names = ("share", "reason", "leader", "unique_bytes", "read_bytes", "node_received_bytes", "reread_bytes")
        say(digests=digests, **{name: getattr(report, name) for name in names})
    except tload.Error as error:
        say(error=type(error).__name__, ranks=list(error.ranks), text=str(error))
"""


@dataclass
class Rank:
    """A process that is a rank of a node."""

    process: subprocess.Popen[str]
    noise: list[str] = field(default_factory=list)

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, object]:
        import json

        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("rank: "):
                answer: dict[str, object] = json.loads(line.removeprefix("rank: "))
                return answer
            self.noise.append(line)
        message = f"the rank ended: {''.join(self.noise)}"
        raise AssertionError(message)


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    if done.returncode != 0:
        raise OSError(done.stderr.strip() or f"{command} failed")


@dataclass
class Nodes:
    """Two network namespaces that reach each other."""

    names: tuple[str, str]

    def received(self, node: int) -> int:
        """Return the bytes that a node has received from the other one."""
        command = ["ip", "netns", "exec", self.names[node], "cat", "/sys/class/net/other/statistics/rx_bytes"]
        return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout)

    @contextmanager
    def ranks(self, path: Path) -> Iterator[list[Rank]]:
        """Start two ranks on each node, that load a checkpoint."""
        environment = os.environ | {"GLOO_SOCKET_IFNAME": "other", "OMP_NUM_THREADS": "1"}
        ranks: list[Rank] = []
        try:
            for number in range(4):
                command = ["ip", "netns", "exec", self.names[number // 2], sys.executable, "-c", RANK]
                command += [str(number), "10.91.7.1:29511", str(path)]
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
                )
                ranks.append(Rank(process))
            assert all(rank.answer() == {"joined": True} for rank in ranks)
            yield ranks
        finally:
            for rank in ranks:
                rank.process.kill()
                rank.process.communicate(timeout=PATIENCE)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    names = (f"tload-{os.getpid()}-0", f"tload-{os.getpid()}-1")
    try:
        try:
            for name in names:
                run("ip", "netns", "add", name)
            run("ip", "link", "add", "other", "netns", names[0], "type", "veth", "peer", "other", "netns", names[1])
            for index, name in enumerate(names):
                run("ip", "-n", name, "address", "add", f"10.91.7.{index + 1}/24", "dev", "other")
                run("ip", "-n", name, "link", "set", "other", "up")
                run("ip", "-n", name, "link", "set", "lo", "up")
        except OSError as error:
            skip_loudly("netns", f"cannot make network namespaces: {error}")
        yield Nodes(names)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False, timeout=PATIENCE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    require("torch")
    path = tmp_path / "a.safetensors"
    contents = {f"t{index:02}": Content("U8", (TENSOR_BYTES,), tile(index, TENSOR_BYTES)) for index in range(TENSORS)}
    write_file(path, contents)
    return path


def digests() -> dict[str, str]:
    import hashlib

    return {f"t{index:02}": hashlib.sha256(tile(index, TENSOR_BYTES)).hexdigest() for index in range(TENSORS)}


def tell(ranks: list[Rank], line: str) -> None:
    for rank in ranks:
        rank.tell(line)


def test_two_nodes_read_once_and_send_each_other_the_rest(nodes: Nodes, path: Path) -> None:
    wanted = digests()
    with nodes.ranks(path) as ranks:
        for options in ("{}", '{"memory_limit": "32MiB", "order": "file"}', '{"private": true}'):
            before = [nodes.received(node) for node in range(2)]
            tell(ranks, options)
            answers = [rank.answer() for rank in ranks]
            for rank, answer in enumerate(answers):
                assert answer.get("share") == "cluster", answer
                assert (answer["reason"], answer["leader"]) == (None, rank // 2 * 2)
                assert answer["digests"] == wanted
                assert answer["unique_bytes"] == ALL_BYTES
            read = sum(int(str(answer["read_bytes"])) for answer in answers)
            # Whole sectors at the ends of what a node reads.
            assert ALL_BYTES <= read <= ALL_BYTES * 1.02
            for node in range(2):
                received = int(str(answers[2 * node]["node_received_bytes"]))
                assert received == pytest.approx(ALL_BYTES / 2, rel=0.4)
                # With the headers of packets, and messages.
                counted = nodes.received(node) - before[node]
                assert received <= counted <= received * 1.1 + (1 << 20)
            assert sum(int(str(answer["node_received_bytes"])) for answer in answers) == ALL_BYTES


@pytest.mark.parametrize("policy", ["error", "read"])
def test_node_whose_leader_is_killed(nodes: Nodes, path: Path, policy: str) -> None:
    with nodes.ranks(path) as ranks:
        tell(ranks, f'{{"memory_limit": "16MiB", "hold": true, "on_peer_loss": "{policy}"}}')
        assert all(rank.answer() == {"holds": True} for rank in ranks)
        ranks[2].process.send_signal(signal.SIGKILL)
        ranks[2].process.wait(PATIENCE)
        tell([*ranks[:2], ranks[3]], "go")
        answers = [rank.answer() for rank in (*ranks[:2], ranks[3])]
        for answer in answers:
            if policy == "read":
                assert answer["digests"] == digests()
            else:
                assert (answer["error"], answer["ranks"]) == ("PeerError", [2]), answer
        if policy == "read":
            assert int(str(answers[0]["reread_bytes"])) > 0
            assert int(str(answers[2]["reread_bytes"])) > 0


def test_node_that_never_loads_is_named(nodes: Nodes, path: Path) -> None:
    with nodes.ranks(path) as ranks:
        # Enough for the others to join on a busy machine.
        tell(ranks[:3], '{"join_timeout": 10}')
        for rank in ranks[:3]:
            answer = rank.answer()
            assert (answer["error"], answer["ranks"]) == ("PeerError", [3]), answer
