"""Tests with oneCCL as the transport, over libfabric and over Intel MPI. `make test-oneccl` makes the environment."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import HEAD

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VERBS = ["test_numpy_verbs.py", "test_process_sets.py", "test_equal_bits.py"]
IN_WORLD = {
    "perseusrun": [*VERBS, "test_mistakes.py", "test_random_sequences.py", "test_adasum.py"],
    "mpiexec": VERBS,
}

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path, environment: Callable[[str], Path], to_end: Run) -> Run:
    """Returns a function that runs Python on ranks of .venv-oneccl, by perseusrun or by Intel MPI's launcher."""
    python = environment("oneccl")

    def start(
        size: int, *arguments: object, by: str = "perseusrun", seconds: int = 200, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        launchers = {
            "perseusrun": [python, "-m", "perseus_like.launch", "-np", size],
            "mpiexec": [python.with_name("mpiexec.hydra"), "-n", size],
        }
        settings = {"PERSEUS_CPU_TRANSPORT": "oneccl", "I_MPI_PIN": "0"}
        return to_end([*launchers[by], python, *arguments], seconds, tmp_path, **{**settings, **variables})

    return start


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    """Returns a function that writes a program to a file. In the program, `report` writes to rank<N>.txt."""

    def write(text: str) -> Path:
        file = tmp_path / "program.py"
        file.write_text(HEAD.replace("os.environ['PERSEUS_RANK']", "hvd.rank()") + textwrap.dedent(text))
        return file

    return write


# With 4 ranks over libfabric, each with a thread of oneCCL, few in dozens of runs took more than 200 s on two cores.
@pytest.mark.parametrize(
    ("by", "size"),
    [("perseusrun", 2), pytest.param("perseusrun", 4, marks=pytest.mark.slow), ("mpiexec", 2), ("mpiexec", 4)],
)
def test_on_all_ranks(by: str, size: int, run: Run) -> None:
    options = ["-m", "pytest", "-x", "-q", "-rs", "-p", "no:cacheprovider", "-p", "no:tmpdir", "--no-header"]
    options += ["-o", "faulthandler_timeout=100"]  # prints the stacks of a run that hangs
    files = [HERE / "in_world" / file for file in IN_WORLD[by]]
    world = run(
        *[size, *options, "--tb=short", "-c", ROOT / "pyproject.toml", "--rootdir", ROOT, *files],
        by=by,
        PERSEUS_IN_WORLD="1",
    )
    output = world.stdout[-12000:] + world.stderr[-3000:]
    assert world.returncode == 0, output
    assert len(re.findall(r"\d+ passed", world.stdout)) == size, output


DESCRIBING = """
    hvd.init()
    import perseus_like
    assert (hvd.allreduce(np.ones(1000, np.float32), op=hvd.Sum) == hvd.size()).all()
    report(perseus_like._core.description())
    hvd.shutdown()
"""


@pytest.mark.parametrize(("by", "way"), [("perseusrun", "ofi"), ("mpiexec", "mpi"), ("mpiexec", "ofi")])
def test_the_description_names_oneccl_and_its_provider(
    by: str, way: str, run: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    """Horovod's setting selects oneCCL, and oneCCL reads its own variables."""
    variables = {"HOROVOD_CPU_OPERATIONS": "CCL", "PERSEUS_CPU_TRANSPORT": "", "CCL_LOG_LEVEL": "info"}
    if (by, way) == ("mpiexec", "ofi"):
        variables["CCL_ATL_TRANSPORT"] = way
    world = run(2, program(DESCRIBING), by=by, CCL_WORKER_COUNT="2", **variables)
    output = world.stdout + world.stderr
    assert world.returncode == 0, output
    for rank in range(2):
        assert "oneCCL 2022." in (tmp_path / f"rank{rank}.txt").read_text()
    assert re.search(rf"CCL_ATL_TRANSPORT: {way}", output), output
    assert re.search(r"CCL_WORKER_COUNT: 2", output), output


LOSING_A_RANK = """
    import signal
    hvd.init()
    big = np.ones(1_000_000, np.float32)
    try:
        for step in range(10**9):
            if step == 20 and hvd.rank() == hvd.size() - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            hvd.allreduce(big, name="gradient")
    except hvd.HorovodInternalError as error:
        report("error:", error)
        raise
"""


@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_is_lost(size: int, run: Run, program: Callable[[str], Path], tmp_path: Path) -> None:
    """oneCCL itself waits without a limit. The other ranks get an error nevertheless, and end."""
    world = run(size, program(LOSING_A_RANK), seconds=60)
    assert world.returncode != 0
    # The launcher may end a rank while the rank writes.
    texts = [text for file in tmp_path.glob("rank*.txt") if (text := file.read_text())]
    assert all(text.startswith("error:") and "rank " in text for text in texts), texts


def test_the_error_without_oneccl(ranks: Run) -> None:
    """In an environment without oneCCL, all ranks get the same error, which says what to install."""
    if (Path(sys.prefix) / "lib" / "libccl.so.2").exists():
        pytest.skip("oneCCL is installed here")
    world = ranks(2, "hvd.init()", PERSEUS_CPU_TRANSPORT="oneccl", CCL_ROOT="")
    assert world.returncode != 0
    assert "rank 0: oneCCL is not installed: no libccl.so.2 was found. Install it with" in world.stderr
    assert "pip install 'perseus-like[oneccl]'" in world.stderr
