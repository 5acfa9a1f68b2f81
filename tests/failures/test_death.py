"""Checks that the job fails if a rank dies, and that the other ranks get an error that names it, or are ended."""

import signal
from typing import Any

import pytest

from tests.job import PATIENT_LAUNCHER

# Each entry has the statement by which the last rank ends, and its exit code.
ENDS = {
    "raises": ("raise ArithmeticError('on purpose')", 1),
    "exits": ("sys.exit(3)", 3),
    "exits with 0": ("sys.exit(0)", 0),
    "exits at once": ("leave_now(4)", 4),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL),
    "crashes": ("os.kill(os.getpid(), signal.SIGSEGV)", 128 + signal.SIGSEGV),
}

# A rank that raises or exits sends a shutdown message first. The other ranks may then end before it, with this code.
CODE_OF_SURVIVORS = 77
SENDS_SHUTDOWN_MESSAGE = ("raises", "exits", "exits with 0")


def check_survivors(world: Any, size: int) -> None:
    victim = size - 1
    assert world.facts_of(victim)["dies"], world.output
    for facts in world.all_facts()[:victim]:
        if "seen" not in facts:
            continue  # the launcher ended the rank before its error
        assert "HorovodInternalError" in facts["seen"]["kinds"], facts
        assert f"rank {victim}" in facts["seen"]["text"], facts


@pytest.mark.parametrize(("size", "count"), [(2, 1), (4, 8 << 20)])
@pytest.mark.parametrize("how", ENDS)
def test_a_rank_dies_during_an_allreduce(run: Any, how: str, size: int, count: int) -> None:
    ends, code = ENDS[how]
    world = run(
        size,
        f"""
        start()
        big = np.ones({count}, np.float32)
        def work():
            for i in range(1000):
                hvd.allreduce_(big, name="big")
        hvd.allreduce_(big, name="big")
        if rank == size - 1:
            handle = hvd.allreduce_async_(big, name="big")
            report(dies=True)
            {ends}
        report(seen=outcome_of(work))
        {"" if how in SENDS_SHUTDOWN_MESSAGE else "wait_for_end_of(size - 1)"}
        sys.exit({CODE_OF_SURVIVORS})
        """,
        launcher=PATIENT_LAUNCHER,
    )
    assert world.code != 0, world.output
    assert world.code == code or (how in SENDS_SHUTDOWN_MESSAGE and world.code == CODE_OF_SURVIVORS), world.output
    check_survivors(world, size)
    if how == "raises":
        assert "ArithmeticError: on purpose" in world.output
    if how == "exits with 0":  # the survivors can only end by the error
        assert all("seen" in facts for facts in world.all_facts()[:-1]), world.output


def test_a_rank_is_killed_while_the_others_wait_for_it(run: Any) -> None:
    ends, code = ENDS["is killed"]
    world = run(
        4,
        f"""
        start()
        still_works()
        if rank == size - 1:
            report(dies=True)
            {ends}
        report(seen=outcome_of(lambda: hvd.allgather(np.ones(5), name="never")))
        sys.exit({CODE_OF_SURVIVORS})
        """,
    )
    assert world.code == code, world.output
    check_survivors(world, 4)


def test_survivors_that_catch_the_error_get_it_again(run: Any) -> None:
    """Each later call raises the error again, and `shutdown` does not wait for another rank."""
    world = run(
        3,
        """
        start()
        still_works()
        if rank == 2:
            report(dies=True)
            leave_now(5)
        report(seen=outcome_of(lambda: hvd.allreduce(1.0)))
        report(again=outcome_of(lambda: hvd.allreduce(1.0)), handle=outcome_of(lambda: hvd.allreduce_async(1.0)))
        hvd.shutdown()
        report(after=outcome_of(lambda: hvd.allreduce(1.0)))
        """,
    )
    assert world.code == 5, world.output
    check_survivors(world, 3)
    for facts in world.all_facts()[:2]:
        if "after" in facts:
            for call in ("again", "handle"):
                assert "rank 2" in facts[call]["text"], facts
            assert "NotInitializedError" in facts["after"]["kinds"], facts


def test_a_rank_that_ends_early_without_an_error(run: Any) -> None:
    """The rank that still works gets an error that says that the other rank has left."""
    world = run(
        2,
        """
        start()
        still_works()
        if rank == 0:
            report(seen=outcome_of(lambda: hvd.allreduce(1.0, name="more")))
        """,
    ).succeeded()
    seen = world.facts_of(0)["seen"]
    assert "HorovodInternalError" in seen["kinds"]
    assert "rank 1 has left the job" in seen["text"]
