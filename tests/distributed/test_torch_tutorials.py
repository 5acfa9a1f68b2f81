"""Runs programs of PyTorch's own pages unmodified, over gloo and over perseus under that name, and compares losses.

PYTORCH_TUTORIALS is the path of a clone of github.com/pytorch/tutorials, and DIST_TUTO that of a clone of
github.com/seba-1511/dist_tuto.pth, whose program belongs to the page dist_tuto. This repository has no copy of them.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import textwrap
from pathlib import Path
from random import Random

import pytest

from tests.job import needs

SECONDS = 560

# Starts a program with a seed, because some programs set none.
SEEDED = """
import runpy, sys, torch
torch.manual_seed(0)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def code_of(page: str) -> str:
    """Returns the blocks of Python code of a page in reStructuredText, in their order."""
    blocks = re.findall(r"^\.\. code(?:-block)?:: python\n((?:\n|[ ]+.*\n)+)", page + "\n", re.MULTILINE)
    return "\n".join(textwrap.dedent(block) for block in blocks)


def lines_of(command: list[str], folder: Path, as_gloo: str, word: str) -> list[str]:
    """Runs a command, and returns the lines of its output with this word."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PERSEUS_AS_GLOO": as_gloo},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(line for line in done.stdout.splitlines() if word in line)


def test_code_of_a_page() -> None:
    page = "Text.\n\n.. code:: python\n\n   import os\n\n   if os:\n       pass\n\nText.\n\n"
    page += ".. code-block:: python\n\n    os.sep\n"
    assert code_of(page).split() == ["import", "os", "if", "os:", "pass", "os.sep"]


@pytest.mark.timeout(2 * SECONDS + 40)
@pytest.mark.skipif("PYTORCH_TUTORIALS" not in os.environ, reason="PYTORCH_TUTORIALS is no clone of pytorch/tutorials")
def test_pipelining_tutorial(tmp_path: Path) -> None:
    page = Path(os.environ["PYTORCH_TUTORIALS"], "intermediate_source", "pipelining_tutorial.rst")
    (tmp_path / "pipelining_tutorial.py").write_text(code_of(page.read_text()))
    (tmp_path / "seeded.py").write_text(SEEDED)
    run = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "seeded.py",
        "pipelining_tutorial.py",
    ]
    over_gloo = lines_of(run, tmp_path, "0", "losses:")
    assert over_gloo
    assert lines_of(run, tmp_path, "1", "losses:") == over_gloo


def write_mnist(folder: Path, images: int) -> None:
    """Writes random images in MNIST's files, so that torchvision downloads nothing."""
    random = Random(0)
    folder.mkdir(parents=True)
    for kind in ("train", "t10k"):
        pixels = struct.pack(">IIII", 2051, images, 28, 28) + random.randbytes(images * 28 * 28)
        labels = struct.pack(">II", 2049, images) + bytes(random.randrange(10) for _ in range(images))
        (folder / f"{kind}-images-idx3-ubyte").write_bytes(pixels)
        (folder / f"{kind}-labels-idx1-ubyte").write_bytes(labels)


@pytest.mark.skipif("DIST_TUTO" not in os.environ, reason="DIST_TUTO is no clone of seba-1511/dist_tuto.pth")
def test_train_dist(tmp_path: Path) -> None:
    needs("torchvision")
    write_mnist(tmp_path / "data" / "MNIST" / "raw", 1024)
    program = str(Path(os.environ["DIST_TUTO"], "train_dist.py"))
    over_gloo = lines_of([program], tmp_path, "0", "epoch")
    assert len(over_gloo) == 20
    assert lines_of([program], tmp_path, "1", "epoch") == over_gloo
