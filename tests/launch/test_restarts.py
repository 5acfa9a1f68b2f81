"""Checks `--max-restarts`: after a rank has failed, all ranks are started again."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from tests.job import LIMIT_SECONDS, succeeded

from .conftest import Launched, LinesOf, Perseusrun, Script

AGAIN = re.compile(r"^perseusrun: starting all ranks again: restart (\d of \d)$", re.MULTILINE)

# The rank 1 of the first two starts fails.
PROGRAM = """
attempt, most = (os.environ["TORCHELASTIC_" + name] for name in ("RESTART_COUNT", "MAX_RESTARTS"))
print("attempt", attempt, "of", most, flush=True)
if attempt < "2" and rank == 1:
    sys.exit(3)
if attempt < "2":
    time.sleep(1000)
"""


def test_all_ranks_are_started_again(perseusrun: Perseusrun, script: Script, tmp_path: Path) -> None:
    result = succeeded(perseusrun("-np", "2", "--max-restarts", "3", "--output-filename", "logs", script(PROGRAM)))
    assert AGAIN.findall(result.stderr) == ["1 of 3", "2 of 3"]
    assert result.stderr.count("first failure: rank 1") == 2
    for rank in range(2):
        expected = [f"attempt {attempt} of 3" for attempt in range(3)]
        assert re.findall(rf"\[{rank}\]<stdout>:(.*)", result.stdout) == expected
        assert (tmp_path / f"logs/rank.{rank}/stdout").read_text().splitlines() == expected


def test_no_more_restarts_than_allowed(perseusrun: Perseusrun, script: Script) -> None:
    result = perseusrun("-np", "1", "--max_restarts=2", script("print('here'); sys.exit(5)"))
    assert result.returncode == 5
    assert result.stdout.count("here") == 3
    assert AGAIN.findall(result.stderr) == ["1 of 2", "2 of 2"]


def test_a_program_that_cannot_be_started_is_tried_once(perseusrun: Perseusrun) -> None:
    result = perseusrun("-np", "1", "--max-restarts", "2", "no-such-program")
    assert result.returncode == 127
    assert result.stderr.startswith("perseusrun: 'no-such-program': no such program"), result.stderr
    assert not AGAIN.search(result.stderr), result.stderr


def test_a_job_that_the_user_ends_is_not_started_again(launched: Launched, script: Script, lines_of: LinesOf) -> None:
    job = launched("-np", "2", "--max-restarts", "2", script("print('up', flush=True); signal.pause()"))
    lines_of(job, 2)
    job.send_signal(signal.SIGTERM)
    output, errors = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 128 + signal.SIGTERM
    assert not output
    assert not AGAIN.search(errors), errors
