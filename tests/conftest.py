"""What holds for all tests: they see the installed package."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.resolve()


def pytest_configure(config: pytest.Config) -> None:
    if any(Path(entry).resolve() == ROOT for entry in sys.path):
        pytest.exit(
            "the source tree is on sys.path and would be tested in place of the installed package: "
            "run `pytest`, not `python -m pytest`, without PYTHONPATH",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )


@pytest.fixture(autouse=True)
def outside_the_source_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m` and `python -c` import from the working directory first, so no child starts in the source tree."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def environment() -> Callable[[str], Path]:
    """environment("mxnet"): the Python of .venv-mxnet, which `make test` makes from tests/environments/mxnet.txt."""

    def find(name: str) -> Path:
        python = ROOT / f".venv-{name}" / "bin" / "python"
        if not python.exists():
            pytest.skip(f"there is no .venv-{name}; `make environments` makes it")
        return python

    return find
