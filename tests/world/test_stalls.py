"""Tests with a rank that is stopped during a collective, or as the coordinator.

The others name it, and continue later.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.job import NUMPY_HEAD, Job, Start, needs, python_of

# Rank 0 stops the victim as soon as the first part of rank 0's own result is there. If the collective has ended
# by then, all ranks repeat it.
STOPPED_IN_COLLECTIVE = """
big = np.ones(1 << 26, np.float32)  # takes a while, and a different time on each rank
hvd.init()
rank, size = hvd.rank(), hvd.size()
pids = hvd.allgather(np.array([os.getpid()]), name="pids")
report(pid=os.getpid())
try:
    too_late = True
    while too_late:
        big[:] = rank + 1.0
        work = hvd.allreduce_async_(big, op=hvd.Sum, name="gradient")
        if rank == 0:
            while big[0] == 1.0:
                pass
            os.kill(pids[{victim}], signal.SIGSTOP)
        result = hvd.synchronize(work)
        assert (result == size * (size + 1) / 2).all()
        too_late = rank == 0 and not os.path.exists("resumed")
        if too_late:
            os.kill(pids[{victim}], signal.SIGCONT)
        too_late = hvd.broadcast(np.array([too_late]), 0, name="too late")[0]
    hvd.barrier()
except hvd.HorovodInternalError as error:
    report("error:", error)
    raise
report("done")
"""

# The coordinator is stopped before all ranks have submitted the request.
STOPPED_COORDINATOR = """
hvd.init()
rank, size = hvd.rank(), hvd.size()
pids = hvd.allgather(np.array([os.getpid()]), name="pids")
report(pid=os.getpid())
if rank == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
assert (hvd.allreduce(np.full(10, rank + 1.0), op=hvd.Sum, name="gradient") == size * (size + 1) / 2).all()
report("done")
"""


# A thread of rank 1 waits for a result, which the stopped coordinator does not decide.
SHUTDOWN_WITHOUT_COORDINATOR = """
import threading
hvd.init()
pids = hvd.allgather(np.array([os.getpid()]), name="pids")
report(pid=os.getpid())
if hvd.rank() == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(0)
wait_until(lambda: Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[0] == "T")
handle = hvd.allreduce_async(np.ones(10), name="gradient")
outcomes = []
thread = threading.Thread(target=lambda: outcomes.append(outcome_of(lambda: hvd.synchronize(handle))))
thread.start()
hvd.shutdown()
thread.join()
report(outcome=outcomes[0]["text"])
print("rank 1 has shut down", file=sys.stderr, flush=True)
"""


@pytest.fixture
def start(start_job: Start) -> Start:
    """Returns a function that starts ranks that warn after a second. Stopped ranks stay stopped until `resume`."""

    def begin(size: int, program: str, **settings: Any) -> Job:
        return start_job(size, program, head=NUMPY_HEAD, **{"PERSEUS_STALL_CHECK_TIME_SECONDS": "1", **settings})

    return begin


def test_shutdown_while_a_thread_waits_for_a_stopped_coordinator(start: Start) -> None:
    job = start(2, SHUTDOWN_WITHOUT_COORDINATOR)
    job.wait_for_line("rank 1 has shut down")
    job.resume(0)
    job.end()
    assert "this rank was shut down while it waited" in str(job.facts_of(1)["outcome"])


@pytest.mark.parametrize(("size", "victim"), [(2, 1), (4, 2)])
def test_a_rank_is_stopped_during_a_collective(start: Start, size: int, victim: int) -> None:
    job = start(size, STOPPED_IN_COLLECTIVE.format(victim=victim))
    warnings = [job.wait_for_line("stands still") for _ in range(size - 1)]
    assert all("allreduce 'gradient'" in text and f"rank {victim} does not answer" in text for text in warnings)
    assert len({text[: text.index("allreduce")] for text in warnings}) == size - 1, "every other rank must warn"
    job.resume(victim)
    assert job.end().code == 0, job.output
    assert all("done" in job.reports_of(rank) for rank in range(size)), job.output
    assert not any(
        f"rank {other} does not" in line for line in job.stderr.splitlines() for other in range(size) if other != victim
    )


def test_a_stall_becomes_an_error(start: Start) -> None:
    job = start(4, STOPPED_IN_COLLECTIVE.format(victim=2), PERSEUS_STALL_SHUTDOWN_TIME_SECONDS="3")
    assert job.end().code != 0
    texts = [job.reports_of(rank).partition("error:")[2] for rank in (0, 1, 3)]
    # The first rank that fails ends the job.
    assert any(texts), job.output
    assert all("gradient" in text and "rank 2" in text for text in texts if text), texts


def test_a_stall_becomes_an_error_without_warnings(start: Start) -> None:
    environment = {"PERSEUS_STALL_CHECK_DISABLE": "1", "PERSEUS_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    job = start(2, STOPPED_IN_COLLECTIVE.format(victim=1), **environment)
    assert job.end().code != 0
    assert not any(
        "stands still" in line and "PERSEUS_STALL_SHUTDOWN" not in line for line in job.stderr.splitlines()
    ), job.output
    assert "rank 1" in job.reports_of(0).partition("error:")[2]


def test_the_coordinator_is_stopped(start: Start) -> None:
    job = start(3, STOPPED_COORDINATOR)
    warnings = [job.wait_for_line("waits to be agreed on") for _ in range(2)]
    assert all("allreduce 'gradient'" in text and "rank 0 does not answer" in text for text in warnings)
    job.resume(0)
    assert job.end().code == 0, job.output
    assert all("done" in job.reports_of(rank) for rank in range(3)), job.output


# The first message is only late. Then its sender is stopped.
STOPPED_SENDER = """
import torch
import torch.distributed as dist
import perseus_like.torch.distributed
dist.init_process_group("perseus")
rank = dist.get_rank()
report(pid=os.getpid())
message = torch.full((1 << 20,), rank + 1.0)
if rank == 0:
    for number in range(2):
        dist.recv(message, 1)
        assert (message == 2).all()
        report("message", number)
else:
    time.sleep(3)
    dist.send(message, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    dist.send(message, 0)
dist.barrier()
report("done")
"""


def test_the_sender_of_a_message_is_stopped(start: Start) -> None:
    needs("torch")
    job = start(2, STOPPED_SENDER)
    warning = job.wait_for_line("does not come")
    assert "message 0" in job.reports_of(0), "a busy rank must not be reported as stopped"
    assert "a message from rank 1 does not come" in warning
    assert "rank 1 does not answer" in warning
    job.resume(1)
    assert job.end().code == 0, job.output
    assert all("done" in job.reports_of(rank) for rank in range(2)), job.output


# Rank 1 is stopped at any point of the collective.
STOPPED_IN_ONECCL = """
hvd.init()
report(pid=os.getpid())
big = np.full(1 << 26, hvd.rank() + 1.0, np.float32)
work = hvd.allreduce_async_(big, op=hvd.Sum, name="gradient")
if hvd.rank() == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
assert (hvd.synchronize(work) == hvd.size() * (hvd.size() + 1) / 2).all()
hvd.barrier()
report("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_rank_is_stopped_in_oneccl(size: int, start: Start) -> None:
    settings = {"python": str(python_of("oneccl")), "PERSEUS_CPU_TRANSPORT": "oneccl"}
    job = start(size, STOPPED_IN_ONECCL, **settings)
    warnings = [job.wait_for_line("allreduce 'gradient'") for _ in range(size - 1)]
    assert all(re.search(r"\brank 1 does not answer|not by ranks? 1\b", text) for text in warnings), warnings
    job.resume(1)
    assert job.end().code == 0, job.output
    assert all("done" in job.reports_of(rank) for rank in range(size)), job.output
