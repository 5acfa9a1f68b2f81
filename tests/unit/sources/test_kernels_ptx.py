"""csrc/device/cuda/pack.ptx, which is committed, is what the sources of the kernels give."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.job import run_to_end

FOLDER = Path(__file__).parents[3] / "csrc/device/cuda"
PTX = (FOLDER / "pack.ptx").read_text()


@pytest.fixture
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_ptx", FOLDER / "generate_ptx.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_was_made_of_these_sources(generator: ModuleType) -> None:
    assert generator.digest() in PTX.splitlines()[0], "run csrc/device/cuda/generate_ptx.py, see there"


def test_a_compiler_gives_the_same() -> None:
    """`make check-ptx` installs NVRTC, and compares as well."""
    if importlib.util.find_spec("nvidia") is None or importlib.util.find_spec("nvidia.cuda_nvrtc") is None:
        pytest.skip("NVRTC is not installed here")
    done = run_to_end([sys.executable, str(FOLDER / "generate_ptx.py"), "--check"])
    if "gives other text" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr


def test_old_drivers_and_devices_read_it() -> None:
    assert ".version 7.0\n.target sm_70\n" in PTX


def test_it_has_all_kernels() -> None:
    body = (FOLDER / "pack_body.h").read_text()
    listed = set(re.findall(r"^  X\((\w+), (\w+), ", body, re.MULTILINE))
    assert len(listed) >= 15
    names = {f"perseus_{verb}_{tensor}_{wire}" for tensor, wire in listed for verb in ("pack", "unpack")}
    assert set(re.findall(r"\.entry (\w+)\(", PTX)) == names
