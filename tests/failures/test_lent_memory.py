"""Tensors that a peer may still write to after a failure stay alive for good; those of other failed work do not."""

from typing import Any


def test_tensors_of_the_collective_in_which_a_rank_crashes_stay_alive(run: Any) -> None:
    """Rank 1 crashes when its engine reads the second tensor, which is not readable there."""
    world = run(
        2,
        """
        import ctypes, gc, weakref
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher ends rank 0 as soon as rank 1 has crashed
        start()
        arrays = [hvd.empty(1 << 20) for _ in range(3)]
        for array in arrays:
            array[:] = 1
        still_works()
        if rank == 1:
            place = ctypes.c_void_p(arrays[1].ctypes.data)
            assert ctypes.CDLL(None).mprotect(place, ctypes.c_size_t(arrays[1].nbytes), 0) == 0
        handles = [hvd.allreduce_async_(array, op=hvd.Sum, name=str(i)) for i, array in enumerate(arrays)]
        seen = [outcome_of(lambda: hvd.synchronize(handle))["kinds"] for handle in handles]
        watched = [weakref.ref(array) for array in arrays]
        del arrays, array, handles
        gc.collect()
        report(seen=seen, alive=[array() is not None for array in watched])
        """,
        HOROVOD_FUSION_THRESHOLD="0",
    )
    facts = world.reports_of(0)
    assert "seen" in facts, world.output
    assert not facts["seen"][0], facts
    for kinds in facts["seen"][1:]:
        assert "HorovodInternalError" in kinds, facts
    assert facts["alive"] == [False, True, False], facts
    assert world.code != 0
