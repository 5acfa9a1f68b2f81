"""The sharded optimizer: memory of the host, joined ranks, and ranks that are lost."""

from __future__ import annotations

import pytest

from tests.job import PATIENT_LAUNCHER, needs

from .conftest import Ranks

needs("torch")


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_host_has_parameters_and_states_once(size: int, ranks: Ranks) -> None:
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
        OMP_NUM_THREADS="1",
        MALLOC_MMAP_THRESHOLD_=str(1 << 20),  # otherwise malloc keeps freed gradients of each rank in its heap
    ).succeeded()
    copies = 1 + 2 + size  # parameters, two states, a gradient of each rank
    assert 0.95 * copies <= float(world.reports_of(0)) <= 1.05 * copies


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "NAdam"])
def test_ranks_that_join(size: int, optimizer: str, ranks: Ranks) -> None:
    """The others update the shards of a rank that has joined, whose gradients count as zeros, until it comes back."""
    world = ranks(
        size,
        f"""
        import torch
        import perseus_like.torch as hvd
        hvd.init()
        rank, size = hvd.rank(), hvd.size()
        cls = torch.optim.{optimizer}

        def model_of():
            torch.manual_seed(0)
            large = [torch.nn.Linear(200, 200) for _ in range(2)]  # two ranks have one each in their shards
            return torch.nn.Sequential(torch.nn.Linear(4, 200), *large, torch.nn.Tanh(), torch.nn.Linear(200, 2))

        def loss_of(model, epoch, step, by):
            generator = torch.Generator().manual_seed(100 * epoch + 10 * step + by)
            return (model(torch.randn(8, 4, generator=generator)) ** 2).mean()

        def batches(by):
            return 2 + by  # so rank 0 joins first

        model, alone = model_of(), model_of()
        optimizer = hvd.ZeroRedundancyOptimizer(model.parameters(), cls, lr=0.01)
        plain = cls(alone.parameters(), lr=0.01)
        for epoch in range(2):
            for step in range(batches(rank)):
                optimizer.zero_grad()
                loss_of(model, epoch, step, rank).backward()
                norm = optimizer.clip_grad_norm_(0.05) if step == 2 else None
                optimizer.step()
            assert hvd.join() == size - 1
            for step in range(batches(size - 1)):
                plain.zero_grad()
                for by in range(size):
                    if step < batches(by):
                        (loss_of(alone, epoch, step, by) / size).backward()
                if step == 2:
                    expected = torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.05)
                    assert norm is None or torch.allclose(norm, expected, rtol=1e-4)
                plain.step()
            for found, wanted in zip(model.parameters(), alone.parameters()):
                torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        optimizer.zero_grad()
        loss_of(model, 2, 0, rank).backward()
        optimizer.step()  # all ranks again
        steps = [int(each["step"]) for each in optimizer.state_dict()["state"].values()]
        report(set(steps) == {{2 * batches(size - 1) + 1}})
        """,
    ).succeeded()
    assert [world.reports_of(rank).strip() for rank in range(size)] == ["True"] * size


def test_after_the_loss_of_a_rank_no_step_uses_the_parameters(ranks: Ranks) -> None:
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
        launcher=PATIENT_LAUNCHER,
    )
    assert world.code != 0
    for rank in (0, 2):
        text = world.reports_of(rank)
        assert text.startswith("lost\nZeroRedundancyOptimizer: a rank was lost during a step, so that ")
