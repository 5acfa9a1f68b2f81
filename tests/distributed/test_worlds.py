"""Starts worlds by perseusrun and by torchrun, and runs the tests of in_world/ on all their ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.by_name import pytest_on_a_rank
from tests.job import Start

HERE = Path(__file__).parent
FILES = [
    *("test_verbs.py", "test_moves.py", "test_messages.py", "test_futures.py", "test_errors.py"),
    *("test_interface.py", "test_tensors_without_memory.py", "test_callbacks_and_messages.py"),
    *("test_training.py", "test_uneven.py", "test_comm_hooks.py", "test_buckets.py"),
    *("test_touched_gradients.py", "test_options.py", "test_calls.py"),
]


# The backend promises these for any number of ranks. 2 ranks run all files.
CONTRACT = ["test_verbs.py", "test_messages.py", "test_errors.py", "test_callbacks_and_messages.py"]
WORLDS = [
    pytest.param("torchrun", 2, FILES, id="torchrun-2"),
    pytest.param("perseusrun", 4, CONTRACT, id="perseusrun-4-contract"),
    pytest.param("perseusrun", 4, FILES, marks=pytest.mark.slow, id="perseusrun-4"),
]


def test_each_file_belongs_to_a_world() -> None:
    assert {file.name for file in (HERE / "in_world").glob("test_*.py")} == set(FILES)


@pytest.mark.first
@pytest.mark.parametrize(("starter", "size", "names"), WORLDS)
def test_on_all_ranks(starter: str, size: int, names: list[str], run_job: Start, pytestconfig: pytest.Config) -> None:
    files = [str(HERE / "in_world" / file) for file in names]
    command = pytest_on_a_rank(files, "-rs", "--tb=short", "-m", pytestconfig.option.markexpr)
    world = run_job(size, "", starter, command, joined=True, PERSEUS_IN_WORLD="1")
    output = world.stdout[-60000:]
    assert world.code == 0, output
    passed = re.findall(r"(\d+) passed", world.stdout)
    assert len(passed) == size, output
    assert len(set(passed)) == 1, output
