"""An elastic job whose workers survive: starts a worker in each slot and forms one generation after another."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from ...protocol.failure_record import write_reason
from ...protocol.messages import Message
from ...protocol.rank_variables import rank_variables
from .. import processes
from ..host_list import Host
from ..output import Screen
from ..processes.first_failure import Failure
from ..processes.supervise import FAILURE_GRACE_SECONDS, Supervisor
from . import RESET_LIMIT_MESSAGE, ElasticSettings
from .generation import awaited_by, candidates_of, expected_in, free_slots, in_order, members_of, without_a_slot
from .host_order import HostManager
from .started_worker import Worker, WorkerEnd, WorkerStarter

# HostUpdateResult of perseus_like.elastic, which the launcher does not import.
_REMOVED, _ADDED = 1, 2
# Dismissed workers have this long to end by themselves.
_DISMISS_SECONDS = 10.0
# The time between two attempts to send the rest of a long message.
_SEND_SECONDS = 0.01


class ElasticJob:
    """Its methods are called on the supervisor's loop."""

    def __init__(
        self,
        starter: WorkerStarter,
        settings: ElasticSettings,
        supervisor: Supervisor,
        screen: Screen,
    ) -> None:
        self._starter = starter
        self._settings = settings
        self._supervisor = supervisor
        self._screen = screen
        self._hosts = HostManager(settings.cooldown)
        self._workers: list[Worker] = []  # living ones, and those of this generation that have ended
        self._started = 0
        self._generation = 0
        self._size = 0
        self._resets = 0
        self._members: list[Worker] = []  # of the last generation, also those that have ended
        self._is_interrupted = False  # its members have got an update of the hosts
        self._gathered: dict[int, str] = {}
        self._had_state = False
        self._stamp = 0
        self._is_finishing = False  # a worker has finished the training: there will be no other generation
        self._failures: list[Failure] = []  # since the last generation was formed
        self._waiting: object | None = None  # for enough workers

    def is_over(self) -> bool:
        """Returns True if no worker lives, and none will be started."""
        return (self._is_finishing or self._supervisor.is_stopping) and not any(
            worker.child and worker.child.status is None for worker in self._workers
        )

    def _is_ending(self) -> bool:
        return self._is_finishing or self._supervisor.is_stopping

    # Hosts.

    def take_hosts(self, hosts: list[Host]) -> None:
        """Replaces the list of hosts."""
        if self._hosts.update(hosts):
            self._screen.announce(f"hosts: {self._hosts.describe()}")
            self.plan()
        elif not self._workers:
            self.plan()

    def plan(self) -> None:
        """Starts workers in free slots; makes workers leave whose slot is gone or whose host is blacklisted."""
        if self._is_ending():
            return
        gone = without_a_slot(self._workers, self._hosts.staying())
        for worker in self._workers:
            worker.is_leaving = worker in gone
            if worker.is_leaving and worker.is_newcomer:
                self._dismiss(worker)
        free = free_slots(self._workers, self._hosts.usable(), self._settings.max_np)
        living = sum(worker.is_alive for worker in self._workers)
        if self._generation == 0 and living + len(free) < self._needed():
            self._wait_for_workers()
            return
        self._start_workers(free)
        self._try_to_form()
        self._notify_members()

    def _start_workers(self, slots: Sequence[tuple[str, int]]) -> None:
        started = [
            Worker(self._started + number, host, slot, self._hosts.has_failed(host))
            for number, (host, slot) in enumerate(slots)
        ]
        self._started += len(started)
        self._workers += started
        for worker in started:
            self._start(worker)

    def _start(self, worker: Worker) -> None:
        expected = expected_in(self._workers)
        variables = {
            **rank_variables("HOROVOD", expected.index(worker), self._starter.ranks_per_host(expected)),
            "HOROVOD_ELASTIC": "1",
            "HOROVOD_HOSTNAME": worker.host,
        }
        self._starter.start(worker, variables, self._connected, self._ended)
        self._supervisor.later(self._settings.start_timeout, lambda: self._check_start(worker))

    def _check_start(self, worker: Worker) -> None:
        if worker.is_starting:
            limit = f"{self._settings.start_timeout:g} s (--start-timeout)"
            worker.fault = f"did not call init() within {limit}; the launcher has ended it"
            self._signal(worker, signal.SIGKILL)

    # Messages of workers.

    def _connected(self, worker: Worker) -> None:
        assert worker.connection is not None
        self._supervisor.watch(worker.connection, lambda: self._listen(worker))

    def _listen(self, worker: Worker) -> None:
        try:
            messages = worker.take_messages()
        except ValueError:
            messages = None
        if messages is None:
            self._hang_up(worker)
            return
        for message in messages:
            self._receive(worker, message)

    def _receive(self, worker: Worker, message: Message) -> None:
        kind = message["kind"]
        if kind == "ready":
            worker.is_ready = True
            worker.wants_sync = bool(message.get("sync", True))
            self._try_to_form()
            self._notify_members()
        elif kind == "synced":
            worker.has_state = self._had_state = True
            if all(member.has_state for member in members_of(self._workers, self._generation)):
                self._notify_members()
        elif kind == "gather" and message.get("generation") == self._generation == worker.generation:
            self._gathered[worker.rank] = str(message["bytes"])
            if len(self._gathered) == self._size:
                everything = [self._gathered[rank] for rank in range(self._size)]
                self._gathered.clear()
                for member in members_of(self._workers, self._generation):
                    member.send("gathered", generation=self._generation, all=everything)
                    self._send_rest(member)

    def _hang_up(self, worker: Worker) -> None:
        if worker.connection and worker.connection.fileno() != -1:
            self._supervisor.forget(worker.connection)
            worker.connection.close()

    def _send_rest(self, worker: Worker) -> None:
        """Sends the rest of a message that was longer than what the connection took."""
        worker.send_rest()
        if worker.unsent and worker.is_alive:
            self._supervisor.later(_SEND_SECONDS, lambda: self._send_rest(worker))

    # Generations.

    def _try_to_form(self) -> None:
        """Forms the next generation once all workers that it waits for are ready or have ended."""
        if self._is_ending():
            for worker in self._workers:
                if worker.is_ready:
                    self._dismiss(worker)
            return
        members = members_of(self._workers, self._generation)
        if self._generation > 0 and not members:
            self._fail_all("no worker of the last generation is left")
            return
        if awaited_by(self._workers, self._generation):
            return
        candidates = candidates_of(self._workers)
        if self._had_state and not any(worker.has_state for worker in candidates):
            self._fail_all("no worker that has the training's state is left")
        elif sum(not worker.is_leaving for worker in candidates) < self._needed():
            self._wait_for_workers()
        else:
            self._form(in_order(candidates))

    def _needed(self) -> int:
        """Returns the fewest workers of the next generation. If one is lost at the start, fewer are enough."""
        return self._settings.min_np if self._generation or self._failures else self._settings.start_np

    def _form(self, members: list[Worker]) -> None:
        limit = self._settings.reset_limit
        # A new host may be gone again before its workers have joined.
        is_unchanged = self._is_interrupted and {*map(id, members)} == {*map(id, self._members)}
        if self._generation > 0 and not is_unchanged:
            self._resets += 1
            if limit is not None and self._resets > limit:
                self._fail_all(RESET_LIMIT_MESSAGE.format(limit))
                return
        self._generation += 1
        self._members, self._is_interrupted = members, False
        self._size = len(members)
        self._waiting = None
        self._failures.clear()
        self._gathered.clear()
        self._workers = [worker for worker in self._workers if worker.is_alive]
        newcomers = any(member.is_newcomer for member in members)
        sync = any(member.wants_sync or member.is_newcomer for member in members)
        self._screen.announce(f"generation {self._generation}: {len(members)} workers on {_listed(members)}")
        ranks_per_host = self._starter.ranks_per_host(members)
        for rank, member in enumerate(members):
            member.rank, member.generation, member.is_ready = rank, self._generation, False
            member.joined = member.joined or self._generation
        for member in members:
            member.send(
                "join",
                generation=self._generation,
                rank=member.rank,
                ranks_per_host=ranks_per_host,
                newcomers=newcomers,
                sync=sync,
                stamp=self._stamp,
            )
        for worker in self._workers:
            if worker.is_ready and worker.is_leaving:
                self._dismiss(worker)

    def _notify_members(self) -> None:
        """Interrupts training at its next commit if workers have to leave it, or are ready to join it."""
        members = members_of(self._workers, self._generation)
        newcomers = [
            worker for worker in self._workers if worker.is_alive and worker.is_newcomer and not worker.is_dismissed
        ]
        result = _REMOVED if any(member.is_leaving for member in members) else 0
        # Newcomers are announced when all are ready: one interruption for all. Others do not wait for retries.
        first_tries = [each for each in newcomers if not each.is_retry]
        if any(group and all(each.is_ready for each in group) for group in (first_tries, newcomers)):
            result |= _ADDED
        if result and not self._is_ending():
            self._stamp += 1
            self._is_interrupted = True
            for member in members:
                member.send("hosts", stamp=self._stamp, result=result)

    def _wait_for_workers(self) -> None:
        if self._waiting is None:
            self._waiting = token = object()
            self._supervisor.later(self._settings.timeout, lambda: self._stop_waiting(token))

    def _stop_waiting(self, token: object) -> None:
        if token is self._waiting and not self._supervisor.is_stopping:
            self._fail_all(
                f"waited {self._settings.timeout:g} s for {self._needed()} workers (--elastic-timeout); "
                f"hosts: {self._hosts.describe()}"
            )

    # Ends.

    def _ended(self, worker: Worker, end: WorkerEnd) -> None:
        worker.is_alive = worker.is_ready = False
        self._hang_up(worker)
        if end.code == 0 and not worker.is_dismissed:
            self._finish()
        elif not worker.is_dismissed:
            self._failed(worker, end)
        for member in members_of(self._workers, self._generation):
            member.send("cancelled", generation=self._generation)
        self.plan()
        self._try_to_form()
        if self._failures and not self._is_ending():
            if self._has_failed_everywhere():
                self._fail_all("all workers have failed")
            elif self._hosts.are_all_lost():
                self._fail_all("all hosts have failed")

    def _has_failed_everywhere(self) -> bool:
        """Returns True if no worker lives. At the start also if only retries live, on hosts that all have failed."""
        living = [worker for worker in self._workers if worker.is_alive]
        only_retries = all(worker.is_retry and not worker.is_ready for worker in living)
        return not living or (self._generation == 0 and only_retries and self._hosts.have_all_failed())

    def _finish(self) -> None:
        """Dismisses newcomers, since a worker has finished the training."""
        self._is_finishing = True
        for worker in self._workers:
            if worker.is_alive and worker.is_newcomer and self._generation > 0:
                self._dismiss(worker)

    def _failed(self, worker: Worker, end: WorkerEnd) -> None:
        who, how = f"{worker} (pid {worker.pid})" if worker.pid else str(worker), worker.fault or end.how
        failure = Failure(who, how, end.code, end.was_killed, end.evidence)
        self._failures.append(failure)
        if self._is_finishing:
            self._supervisor.fail(failure, FAILURE_GRACE_SECONDS)
            return
        if worker.is_leaving:
            self._screen.announce(f"{who} {how}, after its slot was removed")
            return
        seconds = self._hosts.blacklist(worker.host)
        duration = "any more" if seconds is None else f"for {seconds:g} s"
        self._screen.announce(f"{who} {how}; {worker.host} gets no new worker {duration}")
        if seconds is not None:
            self._supervisor.later(seconds, self.plan)

    def _fail_all(self, why: str) -> None:
        """Ends the job. Its exit code is that of the first worker that failed, or 1."""
        for failure in self._failures:
            self._supervisor.fail(failure, 0.0)
        self._screen.announce(f"the job ends: {why}")
        write_reason(why)
        if not self._failures:
            self._supervisor.fail(Failure("the job", "was given up", 1, False), 0.0)

    def _dismiss(self, worker: Worker) -> None:
        """Makes a worker end normally. A newcomer that is not ready gets SIGTERM."""
        if worker.is_dismissed:
            return
        worker.is_dismissed = True
        if worker.is_ready:
            worker.is_ready = False
            worker.send("dismissed")
        elif worker.is_newcomer:
            self._signal(worker, signal.SIGTERM)
        self._supervisor.later(_DISMISS_SECONDS, lambda: self._signal(worker, signal.SIGKILL))

    def _signal(self, worker: Worker, signum: int) -> None:
        if worker.child and worker.child.status is None:
            processes.send([worker.child.pid], signum)


def _listed(members: Sequence[Worker]) -> str:
    counts: dict[str, int] = {}
    for member in members:
        counts[member.host] = counts.get(member.host, 0) + 1
    return ", ".join(f"{host}:{count}" for host, count in counts.items())
