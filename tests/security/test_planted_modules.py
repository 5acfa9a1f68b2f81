"""Checks that modules in a working directory that others can write to do not run in processes of this library."""

from __future__ import annotations

import ast
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import perseus_like
from perseus_like.launch import preflight
from perseus_like.launch.program import module_command
from tests.job import LIMIT_SECONDS, needs

ROOT = Path(__file__).parents[2]
PLANTED = "import os\nos.write(2, b'PLANTED')\nos._exit(77)\n"
CALLER = """
import os, sys
from perseus_like.launch.run_function import run

def look():
    return [entry for entry in sys.path if entry in ("", os.getcwd())], os.environ.get("PYTHONSAFEPATH")

assert run(look, num_proc=2) == [([], None)] * 2
"""
# A user's module is searched where Python searches it. The second call replaces `sys.path` before it imports.
MAY_USE_THE_WORKING_DIRECTORY = {"perseus_like/launch/program.py", "perseus_like/common/util.py"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a folder that contains modules with the names of ours and of the standard library."""
    found = tmp_path / "everybody"
    (found / "perseus_like").mkdir(parents=True)
    found.chmod(0o1777)
    for name in ("perseus_like/__init__.py", "json.py", "torch.py"):
        (found / name).write_text(PLANTED)
    return found


def run_in(folder: Path, *words: str | Path, text: str | None = None) -> str:
    """Runs a command in `folder`, which must succeed. Returns what it prints."""
    package = Path(perseus_like.__file__).parents[1]
    variables = {**os.environ, "PYTHONPATH": str(package)}
    done = subprocess.run(
        [*map(str, words)], cwd=folder, env=variables, input=text, capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    assert "PLANTED" not in done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
    return done.stdout


def program(folder: Path, text: str) -> Path:
    """Writes a program outside of `folder` and returns its path."""
    path = folder.parent / "program.py"
    path.write_text(text)
    return path


def test_run(folder: Path) -> None:
    run_in(folder, sys.executable, program(folder, CALLER))


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun")
def test_generations_of_elastic_jobs(folder: Path) -> None:
    launcher = [*module_command("perseus_like.launch"), "--no-prefix"]
    options = ["--mpi", "-np", "1", "--min-np", "1", "-H", "localhost:1"]
    script = program(folder, "import perseus_like.numpy as hvd\nhvd.init()\nprint('worked')\n")
    assert run_in(folder, *launcher, *options, sys.executable, script) == "worked\n"


def test_the_runner_of_torch_programs(folder: Path) -> None:
    needs("torch")
    launcher = [*module_command("perseus_like.launch"), "--no-prefix", "-np", "1", "--torch"]
    script = program(folder, "import sys\nprint(sys.path[0])\n")
    assert run_in(folder, *launcher, sys.executable, script) == f"{script.parent}\n"


def test_available_extensions(folder: Path) -> None:
    question = "from perseus_like.common.util import extension_available\nprint(extension_available('numpy'))\n"
    assert run_in(folder, sys.executable, program(folder, question)) == "True\n"


def test_the_check_of_hosts(folder: Path) -> None:
    probe = preflight._PROBE.format(path=[], needed=[], way_back=[], seconds=1.0, mark="mark ")
    assert run_in(folder, sys.executable, "-", text=probe).startswith('mark {"package": true')


def test_no_other_command_lines_search_the_working_directory() -> None:
    found = set()
    for part in ("perseus_like", "adapters", "bindings"):
        for file in (ROOT / part).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.List | ast.Tuple) and _starts_python_without_a_file(node.elts):
                    found.add(str(file.relative_to(ROOT)))
    assert found <= MAY_USE_THE_WORKING_DIRECTORY


def _starts_python_without_a_file(words: list[ast.expr]) -> bool:
    return any(
        "executable" in ast.unparse(word) and isinstance(after, ast.Constant) and after.value in {"-m", "-c", "-"}
        for word, after in itertools.pairwise(words)
    )
