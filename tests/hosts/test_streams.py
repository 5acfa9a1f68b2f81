"""Checks that data between hosts uses the set number of streams, and that the number does not change the results."""

from __future__ import annotations

import csv
import textwrap
from pathlib import Path

import pytest

from tests.job import succeeded

from .conftest import OnHosts, ReportsOf, TestBeds

PROGRAM = """
import hashlib
from perseus_like import _core

hvd.init()
rank = hvd.rank()
mine = np.random.default_rng(rank).standard_normal(1 << 20).astype(np.float32)
digest = hashlib.sha256()
for count in (1 << 20, 100_001, 5):
    digest.update(hvd.allreduce(mine[:count], op=hvd.Average, name=f"a{count}").tobytes())
    digest.update(hvd.broadcast(mine[:count], root_rank=1, name=f"b{count}").tobytes())
    digest.update(hvd.allgather(mine[:count], name=f"g{count}").tobytes())
digest = np.frombuffer(digest.digest(), dtype=np.uint8)
assert (hvd.broadcast(digest, root_rank=0, name="digest") == digest).all()

ESTABLISHED = "01"
with open("/proc/net/tcp") as file:
    lines = [line.split() for line in file][1:]
report(sum(line[3] == ESTABLISHED and not line[1].startswith("0100007F") for line in lines))
report(digest.tobytes().hex())
report(_core.description())
hvd.barrier()  # keeps the other host's connections open until this rank has counted its own
hvd.shutdown()
"""


def test_more_streams_are_more_connections_and_the_same_bits(
    test_beds: TestBeds, on_hosts: OnHosts, reports_of: ReportsOf, tmp_path: Path
) -> None:
    test_bed = test_beds(2)
    connections, digests = [], []
    for streams in ("1", "4"):
        succeeded(on_hosts(test_bed, PROGRAM, [1, 1], PERSEUS_ALLREDUCE_STREAMS=streams))
        count, digest, description = reports_of(0)
        assert ("4 streams" in description) == (streams == "4")
        connections.append(int(count))
        digests.append(digest)
        for file in tmp_path.glob("rank*.txt"):
            file.unlink()
    assert connections[1] >= connections[0] + 3
    assert digests[0] == digests[1]


MEMORY = """
hvd.init()
with open("/proc/self/status") as file:
    report(next(line.split()[1] for line in file if line.startswith("RssAnon")))
hvd.shutdown()
"""


def test_streams_cost_little_memory(
    test_beds: TestBeds, on_hosts: OnHosts, reports_of: ReportsOf, tmp_path: Path
) -> None:
    test_bed = test_beds(2)
    kibibytes = []
    for streams in ("1", "4"):
        succeeded(on_hosts(test_bed, MEMORY, [1, 1], PERSEUS_ALLREDUCE_STREAMS=streams))
        kibibytes.append(int(reports_of(0)[0]))
        (tmp_path / "rank0.txt").unlink()
    assert kibibytes[1] < kibibytes[0] + (40 << 10)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["--mpi"], indirect=True)
def test_a_single_stream_is_reported_once(test_beds: TestBeds, on_hosts: OnHosts, reports_of: ReportsOf) -> None:
    other = {"MPIR_CVAR_CH4_NUM_VCIS": "1", "PERSEUS_ALLREDUCE_STREAMS": "3"}
    world = succeeded(on_hosts(test_beds(2), PROGRAM, [1, 1], **other))
    warning = "using one stream between hosts instead of 3: MPIR_CVAR_CH4_NUM_VCIS is 1"
    assert world.stderr.count(warning) == 1, world.stderr
    assert "streams" not in reports_of(0)[2]


@pytest.mark.slow
def test_hosts_with_different_numbers_of_streams_use_one_number(
    test_beds: TestBeds, on_hosts: OnHosts, reports_of: ReportsOf
) -> None:
    other = """
    os.environ["PERSEUS_ALLREDUCE_STREAMS"] = "4" if os.uname().nodename == "h1" else "2"
    """
    world = succeeded(on_hosts(test_beds(2), textwrap.dedent(other) + PROGRAM, [1, 1]))
    descriptions = [reports_of(rank)[2] for rank in range(2)]
    # MPI starts with the number of each host, so only the smallest is everywhere.
    expected = "4 streams" if "ucx (" in descriptions[0] else "2 streams"
    assert [description.count(expected) for description in descriptions] == [1, 1], descriptions
    assert "PERSEUS_ALLREDUCE_STREAMS (rank 1)" in world.stderr


TRAINING = """
hvd.init()
for step in range(400):
    for name in "abc":
        hvd.allreduce(np.ones(1000, np.float32), name=name)
hvd.shutdown()
"""


@pytest.mark.slow
@pytest.mark.parametrize("tuned", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["tuned", "not tuned"])
def test_streams_are_tuned_unless_a_setting_forbids_it(
    test_beds: TestBeds, on_hosts: OnHosts, tmp_path: Path, tuned: bool
) -> None:
    log = tmp_path / "tune.csv"
    world = on_hosts(
        test_beds(2),
        TRAINING,
        [1, 1],
        PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING=str(int(not tuned)),
        PERSEUS_AUTOTUNE_LOG=str(log),
        PERSEUS_AUTOTUNE_STEPS_PER_SAMPLE="2",
        PERSEUS_AUTOTUNE_WARMUP_SAMPLES="1",
    )
    assert world.returncode == 0, world.stdout + world.stderr
    assert log.exists() == tuned
    if not tuned:
        return
    with log.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["streams"] for row in rows} == {"1", "2", "4"}
    assert len({row["fusion_threshold_bytes"] for row in rows}) == 1
    assert rows[-1]["what"] == "kept"
