"""Tests of groups in which each device has its own backend: one of torch's and perseus."""

from __future__ import annotations

import pytest

from tests.job import Start

USES = """
    import perseus_like.torch.distributed
    from perseus_like.torch.distributed.process_group import PerseusGroup

    def uses(group=None):
        chosen = group or dist.distributed_c10d._get_default_group()
        total = torch.ones(2) * (dist.get_rank() + 1)
        dist.all_reduce(total, group=group)
        gathered = [torch.zeros(1) for _ in range(2)]
        dist.all_gather(gathered, torch.ones(1) * dist.get_rank(), group=group)
        objects = [None, None]
        dist.all_gather_object(objects, dist.get_rank(), group=group)
        dist.barrier(group)
        if dist.get_rank() == 0:
            dist.send(torch.ones(3), 1, group=group)
        else:
            dist.recv(torch.zeros(3), 0, group=group)
        dist.monitored_barrier(group, timedelta(seconds=60))
        part = chosen.part_for("cpu").group
        report(total.tolist(), gathered, objects, isinstance(part, PerseusGroup))
    """


@pytest.mark.slow
@pytest.mark.parametrize("backends", ["cpu:gloo,cuda:perseus", "cuda:perseus,cpu:gloo"])
def test_each_device_has_its_own_backend(backends: str, program: Start) -> None:
    done = program(
        "torchrun",
        2,
        USES
        + f"""
    dist.init_process_group("{backends}")
    uses()
    group = dist.new_group([1, 0])  # has the same backends
    uses(group)
    import pickle
    for each in (group, dist.distributed_c10d._get_default_group()):
        part = each.part_for("cuda").group
        assert isinstance(part, PerseusGroup)
        assert pickle.loads(pickle.dumps(each)) is each and pickle.loads(pickle.dumps(part)) is part
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    model(torch.ones(1, 3)).sum().backward()
    try:
        dist.all_reduce(torch.ones(1, device="meta"))
    except RuntimeError as error:
        report("No backend type associated with device type meta" in str(error))
    dist.destroy_process_group()
    report(len(dist.distributed_c10d._world.pg_names))
    """,
    ).succeeded()
    used = "[3.0, 3.0] [tensor([0.]), tensor([1.])] [0, 1] False"
    for rank in (0, 1):
        assert done.reports_of(rank).splitlines() == [used, used, "True", "0"]


@pytest.mark.slow
def test_perseus_for_the_cpu_beside_another_backend(program: Start) -> None:
    """perseus works for the CPU beside another backend, and takes objects and barriers.

    torch's `fake` backend takes the place of an accelerator's.
    """
    done = program(
        "perseusrun",
        2,
        USES
        + """
    from torch.testing._internal.distributed import fake_pg
    dist.init_process_group("cpu:perseus,cuda:fake")
    uses()
    uses(dist.new_group([1, 0]))
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda"))
    report(type(backend).__name__)
    called = []

    def noting(name):
        plain = getattr(PerseusGroup, name)
        def call(*arguments, **options):
            called.append(name)
            return plain(*arguments, **options)
        setattr(PerseusGroup, name, call)

    noting("barrier")
    noting("broadcast")
    dist.barrier()
    dist.broadcast_object_list([1])
    report(called[0], "broadcast" in called[1:])
    dist.destroy_process_group()
    """,
    ).succeeded()
    for rank in (0, 1):
        used = "[3.0, 3.0] [tensor([0.]), tensor([1.])] [0, 1] True"
        expected = [used, used, "FakeProcessGroup", "barrier True"]
        assert done.reports_of(rank).splitlines() == expected


def test_the_backend_nccl_without_nccl_is_an_error(program: Start) -> None:
    done = program(
        "perseusrun",
        2,
        """
        import perseus_like.torch.distributed
        try:
            dist.init_process_group("cpu:perseus,cuda:nccl")
        except (RuntimeError, ValueError) as error:
            report("nccl" in str(error).lower(), dist.is_initialized())
        """,
    ).succeeded()
    assert done.reports_of(0) == done.reports_of(1) == "True False\n"
