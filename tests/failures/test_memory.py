"""Checks that ranks with too little shared memory use less and warn once, or raise an error that says what to do."""

from typing import Any

import pytest

from tests.job import ONE_MALLOC_ARENA


def test_private_memory_works_with_a_tiny_arena(run: Any) -> None:
    world = run(
        2,
        """
        start()
        big = np.arange(5_000_000, dtype=np.float64)
        assert (hvd.allreduce(big, op=hvd.Sum) == 2 * big).all()
        report(empty=outcome_of(lambda: hvd.empty(100_000_000)))
        still_works()
        """,
        PERSEUS_ARENA_BYTES=str(16 << 20),
    ).succeeded()
    for facts in world.all_facts():
        assert "UnavailableError" in facts["empty"]["kinds"], facts
        assert "PERSEUS_ARENA_BYTES" in facts["empty"]["text"]


@pytest.mark.parametrize("bytes_", ["1", "65536"])
def test_an_arena_that_is_too_small_is_an_error(run: Any, bytes_: str) -> None:
    world = run(2, "report(init=outcome_of(hvd.init))\n", PERSEUS_ARENA_BYTES=bytes_).succeeded()
    for facts in world.all_facts():
        assert "UnavailableError" in facts["init"]["kinds"], facts
        assert "PERSEUS_ARENA_BYTES" in facts["init"]["text"]


LIMIT = """
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = used + {more}
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
"""


def test_a_limit_of_the_address_space_makes_the_arena_smaller(run: Any) -> None:
    world = run(
        2, LIMIT.format(more="(2 << 30)") + "start()\nstill_works()\nhvd.allreduce(np.ones(1_000_000))\n"
    ).succeeded()
    warnings = [line for line in world.output.splitlines() if "MiB per rank instead of" in line]
    assert len(warnings) == 1, world.output


def test_a_limit_that_leaves_too_little_is_an_error_on_all_ranks(run: Any) -> None:
    world = run(
        2, LIMIT.format(more="(48 << 20) if rank else (8 << 30)") + "report(init=outcome_of(hvd.init))\n"
    ).succeeded()
    for facts in world.all_facts():
        assert "UnavailableError" in facts["init"]["kinds"], facts
        assert "ulimit" in facts["init"]["text"]


@pytest.mark.parametrize("call", ["allgather(big)", "alltoall(big)", "reducescatter(big, op=hvd.Sum)"])
def test_a_result_that_one_rank_has_no_memory_for_is_an_error_on_all_ranks(run: Any, call: str) -> None:
    world = run(
        3,
        f"""
        start()
        big = np.ones((3, 6_000_000), np.float32)
        if rank == 1:
            used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20), resource.RLIM_INFINITY))
        report(failed=outcome_of(lambda: hvd.{call}))
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        still_works()
        """,
        **ONE_MALLOC_ARENA,
    ).succeeded()
    texts = {facts["failed"]["text"] for facts in world.all_facts()}
    assert len(texts) == 1, texts
    assert "rank 1 has no memory for a result of" in texts.pop()
    for facts in world.all_facts():
        assert "UnavailableError" in facts["failed"]["kinds"], facts


def test_a_joined_rank_without_memory_for_its_zeros_ends_the_job(run: Any) -> None:
    world = run(
        3,
        """
        start()
        big = np.ones(30_000_000, np.float32)
        if rank == 1:
            used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), resource.RLIM_INFINITY))
        report(failed=outcome_of(hvd.join if rank == 1 else lambda: hvd.allreduce(big)))
        """,
        **ONE_MALLOC_ARENA,
    ).succeeded()
    texts = [facts["failed"]["text"] for facts in world.all_facts()]
    assert "rank 1 has not enough memory" in texts[1]
    # The first is what rank 1 reports. The others are rarer: the ranks may notice its end, or that it gave up, before.
    outcomes = ["rank 1 failed: rank 1 has not enough memory", "rank 1 ended without", "rank 1 of the group gave up"]
    for text in (texts[0], texts[2]):
        assert any(outcome in text for outcome in outcomes), text


def test_a_process_set_for_which_one_rank_has_no_thread_is_made_by_none(run: Any) -> None:
    world = run(
        3,
        """
        start()
        if rank == 1:  # room for anything but the stack of a thread
            used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), resource.RLIM_INFINITY))
        report(failed=outcome_of(lambda: hvd.add_process_set([0, 1])))
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        some = hvd.add_process_set([1, 2])
        report(id=some.process_set_id, sum=float(hvd.allreduce(1.0, op=hvd.Sum, process_set=some)) if rank else 2.0)
        still_works()
        """,
        **ONE_MALLOC_ARENA,
    ).succeeded()
    for facts in world.all_facts():
        assert "UnavailableError" in facts["failed"]["kinds"], facts
        assert "rank 1: no further thread can be started" in facts["failed"]["text"], facts
        assert (facts["id"], facts["sum"]) == (1, 2.0), facts


def test_sets_that_overlap_without_a_thread_end_the_job(run: Any) -> None:
    """Each rank begins with another set. Without a further thread, the ranks would wait for one another."""
    world = run(
        4,
        """
        start()
        members = [[0, 1, 2], [1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1], [2, 3], [0, 3], [1, 2]]
        own = [process_set for process_set in map(hvd.add_process_set, members) if rank in process_set.ranks]
        own = own[rank:] + own[:rank]
        one = np.ones(100)
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        # Room for anything but the stack of a thread.
        resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), resource.RLIM_INFINITY))

        def overlap():
            for step in range(1000):
                for handle in [hvd.allreduce_async(one, name="x", process_set=each) for each in own][::-1]:
                    hvd.synchronize(handle)

        report(failed=outcome_of(overlap))
        """,
        **ONE_MALLOC_ARENA,
    )
    assert world.code == 0, world.output
    for facts in world.all_facts():
        assert "no further thread can be started" in facts["failed"]["text"], facts


def test_a_job_needs_less_than_three_descriptors_per_rank(run: Any) -> None:
    """The first rank of a host has two for each other rank: its connection, and the one for descriptors of memory."""
    ranks, spare = 12, 8
    run(
        ranks,
        f"""
        if rank == 0:
            limit = len(os.listdir("/proc/self/fd")) - 1 + 2 * {ranks} + {spare}
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        start()
        still_works()
        """,
    ).succeeded()
