"""The supervisor of a job's processes: it starts and ends them, in one thread with one event loop."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple

from ...protocol import launcher_signals
from ...protocol.failure_record import VARIABLE, InitCall, RecordFile, write_reason
from .. import processes
from ..binding import ranges
from ..output import Screen
from ..output.streams import ChildStreams
from .child import Child, Feed, start_process
from .event_loop import EventLoop, HasFileno
from .first_failure import Failure, FirstFailure, RankEvidence, early_ends
from .guard import Guard
from .pause import Pause
from .signals import CallersInterrupts, SignalEvents

# After a rank has failed, the other ranks have this long to report their own errors.
FAILURE_GRACE_SECONDS = 1.0
# A process that has lost another one may report its failure earlier than that one.
LOSS_GRACE_SECONDS = 3.0
# Failures within this time may be noticed in another order than they happened.
VERDICT_SECONDS = 0.3
LEFTOVER_SECONDS = 10.0
# After a process has ended without init(), the time between two looks at whether others wait for it.
LOOK_SECONDS = 0.5
BEFORE_INIT = "ended with code 0 before init(), in which other ranks wait for it"
# On a terminal, ranks that wait in init() for longer than this are worth a line.
_INIT_SECONDS = 2.0
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
_HANDLED = (*_STOPPING, *_PASSED_ON, signal.SIGTSTP, signal.SIGCHLD)


class Ending(NamedTuple):
    """The end of a job. `has_failed`: a rank has failed, and it was not the user who ended the job."""

    code: int
    has_failed: bool


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
        self._loop = EventLoop()
        self._streams = ChildStreams(self._loop, screen)
        self._failures = FirstFailure()  # has no failures of children that the launcher has ended
        self._announced: Failure | None = None  # the first failure, which the user has read
        self._stop_reason: str | None = None
        self._code_override: int | None = None
        self._will_look = False
        self._waiting_since: dict[str, float] = {}  # the ranks that wait in `init` for one that has ended
        self.pause = Pause()
        # Functions that forward a signal to the ranks, for signals that a child would not pass on to them.
        self.forwarders: dict[signal.Signals, Callable[[], None]] = {}
        self.stopped_by: signal.Signals | None = None  # the user's signal that ends the job

    def __enter__(self) -> Supervisor:
        self._start = time.monotonic()
        self._most_files = processes.raise_descriptor_limit()  # two to four descriptors for each child
        processes.adopt_orphans()
        self._guard = Guard(self._job_name, self._orphan_grace, self._clean_up)
        self._records = RecordFile()
        self._signals = SignalEvents(_HANDLED)
        self._signals.add(launcher_signals.take_arrived())
        self._loop.watch(self._signals, self._take_signals)
        self._interrupts = CallersInterrupts()
        if self._interrupts.fileno() >= 0:
            self._loop.watch(self._interrupts, self._take_callers_interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_leftovers(everything=kind is not None or self._stop_reason is not None)
        self._signals.close()
        self._loop.close()
        self._records.close()
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
        evidence: RankEvidence | None = None,
        *,
        on_end: Callable[[Child], None] | None = None,
        pass_fds: Sequence[int] = (),
        is_guarded: bool = True,
        stop_signal: signal.Signals | None = signal.SIGSTOP,
    ) -> Child:
        """Starts one process. `stdin` is as for Popen (None: the launcher's). `evidence` gets its record.

        `on_end` is called when the process has ended, unless the job is being ended. If `is_guarded` is true, its
        whole session is ended if the launcher is killed. Do not use it for processes that are started so often that
        session ids are reused. `stop_signal`: see `Child`.
        """
        death_signal = signal.SIGTERM if self._orphan_grace else signal.SIGKILL
        env = {**env, VARIABLE: self._records.variable_for(name)}
        descriptors = [*pass_fds, self._records.fileno()]
        process = start_process(argv, env, stdin, death_signal, descriptors, self._most_files)
        child = self._children[process.pid] = Child(name, process, evidence or RankEvidence(), on_end, stop_signal)
        child.evidence.look = functools.partial(self._records.read, name)
        if is_guarded:
            self._guard.watch(process.pid)
        self._streams.add(process, out, err)
        return child

    def serve(self) -> None:
        """Handles pending signals, output and ends of processes. Call it between two starts."""
        self._iterate(longest=0.0)

    def watch(self, connection: HasFileno | int, act: Callable[[], None], is_output: bool = False) -> None:
        """Calls `act` whenever `connection` can be read, or with `is_output`, written."""
        self._loop.watch(connection, act, is_output)

    def forget(self, connection: HasFileno | int) -> None:
        """Ends what `watch` has started."""
        self._loop.forget(connection)

    def watches(self, connection: HasFileno | int) -> bool:
        """Returns True between `watch` and `forget`."""
        return self._loop.watches(connection)

    def drop(self, child: Child) -> None:
        """Forgets a child that has ended, and its output. Call it for processes that are started repeatedly."""
        self._children.pop(child.pid, None)
        self._streams.close(child.process)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Calls `action` once, after this time."""
        self._loop.later(seconds, action)

    @property
    def is_stopping(self) -> bool:
        """Returns True once the job is being ended."""
        return self._stop_reason is not None

    def ending(self, code: int) -> Ending:
        """Returns the end of the job with this exit code, after `run`."""
        return Ending(code, self._failures.first is not None and self.stopped_by is None)

    def run(
        self,
        is_over: Callable[[], bool] | None = None,
        missed: Callable[[list[Failure]], list[Failure]] | None = None,
    ) -> int:
        """Waits for all children, or until `is_over` returns True. Returns the exit code of the job.

        `missed` returns failures that no child's exit code has shown, given those that are known.
        """
        if self._screen.is_on_terminal and is_over is None:
            self._look_at_init()
        while not is_over() if is_over else self._living():
            self._iterate()
        if self._stop_reason == "failure" and self._living():
            self._terminate()  # an elastic job may be over before it was called; agents that it ends have not failed
        self._end_leftovers(everything=self._stop_reason is not None)
        self._streams.drain()
        if self._stop_reason != "signal":
            self._failures.add_missed(missed or self._early_ends)
        self._judge(is_final=True)
        if self._failures.first and self._stop_reason != "signal":
            write_reason(self._failures.first.summary())
            for line in self._failures.report(self._screen.size, is_known=self._failures.first is self._announced):
                self._screen.announce(line.text, line.details, line.is_failure)
        is_good = self._exit_code() == 0 and self._stop_reason is None and is_over is None
        if is_good and self._screen.is_on_terminal:
            ranks = "1 rank" if self._screen.size == 1 else f"{self._screen.size} ranks"
            self._screen.announce(f"{ranks} ended after {time.monotonic() - self._start:.1f} s")
        # The launcher waits for a slow reader of its output. After a failure or a signal, the wait is limited.
        limit = time.monotonic() + self._stop_timeout if self._stop_reason else None
        while self._screen.backlog and (limit is None or time.monotonic() < limit):
            self._iterate(longest=0.1)
        return self._exit_code()

    def fail(self, failure: Failure, grace: float) -> None:
        """Ends the job because of `failure`, `grace` seconds later.

        If the process has only lost another one, it waits longer for the report of that one, unless `grace` is 0.
        """
        if self._stop_reason is None:
            waits = grace > 0 and failure.blames_another()
            self._stop("failure", max(grace, LOSS_GRACE_SECONDS) if waits else grace)
        elif self._stop_reason == "failure" and not failure.blames_another():
            self._loop.later(grace, self._terminate)
        if self._stop_reason == "failure" or not self._failures:
            self._failures.add(failure)
            self._loop.later(VERDICT_SECONDS, self._judge)

    def _judge(self, is_final: bool = False) -> None:
        """Reports the rank that failed first once it is known, unless all have ended and `run` reports it."""
        if (
            self._failures.decide(is_final)
            and self._failures.first
            and self._stop_reason != "signal"
            and self._living()
        ):
            self._screen.announce(self._failures.first.summary(), is_failure=True)
            self._announced = self._failures.first

    def _iterate(self, longest: float | None = None) -> None:
        self._streams.update()
        limits = [limit for limit in (longest, self._streams.longest_wait) if limit is not None]
        if not self._loop.wait(min(limits, default=None)):
            self._screen.show_pending()
        self._screen.write_delayed()
        if self._screen.is_broken and self._stop_reason is None:
            self._code_override = 128 + signal.SIGPIPE
            self._stop("broken pipe", 0.0)
        self._loop.run_due()

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

    def _note_end(self, child: Child, status: int) -> None:
        self._streams.read_rest(child.process)
        child.status = status
        child.process.returncode = os.waitstatus_to_exitcode(status)
        child.evidence.record = self._records.read(child.name)
        child.evidence.has_ended_badly = status != 0
        if child.on_end and not self.is_stopping:
            child.on_end(child)
            self._guard.forget(child.pid)  # the job continues, and the id may be reused
        elif status != 0:
            who, how = _name(child), processes.describe_exit(status)
            code, was_killed = processes.exit_code(status), os.WIFSIGNALED(status)
            self.fail(Failure(who, how, code, was_killed, child.evidence), FAILURE_GRACE_SECONDS)
        else:
            self._look_for_absent()

    def _look_for_absent(self) -> None:
        """Ends the job if processes wait in `init` for one that has ended without a session. Else, it looks again.

        If the `init` of the ended process has failed, the others must have waited for `LOOK_SECONDS`. They may be
        about to fail by themselves, with the same error or a better one.
        """
        calls = self._records.init_calls()
        living = [child.name for child in self._living()]
        ended = [child for child in self._children.values() if child.status == 0]
        absent = [child for child in ended if calls.get(child.name, InitCall.HAS_FAILED) is InitCall.HAS_FAILED]
        if not absent or not living or self.is_stopping:
            return
        now = time.monotonic()
        waiting = [name for name in living if calls.get(name) is InitCall.WAITS]
        self._waiting_since = {name: self._waiting_since.get(name, now) for name in waiting}
        have_waited = any(since <= now - LOOK_SECONDS for since in self._waiting_since.values())
        missed = [child for child in absent if waiting and (have_waited or child.name not in calls)]
        for child in missed:
            self.fail(Failure(_name(child), BEFORE_INIT, 1, False, child.evidence), FAILURE_GRACE_SECONDS)
        if not missed and not self._will_look:
            self._will_look = True
            self._loop.later(LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._will_look = False
        self._look_for_absent()

    def _look_at_init(self, since: float | None = None) -> None:
        """Names the ranks for which others wait in `init`, once. `since` is the time when this was first seen."""
        called = self._records.init_calls()
        absent = [child.evidence.rank for child in self._living() if child.name not in called]
        ranks = [rank for rank in absent if rank is not None]
        if self.is_stopping or not ranks:
            return
        since = time.monotonic() if called and since is None else since
        if since is not None and time.monotonic() >= since + _INIT_SECONDS:
            which = f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}"
            self._screen.announce(
                f"waiting in init() for {which}, which {'have' if len(ranks) > 1 else 'has'} not called it yet"
            )
            return
        self._loop.later(LOOK_SECONDS, lambda: self._look_at_init(since))

    def _early_ends(self, found: list[Failure]) -> list[Failure]:
        children = self._children.values()
        return early_ends(
            found, {c.evidence.rank: _name(c) for c in children if c.status == 0 and c.evidence.rank is not None}
        )

    def _exit_code(self) -> int:
        if self._code_override is not None:
            return self._code_override
        code = self._failures.first.code if self._failures.first else 0
        return code or (os.EX_IOERR if self._screen.has_lost_in_silence else 0)

    # Ending the job.

    def _stop(self, reason: str, grace: float) -> None:
        self._stop_reason = reason
        self._loop.later(grace, self._terminate)
        self._loop.later(grace + self._terminate_seconds, self._kill)

    def _terminate(self) -> None:
        if self._stop_reason == "terminated":
            return
        self._judge(is_final=True)
        living = self._living()
        if living and self._stop_reason == "failure":
            self._stop_reason = "terminated"
            names = ", ".join(child.name for child in living)
            self._screen.announce(f"terminating {names}")
        if forward := self.forwarders.get(signal.SIGTERM):
            forward()
        else:
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

    # Signals.

    def _take_signals(self) -> None:
        for signum in self._signals.take():
            if signum == signal.SIGCHLD:
                self._reap()
            elif signum == signal.SIGTSTP:
                # Blocks until SIGCONT. The time in between does not count for any time limit.
                self._loop.postpone(self.pause.run(self._living()))
            elif signum in _STOPPING:
                if signum != signal.SIGINT or self._interrupts.is_new(by_signal=True):
                    self._take_stop(signum)
            elif forward := self.forwarders.get(signum):
                forward()
            else:
                processes.send((child.pid for child in self._living() if child.stop_signal), signum)

    def _take_callers_interrupt(self) -> None:
        if not self._interrupts.take():
            self._loop.forget(self._interrupts)
        elif self._interrupts.is_new(by_signal=False):
            self._take_stop(signal.SIGINT)

    def _take_stop(self, signum: signal.Signals) -> None:
        living = self._living()
        if self._stop_reason == "signal":
            self._screen.announce(f"{signum.name} again: killing the job")
            self._kill()
            return
        self._screen.announce(
            f"{signum.name}: passing it on to the ranks; those that still run after {self._stop_timeout:g} s are killed"
        )
        if forward := self.forwarders.get(signum):
            forward()
        for child in (child for child in living if child.stop_signal):
            # SIGINT goes to the whole process group, as a terminal sends it. Other signals go to the rank alone, which
            # may need its data loader's workers to end normally.
            if signum == signal.SIGINT:
                processes.send_to_group(child.pid, signum)
            else:
                processes.send([child.pid], signum)
        self._stop_reason = "signal"
        self.stopped_by = signum
        self._loop.later(self._stop_timeout, self._kill)


def _name(child: Child) -> str:
    return f"{child.name} (pid {child.pid}) on {os.uname().nodename}"
