"""hvd.shared when ranks write, are killed, or cannot map the memory."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.job import ONE_MALLOC_ARENA, PATIENT_LAUNCHER, needs

from .conftest import Ranks

WRITES = {
    "numpy": (
        "import ctypes",
        "np",
        "{'a': np.ones(100), 'table': np.ones(5000)}",
        "ctypes.memset(data['table'].ctypes.data + 8, 0, 8)",
    ),
    "torch": (
        "import torch; import perseus_like.torch as hvd",
        "torch",
        "{'a': torch.ones(100), 'table': torch.ones(5000)}",
        "data['table'].add_(1)",
    ),
}


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("framework", WRITES)
def test_a_write_ends_the_rank_and_shows_its_line(framework: str, size: int, ranks: Ranks) -> None:
    imports, needed, made, write = WRITES[framework]
    if needed != "np":
        needs(needed)
    world = ranks(
        size,
        f"""
        {imports}
        hvd.init()
        data = hvd.shared(lambda: {made}, "frozen")
        hvd.barrier()
        if hvd.rank() == 1:
            report("writes")
            {write}
            report("has written")
        hvd.barrier()
        """,
    )
    assert world.code != 0
    assert world.reports_of(1) == "writes\n"
    assert "program.py" in world.stderr, "faulthandler shows the line"


LOADS = """
import signal
hvd.init()

def make():
    data = np.ones(16 << 20, np.uint8)
    {in_make}
    return data

try:
    data = hvd.shared(make, "data")
    report(int(data[-1]))
    hvd.barrier()
    {after}
    hvd.barrier()
except hvd.HorovodInternalError as error:
    report("error:", error)
    raise
"""


@pytest.mark.parametrize("size", [2, 4])
def test_the_rank_that_loads_is_killed(size: int, ranks: Ranks) -> None:
    program = LOADS.format(in_make="os.kill(os.getpid(), signal.SIGKILL)", after="pass")
    world = ranks(size, program, launcher=PATIENT_LAUNCHER)
    assert world.code != 0
    texts = [world.reports_of(rank) for rank in range(1, size)]
    assert all(text == "" or (text.startswith("error:") and "rank " in text) for text in texts), texts


@pytest.mark.parametrize("killed", [0, 1])
def test_killed_ranks_leave_no_name_behind(killed: int, ranks: Ranks) -> None:
    kill = f"hvd.rank() == {killed} and os.kill(os.getpid(), signal.SIGKILL)"
    world = ranks(2, LOADS.format(in_make="pass", after=kill))
    assert world.code in (-signal.SIGKILL, 128 + signal.SIGKILL, 1), world.stderr
    assert world.reports_of(0).startswith("1\n")
    assert world.reports_of(1).startswith("1\n")
    assert not [entry for entry in Path("/dev/shm").iterdir() if "perseus" in entry.name]


def test_the_memory_outlives_the_rank_that_loaded_and_the_session(ranks: Ranks) -> None:
    world = ranks(
        3,
        """
        hvd.init()
        data = hvd.shared(lambda: np.arange(1 << 20), "data")
        hvd.shutdown()
        report(int(data[-1]))
        hvd.init()
        other = hvd.shared(lambda: np.arange(10), "data")
        report(int(data[-1]), int(other[-1]))
        """,
    ).succeeded()
    assert [world.reports_of(rank) for rank in range(3)] == ["1048575\n1048575 9\n"] * 3


def test_no_room_for_the_mapping(ranks: Ranks) -> None:
    world = ranks(
        2,
        """
        import mmap, resource
        hvd.init()
        if hvd.rank() == 1:
            used = int(open("/proc/self/statm").read().split()[0]) * mmap.PAGESIZE
            resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
        try:
            hvd.shared(lambda: np.ones(256 << 20, np.uint8), "data")
            report("mapped")
        except RuntimeError as error:
            report(type(error).__name__, error)
        hvd.barrier()
        """,
        PERSEUS_ARENA_BYTES=str(64 << 20),
        **ONE_MALLOC_ARENA,
    ).succeeded()
    assert world.reports_of(0) == "mapped\n"
    assert world.reports_of(1).startswith("UnavailableError hvd.shared('data'): 256 MiB cannot be mapped")


def test_more_than_the_arena_has(ranks: Ranks) -> None:
    world = ranks(
        2,
        """
        hvd.init()
        data = hvd.shared(lambda: np.ones(96 << 20, np.uint8), "data")
        report(int(data.sum()) >> 20)
        """,
        PERSEUS_ARENA_BYTES=str(32 << 20),
    ).succeeded()
    assert [world.reports_of(rank) for rank in range(2)] == ["96\n", "96\n"]
