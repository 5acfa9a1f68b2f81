"""What torch.nn has under the same names: `parallel`."""

from . import parallel

__all__ = ["parallel"]
