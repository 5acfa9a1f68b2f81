"""Checks the launcher's exit codes, and its messages about a rank that fails."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.job import LIMIT_SECONDS, PATIENT_LAUNCHER, wait_until

from .conftest import Launched, Perseusrun, Script


def test_a_successful_job_exits_with_0(perseusrun: Perseusrun, script: Script) -> None:
    # A machine of one core would get a note.
    result = perseusrun("-np", "3", "--oversubscribe", sys.executable, script("pass"))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("code", [1, 3, 255])
def test_the_launcher_exits_with_the_code_of_the_failing_rank(
    perseusrun: Perseusrun, script: Script, code: int
) -> None:
    result = perseusrun("-np", "3", sys.executable, script(f"sys.exit({code}) if rank == 1 else signal.pause()"))
    assert result.returncode == code
    assert "rank 1 (pid" in result.stderr
    assert f"exited with code {code}" in result.stderr


@pytest.mark.parametrize(("name", "code"), [("SIGKILL", 137), ("SIGSEGV", 139), ("SIGABRT", 134)])
def test_rank_killed_by_a_signal(perseusrun: Perseusrun, script: Script, name: str, code: int) -> None:
    program = script(f"os.kill(os.getpid(), signal.{name}) if rank == 2 else signal.pause()")
    result = perseusrun("-np", "3", sys.executable, program)
    assert result.returncode == code
    assert "rank 2 (pid" in result.stderr
    assert f"was killed by {name}" in result.stderr


def test_a_rank_may_end_successfully_before_the_others(perseusrun: Perseusrun, script: Script, tmp_path: Path) -> None:
    # Rank 0 ends last, because it reads from a pipe that only the other ranks hold open.
    program = script("""
        fifo = "wait"
        if rank == 0:
            os.mkfifo(fifo + ".partial"); os.rename(fifo + ".partial", fifo)
            assert open(fifo).read() == ""
            print("last")
        else:
            while not os.path.exists(fifo):
                os.sched_yield()
            open(fifo, "w").close()
    """)
    result = perseusrun("-np", "2", sys.executable, program)
    assert (result.returncode, result.stdout) == (0, "[0]<stdout>:last\n"), result.stderr


def test_messages_of_ranks_that_lost_a_peer_are_shown(perseusrun: Perseusrun, script: Script) -> None:
    program = script("""
        import socket
        name = "\\0" + os.environ["PERSEUS_RENDEZVOUS"]
        if rank == 0:
            server = socket.socket(socket.AF_UNIX); server.bind(name); server.listen()
            peer, _ = server.accept()
            assert peer.recv(1) == b""
            print("lost rank 1", file=sys.stderr)
            sys.exit(5)
        peer = socket.socket(socket.AF_UNIX)
        while peer.connect_ex(name) != 0:
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    result = perseusrun("-np", "2", sys.executable, program, launcher=PATIENT_LAUNCHER)
    assert result.returncode == 137
    assert "[0]<stderr>:lost rank 1\n" in result.stderr
    assert re.search(r"after that, rank 0 \(pid \d+\) on \S+ exited with code 5", result.stderr)


def test_a_rank_that_ignores_sigterm_is_killed(perseusrun: Perseusrun, script: Script) -> None:
    program = script("""
        if rank == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("ready")
            while True:
                signal.pause()
        sys.exit(4)
    """)
    assert perseusrun("-np", "2", sys.executable, program).returncode == 4


def test_output_of_a_killed_rank_is_kept(perseusrun: Perseusrun, script: Script) -> None:
    program = script("""
        print("before"); print("half a line", end=""); os.kill(os.getpid(), signal.SIGKILL)
    """)
    result = perseusrun("-np", "1", sys.executable, program)
    assert result.stdout == "[0]<stdout>:before\n[0]<stdout>:half a line\n"


def test_a_rank_that_ends_before_init_ends_the_job(perseusrun: Perseusrun, script: Script) -> None:
    """The start time-out does not pass first."""
    program = script("""
        if rank == 1:
            sys.exit(0)
        import perseus_like as hvd
        hvd.init()
    """)
    result = perseusrun("-np", "2", "--start-timeout", "600", sys.executable, program)
    assert result.returncode == 1
    assert "first failure: rank 1 " in result.stderr
    assert "ended with code 0 before init(), in which other ranks wait for it" in result.stderr


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_ends_after_init_has_failed_ends_the_job(
    failing: int, perseusrun: Perseusrun, script: Script
) -> None:
    """The start time-out does not pass first."""
    program = script(f"""
        import perseus_like as hvd
        if rank == {failing}:
            os.environ["PERSEUS_CPU_TRANSPORT"] = "nonsense"
        try:
            hvd.init()
        except ValueError:
            sys.exit(0)
    """)
    result = perseusrun("-np", "2", "--start-timeout", "600", sys.executable, program)
    assert result.returncode == 1
    assert f"first failure: rank {failing} " in result.stderr
    assert "ended with code 0 before init(), in which other ranks wait for it" in result.stderr


# The launcher looks once only at whether ranks wait in init() for one that has ended.
LOOKS_ONCE = """
import sys
from perseus_like.launch import main
from perseus_like.launch.processes import supervise
supervise._LOOK_SECONDS = 1e6
sys.exit(main())
"""


def test_the_error_of_a_rank_whose_init_is_failing_is_the_one_that_is_reported(
    perseusrun: Perseusrun, script: Script, tmp_path: Path
) -> None:
    """The other rank has ended with code 0 after the failure of its init(), and the launcher knows it."""
    program = script(f"""
        from pathlib import Path
        import perseus_like as hvd
        from perseus_like.session import session
        waits = Path({str(tmp_path / "waits")!r})
        pid_file = Path({str(tmp_path / "pid")!r})
        if rank == 1:
            def fail(*arguments):
                pid_file.with_suffix(".new").write_text(str(os.getpid()))
                pid_file.with_suffix(".new").rename(pid_file)
                while not waits.exists():
                    time.sleep(0.001)
                raise ValueError("first")
        else:
            def fail(*arguments):
                waits.touch()
                while not pid_file.exists() or Path("/proc", pid_file.read_text()).exists():
                    time.sleep(0.001)
                raise ValueError("better")
        session.start = fail
        try:
            hvd.init()
        except ValueError:
            if rank == 0:
                raise
    """)
    launcher = [sys.executable, "-c", LOOKS_ONCE]
    result = perseusrun("-np", "2", "--start-timeout", "600", sys.executable, program, launcher=launcher)
    assert result.returncode == 1
    assert "first failure: rank 0 " in result.stderr, result.stderr
    assert "ValueError: better" in result.stderr
    assert "ended with code 0" not in result.stderr


def test_ranks_that_do_not_call_init_may_end_at_any_time(perseusrun: Perseusrun, script: Script) -> None:
    program = script("""
        if rank == 1:
            sys.exit(0)
        import perseus_like as hvd
        hvd.init(comm=[0])
        print(hvd.size())
    """)
    result = perseusrun("-np", "2", sys.executable, program)
    assert (result.returncode, result.stdout) == (0, "[0]<stdout>:1\n"), result.stderr


def test_no_such_program(perseusrun: Perseusrun) -> None:
    one = functools.partial(os.sched_setaffinity, 0, {min(os.sched_getaffinity(0))})
    result = perseusrun("-np", "3", "no-such-program", preexec_fn=one)  # without the note about ranks on one core
    assert result.returncode == 127
    assert result.stderr == (
        "perseusrun: 'no-such-program': no such program; give its path, or add its folder to PATH\n"
        "more about it: perseusrun --explain 'no such program'\n"
    )


@pytest.mark.parametrize("options", [[], ["--mpi"]], ids=["local", "mpirun"])
def test_a_script_without_its_interpreter(perseusrun: Perseusrun, tmp_path: Path, options: list[str]) -> None:
    if options and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    program = tmp_path / "program"
    program.write_text("#!/no/such/python3 -u\n")
    program.chmod(0o755)
    result = perseusrun("-np", "1", *options, str(program))
    assert result.returncode == 127
    assert f"cannot run {str(program)!r}: its interpreter '/no/such/python3', named in its first" in result.stderr


def test_a_script_of_windows(perseusrun: Perseusrun, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"#!/bin/sh\r\necho a shell\r\n")
    program.chmod(0o755)
    result = perseusrun("-np", "1", "./program")
    assert result.returncode == 127
    assert "its lines end with CR LF, as on Windows, so that its interpreter would be '/bin/sh\\r'" in result.stderr
    line = result.stderr.partition("convert the file: ")[2].splitlines()[0]
    subprocess.run(["sh", "-c", line], cwd=tmp_path, check=True)
    assert perseusrun("-np", "1", "./program").stdout == "[0]<stdout>:a shell\n"


def test_a_script_without_a_first_line(perseusrun: Perseusrun, tmp_path: Path) -> None:
    (tmp_path / "program").write_text("echo a shell\n")
    (tmp_path / "program").chmod(0o755)
    result = perseusrun("-np", "1", "./program")
    assert result.returncode == 126
    assert "its first line does not begin with #!" in result.stderr


def test_program_that_cannot_be_run(perseusrun: Perseusrun, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no program")
    result = perseusrun("-np", "2", "./data")
    assert result.returncode == 126
    assert "cannot run './data'" in result.stderr


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((), "the command to run is missing"),
        (("python",), "the number of ranks is missing"),
        (("-np", "0", "python"), "at least one"),
        (("-np", "x", "python"), "invalid int value"),
        (("--nonsense", "-np", "1", "python"), "--nonsense"),
        (("-np", "3", "-H", "localhost:2", "python"), "have 2 slots"),
        (("-np", "1", "-x", "a-b=1", "python"), "not the name of an environment variable"),
        (("-np", "1", "--hostfile", "missing", "python"), "cannot read the host file"),
        (("-np", "1", "--fusion-threshold-mb", "lots", "python"), "not a number"),
        (("-np", "1", "--log-level", "silly", "python"), "not one of trace, debug, info, warning, error, fatal, off"),
        (("-np", "100000", "python"), "add --oversubscribe"),
        (("-H", "localhost:100000", "python"), "add --oversubscribe"),
    ],
)
def test_wrong_usage_is_one_line(perseusrun: Perseusrun, args: list[str], text: str) -> None:
    result = perseusrun(*args)
    assert result.returncode == 2
    assert text in result.stderr
    assert [line.startswith("more about it: ") for line in result.stderr.splitlines()] in ([False], [False, True])
    assert result.stdout == ""


def test_several_ranks_on_a_core_are_noted_once(perseusrun: Perseusrun) -> None:
    one = functools.partial(os.sched_setaffinity, 0, {min(os.sched_getaffinity(0))})
    note = "perseusrun: 3 ranks share 1 core of this host (3 ranks per core), so each is slower\n"
    for options, expected in (([], note), (["--oversubscribe"], "")):
        assert perseusrun("-np", "3", *options, "true", preexec_fn=one).stderr == expected


def test_a_rank_that_lost_a_peer_is_not_the_first_failure(perseusrun: Perseusrun, script: Script) -> None:
    # Rank 0 ends first: rank 1 waits until rank 0 closes their connection.
    program = script("""
        import socket
        name = "\\0" + os.environ["PERSEUS_RENDEZVOUS"]
        if rank == 0:
            server = socket.socket(socket.AF_UNIX); server.bind(name); server.listen()
            peer, _ = server.accept()
            print("perseus_like.errors.PeerLostError: rank 1 has left", file=sys.stderr)
            sys.exit(5)
        peer = socket.socket(socket.AF_UNIX)
        while peer.connect_ex(name) != 0:
            os.sched_yield()
        peer.recv(1)
        sys.exit(7)
    """)
    result = perseusrun("-np", "2", sys.executable, program, launcher=PATIENT_LAUNCHER)
    assert result.returncode == 7
    messages = [line for line in result.stderr.splitlines() if line.startswith("perseusrun: ")]
    assert re.fullmatch(r"perseusrun: after that, rank 0 \(pid \d+\) on \S+ exited with code 5", messages[-2])
    assert re.fullmatch(r"perseusrun: first failure: rank 1 \(pid \d+\) on \S+ exited with code 7", messages[-1])


@pytest.mark.parametrize("closed", [(0,), (0, 1), (0, 1, 2)])
def test_closed_standard_streams(launched: Launched, script: Script, tmp_path: Path, closed: tuple[int, ...]) -> None:
    program = script("""
        if rank == 0:
            assert sys.stdin.read() == ""
        open(f"done.{rank}", "w").close()
        signal.pause()
    """)

    def close() -> None:
        for descriptor in closed:
            os.close(descriptor)

    job = launched("-np", "2", sys.executable, program, preexec_fn=close)
    wait_until(lambda: all((tmp_path / f"done.{rank}").exists() for rank in (0, 1)), "the ranks do not come so far")
    job.terminate()
    assert job.wait(LIMIT_SECONDS) == 143
