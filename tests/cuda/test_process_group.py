"""torch.distributed over the backend `perseus`, with tensors on a device that is not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
BACKEND = HERE.parent / "distributed" / "in_world"
TestsPass = Callable[..., None]


def test_what_users_do(tests_pass: TestsPass) -> None:
    """The backend's tests on the CPU, unchanged: see pretended_device.py."""
    tests_pass(2, sorted(BACKEND.glob("test_*.py")), at_least=200, plugin="pretended_device")


def test_in_the_order_of_streams_by_way_of_the_host(tests_pass: TestsPass, tmp_path: Path) -> None:
    """With streams that get to work when somebody waits: see pretended_streams.py."""
    files = ["test_streams.py", "test_mistakes.py"]
    none = str(tmp_path / "none.so")
    tests_pass(2, [HERE / "in_world" / file for file in files], 30, FAKE_CUDA_STREAMS="late", PERSEUS_NCCL_LIBRARY=none)


def test_in_the_order_of_streams_through_nccl(tests_pass: TestsPass, nccl: Path) -> None:
    """At size 1: results are in memory that the core has made on the device."""
    file = HERE / "in_world" / "test_streams.py"
    tests_pass(1, [file], 20, FAKE_CUDA_STREAMS="late", PERSEUS_NCCL_LIBRARY=str(nccl))
