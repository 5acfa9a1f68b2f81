"""Training state that `commit` keeps in memory, `restore` brings back, and `sync` makes the same on all ranks."""

from __future__ import annotations

import copy
import math
import queue
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..errors import HostsUpdatedInterrupt
from ..session import session
from .notification import HostUpdateResult, notification_manager


def require_intact_results() -> None:
    """Blocks until the device has finished its work. Raises the error of a lost rank or of a failed engine.

    A collective on a device is complete for its caller once it is queued, so its results may still turn out wrong.
    """
    if session.core.is_running():
        session.core.synchronize_device()


class State:
    """The interface of elastic states. A subclass defines `save`, `restore` and `sync`.

    Args:
        bcast_object: a function that returns rank 0's object on all ranks, such as `hvd.broadcast_object`.
        get_rank: a function that returns this rank, such as `hvd.rank`.

    Raises:
        NotImplementedError: a method is called that the subclass does not define.

    Examples:
        >>> from perseus_like.elastic import ObjectState, State
        >>> issubclass(ObjectState, State)
        True
    """

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.SimpleQueue[tuple[float, HostUpdateResult]] = queue.SimpleQueue()
        self._last_updated_timestamp = 0.0
        self._reset_callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Adds callbacks that run after each new start, when the number of ranks may differ."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        self._take_host_messages(notification_manager.known_until)
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: HostUpdateResult) -> None:
        """Queues a host update; the next commit notices it. Thread-safe."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves the state, then checks for host updates. Collective over all ranks.

        Blocks first until the device has finished the step. A step that a lost rank has broken raises
        HorovodInternalError and is not saved.
        """
        require_intact_results()
        self.save()
        if notification_manager.on_commit:
            notification_manager.on_commit(self)
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt on all ranks if rank 0 has a host update. Collective over all ranks."""
        before, update = self._last_updated_timestamp, self._take_host_messages()
        before, after, update = self._bcast_object((before, self._last_updated_timestamp, update))
        self._last_updated_timestamp = after
        if after > before:
            raise HostsUpdatedInterrupt(update == HostUpdateResult.removed)

    def save(self) -> None:
        """Keeps the current values in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to the values saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Copies rank 0's values to all ranks. Collective."""
        raise NotImplementedError

    def kept(self) -> Any:
        """Returns everything that the last `save` keeps, to be pickled for a worker that replaces this one."""
        raise NotImplementedError(
            f"{type(self).__name__} has no kept() and take(), which an elastic job on several hosts needs; define both"
        )

    def take(self, kept: Any) -> None:
        """Continues from what another process has kept."""
        raise NotImplementedError

    def reset(self) -> None:
        """Updates what depends on the number of ranks. Derived classes override it."""

    def _take_host_messages(self, until: float = math.inf) -> HostUpdateResult:
        """Returns what the queued updates up to `until` amount to, and removes them."""
        update = HostUpdateResult.no_update
        later = []
        while not self._host_messages.empty():
            timestamp, result = self._host_messages.get()
            if timestamp > until:
                later.append((timestamp, result))
            elif timestamp > self._last_updated_timestamp:
                self._last_updated_timestamp = timestamp
                update |= result
        for each in later:
            self._host_messages.put(each)
        return update


class ObjectState(State):
    """An elastic state of plain values, which are its attributes. Saved copies are deep.

    Args:
        bcast_object: a function that returns rank 0's object on all ranks, such as `hvd.broadcast_object`.
        get_rank: a function that returns this rank, such as `hvd.rank`.
        kwargs: the attributes and their values, which can be pickled.

    Examples:
        >>> from perseus_like.elastic import ObjectState
        >>> from perseus_like.objects import broadcast_object
        >>> state = ObjectState(broadcast_object, hvd.rank, epoch=0)
        >>> state.epoch = 5
        >>> state.commit()
        >>> state.epoch = 6
        >>> state.restore()
        >>> state.epoch
        5
    """

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state = copy.deepcopy(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Type checkers do not know the attributes, which are arguments of the constructor."""

    def save(self) -> None:
        self._saved_state = copy.deepcopy({name: getattr(self, name) for name in self._saved_state})

    def restore(self) -> None:
        self._set_attrs()

    def kept(self) -> Any:
        return self._saved_state

    def take(self, kept: Any) -> None:
        self._saved_state = kept
        self.restore()

    def sync(self) -> None:
        """Sets the attributes to what rank 0 has saved."""
        if self._saved_state:
            self._saved_state = self._bcast_object(self._saved_state)
            self._set_attrs()

    def _set_attrs(self) -> None:
        for name, value in copy.deepcopy(self._saved_state).items():
            setattr(self, name, value)
