"""An elastic job that a test starts, whose discovery script prints what the test sets as its hosts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.job import LIMIT_SECONDS

PROGRAMS = Path(__file__).parent / "programs"
LAUNCHER = [sys.executable, "-m", "perseus_like.launch"]
Event = dict[str, Any]


def environments() -> Iterator[tuple[int, bytes]]:
    """Yields the process id and the environment of every process whose environment can be read."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                yield int(entry.name), (entry / "environ").read_bytes()


class Job:
    """A running elastic job."""

    def __init__(
        self,
        folder: Path,
        program: str,
        arguments: tuple[str, ...],
        options: tuple[str, ...],
        hosts: str,
        launcher: list[str] = LAUNCHER,
        is_static: bool = False,
    ) -> None:
        """Starts the job. With `is_static`, the hosts are given by -H instead of a discovery script."""
        self._hosts = folder / "hosts"
        self._mark = f"PERSEUS_TEST_JOB={uuid.uuid4()}"
        script = folder / "discover.sh"
        script.write_text(f"#!/bin/sh\nexec cat '{self._hosts}'\n")
        script.chmod(0o755)
        self.hosts(hosts)
        self.lines: list[str] = []
        self.events: list[Event] = []
        command = [sys.executable, str(PROGRAMS / program), *arguments]
        name, _, value = self._mark.partition("=")
        found = ["-H", hosts] if is_static else ["--host-discovery-script", str(script)]
        self.process = subprocess.Popen(
            [*launcher, *found, "--no-prefix", *options, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", name: value},
        )

    def hosts(self, text: str) -> None:
        """Sets the output of the discovery script. "a:2,b:1" stands for two lines."""
        partial = self._hosts.with_suffix(".new")
        partial.write_text(text.replace(",", "\n") + "\n")
        partial.rename(self._hosts)

    def next_event(self, kind: str, fits: Callable[[Event], bool] = lambda event: True) -> Event:
        """Reads until a worker reports an event of this kind that `fits`, and returns the event.

        If no worker does, the AssertionError shows the whole output.
        """
        while self._read():
            if self.lines[-1].startswith("{") and self.events[-1]["kind"] == kind and fits(self.events[-1]):
                return self.events[-1]
        raise AssertionError(f"the job ended without another event {kind!r}:\n{self.text}")

    def commit_of(self, size: int) -> Event:
        """Reads until this number of workers has made a commit."""
        return self.next_event("commit", lambda event: bool(event["size"] == size))

    def next_line(self, part: str) -> str:
        """Reads until a line contains `part`, and returns the line."""
        while self._read():
            if part in self.lines[-1]:
                return self.lines[-1]
        raise AssertionError(f"the job ended without another line with {part!r}:\n{self.text}")

    def _read(self) -> bool:
        """Reads a line. Returns False at the end."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            self.lines.append(line.rstrip("\n"))
        if line.startswith("{"):
            self.events.append(json.loads(line))
        return bool(line)

    def processes(self) -> list[int]:
        """Returns all processes of the job, including the launcher."""
        mark = self._mark.encode()
        return [pid for pid, text in environments() if mark in text]

    def workers(self) -> list[int]:
        """Returns the live processes that the launcher has started as workers."""
        mark = self._mark.encode()
        return [pid for pid, text in environments() if mark in text and b"PERSEUS_ELASTIC=" in text]

    def kill(self, pid: int) -> None:
        """Kills a worker and reads until the launcher has reported it. Earlier output of others may still follow."""
        os.kill(pid, signal.SIGKILL)
        self.next_line(f"(pid {pid}) was killed by SIGKILL")

    def replace(self, pid: int) -> None:
        """Kills a worker and reads until a generation without it begins."""
        self.kill(pid)
        self.next_line("perseusrun: generation ")

    def finish(self) -> int:
        """Makes training end and returns the exit code. Fails if a process of the job is left."""
        (self._hosts.parent / "finish").touch()
        return self.end()

    def end(self) -> int:
        """Reads to the end of the output and returns the exit code. Fails if a process of the job is left."""
        while self._read():
            pass
        code = self.process.wait(LIMIT_SECONDS)
        assert self.processes() == []
        return code

    def finish_trained(self) -> None:
        """Makes training end, and asserts that the job succeeds and that its workers have trained."""
        assert self.finish() == 0, self.text
        self.assert_trained()

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def assert_trained(self) -> None:
        """Asserts that the last workers have made every step once, and have the same weights."""
        ends = [event for event in self.events if event["kind"] == "end"]
        assert ends, self.text
        assert len(ends) == ends[0]["size"], self.text
        assert all(event["steps"] == ends[0]["steps"] and event["same"] and event["right"] for event in ends), self.text
        commits = [event["step"] for event in self.events if event["kind"] == "commit"]
        assert commits == sorted(commits), "training started from the beginning again: the state was lost"


Start = Callable[..., Job]


@contextlib.contextmanager
def jobs_in(folder: Path) -> Iterator[Start]:
    """Yields a function that starts a job in this folder, with the other arguments of `Job`.

    Jobs that still run at the end are ended.
    """
    jobs: list[Job] = []

    def start(*arguments: Any, **options: Any) -> Job:
        jobs.append(Job(folder, *arguments, **options))
        return jobs[-1]

    try:
        yield start
    finally:
        for job in jobs:
            if job.process.poll() is None:
                job.process.terminate()
            job.process.communicate(timeout=LIMIT_SECONDS)
