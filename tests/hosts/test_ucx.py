"""Runs jobs on two and three hosts over UCX, without an mpirun. MPICH's wheel has a UCX, and no MPI is loaded."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.job import needs, outputs_of, start_process

from .conftest import UCX_LIBRARY, TestBeds
from .network_test_bed import NetworkTestBed

needs("torch")  # its store is where the ranks meet
if not UCX_LIBRARY.exists():
    pytest.skip("no UCX of MPICH's wheel beside this Python", allow_module_level=True)

COLLECTIVES = """
import os
import numpy as np
import perseus_like.numpy as hvd
from perseus_like.session import session

hvd.init()
rank, size = hvd.rank(), hvd.size()
assert session.core.description().startswith("store: 4 ranks, ucx (UCX 1."), session.core.description()
for count in (1, 1000, 300_000):
    mine = np.arange(count, dtype=np.float64) * (rank + 1)
    assert np.array_equal(hvd.allreduce(mine, op=hvd.Sum), np.arange(count) * 10.0)
    assert np.array_equal(hvd.broadcast(mine, root_rank=3), np.arange(count) * 4.0)
    parts = [np.arange(count) * (other + 1.0) for other in range(size)]
    assert np.array_equal(hvd.allgather(mine), np.concatenate(parts))
    assert np.array_equal(hvd.reducescatter(np.tile(mine, size), op=hvd.Sum), np.arange(count) * 10.0)
    assert np.array_equal(hvd.alltoall(np.repeat(mine[:1] + rank, size)), np.arange(size))
pair = hvd.add_process_set([1, 2])  # of two hosts
if pair.included():
    assert hvd.allreduce(np.ones(5), op=hvd.Sum, process_set=pair).tolist() == [2.0] * 5
hvd.remove_process_set(pair)
with open("/proc/self/maps") as maps:
    assert "libmpi" not in maps.read()
hvd.shutdown()
print(f"done {rank}", flush=True)
"""

LOOP = """
import os
import numpy as np
import perseus_like.numpy as hvd

hvd.init()
hvd.allreduce(np.ones(1 << 18), name="gradient")  # UCX 1.20 may abort a process if its peer ends while they connect
print("up", os.getpid(), flush=True)
try:
    while True:
        hvd.allreduce(np.ones(1 << 18), name="gradient")
except hvd.PeerLostError as error:
    print(f"raised {error}", flush=True)
"""

CONNECTS_WHEN_TOLD = """
import pathlib, time
import numpy as np
import perseus_like.numpy as hvd

hvd.init()
print("up", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.001)
try:
    hvd.allreduce(np.ones(1 << 18), name="gradient")
except hvd.PeerLostError as error:
    print(f"raised {error}", flush=True)
"""

REMEDY = (
    "Without MPI, all hosts need UCX (`pip install 'perseus-like[ucx]'` or `apt install libucx0`). For MPI, start the "
    "job with an mpirun: mpirun, `srun --mpi=pmi2` or `perseusrun --mpi`"
)


def start(
    test_bed: NetworkTestBed,
    program: str,
    folder: Path,
    per_host: int,
    libraries: Mapping[int, str] = MappingProxyType({}),
    variables: Mapping[str, str] = MappingProxyType({}),
) -> list[subprocess.Popen[str]]:
    """Starts the ranks of all hosts as torchrun does. `libraries`: the UCX of ranks that have another one."""
    (folder / "program.py").write_text(textwrap.dedent(program))
    ranks = []
    for rank in range(per_host * len(test_bed.hosts)):
        environment: dict[str, Any] = {
            "MASTER_ADDR": test_bed.address("h1"),
            "MASTER_PORT": "29502",
            "RANK": str(rank),
            "WORLD_SIZE": str(per_host * len(test_bed.hosts)),
            "LOCAL_RANK": str(rank % per_host),
            "LOCAL_WORLD_SIZE": str(per_host),
            "PERSEUS_UCX_LIBRARY": libraries.get(rank, str(UCX_LIBRARY)),
            "PERSEUS_NETWORK_INTERFACES": "eth0",
            **variables,
        }
        line = test_bed.command(test_bed.hosts[rank // per_host], [sys.executable, "program.py"], folder)
        ranks.append(start_process(line, **environment))
    return ranks


def test_collectives(test_beds: TestBeds, tmp_path: Path) -> None:
    ranks = start(test_beds(2), COLLECTIVES, tmp_path, 2)
    outputs = outputs_of(ranks)
    assert [rank.returncode for rank in ranks] == [0] * 4, "\n".join(outputs)
    assert sorted(re.findall(r"done (\d)", "".join(outputs))) == ["0", "1", "2", "3"]


def test_the_others_live_on_when_a_host_is_lost(test_beds: TestBeds, tmp_path: Path) -> None:
    ranks = start(test_beds(3), LOOP, tmp_path, 1)
    up = []
    for rank in ranks:
        assert rank.stdout is not None
        lines = iter(rank.stdout.readline, "")
        up.append(int(next(line for line in lines if line.startswith("up ")).split()[1]))
    os.kill(up[2], signal.SIGKILL)
    outputs = outputs_of(ranks)
    assert [rank.returncode for rank in ranks[:2]] == [0, 0], outputs
    assert all("raised" in output and "rank 2 on h3" in output for output in outputs[:2]), outputs
    assert "UCX " not in "".join(outputs), "UCX has nothing to say about it"


def test_a_cut_before_ranks_are_connected(test_beds: TestBeds, tmp_path: Path) -> None:
    """A rank that waits in connect() notices nothing for two minutes."""
    test_bed = test_beds(2)
    ranks = start(test_bed, CONNECTS_WHEN_TOLD, tmp_path, 2, variables={"PERSEUS_HEARTBEAT_TIMEOUT": "2"})
    for rank in ranks:
        assert rank.stdout is not None
        assert "up\n" in iter(rank.stdout.readline, "")
    test_bed.cut_between("h1", "h2")
    (tmp_path / "go").touch()
    outputs = outputs_of(ranks)
    assert [rank.returncode for rank in ranks] == [0] * 4, "\n".join(outputs)
    for output, host in zip(outputs, ("h2", "h2", "h1", "h1"), strict=True):
        assert re.search(rf"raised allreduce 'gradient': rank \d on {host} does not answer", output), outputs


def test_a_host_without_ucx_is_named_on_all(test_beds: TestBeds, tmp_path: Path) -> None:
    ranks = start(test_beds(2), LOOP, tmp_path, 1, {1: "/nowhere/libucp.so.0"})
    outputs = outputs_of(ranks)
    assert [rank.returncode for rank in ranks] == [1, 1], outputs
    expected = "no mpirun has started this job, and rank 1 on host h2 has no UCX: cannot open /nowhere/libucp.so.0"
    assert all(expected in output and REMEDY in output for output in outputs), outputs


def test_mpi_needs_an_mpirun(test_beds: TestBeds, tmp_path: Path) -> None:
    ranks = start(test_beds(2), LOOP, tmp_path, 1, variables={"PERSEUS_HOST_TRANSPORT": "mpi"})
    outputs = outputs_of(ranks)
    assert [rank.returncode for rank in ranks] == [1, 1], outputs
    expected = f"PERSEUS_HOST_TRANSPORT is mpi, and no mpirun has started this job. {REMEDY}"
    assert all(expected in output for output in outputs), outputs


def test_ranks_that_nothing_watches_do_not_start(test_beds: TestBeds, tmp_path: Path) -> None:
    """A cable that is cut would make the ranks wait for ever."""
    ranks = start(test_beds(2), LOOP, tmp_path, 1, variables={"PERSEUS_HEARTBEAT_TIMEOUT": "0"})
    outputs = outputs_of(ranks)
    assert [rank.returncode for rank in ranks] == [1, 1], outputs
    expected = "PERSEUS_HEARTBEAT_TIMEOUT is 0 on rank 0, and nothing else notices a lost host over UCX"
    assert all(expected in output for output in outputs), outputs


def test_another_version_of_ucx_is_named_on_all(test_beds: TestBeds, tmp_path: Path) -> None:
    # All functions are those of the real library, except for the version.
    other = tmp_path / "libucp.so.0"
    source = tmp_path / "version.c"
    source.write_text("void ucp_get_version(unsigned *a, unsigned *b, unsigned *c) { *a = 1; *b = 99; *c = 0; }\n")
    libraries = ["-Wl,--no-as-needed", str(UCX_LIBRARY), f"-Wl,-rpath,{UCX_LIBRARY.parent}"]
    subprocess.run(["cc", "-shared", "-fPIC", "-o", other, source, *libraries], check=True)
    ranks = start(test_beds(2), LOOP, tmp_path, 1, {1: str(other)})
    outputs = outputs_of(ranks)
    assert [rank.returncode for rank in ranks] == [1, 1], outputs
    expected = r"rank 1 on host h2 has UCX 1\.99, and rank 0 on host h1 has UCX 1\.\d+; install the same version"
    assert all(re.search(expected, output) for output in outputs), outputs


def test_ranks_of_a_host_that_cannot_share_memory(test_beds: TestBeds, tmp_path: Path) -> None:
    program = """
    import numpy as np
    import perseus_like.numpy as hvd
    from perseus_like.session import session

    hvd.init()
    assert session.core.description().startswith("store: 2 ranks, ucx (UCX 1."), session.core.description()
    print("sum", hvd.allreduce(np.ones(3), op=hvd.Sum).tolist())
    """
    ranks = start(test_beds(1), program, tmp_path, 2, variables={"PERSEUS_ARENA_BYTES": "1"})
    outputs = outputs_of(ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert all("sum [2.0, 2.0, 2.0]" in output for output in outputs), outputs
    assert "inside each host too, which is slower: the ranks of a host cannot share memory (" in outputs[0], outputs
