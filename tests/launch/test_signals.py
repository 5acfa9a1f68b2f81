"""Checks that signals that the user sends to the launcher reach the ranks."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.job import LIMIT_SECONDS, wait_until

from .conftest import Ends, Launched, LinesOf, Perseusrun, Script

READY = 'print("ready", os.getpid())\n'


def pids(lines: list[str]) -> list[int]:
    return [int(line.rsplit(" ", 1)[1]) for line in lines]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopping_signals_reach_all_ranks(
    launched: Launched, script: Script, lines_of: LinesOf, ends: Ends, signum: int
) -> None:
    job = launched(
        "-np", "3", sys.executable, script(f"signal.signal({signum}, signal.SIG_DFL)\n{READY}signal.pause()")
    )
    ranks = pids(lines_of(job, 3))
    job.send_signal(signum)
    assert job.wait(LIMIT_SECONDS) == 128 + signum
    assert all(ends(pid) for pid in ranks)


def test_ranks_may_handle_a_stopping_signal_and_exit_with_0(
    launched: Launched, script: Script, lines_of: LinesOf
) -> None:
    program = script("""
        def stop(signum, frame):
            print("saved")
            sys.exit(0)
        signal.signal(signal.SIGTERM, stop)
        print("ready")
        while True:
            signal.pause()
    """)
    job = launched("-np", "2", sys.executable, program)
    lines_of(job, 2)
    job.send_signal(signal.SIGTERM)
    out, _ = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 0
    assert sorted(out.splitlines()) == ["[0]<stdout>:saved", "[1]<stdout>:saved"]


def test_ranks_that_ignore_signals_are_killed_after_the_stop_timeout(
    launched: Launched, script: Script, lines_of: LinesOf, ends: Ends
) -> None:
    program = script(f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{READY}\nwhile True: signal.pause()")
    job = launched("-np", "2", "--stop-timeout", "0.2", sys.executable, program)
    ranks = pids(lines_of(job, 2))
    job.send_signal(signal.SIGTERM)
    assert job.wait(LIMIT_SECONDS) == 137
    assert all(ends(pid) for pid in ranks)


INTERRUPTED = """
import perseus_like
def evaluate():
    print("ready"); signal.pause()
try:
    1 / is_good
except ZeroDivisionError:
    evaluate()
evaluate()
"""


def run_interrupted(launched: Launched, lines_of: LinesOf, program: str, *options: str) -> list[str]:
    """Returns what an interrupted job of two ranks writes to stderr after its first line."""
    job = launched("-np", "2", *options, sys.executable, program)
    lines_of(job, 2)
    job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 128 + signal.SIGINT
    first, *lines = err.splitlines()
    assert first.startswith("perseusrun: SIGINT: passing it on to the ranks")
    return lines


def test_an_interrupt_shows_once_where_the_ranks_were(launched: Launched, script: Script, lines_of: LinesOf) -> None:
    program = script("is_good = True\n" + INTERRUPTED)
    shown, folded = run_interrupted(launched, lines_of, program)
    place = rf'File "{re.escape(program)}", line \d+, in evaluate: print\("ready"\); signal\.pause\(\)'
    found = re.fullmatch(rf"\[([01])\]<stderr>:KeyboardInterrupt: {place}", shown)
    assert found, shown
    assert folded == f"perseusrun: [{1 - int(found[1])}]: the same traceback as [{found[1]}]"


@pytest.mark.parametrize(("is_good", "options"), [(False, []), (True, ["--full-tracebacks"])], ids=["error", "option"])
def test_an_interrupt_shows_the_traceback_of_an_error_before_it(
    launched: Launched, script: Script, lines_of: LinesOf, is_good: bool, options: list[str]
) -> None:
    lines = run_interrupted(launched, lines_of, script(f"is_good = {is_good}\n" + INTERRUPTED), *options)
    assert any(line.endswith("]<stderr>:Traceback (most recent call last):") for line in lines)
    assert any(line.endswith("]<stderr>:KeyboardInterrupt") for line in lines)
    assert any("ZeroDivisionError" in line for line in lines) is not is_good


def test_a_second_interrupt_kills(launched: Launched, script: Script, lines_of: LinesOf, ends: Ends) -> None:
    program = script(f"""
        def interrupted(signum, frame):
            print("interrupted")
        signal.signal(signal.SIGINT, interrupted)
        {READY}
        while True:
            signal.pause()
    """)
    job = launched("-np", "2", "--stop-timeout", "1000", sys.executable, program)
    ranks = pids(lines_of(job, 2))
    job.send_signal(signal.SIGINT)
    lines_of(job, 2)
    job.send_signal(signal.SIGINT)
    assert job.wait(LIMIT_SECONDS) == 137
    assert all(ends(pid) for pid in ranks)


STARTING = """
import os, signal, sys, threading
import perseus_like.numpy as hvd

def say_ready():
    os.write(1, f"ready {os.getpid()}\\n".encode())  # in one piece, so that mpirun keeps the line together

def say_when_main_waits():
    while sys._current_frames()[threading.main_thread().ident].f_code.co_name != "start":
        pass
    say_ready()

if "0" in map(os.environ.get, ("PERSEUS_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")):
    threading.Thread(target=say_when_main_waits, daemon=True).start()
    hvd.init()
say_ready()
signal.pause()
"""


@pytest.mark.parametrize("options", [[], ["--mpi"]], ids=["one host", "mpirun"])
def test_an_interrupt_ends_a_rank_that_waits_for_others_to_start(
    options: list[str], launched: Launched, lines_of: LinesOf, ends: Ends
) -> None:
    if options and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    job = launched(*options, "-np", "2", "--stop-timeout", "1000", sys.executable, "-c", STARTING)
    ranks = pids(lines_of(job, 2))
    job.send_signal(signal.SIGINT)
    assert job.wait(LIMIT_SECONDS) == 130
    assert all(ends(pid) for pid in ranks)


@pytest.mark.parametrize("options", [[], ["--mpi"]], ids=["one host", "mpirun"])
@pytest.mark.parametrize("signum", [signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2])
def test_user_signals_are_forwarded_and_the_job_continues(
    signum: signal.Signals, options: list[str], launched: Launched, lines_of: LinesOf
) -> None:
    """An mpirun forwards some signals only. When the signal comes, ranks may not be connected to the launcher yet."""
    if options and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    program = (
        f"import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {{signal.{signum.name}}})\n"
        f"print('ready', flush=True)\nsignal.sigwait({{signal.{signum.name}}})\nprint('got it', flush=True)\n"
    )
    job = launched(*options, "-np", "2", sys.executable, "-c", program)
    lines_of(job, 2)
    job.send_signal(signum)
    out, errors = job.communicate(timeout=LIMIT_SECONDS)
    assert (job.returncode, sorted(out.splitlines())) == (0, ["[0]<stdout>:got it", "[1]<stdout>:got it"]), errors


def test_nohup_is_respected(launched: Launched, script: Script, lines_of: LinesOf) -> None:
    program = script('print("ready")\nsys.stdin.readline()\nprint("done")')
    job = launched(
        *("-np", "1", sys.executable, program),
        stdin=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    lines_of(job, 1)
    job.send_signal(signal.SIGHUP)
    out, _ = job.communicate("\n", timeout=LIMIT_SECONDS)
    assert (job.returncode, out) == (0, "[0]<stdout>:done\n")


def test_the_launcher_handles_signals_while_it_starts_ranks(launched: Launched, tmp_path: Path) -> None:
    """Rank 0 signals its launcher at once. To start the others takes much longer than that."""
    program = "[ $PERSEUS_RANK = 0 ] && kill -TERM $PPID; exec sleep 1000"
    job = launched("-np", "1000", "--oversubscribe", "--output-filename", "logs", "sh", "-c", program)
    assert job.wait(LIMIT_SECONDS) == 143
    started = len(list((tmp_path / "logs").iterdir()))
    assert 1 <= started < 1000


def test_a_signal_ends_the_check_of_hosts(launched: Launched, tmp_path: Path, ends: Ends) -> None:
    shell = tmp_path / "shell"
    shell.write_text("#!/bin/sh\necho $$ > partial; mv partial looking; exec sleep 1000\n")
    shell.chmod(0o755)
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    job = launched("-H", "198.51.100.1:1", "--remote-shell", str(shell), "x")
    wait_until((tmp_path / "looking").exists, "the launcher does not check the hosts")
    job.terminate()
    assert job.wait(LIMIT_SECONDS) == 143
    assert ends(int((tmp_path / "looking").read_text()))


# The launcher gets a signal in a weakref callback while it imports a module. Python discards a callback's exceptions.
IN_A_CALLBACK = """
import os, sys, weakref

module, signum = sys.argv[1], int(sys.argv[2])
sys.argv = ["perseusrun", *sys.argv[3:]]

class Object:
    pass

class Finder:
    def find_spec(name, path, target=None):
        if name == module:
            sys.meta_path.remove(Finder)
            found = Object()
            watched = weakref.ref(found, lambda _: os.kill(os.getpid(), signum))
            del found

sys.meta_path.insert(0, Finder)
from perseus_like.launch import main
sys.exit(main())
"""


@pytest.mark.parametrize("options", [[], ["--mpi"], ["--min-np", "1"]], ids=["one host", "mpirun", "elastic"])
@pytest.mark.parametrize(
    ("module", "signum"),
    [
        ("perseus_like.process_sets", signal.SIGINT),  # before `main`
        ("perseus_like.launch.processes.supervise", signal.SIGINT),
        ("perseus_like.launch.processes.supervise", signal.SIGTERM),
        ("perseus_like.launch.processes.supervise", signal.SIGHUP),
    ],
)
def test_a_signal_whose_exception_is_discarded_ends_the_launcher(
    module: str, signum: signal.Signals, options: list[str], perseusrun: Perseusrun
) -> None:
    if options == ["--mpi"] and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    launcher = [sys.executable, "-c", IN_A_CALLBACK, module, str(int(signum))]
    result = perseusrun(*options, "-np", "2", "echo", "started", launcher=launcher)
    assert "Exception ignored in" in result.stderr
    assert f"{signum.name}: passing it on to the ranks" in result.stderr
    assert (result.returncode, result.stdout) == (128 + signum, "")
