"""Training that goes on after an interruption: state that is committed and restored, and the loop around it.

Inside a world of fixed ranks: what is caught here are errors that leave all ranks alive.
"""

from .model import ModelState, VariablesState
from .notification import HostUpdateResult, WorkerNotificationManager, notification_manager
from .run import run_fn
from .state import ObjectState, State

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
