"""perseus_like.caffe: data-parallel training with pycaffe's solvers.

`python -m perseus_like.caffe train --solver solver.prototxt` trains as `caffe train` does, on all ranks. The module
`caffe` is imported at the first call of `init`.
"""

from perseus_like import (
    HorovodInternalError,
    cross_rank,
    cross_size,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)

from .caffe_setup import init
from .solver import DistributedSolver, broadcast_net

__all__ = [
    "DistributedSolver",
    "HorovodInternalError",
    "broadcast_net",
    "cross_rank",
    "cross_size",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]
