"""Host discovery: runs the user's script periodically, without blocking the launcher."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from .. import processes
from ..child import Child
from ..errors import LaunchError
from ..hosts import Host, parse_hostfile_text
from ..supervise import Supervisor

# A script that takes longer than this has hung.
LONGEST_SECONDS = 60.0
_MOST_OUTPUT = 1 << 20


class _Collector:
    """Collects the output of a stream. A `Feed`."""

    def __init__(self, finished: Callable[[], None]) -> None:
        self.data = b""
        self._finished = finished

    def feed(self, data: bytes) -> None:
        self.data = (self.data + data)[:_MOST_OUTPUT]

    def finish(self) -> None:
        self._finished()


def find_script(given: str) -> str:
    """Returns the script's absolute path. Raises LaunchError if the script cannot be run."""
    path = Path(given).absolute()
    if not path.is_file():
        raise LaunchError(f"--host-discovery-script {given!r}: no such file; give the path of an executable script")
    if not os.access(path, os.X_OK):
        raise LaunchError(f"--host-discovery-script {given!r} is not executable: chmod +x {given}")
    return str(path)


def parse(text: str, slots_per_host: int | None) -> list[Host]:
    """Parses the output of a script, which has one `host` or `host:slots` per line. Raises LaunchError."""
    lines = []
    for line in text.splitlines():
        name = line.partition("#")[0].strip()
        if name and ":" not in name.rpartition("]")[2] and "=" not in name:
            if slots_per_host is None:
                raise LaunchError(f"{name!r} has no number of slots; print host:slots, or give --slots-per-host")
            name = f"{name}:{slots_per_host}"
        lines.append(name)
    return parse_hostfile_text("\n".join(lines), "its output")


class Discovery:
    """Runs the script repeatedly. Calls `found` with the hosts, or `failed` with the reason if the script fails."""

    def __init__(
        self,
        script: str,
        slots_per_host: int | None,
        interval: float,
        supervisor: Supervisor,
        environment: Mapping[str, str],
        found: Callable[[list[Host]], None],
        failed: Callable[[str], None],
    ) -> None:
        self._script = script
        self._slots_per_host = slots_per_host
        self._interval = interval  # seconds from the end of a run to the next one
        self._supervisor = supervisor
        self._environment = environment
        self._found = found
        self._failed = failed
        self._open_streams = 0
        self._child: Child | None = None

    def look(self) -> None:
        """Starts a run of the script. Each run starts the next one, until the job ends."""
        if self._supervisor.is_stopping:
            return
        self._out, self._err = _Collector(self._stream_ended), _Collector(self._stream_ended)
        self._open_streams = 2
        try:
            self._child = child = self._supervisor.start(
                "the host discovery script",
                [self._script],
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
        self._supervisor.later(LONGEST_SECONDS, lambda: self._give_up(child))

    def _stream_ended(self) -> None:
        self._open_streams -= 1
        self._conclude()

    def _give_up(self, child: Child) -> None:
        if child is self._child:
            processes.send_to_group(child.pid, signal.SIGKILL)

    def _conclude(self) -> None:
        """Reads the hosts once the script has ended and all of its output has been read."""
        child = self._child
        if child is None or child.status is None or self._open_streams > 0:
            return
        self._child = None
        self._supervisor.drop(child)
        if child.status != 0:
            words = self._err.data.decode(errors="replace").strip().splitlines()
            said = f" and printed {words[-1]!r}" if words else ""
            self._report(f"it {processes.describe_exit(child.status)}{said}")
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
