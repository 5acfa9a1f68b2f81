"""Tests of DistributedDataParallel in programs: failed passes, sparse gradients, copies, compiler, process sets."""

from __future__ import annotations

import copy
import io
import itertools
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.autograd import Function  # noqa: E402

import perseus_like.torch as hvd  # noqa: E402
from perseus_like.errors import DisagreementError  # noqa: E402

from ..training import (  # noqa: E402
    batch,
    build,
    loss_of,
    part,
)
from .models import (  # noqa: E402
    DistributedDataParallel,
    assert_alike,
    assert_equal_gradients,
    both_gradients,
    pair,
)


def test_outputs_of_all_shapes(rank: int, size: int) -> None:
    class Outputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3).double()

        def forward(self, inputs: Any, scale: float) -> Any:
            return {"logits": [self.layer(inputs) * scale, None], "text": "x"}

    parallel = DistributedDataParallel(Outputs())
    alone = copy.deepcopy(parallel.module)
    inputs, _ = batch(0, size)
    for _ in range(2):
        parallel.zero_grad()
        alone.zero_grad()
        parallel(part(inputs, rank), scale=2.0)["logits"][0].square().mean().backward()
        alone(inputs, scale=2.0)["logits"][0].square().mean().backward()
        assert_equal_gradients(parallel, alone)


def test_a_pass_through_the_wrapped_module_is_the_ranks_own(rank: int, size: int) -> None:
    """Each rank makes one at another step, as for an evaluation. The passes of all ranks go on together."""
    model = DistributedDataParallel(nn.Linear(2, 1, bias=False))
    for number in range(size + 2):
        model.zero_grad()
        model(torch.full((1, 2), rank + 1.0)).sum().backward()
        assert model.module.weight.grad.tolist() == [[(size + 1) / 2] * 2]
        if number == rank + 1:
            model.zero_grad()
            model.module(torch.full((1, 2), 1000.0)).sum().backward()
            assert model.module.weight.grad.tolist() == [[1000.0] * 2]


def test_training_continues_after_a_failed_backward_pass(rank: int, size: int) -> None:
    class FailingBackward(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            raise ArithmeticError("the backward pass failed")

    parallel, alone = pair()
    for number in range(4):
        parallel.zero_grad()
        alone.zero_grad()
        inputs, _ = batch(number, size)
        if number in (0, 2):
            hidden = parallel.module[0](part(inputs, rank))
            hidden = FailingBackward.apply(hidden)  # type: ignore[no-untyped-call]
            with pytest.raises(ArithmeticError):
                (parallel(part(inputs, rank)).sum() + hidden.sum()).backward()
            parallel.zero_grad()
        both_gradients(parallel, alone, number, rank, size)
        assert_equal_gradients(parallel, alone)


def test_sparse_gradients(rank: int, size: int) -> None:
    torch.manual_seed(4)
    alone: Any = nn.Sequential(nn.EmbeddingBag(20, 6, mode="sum", sparse=True), nn.Linear(6, 3)).double()
    parallel = DistributedDataParallel(copy.deepcopy(alone))
    for number in range(3):
        words = torch.randint(20, (4 * size, 5), generator=torch.Generator().manual_seed(number))
        for model, mine in ((parallel, part(words, rank)), (alone, words)):
            model.zero_grad()
            model(mine).square().mean().backward()
        gradients = [
            model.get_parameter(name).grad.to_dense()
            for model, name in ((parallel.module, "0.weight"), (alone, "0.weight"))
        ]
        torch.testing.assert_close(*gradients)
        torch.testing.assert_close(parallel.module[1].weight.grad, alone[1].weight.grad)


def test_copies(rank: int, size: int) -> None:
    """One rank alone may copy and save the model. A copy that all ranks train communicates by itself."""
    parallel, alone = pair()
    both_gradients(parallel, alone, 0, rank, size)
    if rank == 0:
        average = copy.deepcopy(parallel)
        with torch.no_grad():
            average(batch(0, size)[0])
    file = io.BytesIO()
    torch.save(parallel, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    alone.zero_grad()
    loaded.zero_grad()
    both_gradients(loaded, alone, 1, rank, size)
    assert_equal_gradients(loaded, alone)


@pytest.mark.slow
def test_under_the_compiler(rank: int, size: int) -> None:
    parallel, alone = pair()
    compiled = torch.compile(parallel, backend="aot_eager")
    for number in range(3):
        compiled.zero_grad()
        alone.zero_grad()
        both_gradients(compiled, alone, number, rank, size)
        assert_equal_gradients(compiled, alone)


@pytest.mark.slow
def test_a_compiled_training_step(rank: int, size: int) -> None:
    """The gradients are so large that the core copies them."""

    def plain(model: Any, inputs: Any) -> None:
        model(inputs).square().mean().backward()

    backward = torch.compile(plain, backend="aot_eager")
    torch.manual_seed(5)
    parallel = DistributedDataParallel(torch.nn.Linear(6, 70_000, bias=False).double())
    alone = copy.deepcopy(parallel.module)
    for number in range(3):
        inputs, _ = batch(number, size)
        parallel.zero_grad()
        alone.zero_grad()
        backward(parallel, part(inputs, rank))
        alone(inputs).square().mean().backward()
        assert_equal_gradients(parallel, alone)


def test_some_of_the_ranks(rank: int, size: int) -> None:
    if size < 3:
        pytest.skip("the test needs a process set of two ranks that is not the world")
    members = [0, size - 1]
    some = hvd.add_process_set(members)
    if rank in members:
        parallel, alone = pair(process_group=some)
        inputs, targets = batch(0, 2)
        place = members.index(rank)
        for _ in range(2):
            parallel.zero_grad()
            alone.zero_grad()
            loss_of(parallel, part(inputs, place), part(targets, place)).backward()
            loss_of(alone, inputs, targets).backward()
            assert_equal_gradients(parallel, alone)
        with pytest.raises(ValueError, match="all ranks train"), parallel.join():
            pass
    hvd.barrier()
    hvd.remove_process_set(some)


def test_states_are_compatible_with_torchs_class(rank: int, size: int) -> None:
    """Also checks that a world of torch.distributed that differs from the job is refused."""
    dist = torch.distributed
    parallel, alone = pair()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        theirs = torch.nn.parallel.DistributedDataParallel(build("mlp"))
        state = {name: value + 1 for name, value in theirs.state_dict().items()}
        parallel.load_state_dict(state)
        theirs.load_state_dict(parallel.state_dict())
        assert list(theirs.state_dict()) == list(parallel.state_dict())
        assert torch.equal(theirs.module[0].weight, parallel.module[0].weight)
        if size > 1:
            with pytest.raises(RuntimeError, match=rf"rank {rank} of {size} in the job, but rank 0 of 1"):
                DistributedDataParallel(alone)
    finally:
        dist.destroy_process_group()


def test_mistakes(rank: int, size: int, two_ranks: None) -> None:
    with pytest.raises(RuntimeError, match="no parameter of the module wants a gradient"):
        DistributedDataParallel(nn.ReLU())
    model = build("mlp")
    for options, text in (
        ({"device_ids": [0, 1]}, r"device_ids is \[0, 1\]"),
        ({"bucket_cap_mb": 0}, "bucket_cap_mb is 0"),
        ({"mixed_precision": object()}, "mixed_precision is not supported"),
        ({"process_group": hvd.ProcessSet([0])}, "is not registered"),
    ):
        with pytest.raises(ValueError, match=text):
            DistributedDataParallel(model, **options)
    with pytest.raises(DisagreementError, match=r"at position 0, rank 0 has 'weight' .*\[3, 6\].*\[3, 7\]") as caught:
        DistributedDataParallel(nn.Linear(6 + (rank == size - 1), 3))
    assert len(set(hvd.allgather_object(str(caught.value)))) == 1
    parallel = DistributedDataParallel(model)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parallel.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="in a DistributedDataParallel and a DistributedOptimizer"):
        loss_of(parallel, *batch(0, 1)).backward()
    del optimizer


def test_many_models_in_one_backward(rank: int, size: int) -> None:
    """Ranks use the models in different orders, but wait for them in the same order."""
    models = [DistributedDataParallel(nn.Linear(4, 4).double()) for _ in range(4)]
    for turn in range(3):
        order = list(itertools.islice(itertools.cycle(range(4)), (rank + turn) % 4, (rank + turn) % 4 + 4))
        x = torch.ones(2, 4).double()
        sum(models[place](x).square().mean() for place in order).backward()
        for model in models:
            assert_alike(model.module.weight.grad)
