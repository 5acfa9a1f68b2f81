"""Runs the commands of CONTRIBUTING.md in a fresh clone. Of `make test-mutations`, it checks that the patches apply."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
QUICK = [line.partition("  #")[0].strip() for line in BLOCKS[0].splitlines()]
CPP = [re.findall(r"`(make cpp-tests [^`]+)`", PAGE)[0], *BLOCKS[1].splitlines()]
DEBUG = [BLOCKS[-1].strip()]
# The ranks of these import torch. Quick tests prove `--ranks` and the example's training with another line.
LONG = re.compile("tests/distributed|digits.py")
LINES = [pytest.param(line, marks=[pytest.mark.slow] * bool(LONG.search(line))) for line in QUICK]


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a fresh clone of this repository."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a repository")
    if shutil.which("git") is None:
        pytest.skip("no git")
    folder = tmp_path_factory.mktemp("fresh") / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True, stdin=subprocess.DEVNULL)
    return folder


def run_as_typed(line: str, clone: Path) -> str:
    """Runs a line in the clone as a user types it, and returns its output. The time limit is pytest's."""
    done = subprocess.run(
        ["bash", "-c", line], cwd=clone, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{line}\n{done.stdout[-12000:]}\n{done.stderr[-12000:]}"
    return done.stdout


@pytest.mark.parametrize("line", LINES)
def test_one_thing(line: str, clone: Path) -> None:
    """The clone has the environment of these tests as its own, in place of the one that `make dev` makes."""
    environment = clone / ".venv"
    if not environment.exists():
        environment.symlink_to(sys.prefix)
    output = run_as_typed(line, clone)
    assert re.search(r"[1-9]\d* passed|test accuracy", output), output


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_commands_from_the_start(clone: Path) -> None:
    environment = clone / ".venv"
    if environment.is_symlink():
        environment.unlink()
    for line in ["make dev", *QUICK, *CPP, *DEBUG]:
        run_as_typed(line, clone)


def test_make_has_the_commands_of_the_table() -> None:
    rows = re.findall(r"^\| (`make.*?`) \|", PAGE, re.MULTILINE)
    targets = {command.split()[1] for row in rows for command in row.split("`")[1::2]}
    makefiles = "".join((ROOT / name).read_text() for name in ("Makefile", "tests/targets.mk", "release/targets.mk"))
    phony = re.findall(r"^\.PHONY: ((?:.*\\\n)*.*)$", makefiles, re.MULTILINE)
    assert len(targets) > 10
    assert targets - set(" ".join(phony).split()) == set()


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_every_mutation_applies() -> None:
    stale = [
        patch.name
        for patch in sorted((ROOT / "tests/mutations").glob("*.patch"))
        if subprocess.run(["git", "apply", "--check", patch], cwd=ROOT, check=False).returncode != 0
    ]
    assert stale == [], "renew them: make the change that each was, and put its `git diff` below the head"
