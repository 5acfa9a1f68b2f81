"""Tests of calls before `init` and after `shutdown`, and of several sessions in one process."""

from typing import Any

import pytest

from tests.job import needs

CALLS = ["hvd.allreduce(1.0)", "hvd.allgather(np.ones(2))", "hvd.barrier()", "hvd.join()", "hvd.rank()", "hvd.size()"]
CALLS += ["hvd.local_rank()", "hvd.is_homogeneous()"]


@pytest.mark.parametrize("size", [1, 2])
def test_calls_before_init_and_after_shutdown_are_errors(run: Any, size: int) -> None:
    outcomes = ", ".join(f"outcome_of(lambda: {call})" for call in CALLS)
    world = run(
        size, f"report(before=[{outcomes}])\nstart()\nstill_works()\nhvd.shutdown()\nreport(after=[{outcomes}])\n"
    ).succeeded()
    for facts in world.all_facts():
        for outcome in facts["before"] + facts["after"]:
            # Horovod raises ValueError in functions such as `rank()`, and HorovodInternalError in collectives. The
            # error of this library belongs to both classes.
            assert {"HorovodInternalError", "ValueError"} <= set(outcome["kinds"])
            assert "init()" in outcome["text"]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_init_and_shutdown_can_be_repeated(run: Any, size: int) -> None:
    run(
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
    ).succeeded()


def test_init_without_a_launcher(run: Any) -> None:
    run(1, "start()\nstill_works()\nhvd.shutdown()\nhvd.init()\nstill_works()\n", launcher="").succeeded()


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
    ).succeeded()
    for rank, facts in enumerate(world.all_facts()):
        assert "HorovodInternalError" in facts["lost"]["kinds"]
        assert f"'alone on {rank}'" in facts["lost"]["text"]


def test_memory_of_the_arena_outlives_the_session(run: Any) -> None:
    run(
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
    ).succeeded()


def test_buckets_of_gradients_move_to_the_arena_of_the_next_session(run: Any) -> None:
    """The arena of the first session is unmapped, because it contains no tensor any more."""
    needs("torch")
    run(
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
    ).succeeded()


COUNT_CALLS = """
import threading
from perseus_like import _core

main = threading.get_ident()
ENDING = {"finalize_at_exit", "mark_failing", "stop"}
functions = [hvd.init, *(one for name, one in vars(_core).items() if callable(one) and name not in ENDING)]

def is_starting():
    return sys._current_frames()[main].f_code.co_filename.endswith(("session.py", "rendezvous.py"))

def count_calls():
    # Calls `rank` until 100 calls were made while the main thread starts a session, and meanwhile, in a thread each,
    # every function of the core. Most end with a TypeError; none may wait for the start with the GIL held.
    inside = 0
    while inside < 100:
        outcome_of(hvd.rank)
        if is_starting() and (inside := inside + 1) == 10:
            for function in functions:
                threading.Thread(target=outcome_of, args=(function,), daemon=True).start()
    report(counted=True)

if rank == 0:
    threading.Thread(target=count_calls).start()
else:
    wait_until(lambda: contains("rank0.txt", "counted"))
"""


def test_other_threads_run_while_a_session_starts(run: Any) -> None:
    """Rank 1 starts its session once another thread of rank 0 has made many calls, which must not wait for it."""
    run(
        2,
        f"{COUNT_CALLS}\nhvd.init()\nstill_works()\n",
    ).succeeded()


@pytest.mark.slow  # two imports of torch; the mechanism is that of the test before
def test_other_threads_run_while_a_process_group_is_made(run: Any) -> None:
    needs("torch")
    run(
        2,
        f"import torch.distributed as dist\n{COUNT_CALLS}\ndist.init_process_group('perseus')\ndist.barrier()\n"
        "dist.destroy_process_group()\n",
        launcher="torchrun",
    ).succeeded()


def test_an_ended_session_leaves_nothing_to_handles_and_arrays(run: Any) -> None:
    run(
        2,
        """
        import gc, weakref

        def used():
            return [len(os.listdir(f"/proc/self/{what}")) for what in ("task", "fd")]

        handles, arrays, usage = [], [], []
        for cycle in range(5):
            hvd.init()
            alone = np.ones(1000)
            handles.append(hvd.allreduce_async_(alone, name=f"alone on {rank}"))
            kept = weakref.ref(alone)
            del alone
            still_works()  # after this, no rank has left before the other one has submitted
            if cycle == 2:
                arrays.append(hvd.empty(1000))
            hvd.shutdown()
            gc.collect()
            assert kept() is None, gc.get_referrers(kept())
            usage.append(used())
        assert usage[1] == usage[0] and usage[4] == usage[3], usage
        assert usage[3][0] == usage[0][0], usage  # memory of the arena needs no thread
        for handle in handles:
            assert "HorovodInternalError" in outcome_of(lambda: hvd.synchronize(handle))["kinds"]
        """,
    ).succeeded()
