"""What holds for all tests: they see the installed package, and print a line at once."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.resolve()

with contextlib.suppress(ImportError):  # not in each of the environments
    import hypothesis

    # How long an example takes says more about the machine than about the code.
    hypothesis.settings.register_profile("no-deadline", deadline=None)
    hypothesis.settings.load_profile("no-deadline")


def pytest_configure(config: pytest.Config) -> None:
    if any(Path(entry).resolve() == ROOT for entry in sys.path):
        pytest.exit(
            "the source tree is on sys.path and would be tested in place of the installed package: "
            "run `pytest`, not `python -m pytest`, without PYTHONPATH",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )
    # Unbuffered, `print` writes each of its words by itself, and those of two ranks that share a pipe mix.
    os.environ.pop("PYTHONUNBUFFERED", None)


@pytest.fixture(autouse=True)
def outside_the_source_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m` and `python -c` import from the working directory first, so no child starts in the source tree."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def to_end() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """to_end(command, seconds, folder=…, joined=True, NAME="value"): runs it to its end, with one thread for each rank.

    `joined`: what it says to stderr is in stdout. A command that is late fails the test with what it has said.
    """

    def run(
        command: Sequence[object], seconds: float, folder: Path | None = None, joined: bool = False, **variables: str
    ) -> "subprocess.CompletedProcess[str]":
        try:
            return subprocess.run(
                [str(word) for word in command],
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if joined else subprocess.PIPE,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            said = [text.decode(errors="replace") for text in (late.stdout, late.stderr) if isinstance(text, bytes)]
            pytest.fail(f"not done after {seconds} s\n" + "\n".join(text[-12000:] for text in said))

    return run


@pytest.fixture(scope="session")
def patient_launcher() -> list[str]:
    """perseusrun that gives ranks a minute, and not a second, to say what they make of another's failure.

    For tests of what they say, where all end by themselves: a rank may be without a core for a second.
    """
    program = (
        "import sys; from perseus_like.launch import main, supervise; "
        "supervise.FAILURE_GRACE_SECONDS = 60.0; sys.exit(main())"
    )
    return [sys.executable, "-c", program]


@pytest.fixture(scope="session")
def wait_until_stopped() -> Callable[[int], None]:
    """Waits for a process that stops itself: one that does so only after its SIGCONT stays stopped for ever."""

    def wait(pid: int) -> None:
        deadline = time.monotonic() + 90
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline, f"process {pid} does not stop"
            time.sleep(0.01)

    return wait


@pytest.fixture(scope="session")
def environment() -> Callable[[str], Path]:
    """environment("mxnet"): the Python of .venv-mxnet, which `make test` makes from tests/environments/mxnet.txt."""

    def find(name: str) -> Path:
        python = ROOT / f".venv-{name}" / "bin" / "python"
        if not python.exists():
            pytest.skip(f"there is no .venv-{name}; `make environments` makes it")
        return python

    return find
