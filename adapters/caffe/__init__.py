"""perseus_like.caffe: data-parallel training with pycaffe's solvers.

`python -m perseus_like.caffe train --solver solver.prototxt` trains as `caffe train` does, on all ranks. The module
`caffe` is imported at the first call of `init`.
"""

from perseus_like import (
    cross_rank,
    cross_size,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from perseus_like.errors import (
    DisagreementError,
    HorovodInternalError,
    NotInitializedError,
    PeerLostError,
    ShutDownError,
    TimedOutError,
    TransportError,
    UnavailableError,
)

from .caffe_setup import init
from .solver import DistributedSolver, broadcast_net

__all__ = [
    "DisagreementError",
    "DistributedSolver",
    "HorovodInternalError",
    "NotInitializedError",
    "PeerLostError",
    "ShutDownError",
    "TimedOutError",
    "TransportError",
    "UnavailableError",
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
__dir__ = __all__.copy  # for completion in editors and shells
