"""Checks that ranks find each other through a store that earlier attempts have used.

The ranks are threads, and the store is a real one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from perseus_like.errors import PeerLostError, TimedOutError, TransportError, UnavailableError
from perseus_like.torch.compat.stores import below_restarts, has_keys, set_key
from perseus_like.torch.distributed.rendezvous import StoreRendezvous
from perseus_like.torch.native_group import load
from perseus_like.torch.native_group.env import extensions

Start = Callable[..., StoreRendezvous]
Submit = Callable[..., "Future[Any]"]


@pytest.fixture
def start() -> Start:
    """Returns `start(rank)`, which makes one rank of three. All ranks use one store."""
    store: Any = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]

    def make(rank: int, seconds: float = 60) -> StoreRendezvous:
        client = dist.TCPStore("127.0.0.1", store.port, is_master=False)  # type: ignore[attr-defined]
        return StoreRendezvous(client, "perseus/0", rank, 3, timedelta(seconds=seconds))

    return make


@pytest.fixture
def submit() -> Iterator[Submit]:
    with ThreadPoolExecutor(8) as threads:
        yield threads.submit


@pytest.fixture
def joined(start: Start, submit: Submit) -> list[StoreRendezvous]:
    """Returns three ranks that have found each other."""
    ranks = [start(rank) for rank in range(3)]
    for result in [submit(each, b"") for each in ranks]:
        result.result()
    return ranks


def test_every_rank_gets_all_bytes_round_after_round(start: Start, submit: Submit) -> None:
    ranks = [start(rank) for rank in range(3)]
    for text in (b"a", b"", b"c" * 100_000):
        parts = [text + bytes([rank]) for rank in range(3)]
        results = [submit(rank, part) for rank, part in zip(ranks, parts, strict=True)]
        assert [each.result() for each in results] == [parts] * 3


def test_an_earlier_rendezvous_in_the_same_store_is_not_read(start: Start, submit: Submit) -> None:
    for text in (b"first", b"second"):
        results = [submit(start(rank), text) for rank in range(3)]
        assert [each.result() for each in results] == [[text] * 3] * 3


@pytest.mark.parametrize("rank", [0, 2])
def test_a_restarted_rank_replaces_the_lost_one(rank: int, start: Start, submit: Submit) -> None:
    """The other ranks wait for the restarted rank, and do not read the bytes of the lost one."""
    before = start(rank, seconds=0.5)
    assert isinstance(submit(before, b"lost").exception(), TimedOutError)  # it has written its first keys
    others = [submit(start(other), b"waits") for other in range(3) if other != rank]
    again = submit(start(rank), b"again")
    expected = [b"waits"] * 3
    expected[rank] = b"again"
    assert [each.result() for each in [*others, again]] == [expected] * 3


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_is_restarted_too_late_is_an_error(
    rank: int, joined: list[StoreRendezvous], start: Start, submit: Submit
) -> None:
    waiting = [submit(each, b"") for number, each in enumerate(joined) if number != rank]
    again = submit(start(rank, seconds=1), b"")
    for each in waiting:
        with pytest.raises(PeerLostError, match=f"rank {rank} was started again"):
            each.result()
    assert isinstance(again.exception(), TimedOutError | PeerLostError)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_fails_reaches_the_others(rank: int, joined: list[StoreRendezvous], submit: Submit) -> None:
    waiting = [submit(each, b"") for number, each in enumerate(joined) if number != rank]
    joined[rank].fail(RuntimeError("no memory"))
    for each in waiting:
        with pytest.raises(UnavailableError, match=rf"rank {rank} failed to join\. no memory"):
            each.result()


@pytest.mark.parametrize("rank", [0, 2])
def test_a_loss_that_one_rank_notices_reaches_the_others(
    rank: int, joined: list[StoreRendezvous], submit: Submit
) -> None:
    """The ranks of another host than that of the lost rank do not notice its end."""
    waiting = [submit(each, b"") for number, each in enumerate(joined) if number not in (1, rank)]
    os.eventfd_write(joined[rank].lost, 1)
    for each in (submit(joined[rank], b""), *waiting):
        with pytest.raises(PeerLostError, match="a rank ended while the group was being made"):
            each.result()


@pytest.mark.parametrize("rank", [0, 2])
def test_a_loss_that_the_core_of_one_rank_notices_reaches_the_others(
    rank: int, joined: list[StoreRendezvous], submit: Submit
) -> None:
    waiting = [submit(each, b"") for number, each in enumerate(joined) if number not in (1, rank)]
    joined[rank].fail(PeerLostError("rank 1 was killed"))
    for each in waiting:
        with pytest.raises(PeerLostError, match=rf"a rank ended while .* Rank {rank} reports: rank 1 was killed"):
            each.result()


def test_a_loss_of_rank_0_that_one_rank_notices_reaches_the_others(
    joined: list[StoreRendezvous], submit: Submit
) -> None:
    os.eventfd_write(joined[1].lost, 1)  # from now on rank 0 does nothing
    for each in (submit(joined[1], b""), submit(joined[2], b"")):
        with pytest.raises(PeerLostError, match="a rank ended while the group was being made"):
            each.result()


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("fails_first", [True, False])
def test_a_rank_that_fails_before_the_ranks_have_met_reaches_the_others(
    rank: int, fails_first: bool, start: Start, submit: Submit
) -> None:
    failing = start(rank)
    others = [start(other) for other in range(3) if other != rank]
    if fails_first:
        failed = submit(failing.fail, RuntimeError("no memory"))
        results = [submit(other, b"") for other in others]
    else:
        results = [submit(other, b"") for other in others]
        failed = submit(failing.fail, RuntimeError("no memory"))
    failed.result()
    for each in results:
        with pytest.raises(UnavailableError, match=rf"rank {rank} failed to join\. no memory"):
            each.result()


def test_a_rank_that_comes_after_the_failure_learns_of_it(start: Start, submit: Submit) -> None:
    rank_0, rank_1, rank_2 = map(start, range(3))  # connected first, because rank 0 waits for 5 s
    first = submit(rank_0, b"")
    submit(rank_2.fail, RuntimeError("no memory")).result()
    while not has_keys(rank_1._store, [rank_0._key("0/answer")]):
        assert not first.done()
    for each in (submit(rank_1, b""), first):
        with pytest.raises(UnavailableError, match=r"rank 2 failed to join\. no memory"):
            each.result()


def test_a_rank_that_gave_up_after_its_contribution_ends_the_round(start: Start, submit: Submit) -> None:
    """Rank 0 gets the error although it has the bytes of all ranks, because no rank may continue alone."""
    ranks = [start(rank) for rank in range(3)]
    for result in [submit(each, b"") for each in ranks]:
        result.result()
    for each in ranks[1:]:
        each._timeout = timedelta(seconds=-5)  # one look at the store
        assert isinstance(submit(each, b"contributed").exception(), TimedOutError)
    ranks[1].fail(RuntimeError("gave up"))
    with pytest.raises(UnavailableError, match=r"rank 1 failed to join\. gave up"):
        ranks[0](b"")


def test_missing_ranks_are_named_on_all_ranks(start: Start, submit: Submit) -> None:
    ranks = [start(rank, seconds=2) for rank in (0, 2)]  # connected first, which takes seconds without a DNS server
    results = [submit(rank, b"") for rank in ranks]
    for each in results:
        with pytest.raises(TimedOutError, match="timed out after 2 s: rank 1 did not come to the store"):
            each.result()


def test_values_that_no_rank_has_written_are_refused(start: Start, submit: Submit) -> None:
    """A value that no rank of this job has written is an error, or is ignored. It is never taken for a rank's bytes."""
    rank_0, rank_1 = start(0, seconds=1), start(1, seconds=1)
    set_key(rank_1._store, "perseus/0/announced/2", "1suesrep")
    set_key(rank_1._store, f"perseus/0/invited/{rank_1._name}", "1suesrep")
    with pytest.raises(TransportError, match="has not written"):
        rank_1(b"")
    with pytest.raises(TimedOutError, match="ranks 1, 2 did not come"):
        rank_0(b"")


def test_ranks_with_other_restart_counts_than_rank_0_meet_it(submit: Submit) -> None:
    """On torch 2.1, the keys of a rank contain how often its agent has restarted it."""
    store: Any = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]

    def start(rank: int, count: str) -> StoreRendezvous:
        client = dist.TCPStore("127.0.0.1", store.port, is_master=False)  # type: ignore[attr-defined]
        of_torch = PrefixStore("default_pg", PrefixStore(f"/worker/attempt_{count}", client))
        found = below_restarts(of_torch, count)
        return StoreRendezvous(found, "perseus/0", rank, 3, timedelta(seconds=60))

    ranks = [start(0, "1"), start(1, "1"), start(2, "0")]
    results = [submit(each, bytes([rank])) for rank, each in enumerate(ranks)]
    assert [each.result() for each in results] == [[b"\x00", b"\x01", b"\x02"]] * 3


def test_the_folder_of_extensions_needs_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run as a user without HOME and without an entry in /etc/passwd."""
    for name in ("HOME", "XDG_CACHE_HOME", "TORCH_EXTENSIONS_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 987654)
    assert extensions().is_absolute()
    assert load() is None
