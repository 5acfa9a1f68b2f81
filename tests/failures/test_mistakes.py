"""Checks that a caller's own mistake raises a ValueError on that rank only, and that the other ranks continue."""

from typing import Any

MISTAKES = {
    "root": ("hvd.broadcast(np.ones(2), 2)", "root"),
    "negative_root": ("hvd.broadcast(np.ones(2), -1)", "root"),
    "split_count": ("hvd.alltoall(np.ones(4), splits=[1, 1, 2])", "splits"),
    "split_sum": ("hvd.alltoall(np.ones(4), splits=[4, 1])", "rows"),
    "split_sign": ("hvd.alltoall(np.ones(4), splits=[-1, 1])", "negative"),
    "rows": ("hvd.alltoall(np.ones(3))", "3 rows"),
    "complex": ("hvd.allreduce(np.ones(2, np.complex64))", "complex64"),
    "text": ("hvd.allreduce(np.array(['a']))", "<U1"),
    "objects": ("hvd.allgather(np.array([None]))", "object"),
    "set": ("hvd.allreduce(np.ones(2), process_set=hvd.ProcessSet([0, 1]))", "registered"),
    "outside": ("hvd.add_process_set([0, 2])", "2"),
    "scalar": ("hvd.allgather(np.float32(1))", "dimension 0"),
    "op": ("hvd.allreduce(np.ones(2), op=42)", "42"),
}


def test_a_mistake_raises_a_value_error_on_one_rank(run: Any) -> None:
    calls = "".join(f"    report({name}=outcome_of(lambda: {call}))\n" for name, (call, _) in MISTAKES.items())
    world = run(2, "start()\nif rank == 1:\n" + calls + "still_works()\nhvd.allreduce(np.ones(3))\n")
    assert world.code == 0, world.output
    facts = world.facts_of(1)
    for name, (_, word) in MISTAKES.items():
        assert "ValueError" in facts[name]["kinds"], (name, facts[name])
        assert "HorovodInternalError" not in facts[name]["kinds"], (name, facts[name])
        assert word in facts[name]["text"], (name, facts[name])


def test_a_process_set_that_was_removed_or_has_only_other_ranks(run: Any) -> None:
    world = run(
        3,
        """
        start()
        gone = hvd.add_process_set([0, 1])
        hvd.remove_process_set(gone)
        report(gone=outcome_of(lambda: hvd.allreduce(1.0, process_set=gone)))
        others = hvd.add_process_set([1, 2])
        if rank == 0:
            report(others=outcome_of(lambda: hvd.allreduce(1.0, process_set=others)))
        still_works()
        """,
    )
    assert world.code == 0, world.output
    assert all("ValueError" in facts["gone"]["kinds"] for facts in world.all_facts())
    assert "ValueError" in world.facts_of(0)["others"]["kinds"]
    assert "rank 0" in world.facts_of(0)["others"]["text"]


def test_a_name_that_is_in_flight_cannot_be_submitted_again(run: Any) -> None:
    world = run(
        2,
        """
        start()
        # Rank 1 submits the tensor only after rank 0 has submitted it twice.
        if rank == 0:
            handle = hvd.allreduce_async(np.ones(2), name="busy")
            report(again=outcome_of(lambda: hvd.allreduce_async(np.ones(2), name="busy")))
            still_works()
        else:
            still_works()
            handle = hvd.allreduce_async(np.ones(2), name="busy")
        assert hvd.synchronize(handle).tolist() == [1, 1]
        assert hvd.allreduce(np.ones(2), name="busy").tolist() == [1, 1]
        """,
    )
    assert world.code == 0, world.output
    again = world.facts_of(0)["again"]
    assert "ValueError" in again["kinds"]
    assert "'busy'" in again["text"]
    assert "in flight" in again["text"]
