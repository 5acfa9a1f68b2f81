"""An elastic job on several hosts: each generation is a perseusrun of its own, with an MPI world of its own.

MPI cannot lose a rank, so a generation ends as a whole, and the next one is formed of the hosts that are usable then. A
state agent on each host (`agent.py`) keeps the committed state, reports workers that die, and answers pings.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from ...protocol.authentication import new_secret
from ...protocol.failure_record import write_reason
from ...protocol.messages import VARIABLE, Message, variable_for_generation
from .. import processes
from ..command_line import Options
from ..host_list import Host, assign_ranks, is_this_machine
from ..output import Screen
from ..processes.child import Child
from ..processes.first_failure import Failure, RankEvidence
from ..processes.supervise import Supervisor
from ..program import module_command
from ..start_errors import LaunchError
from . import RESET_LIMIT_MESSAGE, ElasticSettings, agent
from .host_agent import HostAgent
from .host_order import HostManager

_REMOVED, _ADDED = 1, 2
_LONGEST_PING_SECONDS = 1.0
# A generation is a perseusrun, which cleans up other hosts.
TERMINATE_SECONDS = 6.0
ORPHAN_SECONDS = 2.0
# The agents' messages about a generation's end arrive within this time.
_SETTLE_SECONDS = 0.5
# A fault of the program repeats in every generation.
_MOST_FRUITLESS = 3


class ClusterJob:
    """Its methods are called on the supervisor's loop."""

    def __init__(
        self,
        options: Options,
        settings: ElasticSettings,
        supervisor: Supervisor,
        screen: Screen,
        environment: Mapping[str, str],
        heartbeat_seconds: float,
    ) -> None:
        self._options = options
        self._settings = settings
        self._supervisor = supervisor
        self._screen = screen
        self._secret = new_secret()  # authenticates the agents and their workers
        self._environment = environment
        self._heartbeat_seconds = heartbeat_seconds
        self._hosts = HostManager(settings.cooldown)
        self._answer: set[str] = set()  # the hosts in the last answer of the discovery
        self._just_found: set[str] = set()  # new hosts that were not in two answers in succession yet
        self._agents: dict[str, HostAgent] = {}
        self._ping_seconds = min(_LONGEST_PING_SECONDS, heartbeat_seconds / 3)
        self._pinged = time.monotonic()
        self._generation = 0
        self._resets = 0
        self._world: Child | None = None  # the generation that runs
        self._members: list[Host] = []
        self._begun = 0
        self._died: list[str] = []  # hosts, in the order in which their workers did
        self._is_interrupted = False
        self._had_state = False
        self._stamp = 0
        self._failures: list[Failure] = []
        self._fruitless = 0  # generations that have failed without a commit, one after another
        self._is_done = False
        self._waiting: object | None = None
        self._has_waited = False  # for --elastic-timeout
        supervisor.later(self._ping_seconds, self._ping)
        supervisor.pause.before.append(self._pause)

    def is_over(self) -> bool:
        """Returns True if no generation runs, and none will be started."""
        return (self._is_done or self._supervisor.is_stopping) and (
            self._world is None or self._world.status is not None
        )

    # Hosts and their agents.

    def take_hosts(self, hosts: list[Host]) -> None:
        """Replaces the list of hosts."""
        names = {host.name for host in hosts}
        if known := {*self._hosts.found}:
            self._just_found = (self._just_found | (names - known)) - (names & self._answer)
        self._answer = names
        if self._hosts.update(hosts):
            self._screen.announce(f"hosts: {self._hosts.describe()}")
        self.plan()

    def plan(self) -> None:
        """Starts missing agents; forms a generation, or interrupts the one that runs."""
        if self._is_done or self._supervisor.is_stopping:
            return
        for host in self._hosts.usable():
            if host not in self._agents:
                self._start_agent(host)
        if self._world is None:
            self._try_to_form()
        else:
            self._notify_members()

    def _start_agent(self, host: str) -> None:
        found = HostAgent(host, self._secret, self._receive, self._lose)
        command = [sys.executable, "-IS", str(Path(agent.__file__).absolute()), str(self._heartbeat_seconds)]
        if not is_this_machine(host):
            command = [*_remote_shell(self._options), host, shlex.join(command)]
        self._agents[host] = found
        try:
            found.begin(
                lambda end: self._supervisor.start(
                    f"the agent on {host}",
                    command,
                    self._environment,
                    end,
                    found,
                    self._screen.channel(None, "stderr"),
                    on_end=lambda child: self._lose(found),
                    stop_signal=None,  # the agent and its remote shell wait for the launcher
                )
            )
        except LaunchError as error:
            self._screen.announce(str(error))
            self._lose(found)

    def _ping(self) -> None:
        if self._is_done or self.is_over():
            return
        self._supervisor.later(self._ping_seconds, self._ping)
        now = time.monotonic()
        was_stopped = now > self._pinged + self._ping_seconds + self._heartbeat_seconds / 2
        self._pinged = now
        for found in list(self._agents.values()):
            found.send("ping")
            if was_stopped:  # this process was stopped and could not receive answers
                found.last_message_time = now
            if found.last_message_time + self._heartbeat_seconds < time.monotonic():
                self._lose(found)

    def _pause(self) -> None:
        """Makes the agents keep the state until the next ping, since the user stops the job (Ctrl-Z)."""
        for found in self._agents.values():
            found.send("pause")

    def _lose(self, found: HostAgent) -> None:
        """Handles the loss of a host that is down or cannot be reached. The state that its agent kept is lost."""
        if found.is_lost or self._is_done or self._supervisor.is_stopping:
            return
        found.is_lost = True
        found.input.close()
        self._agents.pop(found.host, None)
        if found.child and found.child.status is None:
            processes.send_to_group(found.child.pid, signal.SIGKILL)
        reached = "does not answer any more" if found.is_here else "cannot be reached, or its agent does not start"
        if found.foreign_line and not found.is_here:
            reached += f" (it printed {found.foreign_line!r})"
        seconds = self._hosts.blacklist(found.host)
        self._screen.announce(f"host {found.host} {reached}; the job does not use it {_duration(seconds)}")
        if seconds is not None:
            self._supervisor.later(seconds, self.plan)
        if self._world and found.host in [host.name for host in self._members]:
            self._died.append(found.host)
            processes.send([self._world.pid], signal.SIGTERM)
        self.plan()

    def _receive(self, found: HostAgent, message: Message) -> None:
        kind = message["kind"]
        if kind == "here":
            found.is_here = True
            self.plan()
        elif kind == "pong":
            found.version = message["version"]
            self._had_state = self._had_state or _generation_of_commits(found) > 0
        elif message.get("generation") != self._generation:
            return
        elif kind == "begun":
            self._begun += 1
            if self._begun == sum(host.slots for host in self._members):
                self.plan()  # hosts may have come before its workers could receive an update
        elif kind == "died":
            self._died.append(found.host)
        elif kind == "leaving":
            self._is_interrupted = self._is_interrupted or message["why"] == "hosts"

    # Generations.

    def _try_to_form(self) -> None:
        usable = self._hosts.usable()
        coming = [found for found in self._agents.values() if not found.is_here and found.host in usable]
        here = [found for found in self._agents.values() if found.is_here and found.host in usable]
        if coming:
            return
        # The host that has the newest state comes first: its rank 0 gives it to all.
        order = list(usable)
        here.sort(key=lambda found: ([-part for part in found.version or [0]], order.index(found.host)))
        slots = sum(usable[found.host] for found in here)
        needed = self._settings.min_np if self._generation else self._settings.start_np
        if slots < needed:
            if self._hosts.found and not usable and self._settings.cooldown is None:
                self._abort("all hosts have failed")
            else:
                self._wait()
            return
        # The hosts that are not used for a while after a failure.
        away = set() if self._settings.cooldown is None else self._hosts.found.keys() - usable.keys()
        returning = [found for found in self._agents.values() if found.host in away]
        newer = [found.host for found in returning if _generation_of(found) > _generation_of(here[0])]
        if newer and not self._has_waited:
            self._wait(f"the state of a later generation, which {', '.join(newer)} has")
            return
        if self._had_state and not any(found.version for found in here):
            self._abort("no host that has the training's state is left")
            return
        size = slots if self._settings.max_np is None else min(slots, self._settings.max_np)
        self._form(assign_ranks([Host(found.host, usable[found.host]) for found in here], size), size)

    def _form(self, hosts: list[Host], size: int) -> None:
        limit = self._settings.reset_limit
        # A new host may be gone again before the generation has ended.
        is_unchanged = self._is_interrupted and not self._died and {*hosts} == {*self._members}
        if self._generation and not is_unchanged:
            self._resets += 1
            if limit is not None and self._resets > limit:
                self._abort(RESET_LIMIT_MESSAGE.format(limit))
                return
        self._generation += 1
        self._members, self._begun, self._died, self._is_interrupted = hosts, 0, [], False
        self._waiting, self._has_waited = None, False
        listed = ",".join(map(str, hosts))
        self._screen.announce(f"generation {self._generation}: {size} workers on {listed}")
        line = [*module_command("perseus_like.launch"), "-np", str(size), "-H", listed]
        line += _passed_on(self._options)
        # Values are passed in the environment only, since all users can read a command line.
        variables = {
            **self._options.settings,
            **{name: value for name, value in self._options.forward if value is not None},
            VARIABLE: variable_for_generation(self._generation, self._secret, listed),
            "HOROVOD_ELASTIC": "1",
        }
        for name in dict.fromkeys([*variables, *(name for name, _ in self._options.forward)]):
            line += ["-x", name]
        self._world = self._supervisor.start(
            f"generation {self._generation}",
            [*line, "--", *self._options.command],
            {**self._environment, **variables},
            subprocess.DEVNULL,
            self._screen.channel(None, "stdout"),
            self._screen.channel(None, "stderr"),
            RankEvidence(blames_another=True),
            on_end=self._ended,
            stop_signal=signal.SIGTSTP,  # the generation is a perseusrun, which stops its ranks
        )

    def _ended(self, world: Child) -> None:
        for found in self._agents.values():
            found.send("ping")
        self._supervisor.later(_SETTLE_SECONDS, lambda: self._conclude(world))

    def _conclude(self, world: Child) -> None:
        """Decides what follows a generation: another one, or the end of the job."""
        assert world.status is not None
        self._world = None
        code = processes.exit_code(world.status)
        if code == 0 and not self._is_interrupted:
            self._is_done = True
            return
        if code == 0:
            self.plan()
            return
        failure = Failure(world.name, processes.describe_exit(world.status), code, False)
        self._failures = [failure]
        if not self._died and not self._begun:
            self._abort("its workers ended before they called init()")
            return
        newest = max(map(_generation_of_commits, self._agents.values()), default=0)
        self._fruitless = 0 if newest == self._generation else self._fruitless + 1
        if self._fruitless == _MOST_FRUITLESS:
            self._abort(f"{_MOST_FRUITLESS} generations in a row have failed before their first commit")
            return
        if self._died and self._died[0] in self._agents:
            seconds = self._hosts.blacklist(self._died[0])
            self._screen.announce(
                f"a worker on {self._died[0]} has died; the job does not use this host {_duration(seconds)}"
            )
            if seconds is not None:
                self._supervisor.later(seconds, self.plan)
        self.plan()

    def _notify_members(self) -> None:
        """Interrupts training at its next commit if hosts have come or gone."""
        now = {host.name: host.slots for host in self._members}
        usable = self._hosts.usable()
        here = [found.host for found in self._agents.values() if found.is_here and found.host in usable]
        here = [name for name in here if name not in self._just_found]  # it may be gone in the next answer
        has_room = self._settings.max_np is None or sum(now.values()) < self._settings.max_np
        result = _REMOVED if any(self._hosts.found.get(name, 0) < slots for name, slots in now.items()) else 0
        if has_room and any(usable[name] > now.get(name, 0) for name in here):
            result |= _ADDED
        if result:
            self._stamp += 1
            for found in self._agents.values():
                found.send("hosts", stamp=self._stamp, result=result)

    def _wait(self, state: str = "") -> None:
        """Waits for --elastic-timeout for slots, or for `state`."""
        if self._waiting is None:
            self._waiting = token = object()
            if state:
                self._screen.announce(f"waiting for {state}")
            self._supervisor.later(self._settings.timeout, lambda: self._stop_waiting(token))

    def _stop_waiting(self, token: object) -> None:
        if token is not self._waiting or self._world is not None or self._is_done:
            return
        self._has_waited = True
        self._try_to_form()  # perhaps from an earlier state
        if self._world is None and not self._supervisor.is_stopping:
            needed = self._settings.min_np if self._generation else self._settings.start_np
            self._abort(
                f"waited {self._settings.timeout:g} s for {needed} slots (--elastic-timeout); "
                f"hosts: {self._hosts.describe()}"
            )

    def _abort(self, why: str) -> None:
        self._screen.announce(f"the job ends: {why}")
        write_reason(why)
        failures = self._failures or [Failure("the job", "was given up", 1, False)]
        for failure in failures:
            self._supervisor.fail(failure, 0.0)


def _generation_of(found: HostAgent) -> int:
    return found.version[0] if found.version else 0


def _generation_of_commits(found: HostAgent) -> int:
    """Returns 0 for the state with which a generation begins: it is no commit."""
    return found.version[0] if found.version and found.version[1] else 0


def _duration(seconds: float | None) -> str:
    return "any more" if seconds is None else f"for {seconds:g} s"


def _remote_shell(options: Options) -> list[str]:
    if options.remote_shell:
        return [options.remote_shell]
    line = ["ssh", "-o", "BatchMode=yes"]
    line += ["-p", str(options.ssh_port)] if options.ssh_port else []
    return line + (["-i", options.ssh_identity_file] if options.ssh_identity_file else [])


def _passed_on(options: Options) -> list[str]:
    """Returns the options of this job that also apply to a generation."""
    values = {
        "--remote-shell": options.remote_shell,
        "--ssh-port": options.ssh_port,
        "--ssh-identity-file": options.ssh_identity_file,
        "--network-interfaces": options.nics,
        "--mpirun": options.mpirun,
        "--start-timeout": options.start_timeout,
        "--stop-timeout": options.stop_timeout,
        "--output-filename": options.output_filename,
        "--mpi-args": shlex.join(options.mpi_args) or None,
        "--binding-args": None if options.binding_args is None else shlex.join(options.binding_args),
    }
    switches = {
        "--mpi": options.use_mpi,
        "--tcp": options.tcp,
        "--as-horovod": options.as_horovod,
        "--as-gloo": options.as_gloo,
        "--oversubscribe": options.oversubscribe,
        "--no-prefix": not options.prefix_output,
        "--prefix-output-with-timestamp": options.prefix_timestamp,
        "--full-tracebacks": options.full_tracebacks,
        "--verbose": options.verbose,
        "--torch": options.torch is True,
        "--no-torch": options.torch is False,
        "--no-check-hosts": not options.check_hosts,
    }
    line = [f"{flag}={value}" for flag, value in values.items() if value is not None]
    return line + [flag for flag, is_given in switches.items() if is_given]
