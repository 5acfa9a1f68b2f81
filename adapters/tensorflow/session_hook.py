"""A hook that broadcasts variables when a session of TensorFlow 1 begins."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from .functions import broadcast_global_variables


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """A hook of a monitored session: all ranks begin with the root rank's values, initialized or from a checkpoint.

    Args:
        root_rank: the rank in the job whose values all ranks get.
        device: the device on which the values are broadcast. The default is chosen by TensorFlow.

    Raises:
        HorovodInternalError: a rank has ended, or `init` was not called. It is raised when the session begins.

    Examples:
        >>> hook = hvd.BroadcastGlobalVariablesHook(root_rank=0)
        >>> hook.root_rank
        0
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Builds the broadcast operation, once for each graph."""
        graph = tf.compat.v1.get_default_graph()
        if self.bcast_op is None or self.bcast_op.graph is not graph:
            with tf.device(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs the broadcast operation."""
        session.run(self.bcast_op)
