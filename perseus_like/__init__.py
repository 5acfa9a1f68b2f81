"""Distributed training with Horovod's programming model. Frameworks: perseus_like.torch, perseus_like.numpy, …"""

from .source_folder import complete_package as _complete_package

__path__[:] = _complete_package(__path__)

from . import common_api  # noqa: E402
from .common_api import *  # noqa: E402
from .errors import HorovodInternalError, HostsUpdatedInterrupt  # noqa: E402
from .errors import PeerLostError as _PeerLostError  # noqa: E402
from .launch.run_function import run  # noqa: E402
from .protocol.failure_record import report_failures as _report_failures  # noqa: E402

_report_failures(lost_another=_PeerLostError, of_this_library=HorovodInternalError)

__version__ = "0.1.0"

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "__version__", "run"]
__all__ += common_api.__all__
