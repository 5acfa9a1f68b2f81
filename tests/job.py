"""Jobs of several ranks: tests start them, wait for events in them, stop and resume ranks, and read their reports.

All waiting in tests uses LIMIT_SECONDS. The limit only ends a hang: a machine that is several times slower, or does
other work, does not reach it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 600
PERSEUSRUN = (sys.executable, "-m", "perseus_like.launch")
# A `perseusrun` that waits a minute, not a second, for the other ranks' errors after a rank has failed. Tests of these
# errors use it if all ranks end by themselves. A busy machine may not run a rank for a second.
PATIENT_LAUNCHER = [
    *(sys.executable, "-c"),
    (
        "import sys; from perseus_like.launch import main; from perseus_like.launch.processes import supervise; "
        "supervise.FAILURE_GRACE_SECONDS = 60.0; sys.exit(main())"
    ),
]
_PAUSE_SECONDS = 0.01
_SHOWN_CHARACTERS = 60000


def needs(module: str) -> None:
    """Skips the test, or the tests of the file that calls this at its top, where a module is not installed.

    Unlike `pytest.importorskip`, this does not import it: tests whose programs use TensorFlow need not.
    """
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed", allow_module_level=True)


def needs_keras_on_torch() -> None:
    """Skips the test if Keras does not import with this torch as its backend."""
    torch = pytest.importorskip("torch")
    if not hasattr(torch.utils._pytree, "register_pytree_node"):  # since torch 2.2
        pytest.skip(f"Keras 3 does not import with torch {torch.__version__}: it has no register_pytree_node")


def python_of(name: str) -> Path:
    """Returns the Python of another virtual environment, or skips the test if it is not there.

    `python_of("mxnet")` is the Python of .venv-mxnet, which `make test` makes from tests/environments/mxnet.txt.
    """
    python = ROOT / f".venv-{name}" / "bin" / "python"
    if not python.exists():
        pytest.skip(
            f"there is no .venv-{name}: `make environments` makes it, or says that its packages have no wheels "
            f"for Python 3.{sys.version_info.minor}"
        )
    return python


# For a program that limits its address space to what it uses now and a little more: a thread that makes a malloc arena
# of its own maps 128 MiB for a moment, which would count as used.
ONE_MALLOC_ARENA = {"MALLOC_ARENA_MAX": "1"}

# Programs with perseus_like.numpy, or with torch.distributed, begin with these lines.
NUMPY_HEAD = """
import os, resource, signal, sys, time
import numpy as np
import perseus_like.numpy as hvd
from on_rank import *
"""
TORCH_HEAD = """
import os, signal, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
if not hasattr(dist.Backend, "PERSEUS"):  # torch before 2.5 does not load the backend by itself
    import perseus_like.torch.distributed
from on_rank import report, wait_until
"""

Facts = dict[str, Any]
Value = TypeVar("Value")


def run_to_end(
    command: Sequence[object],
    folder: Path | None = None,
    joined: bool = False,
    *,
    inherited: Any = None,  # a mapping; with its type, no caller could pass variables as `**dict[str, str]`
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, with these environment variables beside the test's own, or beside `inherited`.

    Each rank has one thread. With `joined`, stdout also contains what the command writes to stderr. If a command takes
    longer than LIMIT_SECONDS, the test fails and shows the command's output.
    """
    try:
        return subprocess.run(
            [str(word) for word in command],
            cwd=folder,
            env={**(os.environ if inherited is None else inherited), "OMP_NUM_THREADS": "1", **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if joined else subprocess.PIPE,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        written = (expired.stdout, expired.stderr)
        texts = [text.decode(errors="replace") for text in written if isinstance(text, bytes)]
        pytest.fail(f"the command did not end within {LIMIT_SECONDS} s\n" + "\n".join(text[-12000:] for text in texts))


def succeeded(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """Asserts that a command has the exit code 0. Returns what it was given."""
    texts = "\n".join((text or "")[-12000:] for text in (done.stdout, done.stderr))
    assert done.returncode == 0, f"{done.args} ended with {done.returncode}\n{texts}"
    return done


def start_process(command: Sequence[object], folder: Path | None = None, **variables: Any) -> subprocess.Popen[str]:
    """Starts a command, with these environment variables beside the test's own. Its stdout has its stderr, too."""
    return subprocess.Popen(
        [str(word) for word in command],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def outputs_of(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Waits for the end of these processes, and returns what each of them has written."""
    return [process.communicate(timeout=LIMIT_SECONDS)[0] for process in processes]


def wait_until(condition: Callable[[], Value], what: str | Callable[[], str]) -> Value:
    """Returns the first true value of `condition()`.

    If it stays false for LIMIT_SECONDS, the test fails with the text `what`, which says what did not happen.
    """
    end = time.monotonic() + LIMIT_SECONDS
    while not (value := condition()):
        if time.monotonic() > end:
            pytest.fail(f"after {LIMIT_SECONDS} s: {what if isinstance(what, str) else what()}")
        time.sleep(_PAUSE_SECONDS)
    return value


def wait_until_stopped(pid: int) -> None:
    """Waits until a process has stopped itself.

    A test sends SIGCONT after that. If SIGCONT came earlier, the process would stay stopped for ever.
    """
    state = Path(f"/proc/{pid}/stat")
    wait_until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", f"process {pid} does not stop")


def reports_in(folder: Path, rank: int) -> str:
    """Returns the whole lines that a rank has reported so far."""
    file = folder / f"rank{rank}.txt"
    text = file.read_text() if file.exists() else ""
    return text[: text.rfind("\n") + 1]


def command_of(
    launcher: str | Sequence[str], size: int, python: str | Path = sys.executable, options: Sequence[str] = ()
) -> list[str]:
    """Returns the command that starts `size` ranks, up to the program and its arguments.

    `launcher` is "perseusrun", "torchrun", "" for one process without a launcher, or the words of another launcher that
    takes `-np`.
    """
    interpreter = str(python)
    if launcher == "":
        return [interpreter]
    if launcher == "torchrun":
        return [interpreter, "-m", "torch.distributed.run", *options, "--nproc-per-node", str(size)]
    words = [interpreter, *PERSEUSRUN[1:]] if launcher == "perseusrun" else list(launcher)
    return [*words, *options, "-np", str(size), interpreter]


class Job:
    """A job that runs or has ended. Its output goes to files, so no rank waits for a reader."""

    def __init__(self, command: Sequence[object], folder: Path, size: int, joined: bool, settings: dict[str, str]):
        self.folder, self.size = folder, size
        self._joined = joined
        self._lines_read = 0
        for rank in range(size):  # an earlier job of the test had them
            (folder / f"rank{rank}.txt").unlink(missing_ok=True)
        gate = folder / "gate"
        if not gate.exists():
            os.mkfifo(gate)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "ON_RANK_FOLDER": str(folder), **settings}
        with contextlib.ExitStack() as files:
            out = files.enter_context((folder / "stdout").open("w"))
            err = subprocess.STDOUT if joined else files.enter_context((folder / "stderr").open("w"))
            self.process = subprocess.Popen(
                [str(word) for word in command],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    @property
    def stdout(self) -> str:
        return (self.folder / "stdout").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return "" if self._joined else (self.folder / "stderr").read_text(errors="replace")

    @property
    def output(self) -> str:
        """Returns the text that the launcher and all ranks have written so far."""
        return self.stdout + self.stderr

    @property
    def code(self) -> int:
        return int(self.process.returncode)

    def __str__(self) -> str:
        reports = "".join(f"rank {rank} reported:\n{self.reports_of(rank)}" for rank in range(self.size))
        return f"the job ({self.process.returncode}) wrote:\n{self.output[-_SHOWN_CHARACTERS:]}\n{reports}"

    def reports_of(self, rank: int) -> str:
        """Returns what a rank has reported so far, a line for each report."""
        return reports_in(self.folder, rank)

    def facts_of(self, rank: int) -> Facts:
        """Returns all facts that a rank has reported so far."""
        facts: Facts = {}
        for line in self.reports_of(rank).splitlines():
            if line.startswith("{"):
                facts.update(json.loads(line))
        return facts

    def all_facts(self) -> list[Facts]:
        return [self.facts_of(rank) for rank in range(self.size)]

    def wait_for_line(self, text: str) -> str:
        """Waits until stderr has another line that contains this text, and returns the line."""

        def find() -> str:
            ended = self.process.poll() is not None
            *lines, _ = (self.stdout if self._joined else self.stderr).split("\n")
            for line in lines[self._lines_read :]:
                self._lines_read += 1
                if text in line:
                    return line
            if ended:
                pytest.fail(f"the job ended without another line with {text!r}: {self}")
            return ""

        return wait_until(find, lambda: f"no other line with {text!r}: {self}")

    def go_on(self) -> None:
        """Blocks until a rank waits for the test, and makes this rank continue."""

        def opened() -> int:
            try:
                return os.open(self.folder / "gate", os.O_WRONLY | os.O_NONBLOCK)
            except OSError:  # nobody reads yet
                if self.process.poll() is not None:
                    pytest.fail(f"the job ended before a rank waited for the test: {self}")
                return 0

        os.close(wait_until(opened, lambda: f"no rank waits for the test: {self}"))

    def resume(self, rank: int) -> None:
        """Waits until a rank that has reported its `pid` has stopped itself, and resumes it."""
        pid = self.facts_of(rank)["pid"]
        wait_until_stopped(pid)
        (self.folder / "resumed").touch()
        os.kill(pid, signal.SIGCONT)

    def end(self) -> Job:
        """Waits for the end of the job, and checks that ranks that called `start` have left nothing."""
        try:
            self.process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the job did not end within {LIMIT_SECONDS} s: {self}")
        self._check_that_nothing_is_left()
        return self

    def succeeded(self) -> Job:
        """Asserts that the job, which has ended, has the exit code 0. Returns the job."""
        assert self.code == 0, str(self)
        return self

    def _check_that_nothing_is_left(self) -> None:
        sockets = set(Path("/proc/net/unix").read_text().split())
        for facts in self.all_facts():
            if "job" not in facts:
                continue
            assert not Path(f"/proc/{facts['pid']}").exists(), str(self)
            assert not sockets & set(facts["sockets"]), str(self)
            assert not facts["shared_files"], str(self)
            assert not [entry.name for entry in Path("/dev/shm").iterdir() if facts["job"] in entry.name], str(self)

    def kill(self) -> None:
        """Ends a job that still runs, with its stopped ranks. `perseusrun` ends its ranks when it gets SIGTERM."""
        if self.process.poll() is not None:
            return
        self.process.terminate()
        for facts in self.all_facts():
            with contextlib.suppress(ProcessLookupError):
                if "pid" in facts:
                    os.kill(facts["pid"], signal.SIGCONT)
        try:
            self.process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


Start = Callable[..., Job]


@contextlib.contextmanager
def jobs_in(folder: Path) -> Iterator[Start]:
    """Yields a function that starts a job in this folder. Jobs that still run at the end are ended.

    The program may import the functions of tests/on_rank.py.
    """
    jobs: list[Job] = []

    def start(
        size: int,
        program: str = "",
        launcher: str | Sequence[str] = "perseusrun",
        arguments: Sequence[object] = (),
        *,
        head: str = "",
        python: str | Path = sys.executable,
        options: Sequence[str] = (),
        wrapper: Sequence[str] = (),
        joined: bool = False,
        **settings: str,
    ) -> Job:
        """Starts `size` ranks of `head` and a program, or of `python` with `arguments`, by a launcher with `options`.

        `joined` puts what the job writes to stderr between the lines of stdout. `settings` are variables.
        """
        command: list[object] = [*command_of(launcher, size, python, options), *arguments]
        if program:
            shutil.copy(Path(__file__).with_name("on_rank.py"), folder)
            (folder / "program.py").write_text(head + textwrap.dedent(program))
            command.append(folder / "program.py")
        if wrapper:  # the wrapper itself needs the PATH of the tests, so `env` sets the variables after it
            command = [*wrapper, "env", *(f"{name}={value}" for name, value in settings.items()), *command]
            settings = {}
        jobs.append(Job(command, folder, size, joined, settings))
        return jobs[-1]

    try:
        yield start
    finally:
        for job in jobs:
            job.kill()
