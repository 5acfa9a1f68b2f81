"""Elastic training: state that is committed and restored, and the loop that continues after an interruption."""

from .model import ModelState, VariablesState
from .notification import HostUpdateResult, WorkerNotificationManager, notification_manager
from .state import ObjectState, State
from .training_loop import run_fn

__all__ = [
    "HostUpdateResult",
    "ModelState",
    "ObjectState",
    "State",
    "VariablesState",
    "WorkerNotificationManager",
    "notification_manager",
    "run_fn",
]
__dir__ = __all__.copy  # for completion in editors and shells
