"""Checks the scripts of the distribution with the names of Intel's oneCCL bindings."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.job import LIMIT_SECONDS

ROOT = Path(__file__).parents[2]


def test_setvars_is_at_both_paths_that_scripts_use(tmp_path: Path) -> None:
    """Older scripts use the path below torch_ccl; later ones use the path below oneccl_bindings_for_pytorch."""
    shutil.copytree(ROOT / "bindings" / "oneccl", tmp_path / "source", symlinks=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(tmp_path), str(tmp_path / "source")], check=True, timeout=LIMIT_SECONDS)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "site")
    for package in ("torch_ccl", "oneccl_bindings_for_pytorch"):
        source = f"unset CCL_WORKER_COUNT; . {tmp_path}/site/{package}/env/setvars.sh; echo $CCL_WORKER_COUNT"
        done = subprocess.run(["sh", "-c", source], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True)
        assert done.stdout == "1\n"
