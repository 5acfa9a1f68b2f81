"""Checks that a failed job ends with a report of its first failure. Ranks that only lost a peer have one line each."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from perseus_like.launch.processes import describe_exit
from perseus_like.launch.processes.first_failure import Failure, FirstFailure, RankEvidence
from perseus_like.launch.start_errors import describe_code
from perseus_like.protocol.failure_record import VARIABLE, FailureRecord, RecordFile, write_reason
from tests.job import PATIENT_LAUNCHER

from .conftest import Perseusrun, Script

TRAINING = """
import numpy as np
import perseus_like.numpy as hvd

def loss_of(batch):
    raise ValueError(f"bad batch {batch}\\nsecond line")

def train():
    for step in range(9):
        hvd.allreduce(np.ones(3), name="gradient")
        if step == 3 and hvd.rank() == 1:
            loss_of(step)

hvd.init()
train()
"""


def block(stderr: str) -> list[str]:
    """Returns the report of the first failure, which is at the end of stderr."""
    lines = stderr.splitlines()
    (start,) = (number for number, line in enumerate(lines) if line.startswith("perseusrun: first failure: "))
    return lines[start:]


@pytest.fixture(params=[[], ["--mpi"]], ids=["local", "mpirun"])
def options(request: pytest.FixtureRequest) -> list[str]:
    if request.param and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    return list(request.param)


@pytest.fixture
def training(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(TRAINING)
    return str(path)


def test_the_exception_of_the_first_failure_is_last(perseusrun: Perseusrun, training: str, options: list[str]) -> None:
    result = perseusrun("-np", "3", *options, training, launcher=PATIENT_LAUNCHER)
    assert result.returncode == 1
    first, *details = block(result.stderr)
    assert re.fullmatch(rf"perseusrun: first failure: rank 1 .*on {os.uname().nodename} exited with code 1", first)
    assert details == [
        f'  File "{training}", line 15, in <module>',
        "    train()",
        f'  File "{training}", line 12, in train',
        "    loss_of(step)",
        f'  File "{training}", line 6, in loss_of',
        '    raise ValueError(f"bad batch {batch}\\nsecond line")',
        "  ValueError: bad batch 3",
        "  second line",
    ]
    # The other ranks have one line each, and no traceback.
    after = re.findall(r"perseusrun: after that, (?:each of ranks|rank) ([\d,]+) .*: .*PeerLostError: ", result.stderr)
    assert sorted(",".join(after)) == [",", "0", "2"]
    assert result.stderr.index("perseusrun: rank 1 ") < result.stderr.index("perseusrun: after that")
    assert re.findall(r"\[(\d)\]<stderr>:Traceback", result.stderr) == ["1"]


SAME = """
import numpy as np
import perseus_like.numpy as hvd
hvd.init()
hvd.allreduce(np.ones(3 + hvd.rank()), name="loss")
"""


def test_an_error_of_all_ranks_is_reported_once(perseusrun: Perseusrun, tmp_path: Path, options: list[str]) -> None:
    program = tmp_path / "train.py"
    program.write_text(SAME)
    result = perseusrun("-np", "2", *options, str(program), launcher=PATIENT_LAUNCHER)
    assert result.returncode == 1
    error = "allreduce 'loss': rank 0 has float64[3], rank 1 has float64[4]; dtype and shape must be the same on all"
    lines = result.stderr.splitlines()
    assert lines[-4:] == [
        f"perseusrun: all 2 ranks failed: {error} ranks",
        f'  File "{program}", line 5, in <module>',
        '    hvd.allreduce(np.ones(3 + hvd.rank()), name="loss")',
        "  more about it: perseusrun --explain 'dtype and shape must be the same on all'",
    ]
    assert "after that" not in result.stderr
    assert "first failure" not in result.stderr


FEWER_BATCHES = """
import numpy as np
import perseus_like.numpy as hvd
hvd.init()
for step in range(4 - hvd.rank()):
    hvd.allreduce(np.ones(3), name=f"loss{step}")
"""


def test_a_rank_that_ends_early_is_named(perseusrun: Perseusrun, tmp_path: Path, options: list[str]) -> None:
    program = tmp_path / "train.py"
    program.write_text(FEWER_BATCHES)
    result = perseusrun("-np", "2", *options, str(program), launcher=PATIENT_LAUNCHER)
    assert result.returncode == 1
    first, *details = block(result.stderr)
    assert re.fullmatch(
        r"perseusrun: first failure: rank 1 .*on \S+ ended with code 0 while rank 0 needed it in allreduce 'loss3'",
        first,
    )
    assert details == [
        "  rank 0 needed it here:",
        f'  File "{program}", line 6, in <module>',
        '    hvd.allreduce(np.ones(3), name=f"loss{step}")',
        "  ranks with fewer batches than others call hvd.join() after their last",
    ]


def test_equal_failures_after_the_first_are_one_line() -> None:
    verdict = FirstFailure()
    for rank, code in ((3, 1), (0, 7), (1, 1), (2, 1)):
        evidence = RankEvidence(rank=rank)
        evidence.record = FailureRecord(f"rank {rank}", f"of code {code}", [], is_consequence=code == 1)
        verdict.add(Failure(f"rank {rank} on h", f"exited with code {code}", code, False, evidence))
    verdict.decide(is_final=True)
    lines = [line.text for line in verdict.report(4, is_known=False)]
    assert lines == [
        "rank 0 on h exited with code 7: of code 7",
        "after that, each of ranks 1-3 exited with code 1: of code 1",
        "first failure: rank 0 on h exited with code 7",
    ]
    assert [line.text for line in verdict.report(4, is_known=True)] == lines[1:]


def test_full_tracebacks(perseusrun: Perseusrun, training: str, options: list[str]) -> None:
    result = perseusrun("-np", "3", *options, "--full-tracebacks", training, launcher=PATIENT_LAUNCHER)
    assert sorted(re.findall(r"\[(\d)\]<stderr>:Traceback", result.stderr)) == ["0", "1", "2"]


def test_the_traceback_of_an_error_that_preceded_a_lost_peer_is_shown(perseusrun: Perseusrun, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        """
import numpy as np
import perseus_like.numpy as hvd
hvd.init()
try:
    if hvd.rank() == 0:
        raise KeyError("the cause")
finally:
    if hvd.rank() == 0:
        hvd.allreduce(np.ones(1), name="statistics")
"""
    )
    result = perseusrun("-np", "2", str(program), launcher=PATIENT_LAUNCHER)
    assert result.returncode == 1
    assert "[0]<stderr>:KeyError: 'the cause'" in result.stderr


CATCHING = """
import os, select, sys
import numpy as np
import perseus_like.numpy as hvd
from perseus_like import HorovodInternalError
hvd.init()
process = os.pidfd_open(int(hvd.allgather(np.array([os.getpid()]))[0]))
if hvd.rank() == 1:
    try:
        raise ValueError("the cause")
    finally:
        hvd.shutdown()
        select.select([process], [], [])  # the other rank ends first
try:
    hvd.barrier()
except HorovodInternalError:
    sys.exit(4)
"""


def test_a_rank_that_catches_the_loss_of_another_has_not_failed_first(perseusrun: Perseusrun, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(CATCHING)
    result = perseusrun("-np", "2", str(program), launcher=PATIENT_LAUNCHER)
    assert result.returncode == 1
    first, *details = block(result.stderr)
    assert first.startswith("perseusrun: first failure: rank 1 "), result.stderr
    assert details[-1] == "  ValueError: the cause"


def test_without_a_record_the_report_has_the_last_lines_and_the_log(perseusrun: Perseusrun, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("import no_such_module\n")
    result = perseusrun("-np", "1", "--output-filename", "logs", str(program))
    first, *details = block(result.stderr)
    assert re.fullmatch(r"perseusrun: first failure: rank 0 \(pid \d+\) on \S+ exited with code 1", first)
    assert details == [
        "  its last lines on stderr:",
        "    Traceback (most recent call last):",
        f'      File "{program}", line 1, in <module>',
        "        import no_such_module",
        "    ModuleNotFoundError: No module named 'no_such_module'",
        "  its full log: logs/rank.0/stderr",
    ]


@pytest.mark.parametrize(
    ("program", "hint"),
    [
        ("import horovod.torch as hvd", "perseusrun --as-horovod"),
        (
            "import perseus_like; (lambda: 0)(experimental_run_tf_function=False)",
            'leave it out; see the table "Keras 3" in docs/migrating-from-horovod.md',
        ),
        (
            "import types, perseus_like; optimizer = types.SimpleNamespace(variables=[])\nlen(optimizer.variables())",
            'leave out the `()`; see the table "Keras 3" in docs/migrating-from-horovod.md',
        ),
    ],
)
def test_errors_of_moved_programs_end_with_a_hint(
    perseusrun: Perseusrun, tmp_path: Path, program: str, hint: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(program)
    lines = perseusrun("-np", "2", str(path)).stderr.splitlines()
    assert hint in lines[-1], lines


def test_an_error_before_the_import_of_the_library_stands_in_the_report_once(
    perseusrun: Perseusrun, tmp_path: Path
) -> None:
    program = tmp_path / "train.py"
    program.write_text("import no_such_module\n")
    lines = perseusrun("-np", "2", str(program)).stderr.splitlines()
    assert lines[-3:] == [
        "perseusrun: all 2 ranks failed: ModuleNotFoundError: No module named 'no_such_module'",
        f'  File "{program}", line 1, in <module>',
        "    import no_such_module",
    ]


def test_a_crash_shows_the_python_stack(perseusrun: Perseusrun, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    crash = "import os, signal, threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    program.write_text(crash + "def crash():\n    os.kill(os.getpid(), signal.SIGSEGV)\ncrash()\n")
    result = perseusrun("-np", "1", str(program))
    assert result.returncode == 128 + signal.SIGSEGV
    first, *details = block(result.stderr)
    assert re.fullmatch(r"perseusrun: first failure: rank 0 .* was killed by SIGSEGV", first)
    assert details == [
        "  its last lines on stderr:",
        "    Fatal Python error: Segmentation fault",
        f'      File "{program}", line 4 in crash',
        f'      File "{program}", line 5 in <module>',
    ]


def test_a_program_of_the_rank_leaves_no_record(perseusrun: Perseusrun, script: Script) -> None:
    """The report is about the rank, not about a program that the rank runs or a process that it forks."""
    inner = "import perseus_like; raise ValueError('of the inner program')"
    program = script(f"""
        import perseus_like
        subprocess.run([sys.executable, "-c", {inner!r}], stderr=subprocess.DEVNULL)
        if os.fork() == 0:
            os.close(2)
            raise ValueError("of the forked process")
        os.wait()
        raise KeyError("of the rank")
    """)
    assert block(perseusrun("-np", "1", sys.executable, program).stderr)[-1] == "  KeyError: 'of the rank'"


def test_a_record_is_written_to_the_launchers_file_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of another device may have the same inode."""
    records = RecordFile()
    value = records.variable_for("rank 0")
    device = os.fstat(records.fileno()).st_dev
    monkeypatch.setenv(VARIABLE, value.replace(f" {device}:", f" {device + 1}:"))
    write_reason("of another file")
    assert records.read("rank 0") is None
    monkeypatch.setenv(VARIABLE, value)
    write_reason("of this file")
    record = records.read("rank 0")
    assert record is not None
    assert record.error == "of this file"
    records.close()


def test_records_where_a_sandbox_forbids_files_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*arguments: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", forbidden)
    records = RecordFile()
    monkeypatch.setenv(VARIABLE, records.variable_for("rank 0"))
    write_reason("on purpose")
    record = records.read("rank 0")
    assert record is not None
    assert record.error == "on purpose"
    records.close()


@pytest.mark.parametrize(("signum", "hint"), [(signal.SIGBUS, "/dev/shm"), (signal.SIGKILL, "memory runs out")])
def test_signals_of_the_kernel_are_explained(signum: signal.Signals, hint: str) -> None:
    assert describe_code(-signum).startswith(f"was killed by {signum.name} (the kernel")
    assert hint in describe_code(-signum)
    assert describe_exit(signum) == describe_code(-signum)


ENDS = {
    "exception": ("raise ValueError('on purpose')", 1),
    "code": ("sys.exit(3)", 3),
    "text": ("sys.exit('on purpose')", 1),
    "at once": ("os._exit(7)", 7),
    "signal": ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL),
}
# Rank 0 kills the process of mpirun that has started its parent, and then both ranks wait without end.
KILL_THE_DAEMON = """
import os, signal
from pathlib import Path
if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "0":
    daemon = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(daemon, signal.SIGKILL)
signal.pause()
"""


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun")
def test_the_end_of_mpiruns_daemon_ends_the_job(perseusrun: Perseusrun) -> None:
    result = perseusrun("--mpi", "-np", "2", sys.executable, "-c", KILL_THE_DAEMON)
    assert result.returncode != 0
    assert "on this host was killed" in result.stderr or "mpirun was killed" in result.stderr, result.stderr


# Ends that do not reach the functions at exit are noticed by the mpirun itself.
fast_or_slow = [how if how in {"exception", "code"} else pytest.param(how, marks=pytest.mark.slow) for how in ENDS]


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun")
@pytest.mark.parametrize("launcher", [None, ["mpirun"]], ids=["perseusrun", "mpirun"])
@pytest.mark.parametrize("how", fast_or_slow)
def test_ranks_under_mpirun_that_do_not_communicate_are_ended(
    perseusrun: Perseusrun, tmp_path: Path, how: str, launcher: list[str] | None
) -> None:
    end, code = ENDS[how]
    program = tmp_path / "train.py"
    program.write_text(
        "import os, signal, sys\nimport perseus_like.numpy as hvd\nhvd.init()\nhvd.barrier()\n"
        f"if hvd.rank() == 1:\n    {end}\nsignal.pause()\n"
    )
    if launcher:
        result = perseusrun("-np", "2", sys.executable, str(program), launcher=launcher)
        assert result.returncode in ({code} if code < 128 else {code, code - 128}), result.stderr
        return
    result = perseusrun("-np", "2", "--mpi", str(program))
    assert result.returncode == code, result.stderr
    who = f"perseusrun: first failure: rank 1 on {os.uname().nodename} "
    assert block(result.stderr)[0].startswith(who), result.stderr
