"""The counterpart of torch.nn: `parallel`."""

from . import parallel

__all__ = ["parallel"]
