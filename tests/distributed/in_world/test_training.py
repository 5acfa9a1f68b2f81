"""What trains over a process group, against one process: DDP with its switches, ZeRO, FSDP2, tensor parallel, …"""

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
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
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

from perseus_like.torch.distributed import hooks

checkpoint: Any = importlib.import_module("torch.distributed.checkpoint")

STEPS = 3
ROWS = 4  # of each rank


def make_model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


def batch(step: int, size: int) -> torch.Tensor:
    return torch.randn(size * ROWS, 8, generator=torch.Generator().manual_seed(step))


def train(model: Any, optimizer: torch.optim.Optimizer, rows: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        model(rows(batch(step, dist.get_world_size()))).pow(2).mean().backward()
        optimizer.step()


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def mine(rows: torch.Tensor) -> torch.Tensor:
    return rows[ROWS * dist.get_rank() :][:ROWS]


def alone() -> dict[str, torch.Tensor]:
    model = make_model()
    train(model, adam(model.parameters()), lambda rows: rows)
    return model.state_dict()


def assert_as_alone(state: dict[str, torch.Tensor]) -> None:
    for name, expected in alone().items():
        torch.testing.assert_close(state[name], expected, atol=1e-6, rtol=0)


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


@pytest.mark.parametrize("hook", [default_hooks.fp16_compress_hook, hooks.fp16_wire, hooks.bf16_wire])
def test_ddp_with_16_bits_on_the_way(hook: Any) -> None:
    model = DistributedDataParallel(make_model())
    model.register_comm_hook(None, hook)
    train(model, torch.optim.SGD(model.parameters(), lr=0.01), mine)
    expected = make_model()
    train(expected, torch.optim.SGD(expected.parameters(), lr=0.01), lambda rows: rows)
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(model.module.state_dict()[name], tensor, atol=1e-3, rtol=1e-2)


def test_ddp_with_power_sgd_on_many_buckets(size: int) -> None:
    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.0001)
    state = power_sgd.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5)
    model.register_comm_hook(state, power_sgd.powerSGD_hook)
    train(model, adam(model.parameters()), mine)
    weights = [torch.empty(16, 8) for _ in range(size)]
    dist.all_gather(weights, model.module[0].weight.detach())
    assert all(torch.equal(weights[0], other) for other in weights)


def test_zero() -> None:
    model = DistributedDataParallel(make_model())
    train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01), mine)
    assert_as_alone(model.module.state_dict())


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
    if size != 4:
        pytest.skip("two by two ranks")
    assert_as_alone(whole(sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))))


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


def test_context_parallel(size: int) -> None:
    if size != 2:
        pytest.skip("torch's search for placements takes minutes with more ranks")
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import context_parallel_unshard

    mesh = init_device_mesh("cpu", (size,))
    generator = torch.Generator().manual_seed(3)
    whole_ones = [torch.randn(1, 2, 8 * size, 4, generator=generator) for _ in range(3)]
    parts = [tensor.clone() for tensor in whole_ones]
    with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2, 2, 2]):
        output = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
    (gathered,) = context_parallel_unshard(mesh, [output], [2])
    expected = nn.functional.scaled_dot_product_attention(whole_ones[0], whole_ones[1], whole_ones[2])
    torch.testing.assert_close(gathered, expected)


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
