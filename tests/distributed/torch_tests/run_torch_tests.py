"""torch's own DistributedTest, which its wheel ships, over the backend `perseus`.

`python run_torch_tests.py [-v] [-k NAME]`; WORLD_SIZE says how many ranks, and `pip install expecttest` is needed.
The tests are chosen as for gloo, the backend of which most is asked on a CPU, and then run over perseus.
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
    """The name `perseus`, which takes the branch of gloo where a test asks which backend it runs on."""

    def __eq__(self, other: object) -> bool:
        return other in ("gloo", "perseus")

    def __hash__(self) -> int:
        return hash("gloo")


distributed_test.BACKEND = _Perseus("perseus")
os.environ["BACKEND"] = "mpi"  # whose tests of small groups need four ranks; the others' need eight


_Backend: Any = distributed_test.TestDistBackend
_Tests: Any = distributed_test.DistributedTest._DistTestBase


class TestPerseus(_Backend, _Tests):  # type: ignore[misc]
    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)  # quicker than torch's spawn


if __name__ == "__main__":
    run_tests: Any = common_utils.run_tests
    run_tests()
