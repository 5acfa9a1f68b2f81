"""Compares training over a process group with training in one process: DDP, ZeRO, FSDP2, tensor parallel and more."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

pytest.importorskip("torch.distributed.pipelining", reason="torch before 2.6 lacks FSDP2, pipelines or meshes")
# isort: split
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import perseus_like.torch as hvd
from perseus_like.torch.nn import parallel

from .training import STEPS, adam, assert_as_alone, batch, make_model, mine, train

checkpoint: Any = importlib.import_module("torch.distributed.checkpoint")


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"bucket_cap_mb": 0.0001},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"gradient_as_bucket_view": True},
    ],
    ids=str,
)
def test_ddp(switches: dict[str, Any]) -> None:
    model = DistributedDataParallel(make_model(), **switches)
    train(model, adam(model.parameters()), mine)
    assert_as_alone(model.module.state_dict())


def test_ddp_without_synchronization_and_with_uneven_inputs(rank: int, size: int) -> None:
    model = DistributedDataParallel(make_model())
    with model.no_sync():
        model(mine(batch(0, size))).sum().backward()
    model(mine(batch(1, size))).sum().backward()
    expected = make_model()
    for step in range(2):
        (expected(batch(step, size)).sum() / size).backward()
    torch.testing.assert_close(model.module[0].weight.grad, expected[0].weight.grad)
    with model.join():
        for step in range(1 + rank):
            model(mine(batch(step, size))).sum().backward()


def test_zero() -> None:
    model = DistributedDataParallel(make_model())
    train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01), mine)
    assert_as_alone(model.module.state_dict())


@pytest.mark.parametrize("wrap", [lambda model: model, DistributedDataParallel, parallel.DistributedDataParallel])
@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.NAdam])
def test_parameters_once_per_host(wrap: Callable[[nn.Module], nn.Module], cls: Any, size: int) -> None:
    """Gradients that a DistributedDataParallel has averaged are not averaged again."""

    def wide_model() -> nn.Sequential:
        first = make_model()
        torch.manual_seed(1)
        large = [nn.Linear(200, 200) for _ in range(size)]  # their gradients are not copied
        return nn.Sequential(*first, nn.LazyLinear(200), *large)

    first = wide_model()
    first(batch(0, size))
    model, alone = wrap(first), copy.deepcopy(first)
    optimizer = hvd.ZeroRedundancyOptimizer(model.parameters(), cls, process_group=dist.group.WORLD, lr=0.01)
    plain = cls(alone.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        plain.zero_grad()
        model(mine(batch(step, size))).pow(2).mean().backward()
        alone(batch(step, size)).pow(2).mean().backward()
        expected = nn.utils.clip_grad_norm_(alone.parameters(), 0.05)
        torch.testing.assert_close(optimizer.clip_grad_norm_(0.05), expected)
        optimizer.step()
        plain.step()
    for found, wanted in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.NAdam])
def test_a_checkpoint_of_the_sharded_optimizer(cls: Any, size: int) -> None:
    """Each rank writes a part of the parameters and states, and a new optimizer continues."""
    model, restored = make_model(), make_model()
    torch.nn.init.ones_(next(restored.parameters()))
    optimizer = hvd.ZeroRedundancyOptimizer(model.parameters(), cls, lr=0.01)
    train(model, optimizer, mine)
    folder = Path(f"sharded-{cls.__name__}")
    weights, states = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": states}, checkpoint_id=folder)
    assert len(list(folder.glob("__*.distcp"))) == size
    successor = hvd.ZeroRedundancyOptimizer(restored.parameters(), cls, lr=0.02)
    weights, states = get_state_dict(restored, successor)
    checkpoint.load({"model": weights, "optimizer": states}, checkpoint_id=folder)
    hvd.barrier()
    set_state_dict(restored, successor, model_state_dict=weights, optim_state_dict=states)
    hvd.barrier()
    train(model, optimizer, mine)
    train(restored, successor, mine)
    for found, wanted in zip(restored.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, wanted)
    dist.barrier()


def test_a_sharded_optimizer_beside_our_ddp(size: int) -> None:
    model = make_model()
    optimizer = hvd.ZeroRedundancyOptimizer(model[2].parameters(), torch.optim.SGD, lr=0.01)
    whole = parallel.DistributedDataParallel(model)  # too late: the optimizer adds gradients already
    with pytest.raises(ValueError, match="is in a DistributedDataParallel and a ZeroRedundancyOptimizer"):
        whole(mine(batch(0, size))).sum().backward()
    assert optimizer.param_groups
    other = make_model()
    part = parallel.DistributedDataParallel(other[0])
    with pytest.raises(ValueError, match="is reduced by the ZeroRedundancyOptimizer alone, and that of"):
        hvd.ZeroRedundancyOptimizer([*part.parameters(), *other[2].parameters()], torch.optim.SGD, lr=0.01)


def sharded(mesh: DeviceMesh | None = None, **options: Any) -> Any:
    model = make_model()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    train(model, adam(model.parameters()), mine)
    return model


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.full_tensor() for name, tensor in model.state_dict().items()}


def test_fsdp2() -> None:
    assert_as_alone(whole(sharded()))
    sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))


def test_hsdp(size: int) -> None:
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("replicate", "shard"))
    assert_as_alone(whole(sharded(mesh)))


def test_checkpoint_of_shards(rank: int) -> None:
    model = sharded()
    folder: list[Any] = [str(Path.cwd() / "checkpoint")]
    dist.broadcast_object_list(folder, 0)
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder[0])
    before = whole(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    state = {"model": model.state_dict()}
    checkpoint.load(state, checkpoint_id=folder[0])
    for name, tensor in whole(model).items():
        assert torch.equal(tensor, before[name])


def test_tensor_parallel(size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    model, expected, rows = make_model(), make_model(), batch(0, size)
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.testing.assert_close(model(rows), expected(rows))
    model(rows).sum().backward()
    expected(rows).sum().backward()
    gradient: Any = model[0].weight.grad
    torch.testing.assert_close(gradient.full_tensor(), expected[0].weight.grad)


def test_sequence_parallel(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    model = nn.Sequential(nn.LayerNorm(8), *make_model())
    expected, rows = copy.deepcopy(model), batch(0, size)
    plan = {
        "0": SequenceParallel(sequence_dim=0),
        "1": ColwiseParallel(input_layouts=Shard(0)),
        "3": RowwiseParallel(output_layouts=Shard(0)),
    }
    parallelize_module(model, mesh, plan)
    torch.testing.assert_close(model(mine(rows)), mine(expected(rows)))


@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
def test_pipeline(schedule: Any, rank: int, size: int) -> None:
    torch.manual_seed(1)
    layers = [nn.Linear(8, 8) for _ in range(size)]
    expected = copy.deepcopy(nn.Sequential(*layers))
    rows = torch.randn(8, 8, generator=torch.Generator().manual_seed(2))
    stage = PipelineStage(layers[rank], rank, size, torch.device("cpu"))
    run = schedule(stage, n_microbatches=4, loss_fn=nn.MSELoss())
    if rank == 0:
        run.step(rows)
    elif rank == size - 1:
        run.step(target=torch.zeros(8, 8))
    else:
        run.step()
    for part in range(4):
        (nn.MSELoss()(expected(rows[2 * part :][:2]), torch.zeros(2, 8)) / 4).backward()
    torch.testing.assert_close(layers[rank].weight.grad, expected[rank].weight.grad)


@pytest.mark.slow
def test_context_parallel(size: int) -> None:
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import context_parallel_unshard

    # The mesh has two ranks. With more, torch's own search for placements takes minutes.
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("data", "context"))["context"]
    generator = torch.Generator().manual_seed(3)
    whole_ones = [torch.randn(1, 2, 16, 4, generator=generator) for _ in range(3)]
    parts = [tensor.clone() for tensor in whole_ones]
    with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2, 2, 2]):
        output = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
    (gathered,) = context_parallel_unshard(mesh, [output], [2])
    expected = nn.functional.scaled_dot_product_attention(whole_ones[0], whole_ones[1], whole_ones[2])
    torch.testing.assert_close(gathered, expected)


@pytest.mark.slow
def test_compiled() -> None:
    import torch.distributed._functional_collectives as functional

    model = DistributedDataParallel(make_model())
    train(torch.compile(model, backend="aot_eager"), adam(model.parameters()), mine)
    assert_as_alone(model.module.state_dict())

    size = dist.get_world_size()
    world: Any = dist.group.WORLD

    @torch.compile(fullgraph=True, backend="aot_eager")
    def total(tensor: torch.Tensor) -> Any:
        return functional.all_reduce(tensor, "sum", world) + functional.all_gather_tensor(tensor, 0, world).sum()

    torch.testing.assert_close(total(torch.ones(4)), torch.full((4,), 5.0 * size))
