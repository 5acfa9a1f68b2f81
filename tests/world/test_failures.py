"""Tests of failures, and of the errors that users see. Each world has a time limit, because a hang is a failure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Ranks

ReportsOf = Callable[[int], str]

# For each case, the last rank ends in this way while the other ranks execute allreduces.
DEATHS = {
    "killed": "import signal; os.kill(os.getpid(), signal.SIGKILL)",
    "raises": "raise RuntimeError('out of luck')",
    "exits": "sys.exit(7)",
    "exits at once": "os._exit(9)",
    "exits with 0": "sys.exit(0)",
}

LOSING_A_RANK = """
hvd.init()
rank, size = hvd.rank(), hvd.size()
big = np.ones({elements}, np.float32)
try:
    for step in range(10**9):
        if step == 20 and rank == size - 1:
            report("leaves")
            {death}
        hvd.allreduce(big, name="gradient")
except hvd.HorovodInternalError as error:
    report("error:", error)
    raise
"""


@pytest.mark.parametrize(("size", "elements"), [(2, 1), (4, 1_000_000)])
@pytest.mark.parametrize("death", DEATHS)
def test_a_rank_is_lost(
    death: str, elements: int, size: int, ranks: Ranks, reports_of: ReportsOf, patient_launcher: list[str]
) -> None:
    program = LOSING_A_RANK.format(death=DEATHS[death], elements=elements)
    world = ranks(size, program, launcher=patient_launcher)
    assert world.code != 0
    last = size - 1
    assert "leaves" in reports_of(last)
    if death == "raises":
        assert "out of luck" in world.stderr
    if death == "exits":
        assert world.code == 7, world.stderr
    # The launcher may end a rank before the rank gets the error. A rank that gets the error leaves, and a third rank
    # may detect this loss first.
    texts = [reports_of(rank) for rank in range(last)]
    assert all(text == "" or (text.startswith("error:") and "rank " in text) for text in texts), texts
    assert not any(texts) or any(f"rank {last}" in text for text in texts), texts
    if death == "exits with 0":
        assert all(texts), "these ranks can only end by the error"


def test_calls_without_a_session_are_errors(ranks: Ranks) -> None:
    world = ranks(
        2,
        """
        assert not hvd.is_initialized()
        for call in (hvd.rank, hvd.size, hvd.local_rank, hvd.is_homogeneous):
            try:
                call()
            except ValueError as error:
                assert "init()" in str(error)
            else:
                raise AssertionError(call)
        for turn in range(3):
            try:
                hvd.allreduce(1.0)
            except hvd.HorovodInternalError as error:
                assert "init()" in str(error)
            else:
                raise AssertionError("a collective without a session")
            hvd.init()
            hvd.init()
            assert hvd.is_initialized()
            assert hvd.size() == 2
            assert hvd.allreduce(1.0 + hvd.rank()) == 1.5
            assert hvd.add_process_set([turn % 2]).process_set_id is not None
            hvd.shutdown()
            hvd.shutdown()
            assert not hvd.is_initialized()
        """,
    )
    assert world.code == 0, world.stderr


def test_arguments_of_init(ranks: Ranks) -> None:
    world = ranks(
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
    )
    assert world.code == 0, world.stderr


def test_an_optimizer_works_in_a_new_session(ranks: Ranks) -> None:
    """A new session forgets the agreements of the old one, because a new rank would not know them."""
    pytest.importorskip("torch")
    world = ranks(
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
    )
    assert world.code == 0, world.stderr


def test_submitted_requests_fail_when_the_session_ends(ranks: Ranks) -> None:
    world = ranks(
        2,
        """
        hvd.init()
        handle = hvd.allreduce_async(np.ones(3), name=f"only on {hvd.rank()}")
        hvd.barrier()
        hvd.shutdown()
        try:
            hvd.synchronize(handle)
        except hvd.HorovodInternalError as error:
            print("error:", error)
        else:
            raise AssertionError("the other rank did not submit it, and it did not fail")
        """,
    )
    assert world.code == 0, world.stderr
    assert world.stdout.count("error:") == 2


def test_a_forked_child_knows_its_rank_and_may_not_communicate(ranks: Ranks) -> None:
    world = ranks(
        2,
        """
        hvd.init()
        hvd.allreduce(1.0)
        for _ in range(3):
            child = os.fork()
            if child == 0:
                assert hvd.size() == 2 and hvd.rank() in (0, 1)
                try:
                    hvd.allreduce(1.0)
                except hvd.HorovodInternalError as error:
                    assert "fork" in str(error)
                else:
                    raise AssertionError("a collective worked in a forked child")
                sys.exit(5)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
            assert hvd.allreduce(1.0 + hvd.rank()) == 1.5
        """,
    )
    assert world.code == 0, world.stderr


def test_data_loader_workers(ranks: Ranks) -> None:
    pytest.importorskip("torch")
    world = ranks(
        2,
        """
        import torch
        import perseus_like.torch as hvd

        class Numbers(torch.utils.data.Dataset):
            def __len__(self):
                return 16

            def __getitem__(self, place):
                return torch.tensor([float(place), float(hvd.rank())])

        hvd.init()
        for method in ("fork", "spawn"):
            loader = torch.utils.data.DataLoader(Numbers(), 4, num_workers=2, multiprocessing_context=method)
            if method == "spawn":
                break  # a spawned worker has no session, so it cannot ask for its rank
            for _ in range(2):
                for batch in loader:
                    assert (batch[:, 1] == hvd.rank()).all()
                    assert hvd.allreduce(batch.sum(), op=hvd.Sum) > 0
        """,
    )
    assert world.code == 0, world.stderr


def test_a_stall_report_names_the_missing_rank(ranks: Ranks, tmp_path: Path) -> None:
    world = ranks(
        2,
        """
        hvd.init()
        if hvd.rank() == 0:  # rank 0 is the straggler
            while not os.path.exists("log") or "embedding" not in open("log").read():
                os.sched_yield()
        else:
            os.dup2(os.open("log", os.O_WRONLY | os.O_CREAT), 2)
        hvd.allreduce(np.ones(3), name="embedding")
        """,
        PERSEUS_STALL_CHECK_TIME_SECONDS="1",
    )
    assert world.code == 0, world.stderr
    assert "not by rank 0" in (tmp_path / "log").read_text()


def test_a_stall_becomes_an_error(ranks: Ranks, reports_of: ReportsOf) -> None:
    world = ranks(
        2,
        """
        hvd.init()
        while hvd.rank() == 0 and not os.path.exists("rank1.txt"):
            os.sched_yield()
        try:
            hvd.allreduce(np.ones(3), name="embedding")
        except hvd.HorovodInternalError as error:
            report("error:", error)
        """,
        PERSEUS_STALL_CHECK_TIME_SECONDS="1",
        PERSEUS_STALL_SHUTDOWN_TIME_SECONDS="2",
    )
    assert world.code == 0, world.stderr
    assert reports_of(1).startswith("error:")
    assert "embedding" in reports_of(1)


def test_an_arena_that_is_too_small(ranks: Ranks) -> None:
    """The library keeps gradients in private memory, with one warning, and training continues."""
    pytest.importorskip("torch")
    world = ranks(
        2,
        """
        import logging, torch
        import perseus_like.torch as hvd
        logging.basicConfig()
        hvd.init()
        try:
            hvd.empty(1 << 30)
        except RuntimeError as error:
            assert "arena" in str(error).lower(), error
        else:
            raise AssertionError("an arena of 16 MiB had room for 4 GiB")
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
    )
    assert world.code == 0, world.stderr
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
if hvd.rank() == 1:
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


def test_a_commit_after_a_loss_saves_nothing(ranks: Ranks, reports_of: ReportsOf, patient_launcher: list[str]) -> None:
    ranks(2, NO_COMMIT_AFTER_A_LOSS, launcher=patient_launcher)
    text = reports_of(0)
    assert "error: rank 1" in text, text
    assert text.endswith("step 0\n"), text
