"""Horovod's names. This folder's parent is put on the module search path where they are asked for."""

from perseus_like import run
from perseus_like.names import open_door

open_door("horovod")

# Of the API, for programs that ask; this package's own is perseus_like.__version__.
__version__ = "0.28.1"

__all__ = ["__version__", "run"]
