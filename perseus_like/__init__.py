"""Distributed training with Horovod's programming model. Frameworks: perseus_like.torch, perseus_like.numpy, …"""

from . import common_api
from .common_api import *
from .errors import HorovodInternalError, HostsUpdatedInterrupt
from .launch.run_function import run

__version__ = "0.1.0"

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "__version__", "run"]
__all__ += common_api.__all__
