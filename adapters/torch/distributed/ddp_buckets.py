"""Puts buckets of torch's DistributedDataParallel into shared memory, which the ranks of a host reduce in place.

C++ code of torch allocates the buckets and offers no choice of memory. The same buckets return at every step. A bucket
that returns for the first time is put into shared memory by torch itself, as by `share_memory_()` of a tensor.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from perseus_like.gradients.buckets import LARGE_BYTES
from perseus_like.session import session

from ..compat.core import keeps_identity
from ..compat.dynamo import without_dynamo
from ..tensors.shared_memory import warn_once

_ProcessGroup: Any = dist.ProcessGroup
_log = logging.getLogger("perseus_like")

# The buckets that have been reduced once, and whether they have returned.
_returned: weakref.WeakKeyDictionary[torch.UntypedStorage, bool] = weakref.WeakKeyDictionary()


class SharedBucketGroup(_ProcessGroup):  # type: ignore[misc]
    """The process group that a reducer of DistributedDataParallel calls: what it reduces are buckets.

    It has no state of its own. All of its calls are calls of the group that the program uses.
    """

    def __init__(self, group: Any) -> None:
        super().__init__(group.rank(), group.size())
        self.group = group

    @without_dynamo
    def allreduce(self, tensors: Sequence[Tensor] | Tensor, opts: Any = None, **options: Any) -> Any:
        for tensor in [tensors] if isinstance(tensors, Tensor) else tensors:
            _share(tensor)
        return self.group.allreduce(tensors, opts, **options)

    @without_dynamo
    def broadcast(self, tensors: Any, opts: Any = None, **options: Any) -> Any:
        return self.group.broadcast(tensors, opts, **options)

    @without_dynamo
    def barrier(self, opts: Any = None) -> Any:
        return self.group.barrier(opts)

    def getBackendName(self) -> str:  # noqa: N802
        """Returns "perseus", because torch's DDP logger looks for a gloo backend of C++ in a group named gloo."""
        return "perseus"

    def getGroupName(self) -> str:  # noqa: N802
        return str(self.group.getGroupName())

    def getGroupDesc(self) -> str:  # noqa: N802
        return str(self.group.getGroupDesc())

    def getRank(self) -> int:  # noqa: N802
        return int(self.group.getRank())

    def getSize(self) -> int:  # noqa: N802
        return int(self.group.getSize())


def _share(bucket: Tensor) -> None:
    """Puts a bucket into shared memory when it returns. Warns once if that is impossible."""
    if bucket.nbytes < LARGE_BYTES or bucket.device.type != "cpu" or session.core.local_size() == 1:
        return
    if not keeps_identity():
        warn_once(
            "buckets of DistributedDataParallel stay in private memory, where reducing is slower: torch "
            f"{torch.__version__} does not say when their memory goes; torch 2.13 and later do"
        )
        return
    storage = bucket.untyped_storage()
    returned = _returned.get(storage)
    _returned[storage] = returned is not None
    if returned is not False:
        return
    try:
        # torch makes a file in /dev/shm and reserves its room. It raises RuntimeError if there is none, so that no rank
        # is ended by a write to a full file system.
        bucket.share_memory_()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        megabytes = bucket.nbytes / 1e6
        warn_once(f"a bucket of {megabytes:.0f} MB stays in private memory, where reducing is slower: {error}")
        return
    _log.debug("a bucket of %.0f MB is in shared memory now", bucket.nbytes / 1e6)
