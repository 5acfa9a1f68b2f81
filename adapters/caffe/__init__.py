"""perseus_like.caffe: data-parallel training with pycaffe's solvers.

`python -m perseus_like.caffe train --solver solver.prototxt` trains as `caffe train` does, on all ranks. The module
`caffe` is imported at the first call of `init`.
"""

from perseus_like import (
    cross_rank,
    cross_size,
    errors,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from perseus_like.errors import *

from .caffe_setup import init
from .solver import DistributedSolver, broadcast_net

__all__ = [
    "DistributedSolver",
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
__all__ += errors.__all__


def __dir__() -> list[str]:
    """Returns the public names, for completion in editors and shells."""
    return __all__
