"""Settings and fixtures of all tests. Tests import the installed package, and `print` writes each line as a whole."""

import contextlib
import fcntl
import importlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.job import Job, Start, jobs_in

# Every rank of a world runs the tests in in_world/.
IS_IN_WORLD = "PERSEUS_IN_WORLD" in os.environ
collect_ignore_glob = [] if IS_IN_WORLD else ["*/in_world"]

ROOT = Path(__file__).parent.parent.resolve()
# This folder has one virtual environment for each MPI. It is renewed with the wheel.
CACHE = ROOT / ".venv-mpi"
FOLDERS = ["csrc", "cmake", "adapters", "perseus_like"]
FILES = ["setup.py", "pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "docs/write_docstrings.py"]

with contextlib.suppress(ImportError):  # torch's wheels for CUDA bring triton
    # TensorFlow and triton both contain LLVM. If TensorFlow 2.21 is loaded first, loading triton ends the process.
    importlib.import_module("triton._C.libtriton")

with contextlib.suppress(ImportError):  # some of the environments do not have it
    import hypothesis

    # An example has no deadline, because its time depends on the machine more than on the code.
    hypothesis.settings.register_profile("no-deadline", deadline=None)
    hypothesis.settings.load_profile("no-deadline")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ranks", type=int, metavar="N", help="run the tests of in_world/ that -k names, on N ranks")


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    if config.option.ranks is None:
        return None
    from tests import by_name

    return by_name.run(config)


def pytest_configure(config: pytest.Config) -> None:
    if any(Path(entry).resolve() == ROOT for entry in sys.path):
        pytest.exit(
            "the source tree is on sys.path and would be tested in place of the installed package: "
            "run `pytest`, not `python -m pytest`, without PYTHONPATH",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )
    # A shell ignores these in what it starts in the background, and each job would inherit that.
    for ignored in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(ignored) == signal.SIG_IGN:
            signal.signal(ignored, signal.default_int_handler if ignored == signal.SIGINT else signal.SIG_DFL)
    # Without a buffer, `print` writes each word separately, and the words of two ranks would mix in one pipe.
    os.environ.pop("PYTHONUNBUFFERED", None)
    # torch's TCPStore asks the name server for the host name of every client, also of 127.0.0.1. A server that answers
    # only so many questions a second would delay ranks by 5 s or more each time.
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    # torchrun's own default, 29500, belongs to whatever else runs on this machine. The kernel gives a bound port to
    # nobody else until the tests end; torchrun may bind it too, because both sockets have SO_REUSEADDR.
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", 0))
    config.add_cleanup(reserved.close)
    os.environ["PET_MASTER_PORT"] = str(reserved.getsockname()[1])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests that are marked as `first` before the others."""
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


@pytest.fixture(autouse=True)
def outside_the_source_tree(request: pytest.FixtureRequest) -> None:
    """Changes to an empty folder, because `python -m` and `python -c` import from the working directory first.

    A world was started in another folder, and its ranks need no folders of their own.
    """
    if not IS_IN_WORLD:
        request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))


@pytest.fixture
def start_job(tmp_path: Path) -> Iterator[Start]:
    """Returns a function that starts a job in `tmp_path`. tests/job.py describes its arguments and the job."""
    with jobs_in(tmp_path) as start:
        yield start


@pytest.fixture
def run_job(start_job: Start) -> Start:
    """Returns a function that starts a job with the same arguments, and waits for its end."""

    def run(*arguments: Any, **options: Any) -> Job:
        return start_job(*arguments, **options).end()

    return run


def run(*command: str | Path, **options: object) -> str:
    """Returns the command's output. A command that fails makes the test fail and show the output."""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, **options)  # type: ignore[call-overload]
    if done.returncode != 0:
        pytest.fail(f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}", pytrace=False)
    return str(done.stdout)


@pytest.fixture(scope="session")
def wheel() -> Path:
    """Returns the wheel that `make build` has made of the source tree."""
    files = list(ROOT.glob("build/wheel/*.whl"))
    if len(files) != 1:
        pytest.fail("build/wheel has no wheel: run `make build`", pytrace=False)
    folders = (file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.suffix not in (".pyc", ".so"))
    sources = [file for file in folders if file.is_file()] + [ROOT / name for name in FILES]
    made = files[0].stat().st_mtime
    if newer := [str(file.relative_to(ROOT)) for file in sources if file.stat().st_mtime > made]:
        pytest.fail(f"the wheel is older than {newer[0]}: run `make build`", pytrace=False)
    return files[0]


@pytest.fixture
def environment_with(wheel: Path) -> Callable[[str], Path]:
    """Returns `environment_with(extra)`, which returns the folder of a virtual environment.

    In the folder that `environment_with("mpich")` returns, only perseus-like[mpich] is installed.
    """

    def make(extra: str) -> Path:
        folder = CACHE / extra
        python, stamp = folder / "bin" / "python", folder / "wheel"
        installed = f"{wheel} {wheel.stat().st_mtime_ns}"
        CACHE.mkdir(exist_ok=True)
        with (CACHE / f"{extra}.lock").open("w") as lock:  # another worker may make the same environment
            fcntl.flock(lock, fcntl.LOCK_EX)
            if stamp.exists() and stamp.read_text() == installed:
                return folder
            if not python.exists():
                run(sys.executable, "-m", "venv", "--without-pip", folder)
            pip = (sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet")
            run(*pip, f"perseus-like[{extra}] @ {wheel.as_uri()}")
            run(*pip, "--no-deps", "--force-reinstall", wheel)
            stamp.write_text(installed)
        return folder

    return make
