"""Tests of sessions, arguments and memory. tests/failures has those of ranks that die, stall or fork."""

from __future__ import annotations

import pytest

from tests.job import PATIENT_LAUNCHER, needs

from .conftest import Ranks


def test_arguments_of_init(ranks: Ranks) -> None:
    ranks(
        3,
        """
        own = int(os.environ["PERSEUS_RANK"])
        for comm in (None, [0, 1, 2], ()):
            hvd.init(comm)
            assert (hvd.rank(), hvd.size()) == (own, 3)
            hvd.shutdown()
        sets = [hvd.ProcessSet([0, 2]), hvd.ProcessSet([1])]
        for _ in range(2):
            hvd.init(process_sets=sets)
            assert [each.included() for each in sets] == [own != 1, own == 1]
            mine = sets[own == 1]
            assert hvd.allreduce(1.0, op=hvd.Sum, process_set=mine) == mine.size()
            hvd.shutdown()
        for wrong in ({"comm": 5}, {"comm": "ab"}, {"comm": [0.5]}, {"process_sets": 5}, {"process_sets": [5]}):
            try:
                hvd.init(**wrong)
            except ValueError as error:
                assert "list" in str(error), error
            else:
                raise AssertionError(wrong)
            assert not hvd.is_initialized()
        hvd.init(process_sets="dynamic")
        try:
            hvd.init(process_sets="static")
        except ValueError as error:
            assert "dynamic" in str(error)
        else:
            raise AssertionError("process_sets='static'")
        """,
    ).succeeded()


@pytest.mark.slow
def test_an_optimizer_works_in_a_new_session(ranks: Ranks) -> None:
    """A new session forgets the agreements of the old one, because a new rank would not know them."""
    needs("torch")
    ranks(
        2,
        """
        import torch
        import perseus_like.torch as hvd
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        plain = torch.optim.SGD(model.parameters(), lr=0.0)
        hvd.init()
        optimizer = hvd.DistributedOptimizer(plain)
        for session in range(3):
            hvd.init()
            if session == 1 and hvd.rank() == 1:
                optimizer = hvd.DistributedOptimizer(plain)  # like a rank that has just started
            for step in range(3):
                optimizer.zero_grad()
                sum(layer.weight.sum() for layer in model).mul(hvd.rank() + 1).backward()
                optimizer.step()
                assert all((layer.weight.grad == 1.5).all() for layer in model), (session, step)
            hvd.shutdown()
        """,
    ).succeeded()


@pytest.mark.slow
def test_an_arena_that_is_too_small(ranks: Ranks) -> None:
    """The library keeps gradients in private memory, with one warning, and training continues."""
    needs("torch")
    world = ranks(
        2,
        """
        import logging, torch
        import perseus_like.torch as hvd
        logging.basicConfig()
        hvd.init()
        model = torch.nn.Sequential(*[torch.nn.Linear(600, 600, bias=False) for _ in range(16)])
        hvd.broadcast_parameters(model.state_dict(), 0)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0))
        for _ in range(3):
            optimizer.zero_grad()
            sum(layer.weight.sum() for layer in model).mul(hvd.rank() + 1).backward()
            optimizer.step()
            assert all((layer.weight.grad == 1.5).all() for layer in model)
        """,
        PERSEUS_ARENA_BYTES=str(16 << 20),
    ).succeeded()
    assert world.stderr.count("kept in private memory") == 2  # once on each rank


def test_a_rank_fails_before_init(ranks: Ranks) -> None:
    """The other ranks do not wait for a rank that fails before init()."""
    world = ranks(2, "if os.environ['PERSEUS_RANK'] == '1': sys.exit(4)\nhvd.init()")
    assert world.code == 4, world.stderr


NO_COMMIT_AFTER_A_LOSS = """
import signal
from perseus_like.elastic import ObjectState
from perseus_like.objects import broadcast_object
hvd.init()
state = ObjectState(broadcast_object, hvd.rank, step=0)
state.commit()
report("committed")
if hvd.rank() == 1:
    wait_until(lambda: contains("rank0.txt", "committed"))
    os.kill(os.getpid(), signal.SIGKILL)
try:
    hvd.barrier()
except hvd.HorovodInternalError:
    state.step = 1
try:
    state.commit()
except hvd.HorovodInternalError as error:
    report("error:", error)
state.restore()
report("step", state.step)
"""


def test_a_commit_after_a_loss_saves_nothing(ranks: Ranks) -> None:
    text = ranks(2, NO_COMMIT_AFTER_A_LOSS, launcher=PATIENT_LAUNCHER).reports_of(0)
    assert "error: rank 1" in text, text
    assert text.endswith("step 0\n"), text


# Rank 1 is stopped from the moment when its requests have reached rank 0 until rank 0 has ended.
ENDS_AFTER_A_DISAGREEMENT = """
import signal, subprocess
from pathlib import Path
from perseus_like import HorovodInternalError
hvd.init()
pids = hvd.allgather_object(os.getpid())
if hvd.rank() == 1:
    subprocess.Popen(["sh", "-c", f"while kill -0 {pids[0]} 2>/dev/null; do sleep 0.05; done; kill -CONT {pids[1]}"])
    handle = hvd.allreduce_async(np.ones(4), name="differs")
hvd.allreduce(np.ones(1), name="after")
if hvd.rank() == 0:
    os.kill(pids[1], signal.SIGSTOP)
    while Path(f"/proc/{pids[1]}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        pass
    handle = hvd.allreduce_async(np.ones(3), name="differs")
try:
    hvd.synchronize(handle)
except HorovodInternalError as error:
    report(type(error).__name__)
    os._exit(1)
"""


def test_the_end_of_a_rank_does_not_hide_the_error_that_it_reported(ranks: Ranks) -> None:
    world = ranks(2, ENDS_AFTER_A_DISAGREEMENT, launcher=PATIENT_LAUNCHER)
    assert world.code == 1, world.stderr
    assert [world.reports_of(rank) for rank in range(2)] == ["DisagreementError\n"] * 2
