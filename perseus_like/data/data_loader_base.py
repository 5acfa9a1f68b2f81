"""horovod.data.data_loader_base: a loader's interface, and one that reads batches ahead on a thread."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Iterator
from typing import Any

_logger = logging.getLogger(__name__)

# A thread that waits for the queue checks this often whether the loader has been closed.
_CHECK_SECONDS = 0.1
_END_OF_EPOCH = ("end of epoch", None)


class BaseDataLoader:
    """A loader whose batches come from `_iterate`. Subclasses write `__len__` and `_iterate`."""

    def __len__(self) -> int:
        """Returns the number of batches of an epoch."""
        raise NotImplementedError

    def _iterate(self) -> Iterator[Any]:
        """Yields the batches of one epoch."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)

    def _process_batch(self, batch: Any) -> Any:
        """Returns what is yielded for `batch`. Trainers override it, for example to reshape the batch."""
        return batch


class AsyncDataLoaderMixin:
    """Reads the batches of a BaseDataLoader ahead on a thread: `class AsyncLoader(AsyncDataLoaderMixin, Loader)`.

    The thread also begins the next epoch. An exception of `_iterate` is raised by the iteration that meets it.
    With `async_loader_queue_size` 0 there is no thread.
    """

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        super().__init__(*args, **kwargs)
        self.started = False
        if async_loader_queue_size > 0:
            self.finished_event = threading.Event()
            self.queue: queue.Queue[tuple[str, Any]] = queue.Queue(async_loader_queue_size)
            self.thread = threading.Thread(target=self._async_worker, name="data loader", daemon=True)

    def close_async_loader(self) -> None:
        """Ends the thread and drops the batches that it has read. The loader cannot be iterated again."""
        if self.async_loader_queue_size > 0 and self.started:
            self.finished_event.set()
            self.thread.join()
            self._log("closed")

    def __iter__(self) -> Iterator[Any]:
        if self.async_loader_queue_size <= 0:
            yield from BaseDataLoader.__iter__(self)  # type: ignore[arg-type]
            return
        if not self.started:
            self.started = True
            self.thread.start()
        while (item := self._take()) is not _END_OF_EPOCH:
            kind, content = item
            if kind == "error":
                raise content
            yield self._process_batch(content)  # type: ignore[attr-defined]

    def _take(self) -> tuple[str, Any]:
        """Returns the next item of the queue, or the end of the epoch if the loader has been closed or has failed."""
        while not self.finished_event.is_set():
            with contextlib.suppress(queue.Empty):
                return self.queue.get(timeout=_CHECK_SECONDS)
            if not self.thread.is_alive() and self.queue.empty():
                break
        return _END_OF_EPOCH

    def _async_worker(self) -> None:
        try:
            while not self.finished_event.is_set():
                count = 0
                for batch in self._iterate():  # type: ignore[attr-defined]
                    if not self._put(("batch", batch)):
                        return
                    count += 1
                self._log(f"read an epoch of {count} batches")
                self._put(_END_OF_EPOCH)
        except Exception as error:
            self._put(("error", error))

    def _put(self, item: tuple[str, Any]) -> bool:
        """Puts `item` into the queue. Returns False if the loader has been closed."""
        while not self.finished_event.is_set():
            with contextlib.suppress(queue.Full):
                self.queue.put(item, timeout=_CHECK_SECONDS)
                return True
        return False

    def _log(self, text: str) -> None:
        if self.debug_data_loader:
            _logger.warning("%s: %s", type(self).__name__, text)


__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]
