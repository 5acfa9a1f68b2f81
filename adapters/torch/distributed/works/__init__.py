"""The works that torch waits for, and the threads on which their futures complete."""

from __future__ import annotations

import atexit
import functools
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch.futures import Future

from perseus_like.errors import TimedOutError
from perseus_like.session import session

from ...compat.dynamo import pause, untraced, without_dynamo
from ...compat.works import LOSES_WORKS, keep_alive, let_go
from ...tensors import cuda
from ...tensors.tensor_memory import writing
from ..layout_conversion import device_of
from ..unsupported import UnsupportedByWorks
from .callback_lock import callback_lock
from .callback_order import CallbackOrigin, remember

Finish = Callable[[Any], None]

# By then the core has reported the missing ranks, unless rank 0 of the group is stopped.
MARGIN_SECONDS = 10.0
# The time limit of a missing-rank query; the core waits for 3 s of it.
_ANSWER_SECONDS = 5.0


class SubmittedRequest(NamedTuple):
    """Identifies a collective: torch's name of its group, the core's number of the group, and its name in the core."""

    group_name: str
    process_set: int
    name: str

    def missing(self) -> str:
        """Asks all ranks, and returns a text about those that have not called the collective."""
        try:
            ranks = session.core.missing(self.process_set, self.name, _ANSWER_SECONDS)
        except Exception:  # this rank has left the group
            ranks = None
        if ranks is None:
            return "no rank reports who has called it, because its data are being transferred"
        if not ranks:
            return "all ranks have called it"
        return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))} of the job did not call it"


class _Streams(Protocol):
    """Makes streams of a device wait for a work: a handle of the core, or `_CallbackStream`."""

    def wait_for(self, limit_seconds: float, /) -> bool:
        """Waits for the work at most so long, and returns whether it is complete. Raises its error."""

    def extend(self) -> None:
        """Makes what the current stream was given since a part of the work."""


class _CallbackStream(NamedTuple):
    """The streams of a future's callback: the current stream alone waits, and the stream of the call does not.

    The core keeps the tensors of the work until the device has finished it.
    """

    handle: Any

    def wait_for(self, limit_seconds: float, /) -> bool:
        return bool(self.handle.wait_alone(limit_seconds))

    def extend(self) -> None:
        self.handle.extend_alone()


# The values of torch's WorkResult, which get_future_result returns.
_SUCCESS, _TIMED_OUT, _FAILED = range(3)


class PerseusWork(UnsupportedByWorks, dist.Work):
    """One collective or message. `finish(handle)` runs once after completion, on the first thread that waits or asks.

    `result` contains the outputs that torch returns. `wait` raises the error of the work, and the future gets it. Work
    on CUDA tensors is complete for this class once it is queued on the device, which needs the submissions of all
    ranks. From then on, the current stream waits for it, and so does the stream of the call unless a future waits.
    """

    def __init__(
        self,
        what: str,
        handle: Any,
        result: Any,
        timeout: float,
        finish: Finish | None = None,
        margin: float = MARGIN_SECONDS,
        request: SubmittedRequest | None = None,
    ) -> None:
        super().__init__()
        self._what = what
        self._handle = handle
        self._result = result
        self._limit = timeout + margin
        self._finish = finish
        self._request = request
        # `finish` may write to copies that were made in inference mode.
        self._is_inference = finish is not None and torch.is_inference_mode_enabled()
        self._lock = threading.Lock()
        self._future: Future[Any] | None = None
        self._error: BaseException | None = None
        if LOSES_WORKS:
            keep_alive(self)

    @untraced
    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Returns True. Raises the error of the work, or TimedOutError after `timeout` (if it is 0, the group's)."""
        seconds = timeout.total_seconds() if timeout else 0.0
        dynamo_before = pause(None)
        try:
            self._arrive(self._handle, seconds if seconds > 0 else self._limit)
        finally:
            pause(dynamo_before)
        return True

    def _arrive(self, streams: _Streams, limit: float) -> None:
        """Waits for the work, and makes streams of the device wait for it."""
        is_finished = self._finish is None
        try:
            if callback_lock.mine.held:
                in_time = callback_lock.lend(streams.wait_for, limit)
            else:
                in_time = streams.wait_for(limit)
        except Exception as error:
            self._error = error
            if LOSES_WORKS:
                let_go(self)
            raise
        if not in_time:
            self._raise_timeout(limit, streams)
        if LOSES_WORKS:
            let_go(self)
        if not is_finished:
            self._finish_once(streams)

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self._limit)

    def limit_to(self, timeout: timedelta | None) -> None:
        """Limits each wait to this time. torch's options have a negative time if the caller gave none."""
        if timeout is not None and timeout > timedelta(0):
            self._limit = min(self._limit, timeout.total_seconds())

    def _raise_timeout(self, limit: float, streams: _Streams) -> None:
        """Raises TimedOutError, unless the work has ended during the missing-rank query."""
        who = "" if self._request is None else f": {self._request.missing()}"
        if not self._handle.done():
            raise TimedOutError(
                f"{self._what} timed out after a timeout of {limit:g} s{who}. It goes on, and the memory of its "
                "tensors is in use"
            )
        streams.wait_for(0.0)

    def raise_timeout(self, limit: float) -> None:
        """Does what `wait` does after a wait of `limit` seconds in vain."""
        self._raise_timeout(limit, self._handle)

    def comes_until(self, deadline: float) -> bool:
        """Waits until `deadline` (of time.monotonic), and returns whether the work is complete. Raises its error."""
        return bool(callback_lock.lend(self._handle.wait_for, max(deadline - time.monotonic(), 0.0)))

    @without_dynamo
    def synchronize(self) -> None:
        self.wait()

    block_current_stream = synchronize

    @without_dynamo
    def is_completed(self) -> bool:
        """Returns whether the results are there, also on a device."""
        if not self._handle.done() or not self._handle.is_over():
            return False
        self.exception()
        return bool(self._handle.is_over())  # `finish` may have queued work on the device

    @without_dynamo
    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    @without_dynamo
    def exception(self) -> BaseException | None:
        """Returns the error of complete work, or None."""
        if self._handle.done():
            try:
                self.wait()
            except Exception as error:
                self._error = error
        return self._error

    @without_dynamo
    def result(self) -> Any:
        self.wait()
        return self._result

    @without_dynamo
    def source_rank(self) -> int:
        """Waits, and returns the rank in the group that sent the received message."""
        self.wait()
        return int(self._handle.number())

    _source_rank = source_rank

    @without_dynamo
    def get_future(self) -> Future[Any]:
        """Returns a future of `result`. It completes on a thread whose callbacks may start and wait for further work.

        If the work is complete, so is the future: DDP's reducer relies on that.
        """
        with self._lock:
            if self._future is not None:
                return self._future
            device = device_of(self._result)
            done: Future[None] = Future() if device < 0 else cuda.new_future(device)
            # C++ handles an error raised in then(); Future.set_exception crashes DDP's reducer.
            self._future = done.then(self.value_of_future)
            if self._request is not None:
                remember(self._future, CallbackOrigin(*self._request))
        on_device = functools.partial(cuda.complete, done, device)
        complete = functools.partial(done.set_result, None) if device < 0 else on_device
        if self._handle.done():
            complete()
        else:
            completer.after(self._handle, complete)
        return self._future

    @without_dynamo
    def get_future_result(self) -> Future[int]:
        """Returns a future of torch's WorkResult: 0 after success, 1 after a time-out and 2 after another error."""
        return self.get_future().then(_outcome)

    def _get_sequence_number(self) -> int:
        """Returns the number of the collective in its group; 0 for messages, and for collectives of callbacks."""
        number = "" if self._request is None else self._request.name.removeprefix("#")
        return int(number) if number.isdecimal() else 0

    def value_of_future(self, _: Any = None) -> Any:
        """Waits on the stream of a callback. The stream of the call goes on: DDP's backward pass runs there."""
        self._arrive(_CallbackStream(self._handle), self._limit)
        return self._result

    def _finish_once(self, streams: _Streams) -> None:
        with self._lock:
            if self._finish is None:  # another thread called it meanwhile, so wait for what it queued, too
                streams.wait_for(self._limit)
                return
            try:
                with writing(self._result, self._is_inference):
                    self._finish(self._handle)
            except Exception as error:
                self._finish = _raises(error)
                raise
            streams.extend()
            self._finish = None


class Works(UnsupportedByWorks, dist.Work):
    """Several works as one."""

    def __init__(self, works: Sequence[PerseusWork]) -> None:
        super().__init__()
        self._works = works
        if LOSES_WORKS:
            keep_alive(self)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        for work in self._works:
            work.wait(timeout)
        if LOSES_WORKS:
            let_go(self)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def result(self) -> Any:
        return [tensor for work in self._works for tensor in work.result()]

    def get_future_result(self) -> Future[int]:
        return self.get_future().then(_outcome)

    def get_future(self) -> Future[Any]:
        """Returns a future that completes in a callback of the first work, which waits for the others."""
        if not self._works:
            done: Future[Any] = Future()
            done.set_result([])
            return done
        return self._works[0].get_future().then(self._value_of_future)

    def _value_of_future(self, _: Any) -> Any:
        return [tensor for work in self._works for tensor in work.value_of_future()]


def _outcome(done: Future[Any]) -> int:
    try:
        done.value()
    except Exception as error:
        return _TIMED_OUT if "timed out" in str(error) else _FAILED
    return _SUCCESS


def _raises(error: Exception) -> Finish:
    def finish(_: Any) -> None:
        raise error

    return finish


class Completer:
    """Completes futures when their work ends.

    Callbacks of a future run on the thread that completes it, and may wait for work whose future another thread must
    complete first. So one thread is always free: before a thread runs a callback, another one listens.
    """

    _MOST_IDLE = 4

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the following attributes
        self._waiting: dict[int, Callable[[], None]] = {}
        self._idle = 0
        self._finished: Any = None
        self._numbers = itertools.count(1)
        self._threads: set[threading.Thread] = set()
        self._closing = False

    def after(self, handle: Any, complete: Callable[[], None]) -> None:
        """Calls `complete`, which sets a future, once the work of `handle` has ended, successfully or not."""
        with self._lock:
            if self._finished is None:
                self._finished = session.core.Finished()
                atexit.register(self._close)
            number = next(self._numbers)
            self._waiting[number] = complete
            if self._idle == 0:
                self._start_thread()
        self._finished.watch(handle, number)

    def _start_thread(self) -> None:
        self._idle += 1
        thread = threading.Thread(target=self._run, name="perseus-futures", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _run(self) -> None:
        while (number := self._finished.next(3600.0)) != 0:
            if number is None:
                continue
            with self._lock:
                complete = self._waiting.pop(number)
                self._idle -= 1
                if self._idle == 0 and not self._closing:
                    self._start_thread()
            complete()
            del complete
            with self._lock:
                if self._idle >= self._MOST_IDLE:
                    break
                self._idle += 1
        with self._lock:
            self._threads.discard(threading.current_thread())

    def _close(self) -> None:
        """Stops the threads before the interpreter ends: a thread that wakes later could not take its lock any more."""
        with self._lock:
            self._closing = True
            threads = list(self._threads)
        for _ in threads:
            self._finished.stop()
        for thread in threads:
            thread.join(1.0)


completer = Completer()
