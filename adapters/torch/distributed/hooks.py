"""Communication hooks for torch's DistributedDataParallel with a wire dtype of 16 bits, into which the core converts.

`model.register_comm_hook(None, hooks.bf16_wire)`. torch's own fp16_compress_hook works over this backend, too; its
bf16_compress_hook refuses every backend but NCCL. Sums are made in float32.
"""

from typing import Any

# torch compares the annotations of hooks with the types themselves, so they must not become strings here.
import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future

from perseus_like.tables import DType

from .process_group import PerseusGroup


def fp16_wire(group: Any, bucket: GradBucket) -> Future[torch.Tensor]:
    """Averages a bucket with the wire dtype float16. `group`: the process group; None for the default one."""
    return _average(group, bucket, DType.float16)


def bf16_wire(group: Any, bucket: GradBucket) -> Future[torch.Tensor]:
    """Averages a bucket with the wire dtype bfloat16. `group`: the process group; None for the default one."""
    return _average(group, bucket, DType.bfloat16)


def _average(group: Any, bucket: GradBucket, wire: DType) -> Future[torch.Tensor]:
    chosen = torch.distributed.group.WORLD if group is None else group
    if not isinstance(chosen, PerseusGroup):
        raise ValueError(f"this hook is for process groups of the backend 'perseus', not for {chosen}")
    future = chosen.average(bucket.buffer(), wire).get_future()
    return future.then(lambda done: done.value()[0])
