"""Loss of the store of a process group, at each call to it that connecting ranks makes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import tload
from conftest import require

if TYPE_CHECKING:
    from tload._ranks.torch_group import StoreExchange


class LosingStore:
    """Wrapper of a store that loses its connection at one kind of call."""

    def __init__(self, store: Any, lost: str) -> None:
        self._wrapped = store
        self._lost = lost

    def __getattr__(self, name: str) -> Any:
        return self._lose if name == self._lost else getattr(self._wrapped, name)

    def _lose(self, *_: object) -> None:
        import torch.distributed

        message = "failed to recv, got 0 bytes"
        raise torch.distributed.DistNetworkError(message)


@pytest.fixture
def exchange(monkeypatch: pytest.MonkeyPatch) -> StoreExchange:
    """Rank 0 of two, of which the other one is about to connect with it too."""
    torch = require("torch")
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("torch was built without gloo")
    from tload._ranks import torch_group

    store = torch.distributed.HashStore()
    monkeypatch.setattr(torch_group, "_members", lambda _distributed, _pg: (0, 2, store))
    return torch_group.StoreExchange(None, None)


def assert_failed(exchange: StoreExchange) -> None:
    with pytest.raises(tload.InvalidRequestError, match="cannot be used after an error"):
        exchange.exchange(b"", 10.0)


@pytest.mark.parametrize("lost", ["set", "check", "delete_key", "clone"])
def test_store_that_is_lost_while_ranks_connect_is_a_peer_error(exchange: StoreExchange, lost: str) -> None:
    assert exchange.transport([0], 10.0) is not None
    exchange._store.set("transport/0/1", b"")
    exchange._store = LosingStore(exchange._store, lost)
    with pytest.raises(tload.PeerError, match="the store of the process group cannot be reached") as raised:
        exchange.transport([0, 1], 10.0)
    assert "the process that hosts the store has probably ended" in str(raised.value.hint)
    assert raised.value.ranks == ()
    assert_failed(exchange)


def test_store_that_is_lost_in_an_exchange_is_a_peer_error(exchange: StoreExchange) -> None:
    exchange._store = LosingStore(exchange._store, "set")
    with pytest.raises(tload.PeerError, match="the store of the process group cannot be reached"):
        exchange.exchange(b"", 10.0)
    assert_failed(exchange)


def test_rank_that_does_not_connect_fails_the_group(exchange: StoreExchange) -> None:
    with pytest.raises(tload.PeerError, match="rank 1 of 2 did not connect with other nodes") as raised:
        exchange.transport([0, 1], 0.01)
    assert raised.value.ranks == (1,)
    assert_failed(exchange)


def test_interrupted_connection_is_recorded_for_the_other_ranks(exchange: StoreExchange) -> None:
    exchange.interrupt()
    with pytest.raises(tload.CancelledError):
        exchange.transport([0, 1], 10.0)
    assert b"rank 0 of 2 was interrupted" in exchange._store.get("failure")
    assert_failed(exchange)


def test_last_rank_that_leaves_deletes_the_keys_of_all(
    exchange: StoreExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tload._ranks import torch_group

    _, size, store = torch_group._members(None, None)
    monkeypatch.setattr(torch_group, "_members", lambda _distributed, _pg: (1, size, store))
    ranks = [exchange, torch_group.StoreExchange(None, None)]
    counters = store.num_keys()
    with ThreadPoolExecutor(size) as pool:
        connected = list(pool.map(lambda rank: rank.transport([0, 1], 240.0), ranks))
    assert None not in connected
    ranks[0].close()
    assert store.num_keys() > counters
    ranks[1].close()
    assert store.num_keys() == counters


def test_rank_that_leads_no_node_may_leave_while_others_connect(exchange: StoreExchange) -> None:
    left = {"exchange": 0, "ranks": [2], "message": "rank 2 of 3 has left the group"}
    exchange._store.set("failure", json.dumps(left))
    with pytest.raises(tload.PeerError, match="rank 1 of 2 did not connect with other nodes"):
        exchange.transport([0, 1], 0.01)
    exchange._store.set("failure", json.dumps(left | {"ranks": [1]}))
    with pytest.raises(tload.PeerError, match="has left the group"):
        exchange.transport([0, 1], 10.0)


class Ranks:
    """Three ranks of one process group, in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        torch = require("torch")
        if not torch.distributed.is_available():
            pytest.skip("torch was built without torch.distributed")
        self.store = torch.distributed.HashStore()
        self._monkeypatch = monkeypatch

    def new(self, rank: int) -> StoreExchange:
        from tload._ranks import torch_group

        self._monkeypatch.setattr(torch_group, "_members", lambda _distributed, _pg: (rank, 3, self.store))
        return torch_group.StoreExchange(None, None)

    def wait_in_vain(self, load: bytes, *ranks: int) -> None:
        """Begin a load that rank 2 does not join in time."""
        groups = [self.new(rank) for rank in ranks]
        groups[-1]._store.set(f"message/0/{groups[-1].rank}", load)
        for group in groups:
            with pytest.raises(tload.PeerError, match="rank 2 of 3 did not join the load"):
                group.exchange(load, 0.01)
            group.close()

    def meet(self, load: bytes, *ranks: int) -> None:
        groups = [self.new(rank) for rank in ranks]
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(lambda group: group.exchange(load, 240.0), groups)) == [[load] * 3] * 3
        for group in groups:
            group.close()
        assert self.store.num_keys() == 3, "one count of groups for each rank"


def test_rank_that_has_left_a_group_out_meets_the_others_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from tload._ranks import torch_group

    ranks = Ranks(monkeypatch)
    ranks.wait_in_vain(b"", 0, 1)
    # It cannot know whether it is late, or for which load.
    ranks.wait_in_vain(b"", 2)
    ranks.wait_in_vain(b"", 0, 1)
    monkeypatch.setattr(torch_group, "LATE_SECONDS", 240.0)
    ranks.meet(b"here", 2, 0, 1)


def test_rank_that_has_left_another_load_out_meets_the_others_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch)
    one, two = b'{"load": "1"}', b'{"load": "2"}'
    for _ in range(3):
        ranks.wait_in_vain(one, 0, 1)
    ranks.meet(two, 2, 0, 1)


def test_rank_that_is_late_again_and_again_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    from tload._ranks import torch_group

    monkeypatch.setattr(torch_group, "LATE_SECONDS", 0.01)
    ranks = Ranks(monkeypatch)
    for load in (b'{"load": "1"}', b'{"load": "2"}', b'{"load": "2"}'):
        ranks.wait_in_vain(load, 0, 1)
        late = ranks.new(2)
        with pytest.raises(tload.PeerError, match="rank 2 of 3 did not join the load"):
            late.exchange(load, 240.0)
        late.close()
    # The others wait for it with another load.
    load, other = b'{"load": "3"}', b'{"load": "4"}'
    ranks.wait_in_vain(load, 0, 1)
    waiting = [ranks.new(0), ranks.new(1)]
    with ThreadPoolExecutor(3) as pool:
        exchanged = [pool.submit(group.exchange, other, 240.0) for group in waiting]
        while not waiting[0]._store.check(["message/0/0", "message/0/1"]):
            pass
        late = ranks.new(2)
        with pytest.raises(tload.PeerError, match="rank 2 of 3 did not join the load"):
            late.exchange(load, 240.0)
        late.close()
        group = ranks.new(2)
        assert group.exchange(other, 240.0) == [other] * 3
        assert [one.result() for one in exchanged] == [[other] * 3] * 2
    for each in (*waiting, group):
        each.close()
    assert ranks.store.num_keys() == 3


def test_late_rank_with_later_groups_stays_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch)
    first, second = ([ranks.new(rank) for rank in range(3)] for _ in range(2))
    first[1]._store.set("message/0/1", b'{"load": "1"}')
    for group, message in zip(first, (b'{"load": "1"}', b'{"load": "1"}', b'{"load": "2"}'), strict=True):
        with pytest.raises(tload.PeerError, match="rank 2 of 3 did not join the load"):
            group.exchange(message, 0.01)
        group.close()
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda group: group.exchange(b"here", 240.0), second)) == [[b"here"] * 3] * 3
    for group in second:
        group.close()
    assert ranks.store.num_keys() == 3
