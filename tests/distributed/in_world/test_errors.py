"""Checks that all ranks get the same error if they disagree or a rank is missing, and that the world continues."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from perseus_like.torch.distributed import backend

from .values import all_gather_single

Call = Callable[[int, int], Any]


def same_on_all(error: BaseException) -> None:
    texts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(texts, str(error))
    assert len(set(texts)) == 1, texts


def test_sizes_that_differ(rank: int) -> None:
    with pytest.raises(RuntimeError, match=r"rank 0 has float32\[3\]") as raised:
        dist.all_reduce(torch.ones(3 if rank == 0 else 4))
    same_on_all(raised.value)


def test_shapes_may_differ(rank: int, size: int) -> None:
    tensor = torch.ones((2, 3) if rank == 0 else (6,))
    dist.all_reduce(tensor)
    assert tensor.sum() == 6 * size


def test_dtypes_that_differ(rank: int) -> None:
    with pytest.raises(RuntimeError, match=r"rank 0 has float16\[3\]") as raised:
        dist.broadcast(torch.ones(3, dtype=torch.float16 if rank == 0 else torch.int64), 0)
    same_on_all(raised.value)


def test_operations_that_differ(rank: int) -> None:
    op = dist.ReduceOp.MAX if rank == 0 else dist.ReduceOp.SUM
    with pytest.raises(RuntimeError, match="rank 0 asks for op max") as raised:
        dist.all_reduce(torch.ones(3), op=op)
    same_on_all(raised.value)


def lists(size: int, count: int = 3) -> list[torch.Tensor]:
    return [torch.ones(count) for _ in range(size)]


# The call of rank 0, the call of the other ranks, and the error that all of them get.
DIFFERENT: dict[str, tuple[Call, Call, str]] = {
    "all_gather": (
        lambda rank, size: dist.all_reduce(torch.ones(3)),
        lambda rank, size: dist.all_gather(lists(size), torch.ones(3)),
        r"rank 0 calls all_reduce, ranks? .* calls? all_gather;",
    ),
    "reduce": (
        lambda rank, size: dist.all_reduce(torch.ones(3)),
        lambda rank, size: dist.reduce(torch.ones(3), 0),
        r"rank 0 calls all_reduce, ranks? .* calls? reduce to rank 0;",
    ),
    "root of reduce": (
        lambda rank, size: dist.reduce(torch.ones(3), 0),
        lambda rank, size: dist.reduce(torch.ones(3), 1),
        r"rank 0 calls reduce to rank 0, ranks? .* calls? reduce to rank 1;",
    ),
    "gather": (
        lambda rank, size: dist.gather(torch.ones(3), lists(size), 0),
        lambda rank, size: dist.scatter(torch.ones(3), None, 0),
        r"rank 0 calls gather to rank 0, ranks? .* calls? scatter from rank 0;",
    ),
    "sizes of a gather": (
        lambda rank, size: dist.gather(torch.ones(3), lists(size), 0),
        lambda rank, size: dist.gather(torch.ones(4), None, 0),
        r"gather to rank 0 '#\d+': rank 0 has float32\[1,3\], ranks? .* ha(s|ve) float32\[1,4\]",
    ),
    "sizes of a scatter": (
        lambda rank, size: dist.scatter(torch.ones(3), lists(size), 0),
        lambda rank, size: dist.scatter(torch.ones(4), None, 0),
        r"rank 0 has float32\[\d,3\], ranks? .* ha(s|ve) float32\[0,4\]",
    ),
    "sizes of an all_gather": (
        lambda rank, size: dist.all_gather(lists(size, 3), torch.ones(3)),
        lambda rank, size: dist.all_gather(lists(size, 4), torch.ones(4)),
        r"all_gather '#\d+': rank 0 has float32\[1,3\]",
    ),
    "lists of sizes": (
        lambda rank, size: dist.all_gather([*lists(size - 1), torch.ones(5)], torch.ones(3)),
        lambda rank, size: dist.all_gather([*lists(rank, 4), torch.ones(5), *lists(size - rank - 1, 4)], torch.ones(5)),
        r"rank 0 calls all_gather of \[3, .*5\] elements, ",
    ),
    "rows of an all_to_all": (
        lambda rank, size: dist.all_to_all(lists(size), [torch.ones(3), torch.ones(4), *lists(size - 2)]),
        lambda rank, size: dist.all_to_all(lists(size), lists(size)),
        r"all_to_all '#\d+': rank 0 sends 4 elements to rank 1, which expects 3; nothing was communicated",
    ),
    "an all_to_all and another": (
        lambda rank, size: dist.all_to_all(lists(size), lists(size)),
        lambda rank, size: dist.all_to_all_single(torch.ones(3 * size), torch.ones(3 * size)),
        "rank 0 calls all_to_all, ranks? .* calls? all_to_all_single;",
    ),
    "shapes of sparse tensors": (
        lambda rank, size: dist.all_reduce(torch.eye(3).to_sparse()),
        lambda rank, size: dist.all_reduce(torch.eye(4).to_sparse()),
        r"rank 0 calls all_reduce of a sparse tensor of shape \[3, 3\], ranks? .* shape \[4, 4\];",
    ),
    "a barrier": (
        lambda rank, size: dist.barrier(),
        lambda rank, size: dist.broadcast(torch.ones(3), 0),
        "rank 0 calls barrier, ranks? .* calls? broadcast;",
    ),
}


@pytest.mark.parametrize("kind", DIFFERENT)
def test_calls_that_differ(kind: str, rank: int, size: int) -> None:
    first, second, text = DIFFERENT[kind]
    with pytest.raises(RuntimeError, match=text) as raised:
        (first if rank == 0 else second)(rank, size)
    same_on_all(raised.value)


def test_a_mistake_of_one_rank_does_not_leave_the_others_waiting(rank: int, size: int) -> None:
    """The other ranks fail with the reason of that mistake, and the next calls of all ranks match one another."""
    for _ in range(2):
        if rank == 0:
            with pytest.raises(ValueError, match=r"BAND is not defined on torch\.float32"):
                dist.all_reduce(torch.ones(3), op=dist.ReduceOp.BAND)
        else:
            text = r"rank 0 calls all_reduce, which it cannot: BAND is not defined on torch\.float32, rank"
            with pytest.raises(RuntimeError, match=text):
                dist.all_reduce(torch.ones(3))
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == size


def test_roots_that_differ(rank: int) -> None:
    with pytest.raises(RuntimeError, match="rank 0 asks for root 0") as raised:
        dist.broadcast(torch.ones(3), 0 if rank == 0 else 1)
    same_on_all(raised.value)


def test_outputs_that_do_not_fit(size: int) -> None:
    with pytest.raises(ValueError, match="this rank gives 3 elements, its outputs have room for") as raised:
        dist.all_gather([torch.empty(4) for _ in range(size)], torch.ones(3))
    same_on_all(raised.value)
    with pytest.raises(ValueError, match=f"{3 * size} elements come, but the output has room for {4 * size}"):
        all_gather_single(torch.empty(4 * size), torch.ones(3))


def test_undefined_operations_are_value_errors() -> None:
    with pytest.raises(ValueError, match=r"BAND is not defined on torch\.float32"):
        dist.all_reduce(torch.ones(3), op=dist.ReduceOp.BAND)
    with pytest.raises(ValueError, match="on meta cannot be communicated"):
        dist.all_reduce(torch.ones(3, device="meta"))
    dist.all_reduce(torch.ones(3))
    group: Any = dist.group.WORLD
    for number in (0, True):  # 0 is the number of SUM, which the group has executed
        with pytest.raises(ValueError, match="is no reduction that is known here"):
            group.allreduce([torch.ones(3)], number)


def test_a_timeout_names_the_collective_and_the_missing_rank(
    rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = size - 1
    # The group's start has a longer limit. The group has two ranks, because a third one might also exceed the limit.
    monkeypatch.setattr(backend, "_start_limit", lambda _: timedelta(seconds=200))
    group = dist.new_group([0, last], timeout=timedelta(seconds=0.5))

    def fails() -> str:
        expected = rf"all_reduce '#0' timed out after a timeout of 0\.5 s.* not by rank {last}\."
        with pytest.raises(RuntimeError, match=expected) as raised:
            dist.all_reduce(torch.ones(1), group=group)
        return str(raised.value)

    text = fails() if rank == 0 else None
    dist.barrier()
    if rank == last:
        text = fails()
    texts: list[Any] = [None] * size
    dist.all_gather_object(texts, text)
    assert texts[0] == texts[last]
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == size
    if rank in (0, last):
        dist.destroy_process_group(group)


def test_a_wait_with_a_limit_names_the_collective_and_the_missing_rank(rank: int, size: int) -> None:
    tensor, last = torch.ones(1), size - 1
    if rank != last:
        work: Any = dist.all_reduce(tensor, async_op=True)
    dist.monitored_barrier()  # all other ranks have started the collective now; this barrier consists of messages
    if rank != last:
        with pytest.raises(
            RuntimeError, match=rf"all_reduce #\d+ timed out .* 0.2 s: rank {last} of the job did not call"
        ):
            work.wait(timedelta(seconds=0.2))
    dist.monitored_barrier()
    if rank == last:
        work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    assert tensor.item() == size


def test_abort_fails_the_collectives_of_the_other_ranks(rank: int, size: int) -> None:
    if not hasattr(dist.distributed_c10d, "_abort_process_group"):
        pytest.skip(f"torch {torch.__version__} aborts no groups")
    group = dist.new_group(list(range(size)))
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=group)
    if rank == 0:
        dist.distributed_c10d._abort_process_group(group)
    else:
        with pytest.raises(RuntimeError, match="rank 0 has left"):
            dist.all_reduce(tensor, group=group)
        dist.destroy_process_group(group)
    dist.barrier()
