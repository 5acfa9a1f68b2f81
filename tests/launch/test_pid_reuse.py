"""Checks that the guard does not kill an unrelated process that has the pid of an ended worker."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.job import run_to_end

# This program is the first process of a pid namespace, so it can choose the next pid.
INSIDE = """
import os, re, signal, subprocess, sys, time
from pathlib import Path

def is_of_the_job(entry):
    try:
        return b"PERSEUS_TEST_JOB=reuse" in (entry / "environ").read_bytes()
    except OSError:
        return False

def start_unrelated_process(pid):
    for _ in range(100):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        unrelated = subprocess.Popen(["sleep", "600"], start_new_session=True, env={"PATH": os.environ["PATH"]})
        if unrelated.pid == pid:
            return unrelated
        unrelated.kill()
        unrelated.wait()
    sys.exit("the pid did not come again")

options = ["--min-np", "1", "-H", "localhost:1,127.0.0.2:1", "--no-prefix"]
launcher = subprocess.Popen(
    [sys.executable, "-m", "perseus_like.launch", *options, "sh", "-c", "echo $$; exec sleep 600"],
    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    env={**os.environ, "PERSEUS_TEST_JOB": "reuse"},
)
lines = iter(launcher.stdout)
workers = [next(int(line) for line in lines if line.strip().isdecimal()) for _ in range(2)]
os.kill(workers[1], signal.SIGKILL)
next(line for line in lines if "was killed by SIGKILL" in line)
unrelated = start_unrelated_process(workers[1])
launcher.kill()
launcher.wait()
while any(entry.name.isdecimal() and is_of_the_job(entry) for entry in Path("/proc").iterdir()):
    time.sleep(0.02)
assert unrelated.poll() is None, "the guard has killed an unrelated process"
print("the unrelated process lives")
"""


def test_the_guard_does_not_kill_a_process_that_reuses_the_pid_of_a_worker(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare, to choose the next pid in a namespace of its own")
    program = tmp_path / "inside.py"
    program.write_text(INSIDE)
    job = run_to_end(["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, str(program)])
    assert job.stdout == "the unrelated process lives\n", job.stdout + job.stderr
