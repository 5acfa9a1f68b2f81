"""Checks that a rank uses almost no CPU time between collectives and while it waits for another rank."""

from typing import Any

# This is the limit of the CPU time for one second of waiting. It is large, because the test looks for threads that poll
# all the time.
MOST_CPU_SECONDS = 0.3


def test_an_idle_process_uses_no_cpu(run: Any) -> None:
    world = run(
        2,
        """
        start()
        for i in range(20):
            hvd.allreduce(np.ones(1000))
        before = cpu_seconds()
        time.sleep(1.0)  # the test measures the CPU time of this second
        report(used=cpu_seconds() - before)
        """,
    )
    assert world.code == 0, world.output
    assert all(facts["used"] < MOST_CPU_SECONDS for facts in world.all_facts()), world.all_facts()


def test_a_process_that_waits_for_another_rank_uses_no_cpu(run: Any) -> None:
    world = run(
        2,
        """
        start()
        still_works()
        if rank == 0:
            time.sleep(1.0)  # the other rank waits during this second
        before = cpu_seconds()
        hvd.allreduce(np.ones(1000))
        report(used=cpu_seconds() - before)
        """,
    )
    assert world.code == 0, world.output
    assert all(facts["used"] < MOST_CPU_SECONDS for facts in world.all_facts()), world.all_facts()
