"""torch.distributed over perseus_like: all of its names, some of them in the form that AIACC-Training gives them.

Importing this registers the backend `perseus`, which `import torch` does already if perseus_like is installed.
"""

from typing import Any

import torch.distributed as _torch
from perseus_like_autoload import register

from .aiacc import (
    broadcast_optimizer_state,
    get_local_rank,
    get_rank,
    get_world_size,
    init_process_group,
    use_perseus,
)

__all__ = [
    "broadcast_optimizer_state",
    "get_local_rank",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "register",
    "use_perseus",
]

register()


def __getattr__(name: str) -> Any:
    """Returns a name of torch.distributed."""
    try:
        return getattr(_torch, name)
    except AttributeError:
        raise AttributeError(f"neither {__name__!r} nor 'torch.distributed' has {name!r}") from None
