"""Waiting costs nothing: not between collectives, and not for a rank that comes late."""

from typing import Any

# The CPU time of a second of waiting. The limit is generous, since the test is about threads that poll all the time.
MOST_CPU_SECONDS = 0.3


def test_an_idle_process_uses_no_cpu(run: Any) -> None:
    world = run(
        2,
        """
        start()
        for i in range(20):
            hvd.allreduce(np.ones(1000))
        before = cpu_seconds()
        time.sleep(1.0)  # what is measured
        report(used=cpu_seconds() - before)
        """,
    )
    assert world.code == 0, world.output
    assert all(facts["used"] < MOST_CPU_SECONDS for facts in world.all_reports()), world.all_reports()


def test_neither_does_one_that_waits_for_another(run: Any) -> None:
    world = run(
        2,
        """
        start()
        still_works()
        if rank == 0:
            time.sleep(1.0)  # what the other waits for
        before = cpu_seconds()
        hvd.allreduce(np.ones(1000))
        report(used=cpu_seconds() - before)
        """,
    )
    assert world.code == 0, world.output
    assert all(facts["used"] < MOST_CPU_SECONDS for facts in world.all_reports()), world.all_reports()
