"""Runs torch's own DistributedTest, which torch's wheel contains, over the backend `perseus`.

Install expecttest and run `python run_torch_tests.py [-v] [-k NAME]`. WORLD_SIZE is the number of ranks.
The program selects the tests that torch has for gloo, because torch has the most CPU tests for gloo.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

_folder = tempfile.mkdtemp()
os.environ.update(
    BACKEND="gloo",
    WORLD_SIZE=os.environ.get("WORLD_SIZE", "3"),
    TEMP_DIR=_folder,
    INIT_METHOD=f"file://{_folder}/store",
)

import torch  # noqa: E402
from torch.testing._internal import common_utils  # noqa: E402
from torch.testing._internal.distributed import distributed_test  # noqa: E402

import perseus_like.torch.distributed  # noqa: E402, F401


class _Perseus(str):
    """The name `perseus`, which is also equal to `gloo`, so that tests that ask for the backend take gloo's branch."""

    def __eq__(self, other: object) -> bool:
        return other in ("gloo", "perseus")

    def __hash__(self) -> int:
        return hash("gloo")


distributed_test.BACKEND = _Perseus("perseus")
os.environ["BACKEND"] = "mpi"  # the tests of small groups need four ranks for mpi, and eight for other backends


_Backend: Any = distributed_test.TestDistBackend
_Tests: Any = distributed_test.DistributedTest._DistTestBase


class TestPerseus(_Backend, _Tests):  # type: ignore[misc]
    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)  # quicker than torch's spawn


if __name__ == "__main__":
    run_tests: Any = common_utils.run_tests
    run_tests()
