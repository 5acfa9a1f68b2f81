"""Checks that processes forked after `init` can compute but not communicate, and that the rank outlives them."""

from typing import Any

from tests.job import needs


def test_a_child_cannot_communicate_and_the_parent_continues(run: Any) -> None:
    run(
        2,
        """
        start()
        still_works()
        for verb in ("hvd.allreduce(1.0)", "hvd.barrier()", "hvd.allgather(np.ones(2))"):
            child = os.fork()
            if child == 0:
                outcome = outcome_of(lambda: eval(verb))
                good = "HorovodInternalError" in outcome["kinds"] and "fork" in outcome["text"]
                good = good and (hvd.rank(), hvd.size()) == (rank, size)
                sys.exit(0 if good else 9)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            still_works()
        """,
    ).succeeded()


def test_a_child_ends_although_work_is_in_flight(run: Any) -> None:
    run(
        2,
        """
        start()
        submit = lambda: hvd.allreduce_async(1.0, op=hvd.Sum, name="in flight")
        if rank == 0:
            handle = submit()
        for last in ("sys.exit(3)", "hvd.shutdown(); os._exit(3)"):
            child = os.fork()
            if child == 0:
                exec(last)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        still_works()
        if rank == 1:
            handle = submit()
        assert hvd.synchronize(handle) == 2
        """,
    ).succeeded()


def test_a_child_reads_shared_memory_and_writes_into_a_copy(run: Any) -> None:
    """Gradients are in shared memory. A child must not change the gradients of its parent or of other ranks."""
    run(
        2,
        """
        start()
        shared = hvd.empty(1_000_000)
        shared[:] = rank + 1
        child = os.fork()
        if child == 0:
            seen = (shared == rank + 1).all()
            shared[:] = 7
            os._exit(0 if seen and (shared == 7).all() else 9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (shared == rank + 1).all(), shared
        assert (hvd.allreduce_(shared, op=hvd.Sum) == 3).all()
        """,
    ).succeeded()


def test_a_rank_is_reported_as_lost_although_its_child_still_runs(run: Any) -> None:
    world = run(
        2,
        """
        start()
        still_works()
        if rank == 1:
            if os.fork() == 0:
                signal.pause()
            report(dies=True)
            leave_now(6)
        report(seen=outcome_of(lambda: hvd.allreduce(1.0)))
        """,
    )
    assert world.code == 6, world.output
    seen = world.facts_of(0).get("seen")
    assert seen is None or "rank 1" in seen["text"]


def test_workers_of_a_data_loader(run: Any) -> None:
    needs("torch")
    run(
        2,
        """
        import torch
        import perseus_like.torch as hvd

        class Squares(torch.utils.data.Dataset):
            def __len__(self):
                return 8

            def __getitem__(self, i):
                try:
                    hvd.allreduce(torch.ones(1))
                except hvd.HorovodInternalError as error:
                    return torch.tensor([i * i, hvd.rank(), int("fork" in str(error))])
                return torch.tensor([-1, -1, -1])

        start()
        loader = torch.utils.data.DataLoader(Squares(), batch_size=2, num_workers=2, multiprocessing_context="fork")
        for epoch in range(2):
            rows = torch.cat(list(loader))
            assert rows.tolist() == [[i * i, rank, 1] for i in range(8)], rows
            assert hvd.allreduce(rows.float(), op=hvd.Sum)[:, 0].tolist() == [2.0 * i * i for i in range(8)]
        """,
    ).succeeded()
