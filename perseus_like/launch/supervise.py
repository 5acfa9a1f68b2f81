"""The supervisor of a job's processes: it handles their output, their ends and the user's signals.

It has one thread and one event loop. Signals arrive as bytes in a pipe, so no code runs inside a signal handler.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import IO, Protocol

from . import processes
from .child import Child, Feed, start_process
from .guard import Guard
from .output import Screen
from .pause import Pause
from .verdict import Failure, Verdict

# After a rank has failed, the other ranks have this long to report their own errors.
FAILURE_GRACE_SECONDS = 1.0
# Failures within this time may be noticed in another order than they happened.
VERDICT_SECONDS = 0.05
LEFTOVER_SECONDS = 10.0
_PROMPT_SECONDS = 0.1
_MOST_BACKLOG = 1 << 20
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
_HANDLED = (*_STOPPING, *_PASSED_ON, signal.SIGTSTP, signal.SIGCHLD)


class HasFileno(Protocol):
    """A socket, or another object that can be polled."""

    def fileno(self) -> int: ...


class Supervisor:
    """Starts children, and waits until they and the processes that they have started have ended.

    It is a context manager; leaving it kills the processes that are left. `terminate` is the time in seconds between
    SIGTERM and SIGKILL. If the launcher is killed, its children are killed, too. With an `orphan_grace`, they get a
    SIGTERM before. Only in this case, `clean_up` is called after their ends, in another process.
    """

    def __init__(
        self,
        screen: Screen,
        job_name: str,
        stop_timeout: float,
        terminate: float = 0.7,
        orphan_grace: float = 0.0,
        clean_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._screen = screen
        self._job_name = job_name
        self._stop_timeout = stop_timeout
        self._terminate_seconds = terminate
        self._orphan_grace = orphan_grace
        self._clean_up = clean_up
        self._children: dict[int, Child] = {}
        self._feeds: dict[int, Feed] = {}
        self._streams: dict[int, IO[bytes]] = {}
        self._is_listening = True
        self._agenda: list[tuple[float, Callable[[], None]]] = []
        self._verdict = Verdict()  # has no failures of children that the launcher has ended
        self._stop_reason: str | None = None
        self._code_override: int | None = None
        self._selector = selectors.PollSelector()
        self.pause = Pause()
        self.stopped_by: signal.Signals | None = None  # the user's signal that ends the job

    def __enter__(self) -> Supervisor:
        processes.adopt_orphans()
        self._guard = Guard(self._job_name, self._orphan_grace, self._clean_up)
        self._wake, wake_end = socket.socketpair()
        self._wake.setblocking(False)
        wake_end.setblocking(False)
        self._wake_end = wake_end
        self._old_wakeup = signal.set_wakeup_fd(wake_end.fileno(), warn_on_full_buffer=False)
        self._old_handlers = {}
        for signum in _HANDLED:
            # A signal that nohup ignores stays ignored. SIGCHLD is needed for the ends of children.
            if signal.getsignal(signum) is not signal.SIG_IGN or signum == signal.SIGCHLD:
                self._old_handlers[signum] = signal.signal(signum, _note_signal)
        self._selector.register(self._wake, selectors.EVENT_READ)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_leftovers(everything=kind is not None or self._stop_reason is not None)
        for signum, handler in self._old_handlers.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        self._selector.close()
        self._wake.close()
        self._wake_end.close()
        self._guard.dismiss()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._guard.pid, 0)

    def start(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        stdin: int | None,
        out: Feed,
        err: Feed,
        blames_another: Callable[[], bool],
        *,
        on_end: Callable[[Child], None] | None = None,
        pass_fds: Sequence[int] = (),
        is_guarded: bool = True,
        stop_signal: signal.Signals | None = signal.SIGSTOP,
    ) -> Child:
        """Starts one process. `stdin` is as for Popen (None: the launcher's), `blames_another` as in `Failure`.

        `on_end` is called when the process has ended, unless the job is being ended. If `is_guarded` is true, its
        whole session is ended if the launcher is killed. Do not use it for processes that are started so often that
        session ids are reused. `stop_signal`: see `Child`.
        """
        death_signal = signal.SIGTERM if self._orphan_grace else signal.SIGKILL
        process = start_process(argv, env, stdin, death_signal, pass_fds)
        child = self._children[process.pid] = Child(name, process, blames_another, on_end, stop_signal)
        if is_guarded:
            self._guard.watch(process.pid)
        for stream, feed in ((process.stdout, out), (process.stderr, err)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._feeds[stream.fileno()] = feed
            self._streams[stream.fileno()] = stream
            self._selector.register(stream.fileno(), selectors.EVENT_READ)
        return child

    def serve(self) -> None:
        """Handles pending signals, output and ends of processes. Call it between two starts."""
        self._iterate(longest=0.0)

    def watch(self, connection: HasFileno, act: Callable[[], None]) -> None:
        """Calls `act` whenever `connection` can be read."""
        self._selector.register(connection, selectors.EVENT_READ, act)

    def forget(self, connection: HasFileno) -> None:
        """Ends what `watch` has started."""
        self._selector.unregister(connection)

    def drop(self, child: Child) -> None:
        """Forgets a child that has ended. Call it for processes that are started repeatedly."""
        self._children.pop(child.pid, None)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Calls `action` once, after this time."""
        self._agenda.append((time.monotonic() + seconds, action))

    @property
    def is_stopping(self) -> bool:
        """Returns True once the job is being ended."""
        return self._stop_reason is not None

    def run(
        self,
        is_over: Callable[[], bool] | None = None,
        missed: Callable[[list[Failure]], list[Failure]] = lambda found: [],
    ) -> int:
        """Waits for all children, or until `is_over` returns True. Returns the exit code of the job.

        `missed` returns failures that no child's exit code has shown, given those that are known.
        """
        while not is_over() if is_over else self._living():
            self._iterate()
        self._end_leftovers(everything=self._stop_reason is not None)
        self._drain_feeds()
        if self._stop_reason != "signal":
            self._verdict.add_missed(missed)
        self._judge(is_final=True)
        if self._verdict.first and (later := self._verdict.later()) and self._stop_reason != "signal":
            self._screen.say("after that, " + ", ".join(f"{failure.who} {failure.how}" for failure in later))
        self._flush_screen()
        return self._exit_code()

    def fail(self, failure: Failure, grace: float) -> None:
        """Ends the job because of `failure`, `grace` seconds later."""
        if self._stop_reason is None:
            self._stop("failure", grace)
        if self._stop_reason == "failure" or not self._verdict:
            self._verdict.add(failure)
            self._agenda.append((time.monotonic() + VERDICT_SECONDS, self._judge))

    def _judge(self, is_final: bool = False) -> None:
        """Reports the rank that failed first, once it is known."""
        if self._verdict.decide(is_final) and self._verdict.first and self._stop_reason != "signal":
            self._screen.say(f"{self._verdict.first.who} {self._verdict.first.how}", is_failure=True)

    # One iteration of the loop.

    def _iterate(self, longest: float | None = None) -> None:
        self._watch_sinks()
        self._watch_feeds()
        wait = self._time_to_wait(longest)
        events = self._selector.select(wait)
        if not events:
            self._screen.show_pending()
        for key, _ in events:
            if key.data is not None:
                key.data()
            elif key.fileobj is self._wake:
                self._take_signals()
            elif key.fd in self._feeds:
                self._read(key.fd)
            else:
                self._flush(key.fd)
        if self._screen.is_broken and self._stop_reason is None:
            self._code_override = 128 + signal.SIGPIPE
            self._stop("broken pipe", 0.0)
        self._do_what_is_due()

    def _time_to_wait(self, longest: float | None) -> float | None:
        waits = [when - time.monotonic() for when, _ in self._agenda]
        if any(sink.is_terminal for sink in self._screen.sinks):
            waits.append(_PROMPT_SECONDS)
        if longest is not None:
            waits.append(longest)
        return max(0.0, min(waits)) if waits else None

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        due = [action for when, action in self._agenda if when <= now]
        self._agenda = [entry for entry in self._agenda if entry[0] > now]
        for action in due:
            action()

    def _watch_sinks(self) -> None:
        registered = self._selector.get_map()
        for sink in self._screen.sinks:
            if sink.backlog and sink.descriptor not in registered:
                self._selector.register(sink.descriptor, selectors.EVENT_WRITE)
            elif not sink.backlog and sink.descriptor in registered:
                self._selector.unregister(sink.descriptor)

    def _watch_feeds(self) -> None:
        """Stops reading output of ranks while the reader of the launcher's output is slow."""
        is_listening = self._screen.backlog < _MOST_BACKLOG
        if is_listening != self._is_listening:
            self._is_listening = is_listening
            for descriptor in self._feeds:
                if is_listening:
                    self._selector.register(descriptor, selectors.EVENT_READ)
                else:
                    self._selector.unregister(descriptor)

    def _flush(self, descriptor: int) -> None:
        for sink in self._screen.sinks:
            if sink.descriptor == descriptor and sink.backlog:
                sink.flush_some()

    def _read(self, descriptor: int) -> int:
        """Passes on output of a child. Returns the number of bytes."""
        try:
            data = os.read(descriptor, 65536)
        except BlockingIOError:
            return 0
        if data:
            self._feeds[descriptor].feed(data)
        else:
            self._forget(descriptor)
        return len(data)

    def _forget(self, descriptor: int) -> None:
        self._feeds.pop(descriptor).finish()
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)
        self._streams.pop(descriptor).close()

    # Ends of processes.

    def _living(self) -> list[Child]:
        return [child for child in self._children.values() if child.status is None]

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if (child := self._children.get(pid)) is not None:
                self._note_end(child, status)

    def _hear_out(self, child: Child) -> None:
        """Reads the remaining output of a process, so that the output precedes the report of the process's end."""
        for stream in (child.process.stdout, child.process.stderr):
            descriptor = stream.fileno() if stream and not stream.closed else -1
            heard = 0
            # A process that it has started may still write, without an end.
            while descriptor in self._feeds and heard < _MOST_BACKLOG and (count := self._read(descriptor)):
                heard += count

    def _note_end(self, child: Child, status: int) -> None:
        self._hear_out(child)
        child.status = status
        child.process.returncode = os.waitstatus_to_exitcode(status)
        if child.on_end and not self.is_stopping:
            child.on_end(child)
            self._guard.forget(child.pid)  # the job continues, and the id may be reused
        elif status != 0:
            who, how = f"{child.name} (pid {child.pid})", processes.describe_exit(status)
            code, was_killed = processes.exit_code(status), os.WIFSIGNALED(status)
            self.fail(Failure(who, how, code, was_killed, child.blames_another), FAILURE_GRACE_SECONDS)

    def _exit_code(self) -> int:
        if self._code_override is not None:
            return self._code_override
        return self._verdict.first.code if self._verdict.first else 0

    # Ending the job.

    def _stop(self, reason: str, grace: float) -> None:
        self._stop_reason = reason
        now = time.monotonic()
        self._agenda.append((now + grace, self._terminate))
        self._agenda.append((now + grace + self._terminate_seconds, self._kill))

    def _terminate(self) -> None:
        self._judge(is_final=True)
        living = self._living()
        if living and self._stop_reason == "failure":
            self._stop_reason = "terminated"
            names = ", ".join(child.name for child in living)
            self._screen.say(f"terminating {names}")
        processes.send((child.pid for child in living), signal.SIGTERM)

    def _kill(self) -> None:
        processes.send(self._leftovers(everything=True), signal.SIGKILL)

    def _leftovers(self, everything: bool) -> list[int]:
        """Returns live processes of the job. After a success, a process in another session is meant to stay."""
        return [
            process.pid
            for process in processes.descendants(os.getpid())
            if process.pid != self._guard.pid and (everything or process.session in self._children)
        ]

    def _end_leftovers(self, everything: bool) -> None:
        if not (leftovers := self._leftovers(everything)):
            return
        start = time.monotonic()
        processes.send(leftovers, signal.SIGTERM)
        while leftovers and time.monotonic() < start + LEFTOVER_SECONDS:
            self._iterate(longest=0.02)
            leftovers = self._leftovers(everything)
            if time.monotonic() > start + self._terminate_seconds:
                processes.send(leftovers, signal.SIGKILL)

    def _drain_feeds(self) -> None:
        for descriptor in list(self._feeds):
            with contextlib.suppress(BlockingIOError):
                while data := os.read(descriptor, 65536):
                    self._feeds[descriptor].feed(data)
            self._forget(descriptor)
        self._screen.close()

    def _flush_screen(self) -> None:
        # The launcher waits for a slow reader of its output. After a failure or a signal, the wait is limited.
        limit = time.monotonic() + self._stop_timeout if self._stop_reason else None
        while self._screen.backlog and (limit is None or time.monotonic() < limit):
            self._iterate(longest=0.1)

    # Signals.

    def _take_signals(self) -> None:
        for number in self._wake.recv(4096):
            signum = signal.Signals(number)
            if signum == signal.SIGCHLD:
                self._reap()
            elif signum == signal.SIGTSTP:
                self._pause()
            elif signum in _STOPPING:
                self._take_stop(signum)
            else:
                processes.send((child.pid for child in self._living() if child.stop_signal), signum)

    def _take_stop(self, signum: signal.Signals) -> None:
        living = self._living()
        if self._stop_reason == "signal":
            self._screen.say(f"{signum.name} again: killing the job")
            self._kill()
            return
        self._screen.say(
            f"{signum.name}: passing it on to the ranks; those that still run after {self._stop_timeout:g} s are killed"
        )
        for child in (child for child in living if child.stop_signal):
            # SIGINT goes to the whole process group, as a terminal sends it. Other signals go to the rank alone, which
            # may need its data loader's workers to end normally.
            if signum == signal.SIGINT:
                processes.send_to_group(child.pid, signum)
            else:
                processes.send([child.pid], signum)
        self._stop_reason = "signal"
        self.stopped_by = signum
        self._agenda.append((time.monotonic() + self._stop_timeout, self._kill))

    def _pause(self) -> None:
        """Stops the job and this process until SIGCONT. The time in between does not count for any time limit."""
        stopped_for = self.pause.run(self._living())
        self._agenda = [(when + stopped_for, action) for when, action in self._agenda]


def _note_signal(signum: int, frame: object) -> None:
    """Does nothing: the signal has already been written to the wakeup descriptor."""
