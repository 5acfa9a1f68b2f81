"""Tests of calls before `init` and after `shutdown`, and of several sessions in one process."""

from typing import Any

import pytest

CALLS = ["hvd.allreduce(1.0)", "hvd.allgather(np.ones(2))", "hvd.barrier()", "hvd.join()", "hvd.rank()", "hvd.size()"]
CALLS += ["hvd.local_rank()", "hvd.is_homogeneous()"]


@pytest.mark.parametrize("size", [1, 2])
def test_calls_before_init_and_after_shutdown_are_errors(run: Any, size: int) -> None:
    outcomes = ", ".join(f"outcome_of(lambda: {call})" for call in CALLS)
    world = run(
        size, f"report(before=[{outcomes}])\nstart()\nstill_works()\nhvd.shutdown()\nreport(after=[{outcomes}])\n"
    )
    assert world.code == 0, world.output
    for facts in world.all_facts():
        for outcome in facts["before"] + facts["after"]:
            # Horovod raises ValueError in functions such as `rank()`, and HorovodInternalError in collectives. The
            # error of this library belongs to both classes.
            assert {"HorovodInternalError", "ValueError"} <= set(outcome["kinds"])
            assert "init()" in outcome["text"]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_init_and_shutdown_can_be_repeated(run: Any, size: int) -> None:
    world = run(
        size,
        """
        for generation in range(5):
            hvd.init()
            hvd.init()
            assert hvd.is_initialized()
            assert hvd.allreduce(np.full(1000, rank), op=hvd.Sum).tolist() == [sum(range(size))] * 1000
            handle = hvd.allreduce_async(1.0, name="same")
            hvd.synchronize(handle)
            hvd.barrier()
            if size > 1:
                assert hvd.add_process_set([generation % 2]).process_set_id is not None
            hvd.shutdown()
            hvd.shutdown()
            assert not hvd.is_initialized()
        start()
        still_works()
        """,
    )
    assert world.code == 0, world.output


def test_init_without_a_launcher(run: Any) -> None:
    world = run(1, "start()\nstill_works()\nhvd.shutdown()\nhvd.init()\nstill_works()\n", launcher="")
    assert world.code == 0, world.output


def test_work_in_flight_at_shutdown_fails(run: Any) -> None:
    world = run(
        2,
        """
        start()
        handle = hvd.allreduce_async(1.0, name=f"alone on {rank}")
        still_works()
        hvd.shutdown()
        report(lost=outcome_of(lambda: hvd.synchronize(handle)))
        """,
    )
    assert world.code == 0, world.output
    for rank, facts in enumerate(world.all_facts()):
        assert "HorovodInternalError" in facts["lost"]["kinds"]
        assert f"'alone on {rank}'" in facts["lost"]["text"]


def test_memory_of_the_arena_outlives_the_session(run: Any) -> None:
    world = run(
        2,
        """
        start()
        array = hvd.empty(1000)
        array[:] = rank
        hvd.allreduce_(array, op=hvd.Sum)
        hvd.shutdown()
        assert array.tolist() == [1.0] * 1000
        hvd.init()
        array[:] = rank
        assert hvd.allreduce(array, op=hvd.Sum).tolist() == [1.0] * 1000
        """,
    )
    assert world.code == 0, world.output


def test_buckets_of_gradients_move_to_the_arena_of_the_next_session(run: Any) -> None:
    """The arena of the first session is unmapped, because it contains no tensor any more."""
    pytest.importorskip("torch")
    world = run(
        2,
        """
        import torch

        import perseus_like.torch

        def arenas():
            lines = Path("/proc/self/maps").read_text().splitlines()
            return {line.split()[4] for line in lines if "perseus-arena" in line}

        hvd.init()
        model = torch.nn.Linear(300, 300, bias=False)
        optimizer = perseus_like.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
        first = arenas()
        for step in range(2):
            for repetition in range(3):
                optimizer.zero_grad()
                model(torch.full((1, 300), float(rank))).sum().backward()
                optimizer.synchronize()
                assert torch.equal(model.weight.grad, torch.full((300, 300), 0.5))
            assert arenas() == first if step == 0 else not arenas() & first
            hvd.shutdown()
            hvd.init()
        """,
    )
    assert world.code == 0, world.output
