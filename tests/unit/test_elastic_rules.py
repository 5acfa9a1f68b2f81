"""Tests of the rules of elastic jobs: members of a generation, their order, usable hosts, and the discovery script."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from perseus_like.elastic import ObjectState, run_fn
from perseus_like.elastic.notification import HostUpdateResult, notification_manager
from perseus_like.launch.elastic.discovery import parse
from perseus_like.launch.elastic.generation import (
    awaited_by,
    candidates_of,
    expected_in,
    free_slots,
    in_order,
    without_a_slot,
)
from perseus_like.launch.elastic.host_order import HostManager
from perseus_like.launch.elastic.started_worker import Worker
from perseus_like.launch.host_list import Host
from perseus_like.launch.start_errors import LaunchError
from perseus_like.protocol.messages import Reader, encode


def worker(number: int, host: str = "a", slot: int = 0, **more: Any) -> Worker:
    return Worker(number, host, slot, connection=socket.socket(), **more)


def numbers(workers: list[Worker]) -> list[int]:
    return [each.number for each in workers]


def test_rank_0_has_the_state_and_hosts_stay_together() -> None:
    new = worker(7, "c", joined=None)
    without_state = worker(1, "a", joined=1, rank=0)
    old = worker(3, "b", joined=1, rank=2, has_state=True)
    older = worker(2, "b", joined=1, rank=1, has_state=True)
    neighbour = worker(8, "b", joined=None)
    order = in_order([new, neighbour, without_state, old, older])
    assert numbers(order) == [2, 3, 8, 1, 7]


def test_a_leaving_worker_stays_while_no_other_worker_has_the_state() -> None:
    leaving = [worker(number, is_ready=True, is_leaving=True, has_state=True) for number in (0, 1)]
    new = worker(2, "b", is_ready=True)
    assert numbers(candidates_of([*leaving, new])) == [0, 2]
    new.has_state = True
    assert numbers(candidates_of([*leaving, new])) == [2]


def test_candidates_are_alive_and_ready_and_not_leaving() -> None:
    workers = [
        worker(0, is_ready=True, is_alive=False),
        worker(1),
        worker(2, is_ready=True, is_dismissed=True),
        worker(3, is_ready=True, is_leaving=True),
        worker(4, is_ready=True),
    ]
    assert numbers(candidates_of(workers)) == [4]


def test_free_slots() -> None:
    workers = [worker(0, "a", 0), worker(1, "a", 1, is_alive=False), worker(2, "b", 1, is_leaving=True)]
    usable = {"a": 2, "b": 2, "c": 1}
    assert free_slots(workers, usable, None) == [("a", 1), ("b", 0), ("c", 0)]
    assert free_slots(workers, usable, 2) == [("a", 1)]
    assert free_slots(workers, usable, 1) == []
    assert free_slots([], {}, None) == []


def test_workers_without_a_slot() -> None:
    workers = [worker(0, "a", 0), worker(1, "a", 1), worker(2, "b", 0), worker(3, "b", 0, is_alive=False)]
    assert numbers(without_a_slot(workers, {"a": 1})) == [1, 2]


def test_a_generation_waits_for_members_and_newcomers_but_not_for_retries() -> None:
    workers = [
        worker(0, joined=1, generation=1),
        worker(1, joined=1, generation=1, is_ready=True),
        worker(2),
        worker(3, is_retry=True),
        worker(4, is_dismissed=True),
        worker(5, is_alive=False),
    ]
    assert numbers(awaited_by(workers, 1)) == [0, 2]


def test_ranks_are_expected_before_workers_start() -> None:
    members = [worker(number, "a", number, joined=1, rank=number, has_state=True) for number in (0, 1)]
    members[0].is_leaving = True
    assert numbers(expected_in([*members, worker(2, "b"), worker(3, "a")])) == [1, 3, 2]


def test_workers_stay_on_the_only_host() -> None:
    manager = HostManager(None)
    manager.update([Host("a", 2)])
    manager.blacklist("a")
    assert manager.staying() == {"a": 2}
    assert not manager.are_all_lost()
    manager.update([Host("a", 2), Host("b", 1)])
    assert manager.staying() == {"b": 1}
    manager.blacklist("b")
    assert manager.are_all_lost()
    assert manager.has_failed("a")


def test_hosts_keep_their_order() -> None:
    manager = HostManager(None)
    assert manager.update([Host("b", 1), Host("a", 2)])
    assert not manager.update([Host("a", 2), Host("b", 1)])
    assert manager.update([Host("c", 1), Host("a", 3), Host("b", 1)])
    assert list(manager.found.items()) == [("b", 1), ("a", 3), ("c", 1)]


def test_blacklisting_without_a_limit() -> None:
    manager = HostManager(None)
    manager.update([Host("a", 1), Host("b", 1)])
    assert manager.blacklist("a") is None
    assert manager.usable() == {"b": 1}
    assert manager.describe() == "a:1 (blacklisted), b:1"


def test_blacklisting_for_longer_each_time() -> None:
    manager = HostManager((10, 35))
    assert [manager.blacklist("a") for _ in range(4)] == [10.0, 20.0, 35.0, 35.0]
    assert manager.is_blacklisted("a")
    assert not manager.is_blacklisted("b")
    short = HostManager((0, 0))
    assert short.blacklist("a") == 0.0
    assert not short.is_blacklisted("a")


def test_output_of_a_discovery_script() -> None:
    assert parse("a:2\n\n b:1 \n# none\n", None) == [Host("a", 2), Host("b", 1)]
    assert parse("a\n[::1]\nb:4\n", 3) == [Host("a", 3), Host("[::1]", 3), Host("b", 4)]
    assert parse("", None) == []
    for text in ("a", "a:many", "a b", "a:1:2", "a:0", "<html>:1"):
        with pytest.raises(LaunchError):
            parse(text, None)


def test_messages_in_pieces() -> None:
    reader = Reader()
    data = encode("join", rank=1) + encode("hosts", stamp=2)
    found = [message for byte in data for message in reader.take(bytes([byte]))]
    assert found == [{"kind": "join", "rank": 1}, {"kind": "hosts", "stamp": 2}]
    for wrong in (b"hello\n", b"[]\n", b"{}\n"):
        with pytest.raises(ValueError, match=r"message|value"):
            Reader().take(wrong)


def test_hosts_that_change_before_the_training_begins_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program makes its model between `init` and the training, which may take long."""
    monkeypatch.setattr(notification_manager, "known_until", 2)  # the session's start sets it
    for stamp in (2, 3):
        notification_manager.handle_hosts_updated(stamp, HostUpdateResult.added)
    state = ObjectState(lambda value: value, lambda: 0)
    resets: list[object] = []

    def train(state: ObjectState) -> int:
        state.check_host_updates()
        return len(resets)

    assert run_fn(train, lambda: resets.append(1))(state) == 1
    assert run_fn(train, lambda: resets.append(1))(state) == 1
