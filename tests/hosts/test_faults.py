"""Checks that a job on two hosts ends soon if a rank, a host or a cable fails.

The job must name the lost rank and leave no process.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.job import LIMIT_SECONDS, run_to_end, start_process, wait_until, wait_until_stopped

from .conftest import OnHosts, TestBeds, line_of, wait_until_nothing_is_left
from .network_test_bed import NetworkTestBed

# A host counts as lost after this number of seconds without an answer.
HEARTBEAT = 3

# The program runs until the test makes the file "enough".
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
        while "WAITS_AFTER_ERROR" in os.environ and not os.path.exists("go"):
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
# The program does not use perseus_like and does not communicate.
SLEEP = """
import os, time
rank = next(os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK") if name in os.environ)
print("up", rank, os.getpid(), flush=True)
time.sleep(600)
"""


@dataclass
class Job:
    """A job with two ranks on each host, which have all started. `pids` has their process ids."""

    test_bed: NetworkTestBed
    process: subprocess.Popen[str]
    pids: dict[int, int] = field(default_factory=dict)
    output: list[str] = field(default_factory=list)

    def wait_for(self, text: str) -> str:
        """Reads the output until a line contains this text, and returns the line."""
        assert self.process.stdout is not None
        while True:
            line = self.process.stdout.readline()
            assert line, f"the job ended without a line with {text!r}: {self.output}"
            self.output.append(line)
            if text in line:
                return line

    def end(self) -> tuple[int, str]:
        """Waits for the end, and returns the exit code and the output.

        Checks that no process or shared memory is left on any host, also if the host is cut off.
        """
        assert self.process.stdout is not None
        self.output += self.process.stdout.readlines()  # `communicate` would omit what `readline` has read ahead
        self.process.wait(LIMIT_SECONDS)
        wait_until_nothing_is_left(self.test_bed)
        for host in self.test_bed.hosts:
            listing = subprocess.run(
                self.test_bed.command(host, ["ls", "-A", "/dev/shm"]), capture_output=True, check=True
            )
            assert listing.stdout == b"", host
        return self.process.returncode, "".join(self.output)


Start = Callable[..., Job]


@pytest.fixture
def start(test_beds: TestBeds, tmp_path: Path, transport: str) -> Iterator[Start]:
    """Returns a function that runs a program by perseusrun, two ranks per host, and waits until all have started."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str, hosts: int = 2, **environment: str) -> Job:
        test_bed = test_beds(hosts)
        file = tmp_path / "program.py"
        file.write_text(textwrap.dedent(program))
        line = [*test_bed.perseusrun(dict.fromkeys(test_bed.hosts, 2), transport), sys.executable, file]
        process = start_process(line, tmp_path, **{"PERSEUS_HEARTBEAT_TIMEOUT": str(HEARTBEAT), **environment})
        started.append(process)
        job = Job(test_bed, process)
        while len(job.pids) < 2 * hosts:
            _, rank, pid = job.wait_for("<stdout>:up ").partition(":")[2].split()
            job.pids[int(rank)] = int(pid)
        return job

    yield start
    for process in started:
        process.kill()
        process.communicate()


def unanswered_probes(pid: int) -> int:
    """Returns how many keepalive probes the kernel has sent in vain, on one connection of this process's host."""
    connections = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    return max(int(line.split()[8]) for line in connections)


def retransmissions(pid: int) -> int:
    """Returns the highest number of retransmissions that one connection of this process's host waits for."""
    connections = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    return max(int(line.split()[6], 16) for line in connections)


def wait_for_files(*names: str) -> None:
    wait_until(lambda: all(Path(name).exists() for name in names), f"not all are there: {names}")


def signal_if_there(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def raised(output: str) -> dict[int, str]:
    """Returns the errors that ranks have raised, by rank."""
    lines = [line for line in output.splitlines() if "<stdout>:raised" in line]
    return {int(line[1 : line.index("]")]): line for line in lines}


def test_a_rank_that_is_killed_on_another_host(start: Start) -> None:
    job = start(LOOP, WAITS_AFTER_ERROR="1")
    # The test stops the process that reports the death to mpirun. Otherwise mpirun ends ranks before they raise errors.
    reporter = int(Path(f"/proc/{job.pids[3]}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(reporter, signal.SIGSTOP)
    os.kill(job.pids[3], signal.SIGKILL)
    for _ in range(3):
        job.wait_for("<stdout>:raised")
    os.kill(reporter, signal.SIGCONT)
    job.wait_for("perseusrun: rank 3 on h2 was killed by SIGKILL")
    Path("go").touch()
    code, output = job.end()
    assert code == 128 + signal.SIGKILL
    assert "perseusrun: rank 3 on h2 was killed by SIGKILL" in output
    errors = raised(output)
    assert set(errors) == {0, 1, 2}, output
    assert all(
        "PeerLostError" in text and "rank 3 on h2 ended without shutting down" in text for text in errors.values()
    )


with_and_without_collectives = pytest.mark.parametrize(
    "program", [pytest.param(LOOP, id="collectives"), pytest.param(SLEEP, id="none", marks=pytest.mark.slow)]
)


@with_and_without_collectives
def test_a_cable_that_is_cut(start: Start, program: str) -> None:
    job = start(program, WAITS_AFTER_ERROR="1")
    job.test_bed.cut("h2")
    if program == LOOP:
        # The launcher would end the ranks a second after it notices the cut, also ranks that have not raised yet.
        job.process.send_signal(signal.SIGSTOP)
        wait_for_files("raised.0", "raised.1")
        job.process.send_signal(signal.SIGCONT)
        job.wait_for(" on h2 does not answer any more")
        Path("go").touch()
    code, output = job.end()
    assert code == 1
    assert re.search("perseusrun: .*rank", output)
    # The remote shell has a way around the network.
    assert re.search(" on h2 (does not answer any more|was ended, because its connection to perseusrun was)", output)
    if program == LOOP:
        # The ranks on h2 raise an error as well, but under an mpirun their output does not reach the launcher.
        errors = {rank: text for rank, text in raised(output).items() if rank < 2}
        assert set(errors) == {0, 1}, output
        assert all("PeerLostError" in text and "rank 2 on h2 does not answer" in text for text in errors.values())


def test_a_cut_between_two_hosts_that_both_reach_the_first(start: Start) -> None:
    job = start(LOOP, hosts=3)
    job.test_bed.cut_between("h2", "h3")
    code, output = job.end()
    assert code == 1, output
    errors = raised(output)
    assert errors, output
    text = "rank 4 on h3 does not answer rank 2 on h2 any more: the network between these two hosts is cut"
    assert all("PeerLostError" in error and text in error for error in errors.values()), output


@with_and_without_collectives
def test_a_host_that_crashes(start: Start, program: str) -> None:
    job = start(program)
    job.test_bed.crash("h2")
    code, output = job.end()
    assert code == 1
    assert re.search(" on h2 (ended without a report|was killed by SIGKILL)", output)  # of a rank, or of its starter


def output_after_a_cut(job: Job, is_long_enough: Callable[[], bool]) -> str:
    """Cuts the network of h2 until `is_long_enough`, and returns the output of the job, which goes on and ends."""
    job.test_bed.cut("h2")
    wait_until(is_long_enough, "the kernel notices no cut")
    job.test_bed.heal("h2")
    Path("enough").touch()
    code, output = job.end()
    assert code == 0, output
    return output


def test_a_job_survives_a_cut_that_is_shorter_than_the_limit(start: Start) -> None:
    job = start(LOOP, PERSEUS_HEARTBEAT_TIMEOUT="20")
    output = output_after_a_cut(job, lambda: unanswered_probes(job.pids[0]) >= 2)
    assert output.count("<stdout>:done") == 4


def test_no_rank_counts_as_stopped_while_its_answer_is_on_the_way(start: Start) -> None:
    job = start(LOOP, PERSEUS_HEARTBEAT_TIMEOUT="60", PERSEUS_STALL_CHECK_TIME_SECONDS="1")
    # The fifth retransmission comes after six seconds: the question to h2 has waited for longer than a rank may take to
    # answer. Ranks on h2 may answer that they have not come to the collective: its messages were cut off, too.
    output = output_after_a_cut(job, lambda: retransmissions(job.pids[0]) >= 5)
    assert not re.search("(does|do) not answer|Is it stopped", output), output


@pytest.mark.usefixtures("mpirun")
@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ((), 2, "the job was not started: h2 cannot connect to this host"),
        (("--no-check-hosts",), 1, "first failure: rank 1 on h2 never started: mpirun could not start"),
    ],
    ids=["checked", "not checked"],
)
def test_a_host_that_is_cut_before_the_start_is_named(
    options: tuple[str, ...], code: int, text: str, test_beds: TestBeds, tmp_path: Path
) -> None:
    test_bed = test_beds(3)
    test_bed.cut("h2")
    (tmp_path / "program.py").write_text(SLEEP)
    line = test_bed.perseusrun(dict.fromkeys(test_bed.hosts, 1), "--mpi", *options)
    line += [sys.executable, str(tmp_path / "program.py")]
    done = run_to_end(line, tmp_path, joined=True)
    assert done.returncode == code, done.stdout
    reports = [line for line in done.stdout.splitlines() if line.startswith("perseusrun: ")]
    assert reports[-1].startswith(f"perseusrun: {text}"), done.stdout


def test_no_process_outlives_a_launcher_that_is_killed(start: Start) -> None:
    job = start(SLEEP)
    assert "perseus_like.launch -np" in line_of(job.process.pid)
    job.process.kill()
    job.end()


# Under a bare mpirun, ranks that wait for a lost rank must end by themselves.
LOST_RANK = """
import os, sys
import numpy as np
import perseus_like.numpy as hvd

def report(*words):
    # mpirun may end this rank at any time: a report is there as a whole or not at all.
    with open(f"unfinished.{hvd.rank()}", "w") as file:
        file.write(" ".join(map(str, words)))
    os.replace(file.name, f"report.{hvd.rank()}")

hvd.init()
try:
    hvd.allreduce(np.ones(4, np.float32), name="begin")  # other ranks may still be in it when rank 3 ends
    if hvd.rank() == 3:
        os._exit(int(sys.argv[1]))
    while True:
        hvd.allreduce(np.ones(1 << 16, np.float32), name="step")
except hvd.HorovodInternalError as error:
    report("raised", type(error).__name__, error)
    raise
"""


@pytest.mark.parametrize("code", [0, 3])
def test_survivors_end_under_a_bare_mpirun(test_beds: TestBeds, tmp_path: Path, code: int) -> None:
    """The other ranks end by themselves with an error. MPICH's mpirun does not notice that the rank was lost.

    Rank 2 learns of rank 3's end first, because they share a host. The ranks on the other host may therefore learn of
    rank 2's end.
    """
    mpirun = Path(sys.executable).with_name("mpirun")
    if not mpirun.exists():
        pytest.skip("no MPICH beside this Python")
    test_bed = test_beds(2)
    (tmp_path / "program.py").write_text(LOST_RANK)
    line = [mpirun, "-launcher-exec", test_bed.remote_shell, "-iface", "eth0", "-hosts", "h1,h2", "-ppn", 2, "-np", 4]
    line += [sys.executable, "program.py", code]
    # MPICH has taken the loopback interface for MPI once, under load.
    settings = {"FI_TCP_IFACE": "eth0"}
    done = run_to_end(test_bed.command("h1", [str(word) for word in line], tmp_path), tmp_path, joined=True, **settings)
    assert done.returncode != 0, done.stdout
    # When the first survivor has ended, mpirun ends the others, perhaps before they have written their reports.
    reports = [file.read_text() for file in tmp_path.glob("report.*")]
    assert reports, done.stdout
    for text in reports:
        assert text.startswith("raised PeerLostError")
        assert re.search("rank [23] on h2 ended without shutting down", text), text
    wait_until_nothing_is_left(test_bed)  # mpirun ends before its proxies


def test_a_host_that_is_stopped_for_a_while_is_not_lost(start: Start) -> None:
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


# Rank 0 stops another rank when it has received the first part of its own result. If the allreduce was complete before
# that, the program repeats it.
STOPS_ANOTHER_RANK = """
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
    job = start(STOPS_ANOTHER_RANK, VICTIM=str(victim), PERSEUS_STALL_CHECK_TIME_SECONDS=str(HEARTBEAT))
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


@pytest.mark.parametrize("others", ["hvd.barrier()", "time.sleep(600)"], ids=["communicate", "do not communicate"])
def test_an_exception_is_the_first_failure(on_hosts: OnHosts, test_beds: TestBeds, others: str) -> None:
    program = f"""
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        raise ValueError("on purpose")
    {others}
    """
    done = on_hosts(test_beds(2), program, [1, 1])
    assert done.returncode == 1, done.stderr
    assert "perseusrun: first failure: rank 1 on h2 exited with code 1" in done.stderr
    assert "  ValueError: on purpose" in done.stderr
