"""Tests of join(): joined ranks contribute zeros to allreduces. Other verbs are errors until all ranks have joined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import perseus_like.torch as hvd  # noqa: E402
from perseus_like.errors import DisagreementError  # noqa: E402

from . import training  # noqa: E402
from .training import batch, build, loss_of, part, sgd  # noqa: E402

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8]


def last_to_join(turn: int, size: int) -> int:
    """Returns the rank that joins last. In each turn this is another rank."""
    return (turn + size - 1) % size


def steps_of(rank: int, turn: int, size: int) -> int:
    return (rank - turn) % size + 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reductions_see_zeros(dtype: Any, rank: int, size: int) -> None:
    """Average still divides by the number of all ranks. Min, Max and Product have zeros among their inputs."""
    for turn in range(size):
        for step in range(steps_of(rank, turn, size)):
            here = [r for r in range(size) if steps_of(r, turn, size) > step]
            complete = len(here) == size
            values = [2.0 * (r + 1) for r in here]
            product = float(torch.tensor(values).prod()) if complete else 0.0
            mine = torch.full((3,), 2 * (rank + 1), dtype=dtype)
            expected = {
                hvd.Sum: sum(values),
                hvd.Average: sum(values) / size if dtype.is_floating_point else sum(values) // size,
                hvd.Min: min(values) if complete else 0.0,
                hvd.Max: max(values),
                hvd.Product: product % 256 if dtype is torch.uint8 else product,
            }
            for op, value in expected.items():
                result = hvd.allreduce(mine, op=op, name=f"{op}.{step}")
                torch.testing.assert_close(result.double(), torch.full((3,), value).double(), rtol=1e-2, atol=1e-9)
                negative = -mine if dtype is not torch.uint8 else mine
                group = hvd.grouped_allreduce([negative, mine.repeat(2, 1)], op=op, name=f"group.{op}.{step}")
                torch.testing.assert_close(group[1].double(), torch.full((2, 3), value).double(), rtol=1e-2, atol=1e-9)
        assert hvd.join() == last_to_join(turn, size)


def test_forms_of_reductions(rank: int, size: int) -> None:
    """Allreduces are in place, scaled, compressed, asynchronous, grouped, large, or differentiated."""
    last = rank == size - 1
    if last:
        large = torch.full((1 << 18,), 3.0)
        assert hvd.allreduce_(large, op=hvd.Sum, name="large") is large
        assert (large == 3).all()
        scaled = hvd.allreduce(torch.ones(2), op=hvd.Sum, prescale_factor=4, postscale_factor=0.5, name="scaled")
        assert scaled.tolist() == [2, 2]
        half = hvd.allreduce(torch.ones(2), op=hvd.Sum, compression=hvd.Compression.fp16, name="half")
        assert half.tolist() == [1, 1]
        handles = [hvd.allreduce_async(torch.full((2,), float(n)), op=hvd.Sum, name=f"async.{n}") for n in range(20)]
        assert [hvd.synchronize(handle)[0].item() for handle in reversed(handles)] == list(reversed(range(20)))
        tensors = [torch.ones(2), torch.ones(3, dtype=torch.int64), torch.ones(1, dtype=torch.bfloat16), torch.ones(0)]
        mixed = hvd.grouped_allreduce_(tensors, op=hvd.Sum, name="mixed")
        assert [tensor.tolist() for tensor in mixed] == [[1, 1], [1, 1, 1], [1], []]
        learned = torch.ones(2, requires_grad=True)
        hvd.allreduce(learned, name="learned").sum().backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(learned.grad, torch.full((2,), 1 / size))
        hvd.barrier()
    assert hvd.join() == size - 1


REFUSED: dict[str, Callable[[int], Any]] = {
    "allgather": lambda size: hvd.allgather(torch.ones(2), name="t"),
    "grouped_allgather": lambda size: hvd.grouped_allgather([torch.ones(2), torch.ones(1)], name="t"),
    "broadcast": lambda size: hvd.broadcast(torch.ones(2), size - 1, name="t"),
    "broadcast_": lambda size: hvd.broadcast_(torch.ones(2), 0, name="t"),
    "alltoall": lambda size: hvd.alltoall(torch.ones(size), name="t"),
    "reducescatter": lambda size: hvd.reducescatter(torch.ones(size), name="t"),
    "grouped_reducescatter": lambda size: hvd.grouped_reducescatter([torch.ones(size)], name="t"),
    "sparse_allreduce": lambda size: hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), "t", hvd.Sum)(),
    "broadcast_object": lambda size: hvd.broadcast_object("t", size - 1),
    "allgather_object": lambda size: hvd.allgather_object("t"),
    "broadcast_parameters": lambda size: hvd.broadcast_parameters({"t": torch.ones(2)}, 0),
}


@pytest.mark.parametrize("verb", REFUSED)
def test_other_verbs_are_refused(verb: str, rank: int, size: int, two_ranks: None) -> None:
    """All ranks that have not joined get the same error. Then the job continues."""
    if rank >= size // 2:
        for _ in range(3):  # from the second time, the response cache has a number for the name
            with pytest.raises(hvd.HorovodInternalError, match=r"joined.*allreduce only"):
                REFUSED[verb](size)
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, name="continues").item() == size - size // 2
    hvd.join()
    for _ in range(2):
        REFUSED[verb](size)


@pytest.mark.parametrize("batches", [[1, 3, 2, 0], [4, 0, 0, 5]], ids=str)
@pytest.mark.parametrize("passes", [1, 2])
def test_training_with_uneven_numbers_of_batches(batches: list[int], passes: int, rank: int, size: int) -> None:
    """Gradients are summed over the ranks that still have batches, and divided by the number of all ranks."""
    alone, together = build("mlp"), build("mlp")
    plain = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(together.parameters(), lr=0.1, momentum=0.9),
        together.named_parameters(),
        backward_passes_per_step=passes,
    )
    counts = batches[:size]
    for epoch in range(2):
        for number in range(max(counts)):
            plain.zero_grad()
            for r in (r for r in range(size) if number < counts[r]):
                for turn in range(passes):
                    inputs, targets = batch(10 * number + turn, size)
                    (loss_of(alone, part(inputs, r), part(targets, r)) / size).backward()
            plain.step()
        for number in range(counts[rank]):
            optimizer.zero_grad()
            for turn in range(passes):
                inputs, targets = batch(10 * number + turn, size)
                loss_of(together, part(inputs, rank), part(targets, rank)).backward()
            optimizer.step()
        last = hvd.join()
        assert counts[last] == max(counts)
        hvd.broadcast_parameters(together.state_dict(), last)
        hvd.broadcast_optimizer_state(optimizer, last)
        for ours, theirs in zip(together.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, msg=f"epoch {epoch}")


def _passes_too_often(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    for _ in range(2):
        model(torch.ones(2, 6, dtype=torch.float64)).sum().backward()


@pytest.mark.parametrize("what", ["a pass too many", "another model", "another order"])
def test_errors_about_gradients(what: str, rank: int, size: int) -> None:
    """After a rank has joined, the other ranks get the same error, with its cause, as without a join."""
    last = size - 1
    if last < 2:
        pytest.skip("needs two ranks that have not joined")
    trained = [(model, sgd(model)) for model in (build("mlp"), build("mlp"))]
    if what != "another model":
        for each in trained:
            training.step(*each, 0, rank, size)
    cause = {
        "a pass too many": rf"rank {last}: DistributedOptimizer, gradient of '.*': .* backward_passes_per_step times",
        "another model": rf"at position 0, rank 1 has '0\.weight'.*, rank {last} has 'cells\.weight",
        "another order": rf"ranks step different models: rank 1 makes a later step .*, rank {last} makes a later step",
    }[what]
    if rank == last and what == "a pass too many":
        with pytest.raises(AssertionError, match="more than backward_passes_per_step times"):
            _passes_too_often(*trained[0])
    elif rank > 0:
        stepped = trained[0]
        if rank == last:
            other = build("recurrent")
            stepped = trained[1] if what == "another order" else (other, sgd(other))
        with pytest.raises((RuntimeError, DisagreementError), match=cause):
            training.step(*stepped, 1, rank, size)
    hvd.join()
    for model, optimizer in trained:
        training.step(model, optimizer, 2, rank, size)
        training.assert_same_on_all_ranks(model)
