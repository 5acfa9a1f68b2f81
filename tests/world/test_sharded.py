"""The sharded optimizer: memory of the host, joined ranks, and ranks that are lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import Ranks

pytest.importorskip("torch")
ReportsOf = Callable[[int], str]


@pytest.mark.parametrize("size", [2, 4])
def test_the_host_has_parameters_and_states_once(size: int, ranks: Ranks, reports_of: ReportsOf) -> None:
    world = ranks(
        size,
        """
        import gc, torch
        import perseus_like.torch as hvd
        torch.set_num_threads(1)
        hvd.init()

        def used():
            gc.collect()
            hvd.barrier()
            with open("/proc/self/smaps_rollup") as file:
                # Pages of files are shared with other programs of this machine, so their part changes.
                lines = [line.split() for line in file if line.startswith(("Pss_Anon:", "Pss_Shmem:"))]
            mine = sum(int(line[1]) * 1024 for line in lines)
            return sum(hvd.allgather_object(mine))

        # The first use of optimizers loads code, which is not of interest here.
        small = torch.nn.Linear(2, 2)
        optimizer = hvd.ZeroRedundancyOptimizer(small.parameters(), torch.optim.Adam, lr=1e-3)
        small(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        before = used()
        model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(10)])
        optimizer = hvd.ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 1024)).sum().backward()
            optimizer.step()
        report((used() - before) / (10 * 1024 * 1024 * 4))
        """,
        seconds=120,
        OMP_NUM_THREADS="1",
        MALLOC_MMAP_THRESHOLD_=str(1 << 20),  # otherwise malloc keeps freed gradients of each rank in its heap
    )
    assert world.returncode == 0, world.stderr
    copies = 1 + 2 + size  # parameters, two states, a gradient of each rank
    assert 0.95 * copies <= float(reports_of(0)) <= 1.05 * copies


def test_a_rank_that_joins(ranks: Ranks, reports_of: ReportsOf) -> None:
    world = ranks(
        2,
        """
        import torch
        import perseus_like.torch as hvd
        hvd.init()
        model = torch.nn.Linear(4, 2)
        optimizer = hvd.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
        try:
            if hvd.rank() == 0:
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
                report("has stepped")
        except RuntimeError as error:
            report(type(error).__name__, error)
        hvd.join()
        """,
        seconds=120,
    )
    assert world.returncode == 0, world.stderr
    assert reports_of(0).startswith("UnavailableError ZeroRedundancyOptimizer: a rank has joined")


def test_after_the_loss_of_a_rank_no_step_uses_the_parameters(
    ranks: Ranks, reports_of: ReportsOf, patient_launcher: list[str]
) -> None:
    world = ranks(
        3,
        """
        import signal, torch
        import perseus_like.torch as hvd
        hvd.init()
        model = torch.nn.Linear(4, 2)
        optimizer = hvd.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
        for step in range(3):
            if step == 2 and hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            model(torch.ones(1, 4)).sum().backward()
            try:
                optimizer.step()
            except hvd.HorovodInternalError as error:
                report("lost")
                try:
                    optimizer.step()
                except RuntimeError as error:
                    report(error)
        """,
        seconds=120,
        launcher=patient_launcher,
    )
    assert world.returncode != 0
    for rank in (0, 2):
        assert reports_of(rank).startswith("lost\nZeroRedundancyOptimizer: a rank was lost during a step, so that ")
