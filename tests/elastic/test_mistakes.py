"""Checks the errors that users get for mistakes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from perseus_like.runner.elastic.constants import RESET_LIMIT_EXCEEDED_MESSAGE
from tests.job import run_to_end, succeeded

from .job import LAUNCHER, Start

Launch = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Returns a function that runs perseusrun with options and a program's text to its end."""

    def run(*options: str, program: str = "") -> subprocess.CompletedProcess[str]:
        file = tmp_path / "program.py"
        file.write_text("import os, sys\n" + program)
        return run_to_end([*LAUNCHER, *options, sys.executable, str(file)], tmp_path)

    return run


def script(folder: Path, text: str) -> str:
    path = folder / "discover.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


OPTIONS = {
    "how many": (("--host-discovery-script", "{ok}"), "--min-np N"),
    "none": (("--min-np", "0", "-H", "localhost:1"), "at least one worker"),
    "contradiction": (("--min-np", "3", "--max-np", "2", "-H", "localhost:4"), "--max-np 2 is less than the 3"),
    "start": (("--min-np", "3", "-np", "2", "-H", "localhost:4"), "-np 2 is less than --min-np 3"),
    "cool-down": (("--min-np", "1", "--blacklist-cooldown-range", "9", "3", "-H", "localhost"), "MIN MAX"),
    "interval": (("--min-np", "1", "--discovery-interval", "0", "-H", "localhost"), "greater than 0"),
    "alone": (("-np", "1", "--reset-limit", "3"), "--reset-limit applies to elastic jobs only"),
    "no script": (
        ("--min-np", "1", "--host-discovery-script", "./nowhere"),
        "no such file; give the path of an executable script",
    ),
    "no command": (("--min-np", "1", "--host-discovery-script", "./nowhere --all"), "no such file; give the path"),
    "no program": (("--min-np", "1", "--host-discovery-script", "{plain}"), "is not executable: chmod +x"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options(case: str, launch: Launch, tmp_path: Path) -> None:
    options, text = OPTIONS[case]
    plain = tmp_path / "plain"
    plain.touch()
    places = {"{ok}": script(tmp_path, "echo localhost:1"), "{plain}": str(plain)}
    job = launch(*(places.get(option, option) for option in options))
    assert job.returncode == 2
    assert text in job.stderr


SCRIPTS = {
    "fails": ("echo no idea >&2; exit 3", "it exited with code 3 and printed 'no idea'"),
    "rubbish": ("echo 'what: ever!'", "cannot read 'what:'"),
    "no slots": ("echo localhost", "'localhost' has no number of slots; print host:slots, or give --slots-per-host"),
}


@pytest.mark.parametrize("case", SCRIPTS)
def test_a_discovery_script_that_gives_no_hosts(case: str, launch: Launch, tmp_path: Path) -> None:
    body, text = SCRIPTS[case]
    job = launch("--min-np", "1", "--host-discovery-script", script(tmp_path, body))
    assert job.returncode == 1
    assert text in job.stderr


def test_no_host_can_be_reached(launch: Launch) -> None:
    job = launch("--min-np", "1", "--remote-shell", "/bin/false", "-H", "192.0.2.1:1")
    assert job.returncode == 1
    assert (
        "host 192.0.2.1 cannot be reached, or its agent does not start; the job does not use it any more" in job.stderr
    )
    assert "the job ends: all hosts have failed" in job.stderr


COMMANDS = {
    "arguments": ("{folder}/discover.sh localhost", "#!/bin/sh\necho $1:2\n"),
    "no first line": ("{folder}/discover.sh", "echo localhost:2\n"),
    "a line": ("cat {folder}/discover.sh | head -n 1", "localhost:2\nlocalhost:3\n"),
    "a host twice": ("{folder}/discover.sh", "#!/bin/sh\necho localhost:1\necho localhost:2\n"),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_discovery_commands_as_of_horovod(case: str, launch: Launch, tmp_path: Path) -> None:
    command, text = COMMANDS[case]
    file = tmp_path / "discover.sh"
    file.write_text(text)
    file.chmod(0o755)
    given = command.format(folder=tmp_path)
    job = succeeded(launch("--min-np", "1", "--host-discovery-script", given, program="print('here')"))
    assert job.stdout.count("here") == 2


def test_a_discovery_script_that_leaves_a_process(launch: Launch, tmp_path: Path) -> None:
    """The process holds the script's output open."""
    os.mkfifo(tmp_path / "pipe")
    given = script(tmp_path, "(read line <pipe) &\necho localhost:1")
    options = ("--min-np", "1", "--elastic-timeout", "20", "--host-discovery-script", given)
    job = launch(*options, program="print('here')")
    os.close(os.open(tmp_path / "pipe", os.O_RDWR))  # ends these processes
    assert job.returncode == 0, job.stderr
    assert job.stdout.count("here") == 1


def test_a_discovery_script_that_is_slow(launch: Launch, tmp_path: Path) -> None:
    given = script(tmp_path, "[ -e once ] || sleep 6; touch once; echo localhost:1")
    job = succeeded(launch("--min-np", "1", "--host-discovery-script", given, program="print('here')"))
    assert "the host discovery script has been running for 5 s; it is ended after 60 s" in job.stderr


def test_the_default_host(launch: Launch) -> None:
    job = succeeded(launch("--min-np", "2", program="print('here')"))
    assert job.stdout.count("here") == 2


def test_slots_of_hosts_without_a_number(launch: Launch, tmp_path: Path) -> None:
    two_names = script(tmp_path, "echo localhost; echo 127.0.0.2")
    job = launch(
        "--min-np", "4", "--slots-per-host", "2", "--host-discovery-script", two_names, program="print('here')"
    )
    assert job.returncode == 0, job.stderr
    assert job.stdout.count("here") == 4


def test_too_few_slots(launch: Launch) -> None:
    job = launch("--min-np", "5", "--elastic-timeout", "1", "-H", "localhost:2,127.0.0.2:1")
    assert job.returncode == 1
    assert "waited 1 s for 5 workers (--elastic-timeout); hosts: localhost:2, 127.0.0.2:1" in job.stderr


def test_every_worker_fails(launch: Launch) -> None:
    # The launcher gives up, although a cool-down would let it try again.
    options = ("--min-np", "2", "--blacklist-cooldown-range", "0", "0", "-H", "localhost:2")
    job = launch(*options, program="sys.exit(5)")
    assert job.returncode == 5
    assert "all workers have failed" in job.stderr


def test_init_is_never_called(launch: Launch) -> None:
    waits = "import signal; signal.pause()"
    job = launch("--min-np", "1", "--start-timeout", "1", "-H", "localhost:1", program=waits)
    assert job.returncode == 137
    assert "did not call init() within 1 s (--start-timeout); the launcher has ended it" in job.stderr


def test_a_script_that_is_not_elastic(launch: Launch) -> None:
    """The script runs. If a worker dies, the other workers do not continue."""
    program = """
import signal
import numpy as np
import perseus_like.numpy as hvd
hvd.init()
assert hvd.allreduce(np.ones(3), op=hvd.Sum).tolist() == [2.0] * 3
if hvd.rank() == 1 and "die" in os.environ:
    os.kill(os.getpid(), signal.SIGKILL)
hvd.barrier()
"""
    options = ("--min-np", "2", "-H", "localhost:2")
    assert launch(*options, program=program).returncode == 0
    job = launch(*options, "-x", "die=1", program=program)
    assert job.returncode == 137
    assert "PeerLostError" in job.stderr


def test_init_for_some_of_the_workers_is_an_error(launch: Launch) -> None:
    program = "import perseus_like as hvd\nhvd.init(comm=[0])"
    job = launch("--min-np", "1", "-H", "localhost:1", program=program)
    assert job.returncode == 1
    assert "init(comm=…): in an elastic job the launcher decides which workers belong to it" in job.stderr


def test_init_in_a_child_of_a_worker_is_an_error(launch: Launch) -> None:
    program = """
import subprocess
import perseus_like as hvd
hvd.init()
child = [sys.executable, "-c", "import perseus_like as hvd; hvd.init()"]
sys.exit(subprocess.run(child).returncode)
"""
    job = launch("--min-np", "1", "-H", "localhost:1", program=program)
    assert job.returncode == 1
    assert "this process is no worker of the elastic job around it" in job.stderr


def test_the_script_fails_for_a_while(start: Start, tmp_path: Path) -> None:
    job = start("train_numpy.py", "--min-np", "1", hosts="localhost:1", arguments=("0.01",))
    job.next_event("commit")
    hosts = tmp_path / "hosts"
    hosts.rename(tmp_path / "away")
    assert "the known hosts stay: it exited with code 1" in job.next_line("the host discovery script")
    job.hosts("localhost:2")
    job.commit_of(2)
    job.finish_trained()


def test_a_host_where_workers_fail_at_once(start: Start) -> None:
    """Training continues without these workers, and the launcher waits longer each time before it starts new ones."""
    options = ("--min-np", "1", "--blacklist-cooldown-range", "1", "2", "-x", "FAILS_ON=127.0.0.2")
    job = start("train_numpy.py", *options, hosts="localhost:2,127.0.0.2:1", arguments=("0.01",))
    for pause in (1, 2, 2):
        assert f"127.0.0.2 gets no new worker for {pause} s" in job.next_line("exited with code 6")
    assert job.next_event("commit")["size"] == 2
    job.finish_trained()


def test_too_many_resets(start: Start) -> None:
    options = ("--min-np", "1", "--reset-limit", "1")
    job = start("train_numpy.py", *options, hosts="localhost:1,127.0.0.2:1,127.0.0.3:1", arguments=("0.01",))
    for size in (3, 2):
        job.commit_of(size)
        job.kill(job.workers()[0])
    assert job.end() == 137
    assert RESET_LIMIT_EXCEEDED_MESSAGE.format(1) in job.text


def test_the_last_worker_with_the_state_dies(start: Start) -> None:
    """The job fails. Training must not start from the beginning without an error."""
    options = ("--min-np", "1", "--blacklist-cooldown-range", "0", "0")
    job = start("train_numpy.py", *options, hosts="localhost:1", arguments=("0.01",))
    job.next_event("commit")
    job.kill(job.workers()[0])
    assert job.end() == 137
    assert "no worker of the last generation is left" in job.text


def test_too_few_workers_are_left(start: Start) -> None:
    options = ("--min-np", "2", "--elastic-timeout", "1")
    job = start("train_numpy.py", *options, hosts="localhost:1,127.0.0.2:1", arguments=("0.01",))
    job.next_event("commit")
    job.kill(job.workers()[0])
    assert job.end() == 137
    assert "waited 1 s for 2 workers" in job.text
