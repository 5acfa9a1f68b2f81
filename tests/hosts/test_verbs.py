"""Checks that collectives on hosts with equal or different numbers of ranks send few bytes and give the right results.

The number of bytes is at most slightly above the least that is possible.
"""

from __future__ import annotations

import pytest

from .conftest import OnHosts, ReportsOf, TestBeds

# Local rank 0 of each host reads the number of bytes that the host has sent. Barriers separate the verbs.
VERBS = """
hvd.init()
rank, size = hvd.rank(), hvd.size()
MIB = 1 << 20
S = 12 * MIB

def sent():
    with open("/sys/class/net/eth0/statistics/tx_bytes") as file:
        return int(file.read())

def source(rank, count):
    return np.random.default_rng(rank).integers(-1000, 1000, count).astype(np.float32)

everybody = [source(r, S // 4) for r in range(size)]
mine = everybody[rank]
total = np.sum(everybody, axis=0, dtype=np.float64)

def allreduce():
    return hvd.allreduce(mine, op=hvd.Sum, name="ar"), total

def broadcast():
    return hvd.broadcast(mine, root_rank=size - 1, name="bc"), everybody[-1]

def allgather():
    part = mine.reshape(-1, 4)[: S // 16 // size]
    return hvd.allgather(part, name="ag"), np.concatenate([e.reshape(-1, 4)[: S // 16 // size] for e in everybody])

def reducescatter():
    rows = S // 16 // size * size
    expected = total.reshape(-1, 4)[:rows]
    each = rows // size
    part = hvd.reducescatter(mine.reshape(-1, 4)[:rows], op=hvd.Sum, name="rs")
    return part, expected[rank * each : (rank + 1) * each]

def alltoall():
    each = S // 4 // size
    out = hvd.alltoall(mine[: each * size], name="a2a")
    out = out[0] if isinstance(out, tuple) else out
    return out, np.concatenate([e[rank * each : (rank + 1) * each] for e in everybody])

for verb in (allreduce, broadcast, allgather, reducescatter, alltoall):
    verb()  # makes the connections
    hvd.barrier()
    before = sent()
    result, expected = verb()
    assert np.array_equal(np.asarray(result, dtype=np.float64), expected), verb.__name__
    hvd.barrier()
    report(verb.__name__, hvd.local_rank(), sent() - before)
hvd.shutdown()
"""
MIB = 1 << 20
S = 12 * MIB


def sent_by_hosts(lines: list[str]) -> dict[str, list[int]]:
    """Returns the bytes that the hosts have sent, by verb."""
    found: dict[str, list[int]] = {}
    for line in lines:
        verb, local_rank, count = line.split()
        if local_rank == "0":
            found.setdefault(verb, []).append(int(count))
    return found


@pytest.mark.parametrize("ranks", [pytest.param([2, 2], marks=pytest.mark.slow), [2, 1]], ids=["even", "uneven"])
def test_few_bytes_are_sent_between_hosts(
    test_beds: TestBeds, on_hosts: OnHosts, reports_of: ReportsOf, ranks: list[int]
) -> None:
    hosts, size = len(ranks), sum(ranks)
    world = on_hosts(test_beds(hosts), VERBS, ranks)
    assert world.returncode == 0, world.stdout + world.stderr
    found = sent_by_hosts([line for rank in range(size) for line in reports_of(rank)])
    # These are the bytes of all hosts together. A verb with a part for each rank has parts of S / size bytes.
    block = S / size
    others = [size - count for count in ranks]
    least = {
        "allreduce": 2 * (hosts - 1) * S,
        "broadcast": (hosts - 1) * S,
        "allgather": sum(count * block * (hosts - 1) for count in ranks),
        "reducescatter": sum(count * block for count in others),
        "alltoall": sum(mine * theirs * block for mine, theirs in zip(ranks, others, strict=True)),
    }
    for verb, bytes_needed in least.items():
        # Headers add 5 %, and the negotiation adds some kilobytes.
        assert sum(found[verb]) < 1.08 * bytes_needed + 200_000, (verb, found[verb], bytes_needed)
        assert sum(found[verb]) > bytes_needed, (verb, found[verb], bytes_needed)
