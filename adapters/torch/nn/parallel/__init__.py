"""perseus_like.torch.nn.parallel: DistributedDataParallel over the core, with torch's arguments."""

from .distributed import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
