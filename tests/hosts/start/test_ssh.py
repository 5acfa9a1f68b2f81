"""Runs jobs on two hosts whose ranks perseusrun starts over a remote shell by itself, and UCX connects, without MPI."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.job import LIMIT_SECONDS

from ..conftest import UCX_LIBRARY, TestBeds, line_of, network_shell, processes_of, wait_until_nothing_is_left
from ..network_test_bed import NetworkTestBed

if not UCX_LIBRARY.exists():
    pytest.skip("no UCX of MPICH's wheel beside this Python", allow_module_level=True)

COLLECTIVES = """
import os, sys
import numpy as np
import perseus_like.numpy as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
assert [rank, size] == [int(os.environ[name]) for name in ("RANK", "WORLD_SIZE")]
assert [hvd.local_rank(), hvd.local_size()] == [int(os.environ[f"PERSEUS_LOCAL_{what}"]) for what in ("RANK", "SIZE")]
assert os.environ["HOROVOD_HOSTNAME"] == os.uname().nodename
for count in (1, 1000, 300_000):
    mine = np.arange(count, dtype=np.float64) * (rank + 1)
    assert np.array_equal(hvd.allreduce(mine, op=hvd.Sum), np.arange(count) * 10.0)
    assert np.array_equal(hvd.broadcast(mine, root_rank=3), np.arange(count) * 4.0)
hvd.shutdown()
with open("/proc/self/maps") as maps:
    assert "libmpi" not in maps.read()
for number in range(100):
    print("line", number)
print("read", sys.stdin.read())
"""

# Each rank has a child, as a data loader has. PERSEUS_HEARTBEAT_TIMEOUT is the launcher's alone. Ranks are connected
# before they say that they are up: UCX 1.20 may abort a process if its peer ends while they connect.
LOOP = """
import os, subprocess, sys
import numpy as np
import perseus_like.numpy as hvd

os.environ.pop("PERSEUS_HEARTBEAT_TIMEOUT", None)
hvd.init()
child = subprocess.Popen(["sleep", "1000"])
hvd.allreduce(np.ones(1 << 16), name="gradient")
print("up", hvd.rank(), os.getpid(), flush=True)
while True:
    hvd.allreduce(np.ones(1 << 16), name="gradient")
    if hvd.rank() == int(os.environ.get("FAILING", -1)):
        sys.exit(3)
"""

# A rank that is interrupted says so.
SLEEP = """
import os, subprocess, time
import perseus_like.numpy as hvd

hvd.init()
child = subprocess.Popen(["sleep", "1000"])
try:
    print("up", hvd.rank(), os.getpid(), flush=True)
    time.sleep(1000)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""


class Job:
    """A job with two ranks on each of two hosts. `pids` has the process ids of its ranks.

    The hosts have `others` as processes, too.
    """

    def __init__(self, test_bed: NetworkTestBed, process: subprocess.Popen[str], others: set[int]) -> None:
        self.test_bed = test_bed
        self.process = process
        self.pids: dict[int, int] = {}
        self.others = others

    def wait_until_up(self) -> None:
        assert self.process.stdout is not None
        while len(self.pids) < 4:
            line = self.process.stdout.readline()
            assert line, "the job ended"
            if up := re.search(r"up (\d) (\d+)$", line):
                self.pids[int(up[1])] = int(up[2])

    def end(self) -> tuple[int, str]:
        """Waits for the end, and until no host has a process. Returns the exit code, and the output since the start."""
        output = self.process.communicate(timeout=LIMIT_SECONDS)[0]
        wait_until_nothing_is_left(self.test_bed, self.others)
        return self.process.returncode, output


Start = Callable[..., Job]


@pytest.fixture
def start(test_beds: TestBeds, tmp_path: Path) -> Iterator[Start]:
    """Returns a function that starts a program on two hosts. It is program.py in the working directory.

    As over ssh, ranks on the other host have an environment of their own. `shell` is the path of another remote shell,
    and `hidden` a folder that h2 does not have; unless there is a `command`, the job runs in it.
    """
    started: list[subprocess.Popen[str]] = []

    def start(
        program: str,
        *options: str,
        command: tuple[str, ...] = (),
        hidden: Path | None = None,
        test_bed: NetworkTestBed | None = None,
        shell: str = "",
        **environment: str,
    ) -> Job:
        test_bed = test_bed or test_beds(2)
        others = processes_of(test_bed)
        if hidden:
            mount = ["mount", "-t", "tmpfs", "none", str(hidden.parent)]
            subprocess.run(test_bed.command("h2", mount), check=True)
        own_shell = tmp_path / "shell"
        own_shell.write_text(f'#!/bin/sh\nexec env -i HOME=/of/h2 PATH=/usr/bin:/bin {test_bed.remote_shell} "$@"\n')
        own_shell.chmod(0o755)
        (tmp_path / "program.py").write_text(textwrap.dedent(program))
        folder = hidden if hidden and not command else tmp_path
        line = test_bed.perseusrun(
            {"h1": 2, "h2": 2}, "--remote-shell", shell or str(own_shell), *options, folder=folder
        )
        variables = {"OMP_NUM_THREADS": "1", "PERSEUS_UCX_LIBRARY": str(UCX_LIBRARY), **environment}
        process = subprocess.Popen(
            [*line, *(command or (sys.executable, "program.py"))],
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return Job(test_bed, process, others)

    yield start
    for process in started:
        process.kill()
        process.communicate()


def processes_of_launcher(job: Job) -> list[int]:
    """Returns the processes that run the launcher's program: the launcher itself, and its guard."""
    return [pid for pid in job.test_bed.processes("h1") if "perseus_like.launch -np" in line_of(pid)]


def starter_of(job: Job, rank: int) -> int:
    """Returns the process that starts the ranks of a rank's host."""
    rank_main = int(Path(f"/proc/{job.pids[rank]}/stat").read_text().rpartition(")")[2].split()[1])
    starter = int(Path(f"/proc/{rank_main}/stat").read_text().rpartition(")")[2].split()[1])
    assert "host_main.py" in line_of(starter)
    return starter


def test_collectives_and_output(start: Start, tmp_path: Path) -> None:
    job = start(COLLECTIVES, "--output-filename", "logs", "--verbose")
    output, _ = job.process.communicate("an input of rank 0", timeout=LIMIT_SECONDS)
    assert job.process.returncode == 0, output
    assert f"perseusrun: starting the ranks over shell, without MPI: UCX was found ({UCX_LIBRARY})" in output
    for rank in range(4):
        lines = [line.partition(":")[2] for line in output.splitlines() if line.startswith(f"[{rank}]<stdout>:")]
        expected = [*(f"line {number}" for number in range(100)), f"read {'an input of rank 0' if rank == 0 else ''}"]
        assert [line for line in lines if "UCX" not in line] == expected
        assert (tmp_path / f"logs/rank.{rank}/stdout").read_text().splitlines() == lines
    wait_until_nothing_is_left(job.test_bed, job.others)


def test_rank_0_is_on_another_host(start: Start, test_beds: TestBeds) -> None:
    program = "import os, sys; print(os.uname().nodename, sys.stdin.read())"
    hosts = ("-np", "3", "-H", "h2:1,h3:1,h1:1")
    job = start(program, *hosts, test_bed=test_beds(3))
    output, _ = job.process.communicate("an input", timeout=LIMIT_SECONDS)
    assert job.process.returncode == 0, output
    assert sorted(output.splitlines()) == [
        f"[{n}]<stdout>:{what}" for n, what in enumerate(["h2 an input", "h3 ", "h1 "])
    ]


def test_a_rank_that_fails_on_another_host(start: Start) -> None:
    code, output = start(LOOP, FAILING="2").end()
    assert code == 3, output
    assert "perseusrun: first failure: rank 2 on h2 exited with code 3" in output


def test_a_rank_that_ends_before_init(start: Start) -> None:
    program = "import os; rank = int(os.environ['RANK']); rank == 3 or __import__('perseus_like.numpy').numpy.init()"
    code, output = start(program).end()
    assert code == 1, output
    assert "perseusrun: first failure: rank 3 on h2 ended with code 0 before init(), in which other ranks" in output


def test_a_rank_that_is_killed_on_another_host(start: Start) -> None:
    job = start(LOOP)
    job.wait_until_up()
    os.kill(job.pids[3], signal.SIGKILL)
    code, output = job.end()
    assert code == 128 + signal.SIGKILL, output
    assert "perseusrun: first failure: rank 3 on h2 was killed by SIGKILL" in output


@pytest.mark.parametrize("way", ["--gloo", pytest.param("--mpi", marks=pytest.mark.slow)])
def test_all_ranks_are_started_again(start: Start, way: str, request: pytest.FixtureRequest) -> None:
    if way == "--mpi":
        request.getfixturevalue("mpirun")
    program = """
    import os, signal
    import numpy as np
    import perseus_like.numpy as hvd

    hvd.init()
    for step in range(10):
        hvd.allreduce(np.ones(1000), name="gradient")
        if step == 5 and hvd.rank() == 2 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
    print("done")
    """
    code, output = start(program, way, "--max-restarts", "1").end()
    assert code == 0, output
    assert "starting all ranks again: restart 1 of 1" in output
    assert "first failure: rank 2 on h2 was killed by SIGKILL" in output
    assert output.count(">:done\n") == 4, output


def kill_launcher(job: Job) -> None:
    job.wait_until_up()
    # The guard would find the processes of all hosts of this test bed.
    launcher = processes_of_launcher(job)
    assert job.process.pid in launcher
    assert len(launcher) == 2
    for process in launcher:
        os.kill(process, signal.SIGKILL)
    job.end()


@pytest.mark.parametrize("heartbeat", ["30", "0"])
def test_no_process_outlives_a_launcher_that_is_killed(start: Start, heartbeat: str) -> None:
    kill_launcher(start(LOOP, PERSEUS_HEARTBEAT_TIMEOUT=heartbeat))


def test_over_a_network(start: Start, test_beds: TestBeds, tmp_path: Path) -> None:
    """The remote shell is lost with the network, as ssh is, and it does not send signals."""
    test_bed = test_beds(2)
    with network_shell(test_bed, tmp_path) as shell:
        kill_launcher(start(LOOP, test_bed=test_bed, shell=shell))
        job = start(LOOP, test_bed=test_bed, shell=shell)
        job.wait_until_up()
        os.kill(starter_of(job, 2), signal.SIGKILL)
        code, output = job.end()
        assert code == 1, output
        assert re.search("perseusrun: first failure: .* on h2 ", output), output
        job = start(LOOP, test_bed=test_bed, shell=shell, PERSEUS_HEARTBEAT_TIMEOUT="2")
        job.wait_until_up()
        test_bed.cut("h2")
        code, output = job.end()
        assert code == 1, output
        assert re.search(
            "perseusrun: first failure: rank [23] on h2 does not answer any more: its host is down", output
        )


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 128 + signal.SIGINT), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_a_signal_ends_all_ranks(start: Start, signum: signal.Signals, code: int) -> None:
    job = start(SLEEP)
    job.wait_until_up()
    job.process.send_signal(signum)
    found, output = job.end()
    assert found == code, output
    assert f"perseusrun: {signum.name}: passing it on to the ranks" in output
    if signum == signal.SIGINT:
        assert output.count("<stdout>:interrupted") == 4, output


@pytest.mark.parametrize("rank", [0, 2])
def test_a_killed_process_that_starts_the_ranks_of_a_host(start: Start, rank: int) -> None:
    job = start(LOOP)
    job.wait_until_up()
    os.kill(starter_of(job, rank), signal.SIGKILL)
    code, output = job.end()
    assert code == 1, output
    host = "h1" if rank == 0 else "h2"
    assert f"perseusrun: first failure: the launcher's process on {host} was killed by SIGKILL" in output


def test_a_host_that_crashes(start: Start) -> None:
    job = start(LOOP)
    job.wait_until_up()
    job.test_bed.crash("h2")
    code, output = job.end()
    assert code == 1, output
    assert re.search("perseusrun: first failure: .* on h2 ", output), output


def test_a_host_that_cannot_be_reached(start: Start) -> None:
    for options in ((), ("--no-check-hosts",)):
        job = start(LOOP, "-np", "5", "-H", "h1:2,h2:2,h9:1", *options)
        code, output = job.end()
        assert code != 0
        assert re.search("perseusrun: .*h9 .*(cannot be reached|could not start any rank)", output), output
        assert "could not resolve hostname h9" in output


def test_what_a_host_lacks_is_named(start: Start, tmp_path: Path) -> None:
    hidden = tmp_path / "outer/inner"
    hidden.mkdir(parents=True)
    script = hidden / "script"
    script.write_text("#!/bin/sh\nexec sleep 1000\n")
    script.chmod(0o755)
    code, output = start("", hidden=hidden).end()
    assert code == 2, output
    assert f"the job was not started: h2 has no {hidden}; it must be at the same path on all hosts" in output
    code, output = start("", "--no-check-hosts", hidden=hidden).end()
    assert code == 126, output
    why = f"could not be started: cannot enter the folder {hidden} on h2: No such file or directory"
    assert f"perseusrun: first failure: each of ranks 2-3 {why}" in output
    code, output = start("", command=(str(script),), hidden=hidden).end()
    assert code == 127, output
    assert re.search(f"perseusrun: rank [23] on h2 could not be started: no such file: {script}", output), output


def test_no_secret_is_on_a_command_line(start: Start) -> None:
    job = start(SLEEP, "-x", "WORD=hush")
    job.wait_until_up()
    environment = Path(f"/proc/{job.pids[2]}/environ").read_text()
    secret = next(each for each in environment.split("\0") if each.startswith("PERSEUS_TCP_RENDEZVOUS=")).split()[-1]
    lines = [line_of(pid) for pid in processes_of(job.test_bed)]
    assert any("host_main.py" in line for line in lines)
    assert "WORD=hush" in environment.split("\0")
    assert len(secret) == 64
    assert [line for line in lines if secret in line or "hush" in line] == []
    job.process.send_signal(signal.SIGTERM)
    job.end()


def test_environment_and_folder(start: Start, tmp_path: Path) -> None:
    program = "import os; print(os.uname().nodename, os.getcwd(), *map(os.environ.get, ('HOME', 'MINE', 'SECRET')))"
    job = start(program, "-x", "SECRET=hush", HOME="/of/h1", MINE="mine")
    code, output = job.end()
    assert code == 0, output
    assert sorted(output.splitlines()) == [
        f"[{rank}]<stdout>:{host} {tmp_path} /of/{host} mine hush" for rank, host in enumerate(["h1", "h1", "h2", "h2"])
    ]
