"""The collectives of torch.distributed, started by calls that need not wait for their tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Tensors = list[torch.Tensor]
# Returns the numbers of elements of rank r of n.
Sizes = Callable[[int, int], list[int]]
# The sizes of the inputs and of the outputs, and a call that reads the tensors of the first list and writes those of
# the second list. Without sizes of outputs, both lists are the same.
Form = tuple[Sizes, Sizes | None, Callable[[Tensors, Tensors], Any]]


def coalesced(source: Tensors, target: Tensors) -> Any:
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        for tensor in target:
            dist.all_reduce(tensor)
    return manager


def forms(count: int) -> dict[str, Form]:
    """Returns the collectives of tensors with about `count` elements for each rank."""

    def all_reduce(op: Any = dist.ReduceOp.SUM) -> Form:
        return one, None, lambda a, b: dist.all_reduce(b[0], op=op, async_op=True)

    def one(r: int, n: int) -> list[int]:
        return [count]

    def each(r: int, n: int) -> list[int]:
        return [count] * n

    def joined(r: int, n: int) -> list[int]:
        return [count * n]

    def uneven(r: int, n: int) -> list[int]:
        return [count + 7 * rank for rank in range(n)]

    def own_of_uneven(r: int, n: int) -> list[int]:
        return [count + 7 * r]

    def on_rank_0(sizes: Sizes) -> Sizes:
        return lambda r, n: sizes(r, n) if r == 0 else []

    return {
        "all_reduce": all_reduce(),
        "maximum": all_reduce(dist.ReduceOp.MAX),
        "average": all_reduce(dist.ReduceOp.AVG),
        "coalesced": (lambda r, n: [count, 3], None, coalesced),
        "broadcast": (one, None, lambda a, b: dist.broadcast(b[0], dist.get_world_size() - 1, async_op=True)),
        "reduce": (one, None, lambda a, b: dist.reduce(b[0], 0, async_op=True)),
        "all_gather": (one, each, lambda a, b: dist.all_gather(b, a[0], async_op=True)),
        "all_gather of different sizes": (own_of_uneven, uneven, lambda a, b: dist.all_gather(b, a[0], async_op=True)),
        "all_gather_into_tensor": (one, joined, lambda a, b: dist.all_gather_into_tensor(b[0], a[0], async_op=True)),
        "reduce_scatter": (each, one, lambda a, b: dist.reduce_scatter(b[0], a, async_op=True)),
        "reduce_scatter of different sizes": (
            uneven,
            own_of_uneven,
            lambda a, b: dist.reduce_scatter(b[0], a, async_op=True),
        ),
        "reduce_scatter_tensor": (joined, one, lambda a, b: dist.reduce_scatter_tensor(b[0], a[0], async_op=True)),
        "all_to_all": (each, each, lambda a, b: dist.all_to_all(b, a, async_op=True)),
        "all_to_all_single": (joined, joined, lambda a, b: dist.all_to_all_single(b[0], a[0], async_op=True)),
        "gather": (one, on_rank_0(each), lambda a, b: dist.gather(a[0], b or None, 0, async_op=True)),
        "scatter": (on_rank_0(each), one, lambda a, b: dist.scatter(b[0], a or None, 0, async_op=True)),
    }
