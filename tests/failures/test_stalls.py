"""Checks that a tensor that some ranks never submit is reported, and is an error if a setting asks for that."""

import re
from typing import Any

import pytest

from tests.job import needs


@pytest.mark.parametrize("late", [0, 2])
def test_a_warning_names_the_tensor_and_the_ranks(start: Any, late: int) -> None:
    """Rank 0 and all ranks that wait print the warning."""
    world = start(
        3,
        f"""
        start()
        if rank == {late}:
            wait_for_test()
        result = hvd.allreduce(np.ones(2), op=hvd.Sum, name="fc.weight")
        report(result=result.tolist())
        """,
        PERSEUS_STALL_CHECK_TIME_SECONDS="0.5",
    )
    waiting = {0, 1, 2} - {late}
    warning_ranks: set[int] = set()
    while warning_ranks < waiting | {0}:
        line = world.wait_for_line("allreduce 'fc.weight' has waited")
        if "submitted by ranks {}, {}, not by rank {}".format(*sorted(waiting), late) in line:
            warning_ranks.add(int(line[1]))
        else:  # a second rank had not submitted the tensor either when the warning was printed
            assert re.search(rf"submitted by rank \d, not by ranks .*\b{late}\b", line), line
    world.go_on()
    assert world.end().code == 0, world.output
    assert [facts["result"] for facts in world.all_facts()] == [[3.0, 3.0]] * 3
    assert warning_ranks == waiting | {0}


def test_a_warning_about_gradients_names_a_parameter(start: Any) -> None:
    """The request has a name that is the same for all models, `gradients` and numbers."""
    needs("torch")
    world = start(
        2,
        """
        import torch
        import perseus_like.torch
        start()
        layer = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        optimizer = perseus_like.torch.DistributedOptimizer(optimizer, layer.named_parameters(prefix="fc"))
        for number in range(2):
            if number == 1 and rank == 1:
                wait_for_test()
            layer(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        PERSEUS_STALL_CHECK_TIME_SECONDS="0.5",
    )
    label = r"allreduce 'gradients\.\d\.0' \(DistributedOptimizer with 'fc\.weight' .* and 1 more\)"
    wanted = re.compile(label + " has waited .*: submitted by rank 0, not by rank 1")
    while not wanted.search(world.wait_for_line("fc.weight")):
        pass  # on a busy machine, a rank may be late with another request, too
    world.go_on()
    assert world.end().code == 0, world.output


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("steps", [0, 4])
def test_a_warning_about_a_step_names_the_optimizer(start: Any, steps: int, late: int) -> None:
    """All optimizers share the name of this request, which is in the response cache in later steps."""
    needs("torch")
    world = start(
        2,
        f"""
        import torch
        import perseus_like.torch
        start()

        def made(name):
            layer = torch.nn.Linear(2, 1)
            optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
            return layer, perseus_like.torch.DistributedOptimizer(optimizer, layer.named_parameters(prefix=name))

        def step(layer, optimizer):
            layer(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        models = [made("generator"), made("critic")]
        for number in range({steps}):
            for model in models:
                step(*model)
        if rank == {late}:
            wait_for_test()
        step(*models[0])
        """,
        PERSEUS_STALL_CHECK_TIME_SECONDS="0.5",
    )
    late_ones = f"submitted by rank {1 - late}, not by rank {late}"
    while late_ones not in (line := world.wait_for_line("'gradients.step'")):
        pass  # on a busy machine, the other rank was late in an earlier step
    label = r"allreduce 'gradients\.step' \(DistributedOptimizer with 'generator\.weight' .* and 1 more\)"
    assert re.search(f"{label} has waited .*: {late_ones}", line), line
    world.go_on()
    assert world.end().code == 0, world.output


@pytest.mark.parametrize("size", [2, 4])
def test_a_stall_is_an_error_on_all_ranks_after_the_shutdown_time(run: Any, size: int) -> None:
    world = run(
        size,
        """
        start()
        name = "mine" if rank == size - 1 else "theirs"
        report(stalled=outcome_of(lambda: hvd.allreduce(1.0, name=name)), after=outcome_of(lambda: hvd.allreduce(1.0)))
        hvd.shutdown()
        os.environ["PERSEUS_STALL_SHUTDOWN_TIME_SECONDS"] = "100"  # the ranks wait for each other from now on
        hvd.init()
        still_works()
        """,
        PERSEUS_STALL_CHECK_TIME_SECONDS="0.3",
        PERSEUS_STALL_SHUTDOWN_TIME_SECONDS="1",
    ).succeeded()
    for rank, facts in enumerate(world.all_facts()):
        # The text names the rank's own tensor once.
        assert facts["stalled"]["text"].count("'mine'" if rank == size - 1 else "'theirs'") == 1
        assert "HorovodInternalError" in facts["stalled"]["kinds"]
        assert "TimedOutError" in facts["stalled"]["kinds"]
        assert "timed out after a timeout of 1.0 s" in facts["stalled"]["text"]
        assert "HorovodInternalError" in facts["after"]["kinds"]
