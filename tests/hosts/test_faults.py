"""Ranks, hosts and cables that fail under a job on two hosts: it ends soon, says who was lost, and leaves nothing."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from .conftest import OnHosts, TestBeds, launch_line
from .network_test_bed import NetworkTestBed

TIMEOUT_SECONDS = 90
pytestmark = pytest.mark.timeout(2 * TIMEOUT_SECONDS)
# Seconds without an answer after which a host counts as lost.
HEARTBEAT = 3

# Until somebody makes the file "enough".
LOOP = """
import os, signal, time
import numpy as np
import perseus_like.numpy as hvd

hvd.init()
is_up = False
while True:
    enough = np.full(1 << 16, os.path.exists("enough"), np.float32)
    try:
        enough = hvd.allreduce(enough, op=hvd.Sum, name="enough")
    except hvd.HorovodInternalError as error:
        print("raised", type(error).__name__, error, flush=True)
        open(f"raised.{hvd.rank()}", "w").close()
        while "LINGERING" in os.environ and not os.path.exists("heard"):
            time.sleep(0.01)
        raise
    if not is_up:
        print("up", hvd.rank(), os.getpid(), flush=True)
        if str(hvd.rank()) in os.environ.get("STOPPING", ""):
            os.kill(os.getpid(), signal.SIGSTOP)
    is_up = True
    if enough[0] > 0:
        break
print("done", flush=True)
"""
# Knows nothing of perseus_like, and communicates with nobody.
NAP = """
import os, time
rank = next(os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ)
print("up", rank, os.getpid(), flush=True)
time.sleep(600)
"""


@dataclass
class Job:
    """Ranks 0 and 1 on h1, 2 and 3 on h2, all up. `pids` are the ranks' by rank."""

    test_bed: NetworkTestBed
    process: subprocess.Popen[str]
    pids: dict[int, int] = field(default_factory=dict)
    heard: list[str] = field(default_factory=list)

    def wait_for(self, text: str) -> str:
        """The next line with this text, on either stream."""
        assert self.process.stdout is not None
        while True:
            line = self.process.stdout.readline()
            assert line, f"the job ended without a line with {text!r}: {self.heard}"
            self.heard.append(line)
            if text in line:
                return line

    def end(self) -> tuple[int, str]:
        """Waits for the end: exit code and output. Nothing is left on any host, not even where the cable is cut."""
        assert self.process.stdout is not None
        self.heard += self.process.stdout.readlines()  # `communicate` leaves out what has been read ahead
        self.process.wait(TIMEOUT_SECONDS)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        for host in self.test_bed.hosts:
            while left := self.test_bed.processes(host):
                assert time.monotonic() < deadline, (host, [_line_of(pid) for pid in left], "".join(self.heard))
                time.sleep(0.05)
            listing = subprocess.run(
                self.test_bed.command(host, ["ls", "-A", "/dev/shm"]), capture_output=True, check=True
            )
            assert listing.stdout == b"", host
        return self.process.returncode, "".join(self.heard)


def _line_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


Start = Callable[..., Job]


@pytest.fixture
def start(test_beds: TestBeds, tmp_path: Path) -> Iterator[Start]:
    """Starts a program on two hosts by perseusrun, and waits until all of its four ranks are up."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str, **environment: str) -> Job:
        test_bed = test_beds(2)
        file = tmp_path / "program.py"
        file.write_text(textwrap.dedent(program))
        process = subprocess.Popen(
            [*launch_line(test_bed, {"h1": 2, "h2": 2}), sys.executable, str(file)],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PERSEUS_HEARTBEAT_TIMEOUT": str(HEARTBEAT), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        job = Job(test_bed, process)
        while len(job.pids) < 4:
            _, rank, pid = job.wait_for("<stdout>:up ").partition(":")[2].split()
            job.pids[int(rank)] = int(pid)
        return job

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for_files(*names: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not all(Path(name).exists() for name in names):
        assert time.monotonic() < deadline, names
        time.sleep(0.01)


def signal_if_there(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def raised(output: str) -> dict[int, str]:
    """Returns the errors that ranks have raised, by rank."""
    lines = [line for line in output.splitlines() if "<stdout>:raised" in line]
    return {int(line[1 : line.index("]")]): line for line in lines}


def test_a_rank_that_is_killed_on_another_host(start: Start) -> None:
    job = start(LOOP, LINGERING="1")
    # Stops the process that reports the death to mpirun, which would end ranks before they report their errors.
    teller = int(Path(f"/proc/{job.pids[3]}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(teller, signal.SIGSTOP)
    os.kill(job.pids[3], signal.SIGKILL)
    for _ in range(3):
        job.wait_for("<stdout>:raised")
    os.kill(teller, signal.SIGCONT)
    job.wait_for("perseusrun: rank 3 on h2 was killed by SIGKILL")
    Path("heard").touch()
    code, output = job.end()
    assert code == 128 + signal.SIGKILL
    assert "perseusrun: rank 3 on h2 was killed by SIGKILL" in output
    errors = raised(output)
    assert set(errors) == {0, 1, 2}, output
    assert all(
        "PeerLostError" in text and "rank 3 on h2 ended without shutting down" in text for text in errors.values()
    )


with_and_without_collectives = pytest.mark.parametrize(
    "program", [pytest.param(LOOP, id="collectives"), pytest.param(NAP, id="none", marks=pytest.mark.slow)]
)


@with_and_without_collectives
def test_a_cable_that_is_cut(start: Start, program: str) -> None:
    job = start(program, LINGERING="1")
    job.test_bed.cut("h2")
    if program == LOOP:
        # A launcher that notices it ends ranks a second later, also those that were late to say what they make of it.
        job.process.send_signal(signal.SIGSTOP)
        wait_for_files("raised.0", "raised.1")
        job.process.send_signal(signal.SIGCONT)
        job.wait_for(" on h2 does not answer any more")
        Path("heard").touch()
    code, output = job.end()
    assert code == 1
    assert "perseusrun: rank " in output
    assert " on h2 does not answer any more" in output
    if program == LOOP:
        # Those on h2 raise as well, but nobody is there to hear it.
        errors = raised(output)
        assert set(errors) == {0, 1}, output
        assert all("PeerLostError" in text and "rank 2 on h2 does not answer" in text for text in errors.values())


@with_and_without_collectives
def test_a_host_that_crashes(start: Start, program: str) -> None:
    job = start(program)
    job.test_bed.crash("h2")
    code, output = job.end()
    assert code == 1
    assert " on h2 ended without a report" in output


def test_a_cut_shorter_than_the_limit_is_survived(start: Start) -> None:
    job = start(LOOP, PERSEUS_HEARTBEAT_TIMEOUT="6")
    job.test_bed.cut("h2")
    time.sleep(4)  # how long the fault lasts
    job.test_bed.heal("h2")
    Path("enough").touch()
    code, output = job.end()
    assert code == 0, output
    assert output.count("<stdout>:done") == 4


def test_a_host_that_is_cut_before_the_start_is_named(test_beds: TestBeds, tmp_path: Path, to_end: OnHosts) -> None:
    test_bed = test_beds(3)
    test_bed.cut("h2")
    (tmp_path / "program.py").write_text(NAP)
    line = [*launch_line(test_bed, dict.fromkeys(test_bed.hosts, 1)), sys.executable, tmp_path / "program.py"]
    done = to_end(line, TIMEOUT_SECONDS, tmp_path, joined=True)
    assert done.returncode == 1, done.stdout
    said = [text for text in done.stdout.splitlines() if text.startswith("perseusrun: ")]
    assert said[-1].startswith("perseusrun: first failure: rank 1 on h2 never started: mpirun could not start"), (
        done.stdout
    )


def test_a_launcher_that_is_killed(start: Start) -> None:
    job = start(NAP)
    assert "perseus_like.launch -np" in _line_of(job.process.pid)
    job.process.kill()
    job.end()


# Under a bare mpirun nobody but the ranks themselves ends those that wait for a lost one.
LEAVING = """
import os, sys
import numpy as np
import perseus_like.numpy as hvd

def report(*words):
    with open(f"said.{hvd.rank()}", "w") as file:
        file.write(" ".join(map(str, words)))

hvd.init()
hvd.allreduce(np.ones(4, np.float32), name="begin")
if hvd.rank() == 3:
    os._exit(int(sys.argv[1]))
try:
    while True:
        hvd.allreduce(np.ones(1 << 16, np.float32), name="step")
except hvd.HorovodInternalError as error:
    report("raised", type(error).__name__, error)
    raise
"""


@pytest.mark.parametrize("code", [0, 3])
def test_survivors_end_under_a_bare_mpirun(test_beds: TestBeds, tmp_path: Path, to_end: OnHosts, code: int) -> None:
    """MPICH's mpirun takes the end of a rank for an orderly one. The others end by themselves, with an error.

    Rank 2 hears of rank 3's end first, as they share a host, and its own end may be what the other host hears of.
    """
    mpirun = Path(sys.executable).with_name("mpirun")
    if not mpirun.exists():
        pytest.skip("no MPICH beside this Python")
    test_bed = test_beds(2)
    (tmp_path / "program.py").write_text(LEAVING)
    line = [mpirun, "-launcher-exec", test_bed.remote_shell, "-iface", "eth0", "-hosts", "h1,h2", "-ppn", 2, "-np", 4]
    line += [sys.executable, "program.py", code]
    done = to_end(
        test_bed.command("h1", [str(word) for word in line], tmp_path), TIMEOUT_SECONDS, tmp_path, joined=True
    )
    assert done.returncode != 0, done.stdout
    # The first survivor that ends lets mpirun end the others, which may be before they have written.
    said = [file.read_text() for file in tmp_path.glob("said.*")]
    assert said, done.stdout
    for text in said:
        assert text.startswith("raised PeerLostError")
        assert re.search("rank [23] on h2 ended without shutting down", text), text
    deadline = time.monotonic() + TIMEOUT_SECONDS  # mpirun ends before its proxies
    while left := [pid for host in test_bed.hosts for pid in test_bed.processes(host)]:
        assert time.monotonic() < deadline, [_line_of(pid) for pid in left]
        time.sleep(0.05)


def test_a_host_that_is_stopped_for_a_while_is_not_lost(
    start: Start, wait_until_stopped: Callable[[int], None]
) -> None:
    job = start(LOOP, STOPPING="2 3", PERSEUS_STALL_CHECK_TIME_SECONDS=str(2 * HEARTBEAT))
    for rank in (2, 3):
        wait_until_stopped(job.pids[rank])
    stopped = job.test_bed.processes("h2")
    for pid in stopped:
        signal_if_there(pid, signal.SIGSTOP)
    try:
        warning = job.wait_for("has waited")
    finally:
        for pid in stopped:
            signal_if_there(pid, signal.SIGCONT)
    Path("enough").touch()
    code, output = job.end()
    assert "not by ranks 2, 3" in warning, warning
    assert code == 0, output
    assert output.count("<stdout>:done") == 4


# Rank 0 stops another one once the first part of its own result has come: the rest is under way then, or was over
# before rank 0 had the time to; then all is done again.
IN_THE_MIDDLE = """
import os, signal
import numpy as np
import perseus_like.numpy as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
pids = hvd.allgather(np.array([os.getpid()]), name="pids")  # all hosts share the machine's process ids
print("up", rank, os.getpid(), flush=True)
victim = pids[int(os.environ["VICTIM"])]
too_late = True
while too_late:
    big = np.full(1 << 25, rank + 1.0, np.float32)
    work = hvd.allreduce_async_(big, op=hvd.Sum, name="gradient")
    if rank == 0:
        while big[0] == 1.0:
            pass
        os.kill(victim, signal.SIGSTOP)
    assert (hvd.synchronize(work) == size * (size + 1) / 2).all()
    too_late = rank == 0 and not os.path.exists("woken")
    if too_late:
        os.kill(victim, signal.SIGCONT)
    too_late = hvd.broadcast(np.array([too_late]), 0, name="too late")[0]
hvd.barrier()
print("done", flush=True)
"""


@pytest.mark.parametrize("victim", [pytest.param(1, marks=pytest.mark.slow), 2, 3])
def test_a_rank_that_is_stopped_in_the_middle_is_named(start: Start, victim: int) -> None:
    job = start(IN_THE_MIDDLE, VICTIM=str(victim), PERSEUS_STALL_CHECK_TIME_SECONDS=str(HEARTBEAT))
    warnings = [job.wait_for("stands still") for _ in range(3)]
    Path("woken").touch()
    os.kill(job.pids[victim], signal.SIGCONT)
    code, output = job.end()
    host = "h1" if victim < 2 else "h2"
    for warning in warnings:
        assert "allreduce 'gradient'" in warning, warning
        assert f"rank {victim} on {host} does not answer" in warning, warning
    assert code == 0, output
    assert output.count("<stdout>:done") == 4
