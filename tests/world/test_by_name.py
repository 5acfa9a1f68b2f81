"""Tests of `pytest tests/world -k NAME --ranks N`, which runs tests of in_world/ by name."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.by_name import World, chosen, report, run_world
from tests.job import run_to_end

ROOT = Path(__file__).parents[2]
PYTEST = Path(sys.executable).parent / "pytest"
PROGRAM = """
import numpy as np
import perseus_like.numpy as hvd

hvd.init()


def test_right() -> None:
    assert hvd.allreduce(np.ones(1), op=hvd.Sum) == hvd.size()


def test_wrong_on_rank_1() -> None:
    hvd.barrier()
    assert hvd.rank() == 0
    hvd.barrier()
"""


def test_a_name_runs_on_all_ranks() -> None:
    done = run_to_end([PYTEST, ROOT / "tests/world", "-k", "bit_identical_on_all", "--ranks", 2], joined=True)
    assert done.returncode == 0, done.stdout
    # Only one group has a test of this name, and no other group's framework is imported.
    first, second = done.stdout.splitlines()[-2:]
    assert re.fullmatch(r"numpy: [1-9]\d* passed, \d+ deselected in .* on each of 2 ranks", first), done.stdout
    assert re.fullmatch(r"numpy: \d+\.\d s", second)
    assert {line.partition(":")[0] for line in done.stdout.splitlines()} == {"numpy"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["-k", "alreduce_sums", "--ranks", 2],
            "no test in .*tests/world runs in a world and matches -k 'alreduce_sums'",
        ),
        (["--ranks", 0], "--ranks 0: there must be at least one rank"),
    ],
)
def test_nothing_to_run(arguments: list[object], text: str) -> None:
    done = run_to_end([PYTEST, ROOT / "tests/world", *arguments], joined=True)
    assert done.returncode != 0
    assert re.match(text, done.stdout), done.stdout


def test_a_failure_shows_the_rank_that_failed_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "test_own.py"
    file.write_text(PROGRAM)
    world = World("own", [str(file)])
    assert not report(world, run_world(world, 2, ["-ra", "--tb=short"], show_all=False))
    printed = capsys.readouterr().out
    assert printed.startswith("own: the first failure is on rank 1\n"), printed
    assert re.search(r"test_own\.py:14: in test_wrong_on_rank_1\n    assert hvd\.rank\(\) == 0", printed), printed
    # Rank 0 failed only because rank 1 ended.
    assert "PeerLostError" not in printed
    assert re.search(r"^own: \S+::test_wrong_on_rank_1 failed on (all 2 ranks|rank 1 of 2)$", printed, re.MULTILINE)


def test_files_without_the_name_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "test_own.py"
    file.write_text(PROGRAM)
    world = World("own", [str(file)])
    for keyword in ("", "wrong_on", "Right or other", "test_own", "not other", "right and not other"):
        assert chosen(world, [str(tmp_path)], keyword) == [str(file)]
    assert chosen(world, [f"{file}::test_right"], "") == [f"{file}::test_right"]
    assert chosen(world, [str(tmp_path)], "another") == chosen(world, [str(tmp_path / "elsewhere")], "") == []
