"""Host discovery: runs the user's script periodically, without blocking the launcher."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .. import processes
from ..host_list import Host, parse_lines
from ..processes.child import Child
from ..processes.supervise import Supervisor
from ..program import split_variables
from ..start_errors import LaunchError

# A script that takes longer than this has hung.
LONGEST_SECONDS = 60.0
# After this time, the launcher says that it waits.
_SLOW_SECONDS = 5.0
_MOST_OUTPUT = 1 << 20


class _Collector:
    """Collects the output of a stream. A `Feed`."""

    def __init__(self) -> None:
        self.data = b""

    def feed(self, data: bytes) -> None:
        self.data = (self.data + data)[:_MOST_OUTPUT]

    def finish(self) -> None:
        """Does nothing: the run ends with the script's process. What it leaves may hold the stream open."""


def find_script(given: str) -> list[str]:
    """Returns the command of a script, or of a line for the shell. Raises LaunchError if it cannot be run.

    As with Horovod, the script needs no `#!` line, and may have arguments.
    """
    path = Path(given).absolute()
    if path.is_file():
        if not os.access(path, os.X_OK):
            raise LaunchError(f"--host-discovery-script {given!r} is not executable: chmod +x {given}")
        with path.open("rb") as file:
            is_program = file.read(4).startswith((b"#!", b"\x7fELF"))
        return [str(path)] if is_program else ["/bin/sh", str(path)]
    try:
        _, words = split_variables(shlex.split(given))
    except ValueError:  # a quote is missing
        words = []
    if not words or shutil.which(words[0]) is None:
        raise LaunchError(f"--host-discovery-script {given!r}: no such file; give the path of an executable script")
    return ["/bin/sh", "-c", given]


def parse(text: str, slots_per_host: int | None) -> list[Host]:
    """Parses the output of a script, which has one `host` or `host:slots` per line. Raises LaunchError.

    If a host is in several lines, the last one counts.
    """
    lines = []
    for line in text.splitlines():
        name = line.partition("#")[0].strip()
        if name and ":" not in name.rpartition("]")[2] and "=" not in name:
            if slots_per_host is None:
                raise LaunchError(f"{name!r} has no number of slots; print host:slots, or give --slots-per-host")
            name = f"{name}:{slots_per_host}"
        lines.append(name)
    hosts = {host.name: host for host in parse_lines("\n".join(lines), "its output")}
    return list(hosts.values())


class Discovery:
    """Runs the script repeatedly. Calls `found` with the hosts, or `failed` with the reason if the script fails.

    `slow` gets a text when a run takes long for the first time.
    """

    def __init__(
        self,
        script: Sequence[str],
        slots_per_host: int | None,
        interval: float,
        supervisor: Supervisor,
        environment: Mapping[str, str],
        found: Callable[[list[Host]], None],
        failed: Callable[[str], None],
        slow: Callable[[str], None],
    ) -> None:
        self._script = script
        self._slots_per_host = slots_per_host
        self._interval = interval  # seconds from the end of a run to the next one
        self._supervisor = supervisor
        self._environment = environment
        self._found = found
        self._failed = failed
        self._slow: Callable[[str], None] | None = slow
        self._child: Child | None = None
        self._has_given_up = False

    def look(self) -> None:
        """Starts a run of the script. Each run starts the next one, until the job ends."""
        if self._supervisor.is_stopping:
            return
        self._has_given_up = False
        self._out, self._err = _Collector(), _Collector()
        try:
            self._child = child = self._supervisor.start(
                "the host discovery script",
                self._script,
                self._environment,
                stdin=processes.NO_INPUT,
                out=self._out,
                err=self._err,
                on_end=lambda _: self._conclude(),
                is_guarded=False,
            )
        except LaunchError as error:
            self._report(str(error))
            return
        self._supervisor.later(_SLOW_SECONDS, lambda: self._note_delay(child))
        self._supervisor.later(LONGEST_SECONDS, lambda: self._abort(child))

    def _note_delay(self, child: Child) -> None:
        if child is self._child and self._slow:
            self._slow(
                f"the host discovery script has been running for {_SLOW_SECONDS:g} s; it is ended after "
                f"{LONGEST_SECONDS:g} s"
            )
            self._slow = None

    def _abort(self, child: Child) -> None:
        if child is self._child:
            self._has_given_up = True
            processes.send_to_group(child.pid, signal.SIGKILL)

    def _conclude(self) -> None:
        """Reads the hosts. The script has ended, and the supervisor has read its output."""
        child = self._child
        if child is None:
            return
        self._child = None
        self._supervisor.drop(child)
        if self._has_given_up:
            self._report(f"it did not end within {LONGEST_SECONDS:g} s")
            return
        if child.status:
            words = self._err.data.decode(errors="replace").strip().splitlines()
            printed = f" and printed {words[-1]!r}" if words else ""
            self._report(f"it {processes.describe_exit(child.status)}{printed}")
            return
        try:
            hosts = parse(self._out.data.decode(errors="replace"), self._slots_per_host)
        except LaunchError as error:
            self._report(str(error))
            return
        self._again()
        self._found(hosts)

    def _report(self, text: str) -> None:
        self._again()
        self._failed(text)

    def _again(self) -> None:
        self._supervisor.later(self._interval, self.look)
