"""Horovod's names. This folder's parent is put on the module search path where they are asked for."""

from perseus_like import run
from perseus_like.names import HOROVOD_VERSION, open_horovod

open_horovod()

__version__ = HOROVOD_VERSION

__all__ = ["__version__", "run"]
