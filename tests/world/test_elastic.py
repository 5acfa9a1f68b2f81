"""Tests of hvd.elastic in a world of fixed ranks: saving, restoring and synchronizing states, and the training loop."""

from __future__ import annotations

import pytest

from tests.job import needs

from .conftest import Ranks

needs("torch")

STATE = """
import torch
import perseus_like.torch as hvd
from perseus_like.torch.elastic import state as handlers

hvd.init()
rank, size = hvd.rank(), hvd.size()
model = torch.nn.Linear(2, 2)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1 * (rank + 1), momentum=0.9))
with torch.no_grad():
    model.weight.fill_(rank + 1.0)

def weight():
    return model.weight.flatten().tolist()

def train():
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()

state = hvd.elastic.TorchState(model, optimizer, batch=20 + rank, history=[rank], none=None)
assert state.model is model and state.optimizer is optimizer and state.none is None
state.sync()
assert weight() == [1.0] * 4 and state.batch == 20 and state.history == [0]
assert optimizer.param_groups[0]["lr"] == 0.1

# restore() brings back weights, momentum and objects that were changed in place. It can be called several times.
train()
state.batch = 21
state.history.append(1)
state.commit()
saved = weight()
for _ in range(2):
    train()
    state.batch, state.none = 99, 1
    state.history.append(2)
    state.restore()
    assert weight() == saved and state.batch == 21 and state.history == [0, 1] and state.none is None
train()
first = weight()
state.restore()
train()
assert weight() == first, "the momentum was not brought back"
assert len({tuple(each) for each in hvd.allgather_object(weight())}) == 1

# A new model is saved when it is assigned. Changed values are saved by the next save().
other = torch.nn.Linear(1, 1)
state.model = other
with torch.no_grad():
    kept = other.weight.item()
    other.weight.add_(1.0)
state.restore()
assert state.model is other and other.weight.item() == kept

# A program can register handlers for its own types.
class Counter:
    def __init__(self):
        self.count = 0

class CounterHandler(handlers.StateHandler):
    def __init__(self, value):
        super().__init__(value)
        self.save()
    def save(self):
        self.saved = self.value.count
    def restore(self):
        self.value.count = self.saved
    def sync(self):
        self.value.count = hvd.broadcast_object(self.value.count, 0)
        self.save()

handlers.set_handler_registry([(Counter, CounterHandler), *handlers.get_handler_registry()])
counter = Counter()
counter.count = rank
counted = hvd.elastic.TorchState(counter=counter)
assert counted.model is None
counted.sync()
assert counter.count == 0 and counted.counter is counter
counter.count = 5
counted.restore()
assert counter.count == 0

# Objects with state_dict and load_state_dict stay the same objects: a schedule goes on to change its own optimizer.
for change in ("restore", "sync"):
    plain_optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(plain_optimizer, 1, 0.5 + rank)
    scheduled = hvd.elastic.TorchState(optimizer=plain_optimizer, schedule=schedule)
    getattr(scheduled, change)()
    assert scheduled.schedule is schedule and schedule.gamma == (0.5 if change == "sync" else 0.5 + rank)
    plain_optimizer.step()
    scheduled.schedule.step()
    assert plain_optimizer.param_groups[0]["lr"] == schedule.gamma

# ObjectState synchronizes plain objects with any function that broadcasts.
plain = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, epoch=rank)
plain.sync()
assert plain.epoch == 0
plain.epoch = 3
plain.save()
plain.epoch = 4
plain.restore()
assert plain.epoch == 3
"""

SAMPLER = """
import torch
import perseus_like.torch as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()

def indices_of_all_ranks(sampler):
    mine = list(sampler)
    assert len(mine) == len(sampler)
    return [index for each in zip(*hvd.allgather_object(mine)) for index in each]

for shuffle in (False, True):
    dataset = list(range(8 * size))
    sampler = hvd.elastic.ElasticSampler(dataset, shuffle=shuffle, seed=3)
    state = hvd.elastic.TorchState(sampler=sampler)
    state.sync()
    loader = torch.utils.data.DataLoader(dataset, batch_size=2, sampler=sampler)
    order = indices_of_all_ranks(sampler)
    assert sorted(order) == dataset and (order == dataset) == (not shuffle)
    for place, batch in enumerate(loader):
        sampler.record_batch(place, 2)
        assert sampler.processed_num == 2 * size * (place + 1)
        if place == 1:
            break
    assert indices_of_all_ranks(sampler) == order, "only reset() distributes the remaining indices again"
    state.commit()
    sampler.record_batch(2, 2)
    state.restore()
    assert sampler.state_dict() == {"epoch": 0, "processed_num": 4 * size}
    assert indices_of_all_ranks(sampler) == order[4 * size :] and len(sampler) == 4
    # sync() takes the progress of rank 0.
    if rank > 0:
        sampler.record_batch(0, 1)
    state.sync()
    assert indices_of_all_ranks(sampler) == order[4 * size :]
    sampler.set_epoch(1)
    assert len(sampler) == 8 and sorted(indices_of_all_ranks(sampler)) == dataset
    assert (indices_of_all_ranks(sampler) == order) == (not shuffle), "each epoch must have its own order"

# If the length is not a multiple of the ranks, the last round repeats indices from the beginning.
for length in (size + 1, 1):
    uneven = hvd.elastic.ElasticSampler(range(length), shuffle=False)
    indices = indices_of_all_ranks(uneven)
    assert indices[:length] == list(range(length)) and set(indices) == set(range(length))
    assert len(indices) % size == 0 and len(indices) < length + size
empty = hvd.elastic.ElasticSampler([])
assert indices_of_all_ranks(empty) == []
"""

REMOVAL = """
# After a removal of other ranks, the rest of an epoch is divided by the remaining ranks, although no sync() follows.
sampler = hvd.elastic.ElasticSampler(range(8 * size), shuffle=False)
state = hvd.elastic.TorchState(sampler=sampler)
sampler.record_batch(0, 2)
hvd.shutdown()
hvd.init(comm=[rank])
assert hvd.size() == 1
state.on_reset()
assert list(sampler) == list(range(2 * size, 8 * size)), list(sampler)
"""

# A training with two passes in a step, that fails once, at each place and with each kind of commits, ends like one that
# does not fail.
PASSES = """
import contextlib
import torch
import perseus_like.torch as hvd
from perseus_like import HostsUpdatedInterrupt
from perseus_like.torch.nn.parallel import DistributedDataParallel

hvd.init()
rank, size = hvd.rank(), hvd.size()
PASSES, TOTAL = 2, 6

def distributed(optimizer, model):
    return model, hvd.DistributedOptimizer(optimizer, backward_passes_per_step=PASSES)

def sharded(optimizer, model):
    return model, hvd.DistributedOptimizer(optimizer, shard=True)

def wrapped(optimizer, model):
    return DistributedDataParallel(model), optimizer

def fail():
    hvd.allreduce(torch.ones(1 + hvd.rank()), name="trouble")

def interrupt():
    raise HostsUpdatedInterrupt(skip_sync=False)

def interrupt_by_removal():
    raise HostsUpdatedInterrupt(skip_sync=True)

def trained(wrap, zeroing, commit_every, trouble=None, place=None):
    model = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    inner = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)
    scaler = torch.amp.GradScaler("cpu") if hasattr(torch.amp, "GradScaler") else schedule
    model, optimizer = wrap(inner, model)
    state = hvd.elastic.TorchState(model, optimizer, schedule=schedule, scaler=scaler, done=0)
    left = [place]

    def maybe(now):
        if left == [now]:
            left.clear()
            trouble()

    @hvd.elastic.run
    def train(state):
        while state.done < TOTAL:
            is_first, is_last = state.done % PASSES == 0, state.done % PASSES == PASSES - 1
            if zeroing == "before the first pass" and is_first:
                optimizer.zero_grad()
            quiet = not is_last and wrap is wrapped
            with model.no_sync() if quiet else contextlib.nullcontext():
                (model(torch.full((1, 3), 1.0 + rank + 10 * state.done)).sum() * 0.01).backward()
            maybe((state.done, "before the step"))
            if is_last:
                optimizer.step()
                schedule.step()
            if zeroing == "after the step" and is_last:
                optimizer.zero_grad()
            state.done += 1
            maybe((state.done - 1, "before the commit"))
            if state.done % commit_every == 0:
                state.commit()
            maybe((state.done - 1, "after the commit"))
            if zeroing == "after the commit" and is_last:
                optimizer.zero_grad()

    train(state)
    assert schedule.last_epoch == TOTAL // PASSES and not left or place is None
    return torch.cat([each.detach().flatten() for each in model.parameters()])

PLACES = {
    fail: [(done, where) for done in range(TOTAL) for where in ("before the step", "before the commit")],
    interrupt: [(done, "after the commit") for done in (2, 3)],
    interrupt_by_removal: [(done, "after the commit") for done in (2, 3)],
}
wrong = []
for wrap, zeroing in (
    (distributed, "before the first pass"),
    (distributed, "after the step"),
    (distributed, "after the commit"),
    (sharded, "after the commit"),
    (wrapped, "after the step"),
):
    expected = trained(wrap, zeroing, 100)
    for trouble, places in PLACES.items():
        for number, place in enumerate(places):
            every = 1 if trouble is not fail else 1 + number % 3
            found = trained(wrap, zeroing, every, trouble, place)
            if not torch.allclose(found, expected, rtol=0, atol=1e-6):
                where = (wrap.__name__, zeroing, every, trouble.__name__, place)
                wrong.append((*where, found.tolist(), expected.tolist()))
assert not wrong, "\\n".join(map(str, wrong))
"""

LOOP = """
import logging
import torch
import perseus_like.torch as hvd
from perseus_like.elastic import HostUpdateResult, notification_manager

own = int(os.environ["PERSEUS_RANK"])
order = list(reversed(range(int(os.environ["PERSEUS_SIZE"]))))
first, later = hvd.ProcessSet([0]), hvd.ProcessSet([1])
hvd.init(comm=order, process_sets=[first])
rank, size = hvd.rank(), hvd.size()
assert rank == order.index(own)
model = torch.nn.Linear(2, 1, bias=False)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
state = hvd.elastic.TorchState(model, optimizer, step=0)
resets, starts, interrupts = [], [], []
state.register_reset_callbacks([lambda: resets.append(state.step), lambda: hvd.add_process_set(later)])
hvd.add_process_set(later)

def train_step():
    optimizer.zero_grad()
    model(torch.full((1, 2), 1.0 + hvd.rank())).sum().backward()
    optimizer.step()

@hvd.elastic.run
def train(state, steps, trouble):
    starts.append(state.step)
    while state.step < steps:
        train_step()
        state.step += 1
        if state.step in trouble:
            trouble.pop(state.step)()
        if state.step % 2 == 0:
            state.commit()
    return state.step

def disagree():  # all ranks get the error, and stay alive
    hvd.allreduce(torch.ones(1 + hvd.rank()), name="trouble")

def fail_on_last_rank():  # the other ranks notice that this rank leaves its session
    if hvd.rank() == hvd.size() - 1:
        raise hvd.HorovodInternalError("for the test")
    hvd.allreduce(torch.ones(1), name="not for all")

def notify(result):
    def notify_state():
        if hvd.rank() == 0:
            notification_manager.handle_hosts_updated(len(weights), result)
    return notify_state

weights = []
for trouble in (
    {},
    {5: disagree},
    {5: fail_on_last_rank},
    {3: disagree, 7: fail_on_last_rank, 9: disagree},
    {4: notify(HostUpdateResult.added)},
    {4: notify(HostUpdateResult.removed)},
):
    with torch.no_grad():
        model.weight.fill_(1.0)
    state.step = 0
    state.save()
    resets.clear(), starts.clear()
    count = len(trouble)
    hosts_change = 4 in trouble
    assert train(state, 10, dict(trouble)) == 10
    weights.append(model.weight.flatten().tolist())
    assert len(resets) == len(starts) - 1 == count
    assert starts == [0, *[place if hosts_change else place - place % 2 for place in sorted(trouble)]], starts
    assert (hvd.rank(), hvd.size()) == (rank, size)
    assert (first.process_set_id, later.process_set_id) == (1, 2) and first.included() == (rank == 0)
assert all(each == weights[0] for each in weights), weights
assert len({str(each) for each in hvd.allgather_object(weights)}) == 1

# The decorator passes on other errors, arguments, names and results.
@hvd.elastic.run
def fail(state, *, kind):
    "a docstring"
    raise kind("as it is")

assert fail.__name__ == "fail" and fail.__doc__ == "a docstring"
try:
    fail(state, kind=KeyError)
except KeyError:
    pass
assert notification_manager._listeners == []

# A commit handles all notifications of rank 0 since the last one, and each only once.
state = hvd.elastic.TorchState(step=0)
state.on_hosts_updated(1, HostUpdateResult.removed)
if rank == 0:
    state.on_hosts_updated(2, HostUpdateResult.added)
try:
    state.commit()
except Exception as error:
    assert type(error).__name__ == "HostsUpdatedInterrupt" and not error.skip_sync
else:
    raise AssertionError("no interrupt")
state.commit()
state.on_hosts_updated(3, HostUpdateResult.removed)
state.on_reset()  # a reset discards earlier notifications
state.commit()
"""


@pytest.mark.parametrize(
    ("program", "size"),
    [
        pytest.param(STATE + SAMPLER + REMOVAL, 2, id="state and sampler-2"),
        pytest.param(STATE + SAMPLER + REMOVAL, 4, id="state and sampler-4", marks=pytest.mark.slow),
        pytest.param(LOOP, 2, id="loop-2"),
        pytest.param(LOOP, 4, id="loop-4", marks=pytest.mark.slow),
        pytest.param(PASSES, 2, id="passes-2", marks=pytest.mark.slow),
    ],
)
def test_elastic(program: str, size: int, ranks: Ranks) -> None:
    world = ranks(size, program).succeeded()
    assert world.stderr.count("Traceback") == 0, world.stderr
