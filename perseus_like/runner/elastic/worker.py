"""horovod.runner.elastic.worker: what a worker learns of changed hosts."""

from ...elastic import HostUpdateResult, WorkerNotificationManager

__all__ = ["HostUpdateResult", "WorkerNotificationManager"]
