"""Checks the start and the end of programs with MXNet: imports that fail, and work that nobody has waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.job import python_of, run_to_end

# Python 3.12 and later have no distutils, which MXNet imports.
PROGRAM = "import sys; sys.modules['distutils'] = None; import perseus_like.mxnet"


def test_an_mxnet_that_cannot_be_imported() -> None:
    command = [str(python_of("mxnet")), "-W", "ignore", "-c", PROGRAM]
    done = run_to_end(command)
    error = done.stderr.splitlines()[-1]
    assert error.startswith("ImportError: perseus_like.mxnet: MXNet cannot be imported (")
    assert "distutils" in error
    assert "pip install numpy==1.23.5" in error


def test_mxnet_2_is_refused() -> None:
    """The installed MXNet 1.9.1 passes for the last beta of MXNet 2."""
    program = """
import numpy
vars(numpy).setdefault("bool", numpy.bool_)
import mxnet
mxnet.__version__ = "2.0.0beta1"
import perseus_like.mxnet
"""
    done = run_to_end([str(python_of("mxnet")), "-W", "ignore", "-c", program])
    assert done.stderr.splitlines()[-1] == (
        "ImportError: perseus_like.mxnet: MXNet 2.0.0beta1 is installed, but only MXNet 1.9 is supported; "
        "install it with `pip install mxnet==1.9.1 numpy==1.23.5`"
    )


@pytest.mark.parametrize("end", ["", pytest.param("hvd.shutdown()", marks=pytest.mark.slow)])
def test_a_rank_that_ends_still_takes_part(tmp_path: Path, end: str) -> None:
    """Rank 0 waits for nothing, and is at its end before rank 1 submits its part."""
    program = tmp_path / "program.py"
    program.write_text(f"""
import os, time
import mxnet as mx
import perseus_like.mxnet as hvd
hvd.init()
total = mx.nd.ones(2) * (hvd.rank() + 1)
while hvd.rank() == 1 and not os.path.exists("ended"):
    time.sleep(0.01)
hvd.allreduce_(total, average=False, name="total")
if hvd.rank() == 0:
    open("ended", "w").close()
    {end}
else:
    print("total:", total.asnumpy().tolist())
""")
    python = str(python_of("mxnet"))
    done = run_to_end([python, "-m", "perseus_like.launch", "--no-prefix", "-np", "2", python, str(program)], tmp_path)
    assert (done.returncode, done.stdout) == (0, "total: [3.0, 3.0]\n"), done.stderr
    assert "Traceback" not in done.stderr
