"""Checks that all ranks get the same error if their requests of one name differ, and that the job continues."""

from __future__ import annotations

from typing import Any

from tests.job import needs

# Each entry has a call that differs on the last rank, where `odd` is 1. It also has a part of the text that describes
# the request of the other ranks, and a part of the text that describes the request of the last rank.
CASES = {
    "shape": ("hvd.allreduce(np.ones((2, 3 + odd), np.float32), name='shape')", "float32[2,3]", "float32[2,4]"),
    "turned": ("hvd.allreduce(np.ones((3, 2) if odd else (2, 3)), name='turned')", "float64[2,3]", "float64[3,2]"),
    "dtype": ("hvd.allreduce(np.ones(2, np.int32 if odd else np.int64), name='dtype')", "int64[2]", "int32[2]"),
    "op": ("hvd.allreduce(np.ones(2), op=hvd.Max if odd else hvd.Sum, name='op')", "op sum", "op max"),
    "average": ("hvd.allreduce(np.ones(2), op=hvd.Average if odd else hvd.Sum, name='average')", "sum", "average"),
    "prescale": ("hvd.allreduce(np.ones(2), prescale_factor=1 + odd, name='prescale')", "prescale 1", "prescale 2"),
    "tiny": (
        "hvd.allreduce(np.ones(2), prescale_factor=1e-8 / (1 + odd), name='tiny')",
        "prescale 1e-08",
        "prescale 5e-09",
    ),
    "postscale": ("hvd.allreduce(np.ones(2), postscale_factor=1 + odd, name='postscale')", "scale 1", "scale 2"),
    "root": ("hvd.broadcast(np.ones(2), odd, name='root')", "root 0", "root 1"),
    "columns": ("hvd.allgather(np.ones((rank, 2 + odd)), name='columns')", "float64[", ",3]"),
    "rows": ("hvd.alltoall(np.ones((size, 2 + odd)), name='rows')", "float64[", ",3]"),
    "scatter": ("hvd.reducescatter(np.ones((size, 2 + odd)), name='scatter')", ",2]", ",3]"),
    "group": ("hvd.grouped_allreduce([np.ones(3), np.ones(2 + odd)], name='group')", "[2]", "[3]"),
    "members": ("hvd.grouped_allreduce([np.ones(3)] * (2 + odd), name='members')", "2 tensors", "3 tensors"),
}


def test_all_ranks_get_the_same_error_and_the_job_continues(run: Any) -> None:
    size = 4
    calls = "".join(
        f"for time in range(3): report({name}=outcome_of(lambda: {call})); still_works()\n"
        for name, (call, _, _) in CASES.items()
    )
    world = run(size, "start()\nodd = int(rank == size - 1)\n" + calls + "hvd.shutdown()\n").succeeded()
    reports = world.all_facts()
    for name, (_, usual, odd) in CASES.items():
        outcomes = [facts[name] for facts in reports]
        assert all("HorovodInternalError" in outcome["kinds"] for outcome in outcomes), (name, outcomes)
        text = outcomes[0]["text"]
        assert [outcome["text"] for outcome in outcomes] == [text] * size
        first, _, second = text.partition(f", rank {size - 1} ")
        assert f"'{name}'" in first, text
        # The ranks of a gather may have as many kinds of rows as there are ranks.
        assert "ranks 0-2 " in first or name == "columns", text
        assert usual in first, text
        assert odd in second, text


def test_torch_tensors_and_the_optimizer(run: Any) -> None:
    needs("torch")
    world = run(
        2,
        """
        import torch
        import perseus_like.torch as hvd
        from on_rank import start
        start()
        report(tensor=outcome_of(lambda: hvd.allreduce(torch.ones(2 + rank), name="t")))
        model = torch.nn.Linear(3 + rank, 1)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
        def step():
            model(torch.ones(1, 3 + rank)).sum().backward()
            optimizer.step()
        report(step=outcome_of(step))
        assert hvd.allreduce(torch.tensor(1.0), op=hvd.Sum) == 2
        """,
    ).succeeded()
    for call in ("tensor", "step"):
        outcomes = [facts[call] for facts in world.all_facts()]
        assert all("HorovodInternalError" in outcome["kinds"] for outcome in outcomes), outcomes
        assert outcomes[0]["text"] == outcomes[1]["text"]
        assert "rank 0 has" in outcomes[0]["text"]
        assert "rank 1 has" in outcomes[0]["text"]
