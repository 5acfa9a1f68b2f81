"""Checks that `pip install -e .` installs links to the sources, so that changed sources take effect at once."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.job import run_to_end, succeeded

ROOT = Path(__file__).parents[2]
PROGRAM = """
import perseus_like, perseus_like._core, perseus_like.numpy as hvd
from perseus_like.names import aliases
hvd.init()
print(hvd.size(), perseus_like._core.__file__, *[module.__file__ for module in (hvd, aliases)])
"""


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the Python of an environment in which the clone is installed by `pip install -e`.

    The environment also sees the packages of the environment that runs the tests.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    paths = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", vars=paths))
    # The name of this file sorts after __editable__*.pth.
    (site / "tools_of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    core = ROOT / "build" / "core"
    if not (core / "CMakeCache.txt").exists():
        pytest.skip("no build/core, whose compiled files make this quick: run `make build`")
    variables = {"PERSEUS_BUILD_FOLDER": str(core), "CMAKE_ARGS": "-DPERSEUS_WERROR=ON"}
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-build-isolation", "--no-deps"]
    ended = subprocess.run(
        [*pip, "--editable", str(ROOT)], env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return python


@pytest.mark.slow
def test_programs_use_the_sources(editable: Path, tmp_path: Path) -> None:
    """Runs programs in the clone's root, in another folder, and on two ranks.

    In the clone's root, the folder `perseus_like` must not hide the package.
    """
    for folder, ranks in ((ROOT, 1), (tmp_path, 1), (ROOT, 2)):
        launcher = ["-m", "perseus_like", "-np", "2", str(editable)] if ranks > 1 else []
        command = [str(editable), *launcher, "-c", PROGRAM]
        ended = succeeded(run_to_end(command, folder))
        lines = ended.stdout.splitlines()
        assert len(lines) == ranks
        for line in lines:
            size, core, *files = line.rpartition("<stdout>:")[2].split()
            assert int(size) == ranks
            assert Path(core).is_relative_to(ROOT / "build")
            sources = ["adapters/numpy/__init__.py", "perseus_like/names/aliases.py"]
            assert [Path(file).resolve() for file in files] == [ROOT / name for name in sources]
    assert not list(ROOT.glob("perseus_like/_core*.so")), "a compiled core would make the source folder look installed"
