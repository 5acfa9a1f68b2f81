"""Starts workers of an elastic job on this machine."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence

from ...protocol.messages import VARIABLE, variable_for
from .. import processes
from ..local import stdin_of
from ..output import Screen
from ..processes.child import Child
from ..processes.first_failure import RankEvidence
from ..processes.supervise import Supervisor
from .started_worker import Worker, WorkerEnd


class LocalWorkers:
    """A `WorkerStarter`. Each worker inherits one end of a pair of sockets."""

    def __init__(
        self, command: Sequence[str], supervisor: Supervisor, screen: Screen, environment: Mapping[str, str]
    ) -> None:
        self._command = command
        self._supervisor = supervisor
        self._screen = screen
        self._environment = environment

    def ranks_per_host(self, members: Sequence[Worker]) -> list[int]:
        """Returns one number, whatever names of this machine the workers have."""
        return [len(members)]

    def start(
        self,
        worker: Worker,
        variables: Mapping[str, str],
        on_connect: Callable[[Worker], None],
        on_end: Callable[[Worker, WorkerEnd], None],
    ) -> None:
        evidence = RankEvidence(log=self._screen.log_of(worker.number, "stderr"))
        worker.connection, its = socket.socketpair()
        worker.connection.setblocking(False)
        with its:
            worker.child = self._supervisor.start(
                f"worker {worker.number}",
                self._command,
                {**self._environment, **variables, VARIABLE: variable_for(its)},
                stdin_of(worker.number),
                self._screen.channel(worker.number, "stdout"),
                self._screen.channel(worker.number, "stderr", evidence),
                evidence,
                on_end=lambda child: on_end(worker, _conclude(child)),
                pass_fds=(its.fileno(),),
            )
        worker.pid = worker.child.pid
        on_connect(worker)


def _conclude(child: Child) -> WorkerEnd:
    """Ends the worker's own processes, such as the workers of a data loader."""
    assert child.status is not None
    ours = processes.descendants(os.getpid())
    processes.send([process.pid for process in ours if process.session == child.pid], signal.SIGKILL)
    code = processes.exit_code(child.status)
    return WorkerEnd(code, processes.describe_exit(child.status), code > 128, child.evidence)
