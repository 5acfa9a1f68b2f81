"""Checks that no process of a job is left, however the job ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.job import LIMIT_SECONDS

from .conftest import Ends, Launched, LinesOf, Script

# A rank that has two child processes: a helper, such as a data loader's worker, and a daemon in its own session.
FAMILY = """
helper = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
start_daemon = "setsid sleep 1000 >/dev/null 2>&1 & echo $!"
daemon = subprocess.run(["sh", "-c", start_daemon], stdout=subprocess.PIPE, text=True).stdout
while os.getsid(int(daemon)) == os.getsid(0):
    os.sched_yield()
print(os.getpid(), helper.pid, int(daemon))
"""


def family(lines: list[str]) -> list[int]:
    return [int(word) for line in lines for word in line.split(":", 1)[1].split()]


def kill_quietly(members: list[int]) -> None:
    for pid in members:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_no_process_is_left_after_a_failure(launched: Launched, script: Script, lines_of: LinesOf, ends: Ends) -> None:
    job = launched(
        "-np", "2", sys.executable, script(FAMILY + "sys.stdin.read() if rank else signal.pause()\nsys.exit(rank)")
    )
    members = family(lines_of(job, 2))
    assert job.wait(LIMIT_SECONDS) == 1
    assert all(ends(pid) for pid in members)


def test_no_process_is_left_after_an_interrupt(
    launched: Launched, script: Script, lines_of: LinesOf, ends: Ends
) -> None:
    job = launched("-np", "2", sys.executable, script(FAMILY + "signal.pause()"))
    members = family(lines_of(job, 2))
    job.send_signal(signal.SIGINT)
    assert job.wait(LIMIT_SECONDS) == 130
    assert all(ends(pid) for pid in members)


def test_no_process_is_left_after_the_launcher_is_killed(
    launched: Launched, script: Script, lines_of: LinesOf, ends: Ends
) -> None:
    job = launched("-np", "2", "--oversubscribe", sys.executable, script(FAMILY + "while True: signal.pause()"))
    members = family(lines_of(job, 2))
    job.kill()
    assert all(ends(pid) for pid in members)
    # The reader of the job's output also sees its end, because the guard process holds no copy of the pipe.
    assert job.communicate(timeout=LIMIT_SECONDS) == ("", "")


def test_a_daemon_that_writes_without_end_does_not_keep_the_launcher(launched: Launched, script: Script) -> None:
    program = script("""
        daemon = subprocess.Popen(["yes"], start_new_session=True)
        print(daemon.pid)
    """)
    job = launched("-np", "1", sys.executable, program, stdout=subprocess.DEVNULL)
    assert job.wait(60) == 0  # the daemon ends by SIGPIPE


def test_helpers_end_with_a_successful_job_but_daemons_stay(
    launched: Launched, script: Script, lines_of: LinesOf, ends: Ends
) -> None:
    job = launched("-np", "1", sys.executable, script(FAMILY))
    rank, helper, daemon = family(lines_of(job, 1))
    try:
        assert job.wait(LIMIT_SECONDS) == 0
        assert ends(rank)
        assert ends(helper)
        os.kill(daemon, 0)
    finally:
        kill_quietly([daemon])


def test_helpers_end_with_a_successful_job_of_an_mpirun(launched: Launched, ends: Ends) -> None:
    """mpirun waits until all copies of a rank's output are closed, and the helper writes without end."""
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    program = "import subprocess, sys; print(subprocess.Popen(['yes']).pid, file=sys.stderr)"
    job = launched("--mpi", "-np", "1", sys.executable, "-c", program, stdout=subprocess.DEVNULL)
    _, errors = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 0, errors
    assert ends(*family(errors.splitlines()))


@pytest.mark.parametrize("args", [("-np", "2"), ("-np", "2", "--no-prefix")])
def test_the_job_ends_if_the_reader_of_its_output_closes_the_pipe(
    launched: Launched, script: Script, lines_of: LinesOf, args: list[str]
) -> None:
    job = launched(*args, sys.executable, script("while True: print('y' * 100)"))
    lines_of(job, 10)
    assert job.stdout is not None
    job.stdout.close()
    assert job.wait(LIMIT_SECONDS) == 141
    job.stdout = None
