"""Checks that a test runs each example, and that the extra `[examples]` lists the packages that examples need.

An example that misses a package must raise an error that names the extra.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.job import run_to_end

ROOT = Path(__file__).parents[2]
EXTRA = "pip install 'perseus-like[examples]'"
MODULES = {"scikit-learn": "sklearn", "tqdm": "tqdm"}
EXAMPLES = [
    path
    for path in sorted((ROOT / "examples").rglob("*.py"))
    if re.search(rf"^\s*(import|from) ({'|'.join(MODULES.values())})\b", path.read_text(), re.MULTILINE)
]


def test_the_extra_lists_what_the_examples_import() -> None:
    (line,) = re.findall(r"^examples = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert re.findall(r'"([^"]+)"', line) == list(MODULES)
    assert EXAMPLES


@pytest.mark.parametrize("page", ["examples/README.md", "docs/quickstart.md"])
def test_documents_name_the_extra(page: str) -> None:
    assert "pip install '.[examples]'" in (ROOT / page).read_text()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_an_example_names_the_extra(path: Path) -> None:
    assert f'raise ImportError("this example needs: {EXTRA}") from error' in path.read_text()


@pytest.mark.parametrize("name", ["digits", "process_sets"])
def test_an_example_without_its_requirements(name: str) -> None:
    program = "import runpy, sys; sys.modules['sklearn'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    command = [sys.executable, "-c", program, str(ROOT / "examples" / "pytorch" / f"{name}.py")]
    ended = run_to_end(command, ROOT / "tests")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == f"ImportError: this example needs: {EXTRA}"


@pytest.mark.parametrize("example", sorted(f"{path.parent.name}/{path.name}" for path in ROOT.glob("examples/*/*.py")))
def test_a_test_runs_each_example(example: str) -> None:
    """A test runs each example. Its fixture `run_example` checks that the example prints its progress and result."""
    framework, name = example.split("/")
    file = {"keras": "tensorflow"}.get(framework, framework)
    text = (Path(__file__).parent / f"test_{file}.py").read_text()
    assert re.search(rf'["/]{name}"|\.{name.removesuffix(".py")}"', text)
