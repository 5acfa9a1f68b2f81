"""Distributed training with Horovod's programming model. Frameworks: perseus_like.torch, perseus_like.numpy, …"""

import typing as _typing

from .protocol.launcher_signals import handle_if_launcher as _handle_if_launcher
from .source_folder import complete_package as _complete_package

_handle_if_launcher()
__path__[:] = _complete_package(__path__)

from . import adapter_exports  # noqa: E402
from .adapter_exports import *  # noqa: E402
from .errors import HorovodInternalError, PeerLostError  # noqa: E402
from .launch.run_function import run  # noqa: E402
from .protocol.failure_record import report_failures as _report_failures  # noqa: E402

_report_failures(lost_another=PeerLostError, of_this_library=HorovodInternalError)

__version__: str


# Reading the version of the installed distribution takes longer than importing the rest of this package.
if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> str:
        """Returns `__version__`, the version of the installed distribution."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .host_facts import installed_version

        return installed_version()


__all__ = ["__version__", "run"]
__all__ += adapter_exports.__all__
__dir__ = __all__.copy  # for completion in editors and shells
