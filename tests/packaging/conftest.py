"""One wheel, built as a user's pip does, and one virtual environment per MPI that it is installed in.

Both are kept below .venv-mpi/ and made again when their sources change.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".venv-mpi"
FOLDERS = ["csrc", "cmake", "adapters", "perseus_like"]
FILES = ["setup.py", "pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE"]
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.so", "*.pyc")


def run(*command: str | Path, **options: object) -> str:
    """The command's output; a failing one fails the test with all it printed."""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, **options)  # type: ignore[call-overload]
    if done.returncode != 0:
        pytest.fail(f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}", pytrace=False)
    return str(done.stdout)


def digest(folder: Path) -> str:
    """Of the names and contents of all files below `folder`."""
    total = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            total.update(f"{file.relative_to(folder)}\0".encode() + file.read_bytes())
    return total.hexdigest()[:16]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Source tree → sdist → wheel, in pip's own isolated build environment."""
    tree = tmp_path_factory.mktemp("tree")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tree / name, ignore=LEFT_OUT)
    for name in FILES:
        shutil.copy2(ROOT / name, tree / name)

    kept = CACHE / "wheels" / digest(tree)
    if not kept.exists():
        shutil.rmtree(kept.parent, ignore_errors=True)
        built = tmp_path_factory.mktemp("wheel")
        build_sdist = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
        run(sys.executable, "-c", build_sdist, built, cwd=tree)
        (sdist,) = built.glob("*.tar.gz")
        environment = {name: value for name, value in os.environ.items() if name != "CMAKE_ARGS"}
        run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", built, sdist, env=environment)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(built, kept)
    (file,) = kept.glob("*.whl")
    return file


@pytest.fixture
def environment_with(wheel: Path) -> Callable[[str], Path]:
    """environment_with("mpich"): folder of a virtual environment with perseus-like[mpich] and nothing else."""

    def make(extra: str) -> Path:
        folder = CACHE / extra
        python, stamp = folder / "bin" / "python", folder / "wheel"
        if stamp.exists() and stamp.read_text() == str(wheel):
            return folder
        if not python.exists():
            run(sys.executable, "-m", "venv", "--without-pip", folder)
        pip = (sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet")
        run(*pip, f"perseus-like[{extra}] @ {wheel.as_uri()}")
        run(*pip, "--no-deps", "--force-reinstall", wheel)
        stamp.write_text(str(wheel))
        return folder

    return make
