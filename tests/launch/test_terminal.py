"""Checks progress bars of several ranks in a terminal (tmux): one row for each rank, and no stale row at the end."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.job import wait_until

from .conftest import LAUNCHER, Script

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux; `apt-get install tmux`")

# The shell writes this row after the launcher has ended. A terminal shows what is written in order.
END = "the launcher has ended"

BARS = """
    from tqdm import tqdm
    def wait_for(file):
        while not os.path.exists(file):
            time.sleep(0.01)
    with tqdm(total=4, desc="epoch 1", mininterval=0, miniters=1, leave=leave) as bar:
        bar.update(2)
        bar.refresh()
        open(f"half.{rank}", "w").close()
        wait_for("go on")
        if rank == size - 1 and fails:
            raise ValueError("bad batch")
        if fails:
            signal.pause()
        bar.update(2)
    print("loss", rank)
"""

Screen = Callable[[], list[str]]
Terminal = Callable[[str, int, int], Screen]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """Returns a function that starts perseusrun in a terminal. That function returns one that reads the rows."""
    tmux = ["tmux", "-S", str(tmp_path / "socket"), "-f", os.devnull]

    def start(program: str, size: int, width: int) -> Screen:
        line = shlex.join([*LAUNCHER, "-np", str(size), "--oversubscribe", sys.executable, program])
        shell = f"{line}; echo {END}; read line"
        outer = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "TMUX")}
        environment = {**outer, "LANG": "C.UTF-8", "NO_COLOR": "1"}
        window = ["new-session", "-d", "-x", str(width), "-y", "24", shell]
        subprocess.run([*tmux, *window], cwd=tmp_path, env=environment, check=True)

        def capture() -> list[str]:
            text = subprocess.run(
                [*tmux, "capture-pane", "-p", "-S", "-"], stdout=subprocess.PIPE, text=True, check=True
            )
            return [row.rstrip() for row in text.stdout.rstrip().splitlines()]

        return capture

    yield start
    subprocess.run([*tmux, "kill-server"], check=False, stderr=subprocess.DEVNULL)


def run(
    terminal: Terminal, script: Script, folder: Path, size: int, width: int, leave: bool = True, fails: bool = False
) -> tuple[list[str], list[str]]:
    """Returns the terminal's rows at the moment when all bars are at 50 %, and those of the ranks at the end."""
    screen = terminal(script(f"leave, fails = {leave}, {fails}\n" + BARS.replace("\n    ", "\n")), size, width)

    def shown() -> str:
        return "\n".join(screen())

    wait_until(lambda: len(halves(screen())) == size, shown)
    half = screen()
    (folder / "go on").touch()
    wait_until(lambda: screen()[-1:] == [END], shown)
    return half, [row for row in screen()[:-1] if not re.match(r"perseusrun: \d ranks ended after", row)]


def halves(rows: list[str]) -> list[str]:
    return [row for row in rows if re.search(r"epoch 1:  50%", row)]


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("size", [2, 8])
def test_each_rank_has_a_row(terminal: Terminal, script: Script, tmp_path: Path, size: int, width: int) -> None:
    half, end = run(terminal, script, tmp_path, size, width)
    assert [row[: row.index("|")] for row in half] == [f"[{rank}]<stderr>:epoch 1:  50%" for rank in range(size)]
    assert all(row.endswith("]") and len(row) > width - 4 for row in half), half  # bars fill the width
    finished = [f"[{rank}]<stderr>:epoch 1: 100%" for rank in range(size)]
    assert sorted(row[: row.index("|")] for row in end if "|" in row) == finished
    assert sorted(row for row in end if "|" not in row) == [f"[{rank}]<stdout>:loss {rank}" for rank in range(size)]


def test_a_removed_bar_leaves_no_row(terminal: Terminal, script: Script, tmp_path: Path) -> None:
    half, end = run(terminal, script, tmp_path, 2, 80, leave=False)
    assert len(halves(half)) == 2
    assert sorted(end) == ["[0]<stdout>:loss 0", "[1]<stdout>:loss 1"]


@pytest.mark.parametrize("width", [80, 200])
def test_the_report_of_the_first_failure_is_last(
    terminal: Terminal, script: Script, tmp_path: Path, width: int
) -> None:
    _, end = run(terminal, script, tmp_path, 2, width, fails=True)
    assert end[-1] == "    ValueError: bad batch"
    assert len(halves(end)) == 2  # the last state of each rank's bar
    assert any(row.startswith("perseusrun: first failure: rank 1") for row in end)
