"""The sharded optimizer on several simulated hosts: it trains as one process does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.job import needs

from .conftest import Mpirun, run_on_simulated_hosts

needs("torch")

BEGIN = """
import torch
import perseus_like.torch as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()

def batch_of(step, by=None):
    batch = torch.randn(16, 7, generator=torch.Generator().manual_seed(step))
    return batch if by is None else batch[by * 4 : by * 4 + 4]

def model_of(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(7, 800), torch.nn.Tanh(), torch.nn.Linear(800, 7))

def loss_of(model, batch):
    return (model(batch) ** 2).mean()

def step_both(model, optimizer, alone, plain, step):
    for some, one, batch in ((model, optimizer, batch_of(step, rank)), (alone, plain, batch_of(step))):
        one.zero_grad()
        loss_of(some, batch).backward()
        one.step()

def flat(model):
    return torch.cat([each.detach().flatten() for each in model.parameters()])

def assert_same(values):
    everybody = hvd.allgather_object(values)
    assert all(each == everybody[0] for each in everybody)

def assert_trained_alike(model, alone):
    torch.testing.assert_close(flat(model), flat(alone), rtol=1e-5, atol=1e-5)
    assert_same(flat(model).tolist())
"""
END = """
hvd.shutdown()
print(f"rank {rank} is done", flush=True)
"""

SETS = """
model, alone = model_of(), model_of()
optimizer = hvd.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, op=hvd.Sum, lr=0.1 / size)
sets = [hvd.add_process_set([0, 1]), hvd.add_process_set([2, 3])]  # as the optimizer's own ones
try:
    hvd.add_process_set([0, 1])
except ValueError as error:
    assert "exists already" in str(error)
else:
    raise AssertionError("not refused")
host = sets[rank // 2]
assert hvd.allreduce(torch.ones(1) * rank, op=hvd.Sum, process_set=host).item() == sum(host.ranks)
for each in sets:
    assert hvd.remove_process_set(each)
optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})  # makes the next step share memory anew
plain = torch.optim.SGD(alone.parameters(), lr=0.1)
for step in range(3):
    step_both(model, optimizer, alone, plain, step)
assert_trained_alike(model, alone)

some = hvd.add_process_set([0, 1, 3])
if rank != 2:
    try:
        hvd.ZeroRedundancyOptimizer(model_of().parameters(), torch.optim.Adam, process_set=some)
    except RuntimeError as error:
        assert "call add_process_set([3])" in str(error), error
    else:
        raise AssertionError("not refused")
hvd.add_process_set([3])
if rank != 2:
    model, alone = model_of(), model_of()
    optimizer = hvd.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, process_set=some, lr=0.1)
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, batch_of(step, rank)).backward()
        norm = optimizer.clip_grad_norm_(0.1)
        optimizer.step()
        plain.zero_grad()
        loss_of(alone, batch_of(step)[[row for row in range(16) if row // 4 != 2]]).backward()
        torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1))
        plain.step()
    torch.testing.assert_close(flat(model), flat(alone), rtol=1e-5, atol=1e-5)
hvd.barrier()
"""


@pytest.mark.slow
def test_process_sets(mpirun: Mpirun) -> None:
    """The program may register the sets that the optimizer uses, and train with some ranks of several hosts."""
    run_on_simulated_hosts(mpirun, BEGIN + SETS + END, "01")


PASSES = """
def raises(what, text, call):
    try:
        call()
    except what as error:
        assert text in str(error), error
    else:
        raise AssertionError("no error")

model, alone = model_of(), model_of()
optimizer = hvd.DistributedOptimizer(
    torch.optim.Adam(model.parameters(), lr=0.01), model.named_parameters(), backward_passes_per_step=2, shard=True
)
plain = torch.optim.Adam(alone.parameters(), lr=0.01)
for step in range(6):
    passes = 1 if step == 3 else 2  # a step after fewer passes
    optimizer.zero_grad()
    for part in batch_of(step, rank).chunk(passes):
        (loss_of(model, part) / passes).backward()
    optimizer.step()
    plain.zero_grad()
    loss_of(alone, batch_of(step)).backward()
    plain.step()
assert_trained_alike(model, alone)

optimizer.backward_passes_per_step = 1
optimizer.zero_grad()
loss_of(model, batch_of(0, rank)).backward()
raises(AssertionError, "zero_grad() was called after backward()", optimizer.zero_grad)
raises(AssertionError, "more than backward_passes_per_step times", lambda: loss_of(model, batch_of(0, rank)).backward())
optimizer.load_state_dict(plain.state_dict())  # discards these gradients
optimizer.zero_grad()

def closure(some, one, batch):
    one.zero_grad()
    loss = loss_of(some, batch)
    loss.backward()
    return loss

for step in range(3):
    optimizer.step(lambda: closure(model, optimizer, batch_of(step, rank)))
    plain.step(lambda: closure(alone, plain, batch_of(step)))
assert_trained_alike(model, alone)
optimizer.zero_grad()
loss_of(model, batch_of(0, rank)).backward()
optimizer.clip_grad_norm_(1.0)
raises(RuntimeError, "between clip_grad_norm_", lambda: loss_of(model, batch_of(0, rank)).backward())
hvd.barrier()
"""


@pytest.mark.slow
def test_several_passes_and_mistakes(mpirun: Mpirun) -> None:
    run_on_simulated_hosts(mpirun, BEGIN + PASSES + END, "01")


JOINS = """
import copy

for cls in (torch.optim.SGD, torch.optim.Adam, torch.optim.NAdam):
    options = {"momentum": 0.9} if cls is torch.optim.SGD else {}
    for batches in ((4, 2, 3, 4), (2, 3, 4, 5)):  # in the second case, host "one" joins as a whole
        model, alone = model_of(), model_of()
        optimizer = hvd.ZeroRedundancyOptimizer(model.parameters(), cls, lr=0.01, **options)
        plain = cls(alone.parameters(), lr=0.01, **options)
        for epoch in range(2):
            for step in range(batches[rank]):
                optimizer.zero_grad()
                loss_of(model, batch_of(step + 10 * epoch, rank)).backward()
                norm = optimizer.clip_grad_norm_(0.05) if step == 2 else None
                optimizer.step()
            last = hvd.join()
            is_behind = batches[0] < 4 and rank < 2
            copy_of_host = copy.deepcopy(alone)
            for step in range(max(batches)):
                plain.zero_grad()
                for by in range(size):
                    if step < batches[by]:
                        (loss_of(alone, batch_of(step + 10 * epoch, by)) / size).backward()
                if step == 2:
                    expected = torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.05)
                    assert norm is None or torch.allclose(norm, expected, rtol=1e-4)
                plain.step()
                if step < max(batches[:2]):
                    copy_of_host = copy.deepcopy(alone)
            # A host that has joined as a whole keeps its parameters until the program sends those of the last rank.
            torch.testing.assert_close(flat(model), flat(copy_of_host if is_behind else alone), rtol=1e-5, atol=1e-5)
            hvd.barrier()
            if batches[0] < 4:
                hvd.broadcast_parameters(model.state_dict(), root_rank=last)
                hvd.broadcast_optimizer_state(optimizer, root_rank=last)
            assert_trained_alike(model, alone)
        step_both(model, optimizer, alone, plain, 99)
        assert_trained_alike(model, alone)
        if options == {}:
            steps = {int(each["step"]) for each in optimizer.state_dict()["state"].values()}
            assert steps == {2 * max(batches) + 1}, (cls, batches, steps)
"""


@pytest.mark.slow
@pytest.mark.parametrize("alone", ["01"])
def test_ranks_that_join(alone: str, mpirun: Mpirun) -> None:
    run_on_simulated_hosts(mpirun, BEGIN + JOINS + END, alone)


DELETED = """
from perseus_like.torch.nn.parallel import DistributedDataParallel

model, alone = model_of(), model_of()
wrapped = DistributedDataParallel(model)
optimizer = hvd.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
plain = torch.optim.SGD(alone.parameters(), lr=0.1)
for step in range(3):
    step_both(wrapped, optimizer, alone, plain, step)
assert_trained_alike(model, alone)
del wrapped
hvd.barrier()
optimizer.zero_grad()
loss_of(model, batch_of(3, rank)).backward()
try:
    optimizer.step()
except RuntimeError as error:
    assert "DistributedDataParallel that no longer exists" in str(error), error
else:
    raise AssertionError("not noticed")
del optimizer
optimizer = hvd.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
step_both(model, optimizer, alone, plain, 3)
assert_trained_alike(model, alone)
"""


@pytest.mark.slow
@pytest.mark.parametrize("alone", ["01", pytest.param("none", marks=pytest.mark.slow)])
def test_a_data_parallel_model_that_is_deleted(alone: str, mpirun: Mpirun) -> None:
    run_on_simulated_hosts(mpirun, BEGIN + DELETED + END, alone)


TORCHS_CLASS = """
import torch.distributed as dist

# The names of simulated hosts have no addresses.
dist.init_process_group("perseus", store=dist.FileStore(__file__ + ".store", size), rank=rank, world_size=size)
model, alone = model_of(), model_of()
wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001)
optimizer = hvd.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
plain = torch.optim.SGD(alone.parameters(), lr=0.1)
for step in range(10):
    optimizer.zero_grad()
    loss_of(wrapped, batch_of(step, rank)).backward()
    norm = optimizer.clip_grad_norm_(0.1)
    optimizer.step()
    plain.zero_grad()
    loss_of(alone, batch_of(step)).backward()
    torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1))
    plain.step()
    assert_trained_alike(model, alone)
del wrapped
loss_of(model, batch_of(3, rank)).backward()
try:
    optimizer.step()
except RuntimeError as error:
    assert "DistributedDataParallel that no longer exists" in str(error), error
else:
    raise AssertionError("not noticed")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_data_parallel_model_of_torch(mpirun: Mpirun) -> None:
    run_on_simulated_hosts(mpirun, BEGIN + TORCHS_CLASS + END, "01")


ON_ONE_HOST = """
import pytest

ROOT = os.environ["ROOT"]
options = ["-q", "-x", "-p", "no:cacheprovider", "-c", f"{ROOT}/pyproject.toml", "--rootdir", ROOT]
file = f"{ROOT}/tests/world/in_world/torch/sharded/test_optimizer.py"
code = pytest.main([*options, file, "-k", os.environ["TESTS"]])
assert code == 0, code
print(f"rank {os.environ['PMI_RANK']} is done", flush=True)
"""


QUICK = "frozen or states_are_complete or broadcast_of_the_state"
ALL = f"weights_are_those or norm_is_clipped or scaler_skips or bfloat16 or compiled or {QUICK}"
ALONE = ("01", "1", "02")


@pytest.mark.parametrize(
    ("alone", "tests"), [("01", QUICK), *[pytest.param(alone, ALL, marks=pytest.mark.slow) for alone in ALONE]]
)
def test_what_works_on_one_host(alone: str, tests: str, mpirun: Mpirun) -> None:
    """Some tests that are written for one host also hold on several hosts."""
    root = Path(__file__).resolve().parents[2]
    run_on_simulated_hosts(mpirun, ON_ONE_HOST, alone, PERSEUS_IN_WORLD="1", ROOT=str(root), TESTS=tests)
