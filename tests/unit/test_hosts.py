"""Checks that the ranks of each host are computed from every rank's local rank, local size and cross rank."""

from __future__ import annotations

import pytest

from perseus_like.hosts import ranks_by_host


def places(host_of: list[int]) -> list[tuple[int, int, int]]:
    """Returns (local rank, local size, cross rank) of each rank, computed by their definitions."""
    members = [[r for r, host in enumerate(host_of) if host == h] for h in sorted(set(host_of))]
    found = []
    for rank in range(len(host_of)):
        host, mine = next((h, ranks) for h, ranks in enumerate(members) if rank in ranks)
        local = mine.index(rank)
        found.append((local, len(mine), sum(len(ranks) > local for ranks in members[:host])))
    return found


@pytest.mark.parametrize(
    ("host_of", "expected"),
    [
        ([0], [[0]]),
        ([0, 0, 1, 1], [[0, 1], [2, 3]]),
        ([0, 1, 0, 1], [[0, 2], [1, 3]]),
        ([0, 1, 1, 1, 2, 2], [[0], [1, 2, 3], [4, 5]]),
        ([0, 0, 0, 1, 2, 2, 3, 3, 3], [[0, 1, 2], [3], [4, 5], [6, 7, 8]]),
    ],
)
def test_uneven_and_interleaved_hosts(host_of: list[int], expected: list[list[int]]) -> None:
    assert ranks_by_host(places(host_of)) == expected
