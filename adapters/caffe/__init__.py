"""perseus_like.caffe: data-parallel training with pycaffe's solvers. `caffe` itself is imported when it is used.

`python -m perseus_like.caffe train --solver solver.prototxt` trains as `caffe train` does, on all ranks.
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

from .place import init
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
