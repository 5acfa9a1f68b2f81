"""Tests of jobs on several simulated hosts: the ranks of one machine use different host names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.job import ONE_MALLOC_ARENA, needs

from .conftest import Mpirun, run_on_simulated_hosts

SCOPES = """
import torch
import perseus_like.torch as hvd
from perseus_like.host_memory.host_sets import host_process_set

for session in range(2):
    hvd.init()
    rank = hvd.rank()
    here = [1] if rank == 1 else [0, 2, 3]
    assert (hvd.local_rank(), hvd.local_size()) == (here.index(rank), len(here))
    own = hvd.add_process_set([0, 2, 3]) if session else None  # an existing process set is used again
    assert host_process_set().ranks == here
    assert own is None or rank == 1 or host_process_set() is own
    batches = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0)).double()
    for scope, sharing in ((0, here), (1, [0, 1, 2, 3])):
        together = hvd.SyncBatchNorm(3, comm_scope=scope).double()
        alone = torch.nn.BatchNorm1d(3).double()
        expected = alone(batches[sharing].flatten(0, 1)).unflatten(0, (len(sharing), 5))[sharing.index(rank)]
        torch.testing.assert_close(together(batches[rank]), expected)
        torch.testing.assert_close(together.running_var, alone.running_var)
    hvd.shutdown()
print(f"rank {rank} is done", flush=True)
"""


@pytest.mark.slow
def test_batch_normalization_within_a_host(mpirun: Mpirun) -> None:
    needs("torch")
    run_on_simulated_hosts(mpirun, SCOPES)


# Allreduces of these kinds cannot be fused. Some tensors are small, and some are sent in several chunks.
SEVERAL_AT_ONCE = """
import numpy as np
import perseus_like.numpy as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
KINDS = [(dtype, op) for dtype in ("f4", "f8", "i4") for op in ("Sum", "Max", "Min")]

def values_of(by, step, number):
    count = 700_000 if number % 4 == 3 else number * 5
    values = np.random.default_rng([by, step, number]).integers(-100, 100, count)
    return values.astype(KINDS[number][0])

REDUCED = {"Sum": np.sum, "Max": np.max, "Min": np.min}
for step in range(10):
    # The last rank has joined from here on.
    if rank == size - 1 and step == 8:
        break
    contributors = range(size - 1 if step >= 8 else size)
    numbers = [i for i, (_, op) in enumerate(KINDS) if op == "Sum" or step < 8]
    handles = [
        hvd.allreduce_async(values_of(rank, step, i), op=getattr(hvd, KINDS[i][1]), name=f"t{i}") for i in numbers
    ]
    for i, handle in zip(numbers, handles):
        want = REDUCED[KINDS[i][1]]([values_of(by, step, i) for by in contributors], axis=0)
        np.testing.assert_array_equal(hvd.synchronize(handle), want)
hvd.join()
hvd.shutdown()
print(f"rank {rank} is done", flush=True)
"""


def test_allreduces_of_several_kinds_are_in_progress_at_once(mpirun: Mpirun, tmp_path: Path) -> None:
    run_on_simulated_hosts(mpirun, SEVERAL_AT_ONCE, HOROVOD_TIMELINE=str(tmp_path / "trace.json"))
    for name in ("trace.json", "trace.rank1.json"):
        in_progress, most = set[str](), 0
        events: list[dict[str, Any]] = json.loads((tmp_path / name).read_text())
        phases = dict[str, list[str]]()
        for event in sorted((event for event in events if event["ph"] in "BE"), key=lambda event: float(event["ts"])):
            open_phases = phases.setdefault(event["tid"], [])
            if event["ph"] == "B":
                open_phases.append(event["name"])
            elif open_phases.pop() == "HIERARCHY_ALLREDUCE":
                in_progress.discard(event["tid"])
            if "HIERARCHY_ALLREDUCE" in open_phases:
                in_progress.add(event["tid"])
            most = max(most, len(in_progress))
        assert most > 1, name


WITHOUT_MEMORY = """
import resource
import numpy as np
import perseus_like.numpy as hvd

hvd.init()
rank = hvd.rank()
if rank == 1:  # room for its own part (14 MiB), and not for the result (56 MiB)
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), resource.RLIM_INFINITY))
try:
    hvd.allgather(np.ones(14 << 18, np.float32), name="big")
except hvd.HorovodInternalError as error:
    assert rank == 1 or "rank 1 on one failed: " in str(error), error
    print(f"rank {rank} is done", flush=True)
except Exception as error:
    assert rank == 1, error
    print("rank 1 is done", flush=True)
"""


def test_a_rank_without_memory_is_an_error_on_all_ranks(mpirun: Mpirun) -> None:
    run_on_simulated_hosts(mpirun, WITHOUT_MEMORY, alone="01", **ONE_MALLOC_ARENA)
