"""Reduction of sparse (COO) tensors: all ranks' indices and values are gathered, which adds them up."""

from __future__ import annotations

from collections.abc import Callable

import torch

from perseus_like.collectives import Average, Op, Sum, resolve_op
from perseus_like.process_sets import ProcessSet, global_process_set

from .tensors import collectives


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Starts the reduction of a sparse COO tensor, and returns without waiting for the other ranks.

    Args:
        tensor: a sparse COO tensor. All ranks pass the same shape, dtype and number of sparse dimensions.
        name: names the collective. It is the same on all ranks.
        op: Average or Sum.
        process_set: the ranks that take part. The default is all ranks of the job.

    Returns:
        A function that waits and returns the reduced tensor. That tensor is not coalesced: an index that several ranks
        have occurs several times. The function raises the errors of the collective.

    Raises:
        ValueError: the tensor is not a COO tensor, `op` is not supported, or this rank is not in `process_set`.

    Examples:
        >>> rows = torch.eye(2).to_sparse()
        >>> wait = hvd.sparse_allreduce_async(rows, "rows", hvd.Sum)
        >>> wait().to_dense()
        tensor([[1., 0.],
                [0., 1.]])
    """
    chosen: Op = resolve_op(op)
    if chosen not in (Average, Sum):
        raise ValueError(f"sparse_allreduce_async knows Average and Sum, not {chosen.name}")
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(f"sparse_allreduce_async needs a sparse COO tensor, not a {tensor.layout} one")
    # Each entry is a row, so that the ranks' parts follow one another. As one group, both gathers fail or none.
    parts = [tensor._indices().t().contiguous(), tensor._values().detach()]
    pending = collectives.grouped_allgather(parts, name, process_set)

    def wait() -> torch.Tensor:
        gathered_indices, gathered_values = pending.result()
        if chosen is Average:
            gathered_values = gathered_values / (process_set.size() or 1)
        return torch.sparse_coo_tensor(gathered_indices.t(), gathered_values, tensor.size(), check_invariants=False)

    return wait


def as_sparse(parameter: torch.Tensor, dimensions: int) -> torch.Tensor:
    """Returns the gradient with this number of sparse dimensions; an empty one if there is none."""
    gradient = parameter.grad
    if gradient is None:
        indices = torch.empty((dimensions, 0), dtype=torch.int64, device=parameter.device)
        values = parameter.new_empty((0, *parameter.shape[dimensions:]))
        return torch.sparse_coo_tensor(indices, values, parameter.shape, check_invariants=False)
    return gradient.to_sparse(dimensions) if gradient.layout is torch.strided else gradient


def assign_gradient(parameter: torch.Tensor, finish: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """Returns a function that waits for a reduction and makes its result the parameter's gradient."""

    def assign() -> None:
        parameter.grad = finish()

    return assign
