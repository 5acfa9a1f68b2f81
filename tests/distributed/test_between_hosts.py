"""Runs torchrun over two simulated hosts, which are two names of one machine, and which UCX connects."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.hosts.conftest import UCX_LIBRARY
from tests.job import PERSEUSRUN, Job, Start

# This command succeeds if a process may have a host name of its own (CLONE_NEWUTS).
MAY_SET_HOST_NAME = [sys.executable, "-c", "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x04000000))"]
# Ranks 0 and 1 are on the host `one`, the other ranks are on the host `other`.
HEAD = """
import ctypes, socket
from perseus_like.session import session
ctypes.CDLL(None).unshare(0x04000000)
socket.sethostname("one" if int(os.environ["RANK"]) < 2 else "other")

def total():
    tensor = torch.full((300_000,), 2.0 ** dist.get_rank())
    dist.all_reduce(tensor)
    return tensor.unique().tolist()
"""


@pytest.fixture
def on_two_hosts(program: Start) -> Start:
    """Returns a function that runs a program by torchrun on `size` ranks, which seem to be on two hosts."""
    if subprocess.run(MAY_SET_HOST_NAME, check=False).returncode != 0:
        pytest.skip("this process may not set a host name of its own")
    if not UCX_LIBRARY.exists():
        pytest.skip("no UCX of MPICH's wheel beside this Python")

    def run(size: int, text: str, **environment: str) -> Job:
        return program(
            "torchrun", size, HEAD + textwrap.dedent(text), PERSEUS_UCX_LIBRARY=str(UCX_LIBRARY), **environment
        )

    return run


@pytest.mark.slow
def test_groups_one_after_the_other(on_two_hosts: Start) -> None:
    """The ranks of the second group are in another order."""
    done = on_two_hosts(
        3,
        """
        # `mpirun torchrun …` sets such variables, and the library must not use them.
        os.environ.update(PMI_RANK="0", PMI_SIZE="2", PMI_FD="99", PMIX_NAMESPACE="outer")
        dist.init_process_group("perseus")
        described = session.core.description()
        report(described.split(":")[0], "between 2 hosts" in described, total())
        ends = dist.new_group([0, 2])
        if dist.get_rank() != 1:
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=ends)
            report(tensor.item())
        dist.destroy_process_group()
        rank = int(os.environ["RANK"])
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 3, False)
        dist.init_process_group("perseus", store=dist.PrefixStore("again", store), rank=2 - rank, world_size=3)
        report(dist.get_rank(), total())
        dist.destroy_process_group()
        """,
    ).succeeded()
    for rank in range(3):
        ends = ["2.0"] if rank != 1 else []
        assert done.reports_of(rank).splitlines() == ["store True [7.0]", *ends, f"{2 - rank} [7.0]"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "error"),
    [
        (6, "TimedOutError process group of 3 ranks timed out after 1 s: rank 2 did not come"),
        (8, "PeerLostError process group of 3 ranks: a rank ended while the group was being made"),
    ],
)
def test_a_rank_that_ends_at_the_start(when: int, error: str, on_two_hosts: Start) -> None:
    """The other ranks time out in the store (round 6), or the watch between hosts reports the lost rank (round 8)."""
    done = on_two_hosts(
        3,
        f"""
        from perseus_like.torch.compat.stores import has_keys
        from perseus_like.torch.distributed.rendezvous import StoreRendezvous
        met = StoreRendezvous.__call__
        rounds = 0
        def meet(rendezvous, mine):
            global rounds
            rounds += 1
            if rounds == {when} and os.environ["RANK"] == "2":
                os._exit(0)
            if rounds == {when} and os.environ["RANK"] == "0":
                # Rank 1 may notice the loss before it comes to this round.
                keys = [rendezvous._piece(rendezvous._invited[1]), rendezvous._key("failed")]
                end = time.monotonic() + 600
                while not any(has_keys(rendezvous._store, [key]) for key in keys):
                    assert time.monotonic() < end, "rank 1 neither contributes nor fails"
                rendezvous._timeout = timedelta(seconds=1)  # only this round has a short limit
            return met(rendezvous, mine)
        StoreRendezvous.__call__ = meet
        try:
            dist.init_process_group("perseus", timeout=timedelta(seconds=200))
        except RuntimeError as error:
            report(type(error).__name__, error)
        """,
    ).succeeded()
    for rank in (0, 1):
        assert done.reports_of(rank).startswith(error), done.stdout


@pytest.mark.slow
def test_a_rank_that_dies(on_two_hosts: Start) -> None:
    done = on_two_hosts(
        4,
        """
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so that torchrun does not end a rank before its error
        dist.init_process_group("perseus")
        total()
        if dist.get_rank() == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            while True:
                total()
        except RuntimeError as error:
            report(type(error).__name__, error)
        """,
    )
    assert done.code != 0
    for rank in range(3):
        assert "rank 3 on other" in done.reports_of(rank), done.stdout


def test_a_group_is_made_while_an_mpi_that_takes_one_call_at_a_time_is_in_use(program: Start) -> None:
    """Rank 1 makes the group only after a reduction that needs rank 0, which is already in new_group()."""
    if not (Path(sys.prefix) / "bin" / "mpirun").exists():
        pytest.skip("no MPICH beside this Python")
    done = program(
        [*PERSEUSRUN, "--mpi"],
        2,
        """
        dist.init_process_group("perseus")
        tensor = torch.ones(1_000_000)
        work = dist.all_reduce(tensor, async_op=True)
        if dist.get_rank() == 1:
            work.wait()
        group = dist.new_group([0, 1])
        work.wait()
        dist.all_reduce(tensor, group=group)
        report(tensor[-1].item())
        """,
        HOROVOD_MPI_THREADS_DISABLE="1",
        HOROVOD_CPU_OPERATIONS="MPI",
    ).succeeded()
    assert [done.reports_of(rank) for rank in range(2)] == ["4.0\n", "4.0\n"], done
