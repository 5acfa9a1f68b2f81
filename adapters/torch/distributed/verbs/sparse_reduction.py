"""all_reduce of sparse COO tensors: every rank's entries are gathered and added up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from ...tensors.cuda import require_cuda
from ..layout_conversion import from_buffer, view, with_own_dtypes
from ..reduce_op import of
from ..works import PerseusWork

if TYPE_CHECKING:
    from ..numbered_group import NumberedGroup


def sparse_allreduce(group: NumberedGroup, tensor: Tensor, opts: Any) -> PerseusWork:
    """Replaces the tensor by the sum, coalesced. Supports only SUM, as gloo does."""
    given = of(opts)
    if getattr(given, "op", given) != ReduceOp.SUM:
        raise ValueError("all_reduce of sparse tensors supports only SUM")
    if not tensor.is_cpu:
        require_cuda(tensor, "all_reduce: ")
    coalesced = tensor.detach().coalesce()
    # Each entry is a row, so ranks may have different numbers of entries.
    indices = coalesced.indices().t().contiguous()
    values = coalesced.values().contiguous()
    shape, sparse_dims = tensor.shape, tensor.sparse_dim()

    def finish(handle: Any) -> None:
        first, second = handle.outputs()
        all_indices = from_buffer(first, torch.int64).view(-1, sparse_dims).to(values.device)
        all_values = from_buffer(second, values.dtype).view(-1, *values.shape[1:]).to(values.device)
        # All ranks' indices are within this shape, on which the ranks have agreed.
        total = torch.sparse_coo_tensor(all_indices.t(), all_values, shape, check_invariants=False).coalesce()
        tensor.copy_(total)

    return group._start(
        with_own_dtypes(f"all_reduce of a sparse tensor of shape {list(shape)}", [coalesced.values()]),
        group._core.allgather,
        [view(indices), view(values)],
        group._number,
        (indices, values),
        result=[tensor],
        finish=finish,
        what="all_reduce of a sparse tensor",
    )
