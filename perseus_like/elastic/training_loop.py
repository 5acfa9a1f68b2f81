"""The loop around elastic training."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import HorovodInternalError, HostsUpdatedInterrupt
from .membership import membership
from .notification import notification_manager
from .state_agent_client import StateAgentClient

_Result = TypeVar("_Result")

logger = logging.getLogger(__name__)


def run_fn(func: Callable[..., _Result], reset: Callable[[], Any]) -> Callable[..., _Result]:
    """Returns `func(state, …)` inside the elastic loop: sync the state to all ranks, then call `func`.

    After a HorovodInternalError the state goes back to its last commit, after a HostsUpdatedInterrupt it stays. In both
    cases `reset()` makes a new session, the state's reset callbacks run, and the loop begins anew. Adapters offer it as
    `hvd.elastic.run`.

    Args:
        func: the training function. Its first argument is the elastic state.
        reset: a function that ends the session and starts a new one.

    Returns:
        A function with the same arguments and result. It raises what `func` raises, except for the two errors above.

    Examples:
        >>> from perseus_like.elastic import ObjectState, run_fn
        >>> train = run_fn(lambda state: state.epoch + 1, reset=hvd.init)
        >>> train(ObjectState(hvd.broadcast_object, hvd.rank, epoch=1))
        2
    """

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> _Result:
        notification_manager.init()
        notification_manager.register_listener(state)
        worker = membership()
        skip_sync = False
        try:
            if worker:
                worker.take_over(state)
            while True:
                try:
                    if not skip_sync:
                        state.sync()
                        if worker:
                            worker.report_synced(state)
                    return func(state, *args, **kwargs)
                except HorovodInternalError as error:
                    logger.warning("going back to the last commit, in a new session: %s", error)
                    if isinstance(worker, StateAgentClient):
                        worker.leave_failed()
                    state.restore()
                    skip_sync = False
                except HostsUpdatedInterrupt as interrupt:
                    logger.info("hosts have changed; going on in a new session")
                    if isinstance(worker, StateAgentClient):
                        worker.leave_for_others(state)
                    skip_sync = interrupt.skip_sync
                if worker:
                    worker.wants_sync = not skip_sync
                reset()
                # All members must agree on the sync, and another member may need one.
                skip_sync = skip_sync and not (worker and worker.assignment and worker.assignment.sync)
                state.on_reset()
        finally:
            notification_manager.remove_listener(state)

    return wrapper
