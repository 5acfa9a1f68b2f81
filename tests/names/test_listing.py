"""Compares the list of Horovod's modules and names with what can be imported and with Horovod's API as data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perseus_like.names import folder_of
from perseus_like.names.listing import modules, refused_module, refused_name
from tests.job import LIMIT_SECONDS, needs, python_of, run_to_end

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests/data"

# Another Python, which has MXNet, compares the modules that need MXNet.
OF_MXNET = [name for name in modules() if name.startswith("horovod.mxnet")]
OTHERS = [name for name in modules() if name not in OF_MXNET]


def compare(python: str | Path, names: list[str]) -> list[str]:
    """Returns the differences between the list and the modules `names`."""
    program = Path(__file__).with_name("list_program.py")
    env = {**os.environ, "PYTHONPATH": folder_of("horovod"), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [python, program, *names], env=env, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["difference"] for line in done.stdout.splitlines() if line.startswith("{")]


def test_every_name_agrees_with_the_list() -> None:
    needs("torch")
    needs("tensorflow")
    assert compare(sys.executable, OTHERS) == []


def test_every_name_of_mxnet_agrees_with_the_list() -> None:
    assert compare(python_of("mxnet"), OF_MXNET) == []


@pytest.mark.parametrize("data", ["horovod_api.json", "horovod_mxnet_api.json"])
def test_the_public_names_are_listed(data: str) -> None:
    """A name that contains a space stands for a class that a function returns, and is skipped."""
    public = {
        (module, name)
        for module, names in json.loads((DATA / data).read_text()).items()
        for name in names
        if " " not in name
    }
    listed = {(module.name, name) for module in modules().values() for name in (*module.works, *module.differs)}
    assert public - listed == set()


def test_functions_about_controllers_differ_alike_in_every_module() -> None:
    """docs/decisions/horovods-names.md explains these differences."""
    for name in ("mpi_built", "mpi_enabled", "gloo_built", "gloo_enabled"):
        having = [each for each in modules().values() if name in (*each.works, *each.differs)]
        assert having
        assert {each.differs.get(name) for each in having} == {having[0].differs[name]}


def test_each_reason_names_a_replacement() -> None:
    reasons = {each.refused for each in modules().values() if each.refused}
    reasons |= {reason for each in modules().values() for reason in each.refusals.values()}
    # Each reason says why, and what to do.
    assert [reason for reason in reasons if "; " not in reason and ". " not in reason] == []
    assert "perseusrun" in str(refused_module("horovod.spark.torch"))
    assert "perseusrun" in str(refused_name("horovod", "ray"))
    assert refused_module("horovod.torch") is None
    assert refused_name("horovod.torch", "allreduce") is None


def test_the_document_agrees_with_the_list() -> None:
    generate = ROOT / "docs/generate_horovod_names.py"
    done = run_to_end([sys.executable, generate, "--check"])
    assert done.returncode == 0, done.stderr
