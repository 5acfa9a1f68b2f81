"""Tests with oneCCL as the transport, over libfabric and over Intel MPI. `make test-oneccl` makes the environment."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.job import NUMPY_HEAD, Job, Start, python_of

from .conftest import Ranks

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VERBS = ["test_verbs.py", "test_process_sets.py", "test_equal_bits.py"]
IN_WORLD = {
    "perseusrun": [*VERBS, "test_mistakes.py", "test_random_sequences.py", "test_adasum.py"],
    "mpiexec": VERBS,
}


@pytest.fixture
def run(run_job: Start) -> Start:
    """Returns a function that runs ranks of .venv-oneccl, by perseusrun or by Intel MPI's launcher."""
    python = python_of("oneccl")

    def start(size: int, program: str = "", by: str = "perseusrun", **options: Any) -> Job:
        launcher = by if by == "perseusrun" else [str(python.with_name("mpiexec.hydra"))]
        settings = {"PERSEUS_CPU_TRANSPORT": "oneccl", "I_MPI_PIN": "0", **options}
        return run_job(size, program, launcher, head=NUMPY_HEAD if program else "", python=python, **settings)

    return start


# With 4 ranks over libfabric, each with a thread of oneCCL, few in dozens of runs took more than 200 s on two cores.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("by", "size"),
    [("perseusrun", 2), pytest.param("perseusrun", 4, marks=pytest.mark.slow), ("mpiexec", 2), ("mpiexec", 4)],
)
def test_on_all_ranks(by: str, size: int, run: Start) -> None:
    options = ["-m", "pytest", "-x", "-q", "-rs", "-p", "no:cacheprovider", "-p", "no:tmpdir", "--no-header"]
    options += ["-o", "faulthandler_timeout=100"]  # prints the stacks of a run that hangs
    files = [HERE / "in_world/numpy" / file for file in IN_WORLD[by]]
    world = run(
        size,
        by=by,
        arguments=[*options, "--tb=short", "-c", ROOT / "pyproject.toml", "--rootdir", ROOT, *files],
        PERSEUS_IN_WORLD="1",
    )
    output = world.stdout[-12000:] + world.stderr[-3000:]
    assert world.code == 0, output
    assert len(re.findall(r"\d+ passed", world.stdout)) == size, output


DESCRIBING = """
    hvd.init()
    import perseus_like
    assert (hvd.allreduce(np.ones(1000, np.float32), op=hvd.Sum) == hvd.size()).all()
    report(perseus_like._core.description())
    hvd.shutdown()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("by", "way"), [("perseusrun", "ofi"), ("mpiexec", "mpi"), ("mpiexec", "ofi")])
def test_the_description_names_oneccl_and_its_provider(by: str, way: str, run: Start) -> None:
    """Horovod's setting selects oneCCL, and oneCCL reads its own variables."""
    variables = {"HOROVOD_CPU_OPERATIONS": "CCL", "PERSEUS_CPU_TRANSPORT": "", "CCL_LOG_LEVEL": "info"}
    if (by, way) == ("mpiexec", "ofi"):
        variables["CCL_ATL_TRANSPORT"] = way
    world = run(2, DESCRIBING, by=by, CCL_WORKER_COUNT="2", **variables)
    output = world.stdout + world.stderr
    assert world.code == 0, output
    for rank in range(2):
        assert "oneCCL 2022." in world.reports_of(rank)
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


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_is_lost(size: int, run: Start) -> None:
    """oneCCL itself waits without a limit. The other ranks get an error nevertheless, and end."""
    world = run(size, LOSING_A_RANK)
    assert world.code != 0
    # The launcher may end a rank before the rank gets the error.
    texts = [text for rank in range(size) if (text := world.reports_of(rank))]
    assert all(text.startswith("error:") and "rank " in text for text in texts), texts


def test_the_error_without_oneccl(ranks: Ranks) -> None:
    """In an environment without oneCCL, all ranks get the same error, which says what to install."""
    if (Path(sys.prefix) / "lib" / "libccl.so.2").exists():
        pytest.skip("oneCCL is installed here")
    world = ranks(2, "hvd.init()", PERSEUS_CPU_TRANSPORT="oneccl", CCL_ROOT="")
    assert world.code != 0
    assert "rank 0: oneCCL is not installed: no libccl.so.2 was found. Install it with" in world.stderr
    assert "pip install 'perseus-like[oneccl]'" in world.stderr
