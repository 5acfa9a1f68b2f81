"""AIACC-Training's names, installed beside perseus_like: `import perseus.torch.horovod as hvd`."""

from perseus_like import __version__
from perseus_like.names import open_door

open_door("perseus")

__all__ = ["__version__"]
