"""Checks that the engines of process sets share threads, and that one set does not block another."""

from __future__ import annotations

from tests.job import NUMPY_HEAD, TORCH_HEAD, Start, needs

_COUNT = """
from pathlib import Path
def engine_threads():
    names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    return sum(name.startswith("perseus-engine") for name in names)
"""


def test_groups_of_torch_share_threads(run_job: Start) -> None:
    needs("torch")
    run_job(
        2,
        """
        dist.init_process_group("perseus")
        groups = [dist.new_group() for _ in range(50)]
        for group in groups:
            tensor = torch.ones(4)
            dist.all_reduce(tensor, group=group)
            assert tensor.tolist() == [2, 2, 2, 2]
        assert engine_threads() <= 4, engine_threads()
        dist.destroy_process_group()
        """,
        head=TORCH_HEAD + _COUNT,
    ).succeeded()


def test_sets_do_not_block_one_another(run_job: Start) -> None:
    """Each rank begins with another set, and waits last for the set that it began with."""
    run_job(
        4,
        """
        hvd.init()
        rank = hvd.rank()
        members = [[0, 1, 2], [1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1], [2, 3], [0, 3], [1, 2]]
        sets = [(each, hvd.add_process_set(each)) for each in members]
        own = [(each, process_set) for each, process_set in sets if rank in each]
        own = own[rank:] + own[:rank]
        for step in range(40):
            handles = [
                hvd.allreduce_async(np.full(count, float(rank)), name=f"x{count}", op=hvd.Sum, process_set=process_set)
                for each, process_set in own
                for count in (5, 100_000 if step % 4 == 0 else 70)
            ]
            expected = [float(sum(each)) for each, _ in own for _ in range(2)]
            for handle, total in reversed(list(zip(handles, expected))):
                assert (hvd.synchronize(handle) == total).all()
        """,
        head=NUMPY_HEAD,
    ).succeeded()


def test_work_that_another_wait_has_done_wakes_no_thread(run_job: Start) -> None:
    """A thread that waits for the second request does the first one, too. A wake-up would take a core from it."""
    run_job(
        1,
        """
        import contextlib
        from pathlib import Path
        from perseus_like.collectives import Op, PersistentAllreduce
        from perseus_like.tables import Start
        from perseus_like.tensor import ArrayTensors
        hvd.init()
        def wake_ups():
            for task in Path("/proc/self/task").iterdir():
                with contextlib.suppress(OSError):  # the thread has ended
                    if (task / "comm").read_text() == "perseus-engine\\n":
                        return int((task / "status").read_text().split("\\nvoluntary_ctxt_switches:")[1].split()[0])

        requests = [PersistentAllreduce(ArrayTensors(), np.ones(4), Op.Sum) for _ in range(2)]
        while (before := wake_ups()) is None:  # the thread has just started
            os.sched_yield()
        for _ in range(2000):
            first, second = [request.submit(f"x{i}", Start.waiter) for i, request in enumerate(requests)]
            second.result()
            first.result()
            del first, second
        assert wake_ups() - before < 100, wake_ups() - before
        """,
        head=NUMPY_HEAD,
    ).succeeded()
