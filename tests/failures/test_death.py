"""A rank ends amid the work of the others: they get an error that names it, or are ended, and the job has failed."""

import signal
from typing import Any

import pytest

# The ends of the last rank, with their exit codes.
ENDS = {
    "raises": ("raise ArithmeticError('on purpose')", 1),
    "exits": ("sys.exit(3)", 3),
    "exits at once": ("leave_now(4)", 4),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL),
    "crashes": ("os.kill(os.getpid(), signal.SIGSEGV)", 128 + signal.SIGSEGV),
}

# A rank that ends by itself tells the others before it is gone, so that they may be the first to end.
AFTERWARDS = 77
TELLS = ("raises", "exits")

# Generous: this is about hanging. What is promised is 2 seconds.
MOST_SECONDS = 30


def look_at_survivors(world: Any, size: int) -> None:
    victim = size - 1
    died = world.reports_of(victim)["dies"]
    for facts in world.all_reports()[:victim]:
        if "seen" not in facts:
            continue  # the launcher was quicker
        assert "HorovodInternalError" in facts["seen"]["kinds"], facts
        assert f"rank {victim}" in facts["seen"]["text"], facts
        assert facts["seen"]["at"] - died < MOST_SECONDS


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("how", ENDS)
def test_in_the_middle_of_an_allreduce(run: Any, how: str, size: int) -> None:
    ends, code = ENDS[how]
    world = run(
        size,
        f"""
        start()
        big = np.ones(8 << 20, np.float32)
        def work():
            for i in range(1000):
                hvd.allreduce_(big, name="big")
        hvd.allreduce_(big, name="big")
        if rank == size - 1:
            handle = hvd.allreduce_async_(big, name="big")
            report(dies=time.monotonic())
            {ends}
        report(seen=outcome_of(work))
        {"" if how in TELLS else "wait_for_end_of(size - 1)"}
        sys.exit({AFTERWARDS})
        """,
    )
    assert world.code == code or (how in TELLS and world.code == AFTERWARDS), world.output
    look_at_survivors(world, size)


@pytest.mark.parametrize("how", ["raises", "is killed"])
def test_while_the_others_wait_for_it(run: Any, how: str) -> None:
    ends, code = ENDS[how]
    world = run(
        4,
        f"""
        start()
        still_works()
        if rank == size - 1:
            report(dies=time.monotonic())
            {ends}
        report(seen=outcome_of(lambda: hvd.allgather(np.ones(5), name="never")))
        sys.exit({AFTERWARDS})
        """,
    )
    assert world.code == code or (how in TELLS and world.code == AFTERWARDS), world.output
    look_at_survivors(world, 4)


def test_survivors_that_catch_the_error_get_it_again(run: Any) -> None:
    """And can end in order, without waiting for anybody."""
    world = run(
        3,
        """
        start()
        still_works()
        if rank == 2:
            report(dies=time.monotonic())
            leave_now(5)
        report(seen=outcome_of(lambda: hvd.allreduce(1.0)))
        report(again=outcome_of(lambda: hvd.allreduce(1.0)), handle=outcome_of(lambda: hvd.allreduce_async(1.0)))
        hvd.shutdown()
        report(after=outcome_of(lambda: hvd.allreduce(1.0)))
        """,
    )
    assert world.code == 5, world.output
    look_at_survivors(world, 3)
    for facts in world.all_reports()[:2]:
        if "after" in facts:
            for call in ("again", "handle"):
                assert "rank 2" in facts[call]["text"], facts
            assert "NotInitializedError" in facts["after"]["kinds"], facts


def test_a_rank_that_ends_early_without_an_error(run: Any) -> None:
    """The ranks that still work get an error: it has left."""
    world = run(
        2,
        """
        start()
        still_works()
        if rank == 0:
            report(seen=outcome_of(lambda: hvd.allreduce(1.0, name="more")))
        """,
    )
    assert world.code == 0, world.output
    seen = world.reports_of(0)["seen"]
    assert "HorovodInternalError" in seen["kinds"]
    assert "rank 1 has left the job" in seen["text"]
