"""What training must not lose: kept in memory at each commit, brought back after an error, the same on all ranks."""

from __future__ import annotations

import copy
import queue
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import HostsUpdatedInterrupt
from .notification import HostUpdateResult


class State:
    """The interface. `bcast_object(obj)` gives rank 0's object on all ranks, `get_rank()` this rank's number."""

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._get_rank = get_rank
        self._news: queue.SimpleQueue[tuple[float, HostUpdateResult]] = queue.SimpleQueue()
        self._last_update = 0.0
        self._reset_callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """They are called after each new start, when the number of ranks may be another."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        self._take_news()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: HostUpdateResult) -> None:
        """Called on any thread; noticed at the next commit."""
        self._news.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves, then looks for news about hosts. Collective over all ranks."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """HostsUpdatedInterrupt, on all ranks alike, where rank 0 has news. Collective over all ranks."""
        before, update = self._last_update, self._take_news()
        before, self._last_update, update = self._bcast_object((before, self._last_update, update))
        if self._last_update > before:
            raise HostsUpdatedInterrupt(update == HostUpdateResult.removed)

    def save(self) -> None:
        """Keeps the present values in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to the values saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Rank 0's values on all ranks. Collective."""
        raise NotImplementedError

    def reset(self) -> None:
        """For derived classes: what depends on the number of ranks."""

    def _take_news(self) -> HostUpdateResult:
        """All that happened since the last look."""
        update = HostUpdateResult.no_update
        while not self._news.empty():
            timestamp, result = self._news.get()
            if timestamp > self._last_update:
                self._last_update = timestamp
                update |= result
        return update


class ObjectState(State):
    """Its keyword arguments become attributes; they must be picklable. Copies are deep."""

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state = copy.deepcopy(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)

    def save(self) -> None:
        self._saved_state = copy.deepcopy({name: getattr(self, name) for name in self._saved_state})

    def restore(self) -> None:
        for name, value in copy.deepcopy(self._saved_state).items():
            setattr(self, name, value)

    def sync(self) -> None:
        """What rank 0 has saved."""
        if self._saved_state:
            self._saved_state = self._bcast_object(self._saved_state)
            self.restore()
