"""horovod.common.elastic."""

from ..elastic import (
    HostUpdateResult,
    ObjectState,
    State,
    WorkerNotificationManager,
    notification_manager,
    run_fn,
)
from ..errors import HorovodInternalError, HostsUpdatedInterrupt

__all__ = [
    "HorovodInternalError",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "WorkerNotificationManager",
    "notification_manager",
    "run_fn",
]
