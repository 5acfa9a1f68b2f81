"""Checks AIACC-Training's names for DDP, with the arguments of a world of one process, under each launcher."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.job import Start, needs

from .conftest import Mpirun

needs("torch")

BEFORE = "before = dist.get_rank(), dist.get_world_size()"
PROGRAM = f"""
import torch
import perseus
import perseus.torch.distributed as dist
import perseus_like.torch.distributed

assert dist is perseus_like.torch.distributed
assert dist.use_perseus()
{BEFORE}
dist.init_process_group("nccl", "tcp://127.0.0.1:88", world_size=1, rank=0)
rank, size = dist.get_rank(), dist.get_world_size()
assert before == (rank, size) and dist.get_local_rank() == rank and dist.get_backend() == "perseus"

torch.manual_seed(rank)
model = perseus.torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2), device_ids=[dist.get_local_rank()])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + rank, momentum=0.9)
dist.broadcast_optimizer_state(optimizer)
assert optimizer.param_groups[0]["lr"] == 0.1
model(torch.ones(2, 3) * rank).sum().backward()
assert torch.allclose(model.module.weight.grad, torch.full((2, 3), float(size - 1)))
total = torch.ones(1)
dist.all_reduce(total, op=dist.ReduceOp.SUM)
assert total == size

# A group of torch.distributed can replace a process set. Only the group's ranks create the model.
pair = dist.new_group([0, size - 1])
if rank in (0, size - 1):
    part = perseus.torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2), process_group=pair)
    for _ in range(2):
        part.zero_grad()
        part(torch.ones(1, 3) * rank).sum().backward()
        assert torch.allclose(part.module.weight.grad, torch.full((2, 3), (size - 1) / 2))
dist.barrier()
dist.destroy_process_group()
# One string is one write. The ranks of torchrun share a file, so the parts of two writes could mix.
print(f"done {{rank}} of {{size}}", flush=True)
"""


@pytest.fixture
def run(run_job: Start) -> Callable[..., str]:
    def start(launcher: str, *options: str, program: str = PROGRAM) -> str:
        done = run_job(2, program, launcher, options=options).succeeded()
        return done.stdout

    return start


@pytest.mark.slow
def test_under_perseusrun(run: Callable[..., str]) -> None:
    out = run("perseusrun", "--no-prefix")
    assert out.count("of 2") == 2


@pytest.mark.slow
@pytest.mark.parametrize("asks_before", [True, False])
def test_under_torchrun(asks_before: bool, run: Callable[..., str]) -> None:
    said_by_torchrun = 'int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])'
    program = PROGRAM if asks_before else "import os\n" + PROGRAM.replace(BEFORE, f"before = {said_by_torchrun}")
    out = run("torchrun", program=program)
    assert out.count("of 2") == 2


@pytest.mark.slow
def test_under_mpirun(mpirun: Mpirun) -> None:
    done = mpirun(PROGRAM)
    assert done.code == 0, done.stdout + done.stderr
    assert done.stdout.count("of 4") == 4
