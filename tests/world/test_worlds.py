"""Starts worlds and runs the tests of in_world/ on all their ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TIMEOUT_SECONDS = 240

WORLDS = [
    *[("test_numpy_verbs.py", size) for size in (1, 2, 3, 4)],
    *[("test_mistakes.py", size) for size in (1, 2, 4)],
    *[("test_random_sequences.py", size) for size in (2, 3, 4)],
    *[("test_torch_verbs.py", size) for size in (1, 2, 4)],
    *[("test_torch_optimizer.py", size) for size in (1, 2, 4)],
    *[("test_torch_optimizer_equality.py", size) for size in (2, 4)],
    *[("test_torch_functions.py", size) for size in (1, 2, 4)],
]


@pytest.mark.parametrize(("file", "size"), WORLDS, ids=[f"{file[5:-3]}-{size}" for file, size in WORLDS])
def test_on_all_ranks(file: str, size: int, tmp_path: Path) -> None:
    command = [
        *[sys.executable, "-m", "perseus_like.launch", "-np", str(size)],
        *[
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-rs",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:tmpdir",
            "--no-header",
            "--tb=short",
        ],
        *["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), str(HERE / "in_world" / file)],
    ]
    environment = {**os.environ, "PERSEUS_IN_WORLD": "1", "OMP_NUM_THREADS": "1"}
    world = subprocess.run(
        command,
        cwd=tmp_path,  # not the source tree, which `-m pytest` would put before the installed package
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    output = world.stdout[-12000:]
    assert world.returncode == 0, output
    passed = re.findall(r"(\d+) passed", world.stdout)
    assert len(passed) == size, output
    assert len(set(passed)) == 1, output
