"""Checks that the ranks find each other again after `torchrun --max-restarts 3` has lost a rank at a random moment.

`make test-restarts` makes 20 runs on one host and 20 on two, and prints them. `make test` makes three runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.job import LIMIT_SECONDS, needs, start_process, wait_until

from ..conftest import TestBeds
from ..network_test_bed import NetworkTestBed

needs("torch")

# The program runs until the test has killed a rank. The test kills it in the first round, at any time after its start.
PROGRAM = """
import json, os
import torch
import torch.distributed as dist
if not hasattr(dist.Backend, "PERSEUS"):  # torch before 2.5 does not load the backend by itself
    import perseus_like.torch.distributed

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])

def note(kind, text):
    with open(f"{kind}-{rank}.new", "w") as file:
        file.write(text)
    os.rename(file.name, f"{kind}-{rank}")

if attempt == 0:
    note("pid", str(os.getpid()))
dist.init_process_group("perseus")
ends = dist.new_group([0, dist.get_world_size() - 1])
flag, steps = torch.zeros(1), 0
while not flag.item():
    total = torch.full((70_000,), 2.0 ** rank)
    dist.all_reduce(total)
    assert total.unique().tolist() == [2.0 ** dist.get_world_size() - 1]
    flag.fill_(os.path.exists("killed"))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    steps += 1
if dist.get_rank(ends) >= 0:
    dist.barrier(group=ends)
from perseus_like.session import session
note("done", json.dumps({"attempt": attempt, "steps": steps, "how": session.core.description()}))
dist.destroy_process_group()
"""
RANKS = 4
TWENTY = pytest.param(20, id="20 runs", marks=[pytest.mark.slow, pytest.mark.timeout(4000)])
LONGEST_DELAY_SECONDS = 1.5


def agents(test_bed: NetworkTestBed | None, folder: Path, backend: str) -> list[subprocess.Popen[str]]:
    """Starts torchrun with four ranks, and returns its processes, of which each host has one."""
    hosts = test_bed.hosts if test_bed else ["localhost"]
    address = test_bed.address("h1") if test_bed else "127.0.0.1"
    line = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(hosts)), "--max-restarts", "3"]
    line += ["--nproc-per-node", str(RANKS // len(hosts)), "--redirects", "3", "--log-dir", "log"]
    line += ["--monitor-interval", "0.5"]
    processes = []
    for node, host in enumerate(hosts):
        where = ["--master-addr", address, "--master-port", "29500", "--node-rank", str(node)]
        if backend == "c10d":
            where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{address}:29500" if test_bed else "127.0.0.1:0"]
            where += ["--rdzv-id", "restarts"]
        if test_bed is None and backend == "static":
            where = []  # torchrun takes PET_MASTER_PORT, which tests/conftest.py has reserved
        command = [*line, *where, "program.py"]
        if test_bed is None:  # one host needs no MPI
            processes.append(start_process(command, folder, PERSEUS_MPI_LIBRARY="/nowhere/libmpi.so"))
        else:
            processes.append(start_process(test_bed.command(host, command, folder), folder))
    return processes


@contextlib.contextmanager
def running(processes: list[subprocess.Popen[str]]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=LIMIT_SECONDS)
            process.kill()


def one_run(test_bed: NetworkTestBed | None, folder: Path, seed: int) -> str:
    """Returns a line that describes the run. Raises AssertionError with the ranks' logs if the job failed."""
    choice = random.Random(seed)
    backend, victim = choice.choice(["static", "c10d"]), choice.randrange(RANKS)
    delay = choice.uniform(0, LONGEST_DELAY_SECONDS)
    folder.mkdir()
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    processes = agents(test_bed, folder, backend)
    with running(processes):
        pid = folder / f"pid-{victim}"
        wait_until(lambda: pid.exists() or any(each.poll() is not None for each in processes), lambda: logs(folder))
        assert pid.exists(), logs(folder)
        time.sleep(delay)  # the random moment
        os.kill(int(pid.read_text()), signal.SIGKILL)
        begin = time.monotonic()
        (folder / "killed").touch()
        try:
            for process in processes:
                process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"seed {seed} ({backend}, rank {victim} after {delay:.2f} s) hangs\n{logs(folder)}")
    went = f"seed {seed}, {backend}: rank {victim} killed {delay:.2f} s after its start"
    assert [process.returncode for process in processes] == [0] * len(processes), f"{went}\n{logs(folder)}"
    done = [json.loads((folder / f"done-{rank}").read_text()) for rank in range(RANKS)]
    assert len({each["steps"] for each in done}) == 1, done
    attempts = [each["attempt"] for each in done]
    return f"{went}; all ended {time.monotonic() - begin:.1f} s later, restart counts {attempts}: {done[0]['how']}"


def logs(folder: Path) -> str:
    return "\n".join(f"== {file}\n{file.read_text()[-3000:]}" for file in sorted(folder.glob("log/**/std*.log")))


def repeat(runs: int, test_bed: NetworkTestBed | None, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = int(os.environ.get("PERSEUS_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
    for number in range(runs):
        went = one_run(test_bed, folder / str(number), first + number)
        with capsys.disabled():
            print(f"\n{number + 1} of {runs}: {went}", end="", flush=True)


@pytest.mark.slow
@pytest.mark.parametrize("runs", [pytest.param(1, id="1 run"), TWENTY])
def test_one_host_without_mpi(runs: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repeat(runs, None, tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.usefixtures("ucx")
@pytest.mark.parametrize("runs", [pytest.param(1, id="1 run"), TWENTY])
def test_two_hosts(runs: int, test_beds: TestBeds, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repeat(runs, test_beds(2), tmp_path, capsys)
