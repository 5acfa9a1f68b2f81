"""Checks torch.distributed over the backend `perseus` on CUDA tensors against the same calls on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import perseus_like.torch as hvd
from perseus_like.torch.distributed import hooks
from tests.distributed.forms import Tensors, forms

make_stream: Any = torch.cuda.Stream
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.uint8, torch.complex64, torch.uint16]


@pytest.fixture(scope="module", autouse=True)
def group(world: None) -> Iterator[None]:
    dist.init_process_group("perseus")
    yield
    dist.destroy_process_group()


@pytest.fixture
def rank() -> int:
    return dist.get_rank()


@pytest.fixture
def size() -> int:
    return dist.get_world_size()


FORMS = {name: form for name, form in forms(1000).items() if name != "maximum"}  # complex numbers have none


def tensors_for(form: str, dtype: torch.dtype) -> tuple[Tensors, Tensors]:
    """Returns inputs on the CPU, which are small whole numbers, and the tensors for the outputs."""
    read, written, _ = FORMS[form]
    place = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(dist.get_rank())
    source = [torch.randint(0, 5, (count,), generator=generator).to(dtype) for count in read(*place)]
    return source, source if written is None else [torch.zeros(count, dtype=dtype) for count in written(*place)]


def on_both(form: str, dtype: torch.dtype) -> tuple[Tensors, Tensors, Tensors]:
    """Returns the result of the CPU, and the inputs and outputs with which a GPU must compute the same."""
    source, target = tensors_for(form, dtype)
    there = [each.cuda() for each in source]
    room = there if target is source else [each.cuda() for each in target]
    FORMS[form][2](source, target).wait()
    return target, there, room


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_every_form(form: str, dtype: torch.dtype) -> None:
    expected, source, target = on_both(form, dtype)
    FORMS[form][2](source, target).wait()
    for wanted, found in zip(expected, target, strict=True):
        assert found.is_cuda
        assert torch.equal(found.cpu(), wanted)


def busy(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the same values after a long computation on the current stream."""
    long = torch.ones(2048, 2048, device="cuda")
    for _ in range(100):
        long = long @ long / 2048
    return tensor * (long[0, 0] > 0).to(tensor.dtype)


@pytest.mark.parametrize("form", FORMS)
def test_started_on_one_stream_and_waited_for_on_another(form: str) -> None:
    expected, source, target = on_both(form, torch.float32)
    in_place = target is source
    starting, waiting = make_stream(), make_stream()
    starting.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(starting):
        source = [busy(each) for each in source]
        target = source if in_place else target
        work = FORMS[form][2](source, target)
    with torch.cuda.stream(waiting):
        work.wait()
        seen = [each.clone() for each in target]
        assert torch.cuda.current_stream() == waiting
    waiting.synchronize()
    for wanted, found in zip(expected, seen, strict=True):
        assert torch.equal(found.cpu(), wanted)
    starting.synchronize()


@pytest.mark.parametrize("form", [form for form in FORMS if form != "coalesced"])
def test_futures(form: str) -> None:
    """Callbacks run after the result is complete, and waiters for their futures run after the callbacks.

    No call of `synchronize()` is needed.
    """
    expected, source, target = on_both(form, torch.float32)
    device = torch.cuda.current_device()
    seen: list[int] = []

    def doubled(_: Any) -> Tensors:
        seen.append(torch.cuda.current_device())
        return [each * 2 for each in target]

    if target is source:
        source = target = [busy(each) for each in source]
    found = FORMS[form][2](source, target).get_future().then(doubled).wait()
    if target:  # a rank without an output gets no part of the result
        assert seen == [device]
    for wanted, each in zip(expected, found, strict=True):
        assert torch.equal(each.cpu(), wanted * 2)


def test_chains(size: int) -> None:
    def step(future: Any) -> Any:
        (tensor,) = future.value()
        dist.all_reduce(tensor)
        return [tensor / size]

    chains = []
    for i in range(20):
        future = dist.all_reduce(torch.full((1 + i % 3,), float(i), device="cuda"), async_op=True).get_future()
        for _ in range(3):
            future = future.then(step)
        chains.append(future)
    for i, chain in enumerate(chains):
        assert chain.wait()[0][0].item() == i * size


def test_memory_that_is_freed_during_a_transfer(size: int) -> None:
    for _ in range(50):
        tensor = torch.full((1 << 20,), 1.0, device="cuda")
        output = torch.empty(size << 20, device="cuda")
        work = dist.all_gather_into_tensor(output, tensor, async_op=True)
        del tensor
        other = torch.full((1 << 20,), -1.0, device="cuda")
        work.wait()
        assert (output.min().item(), output.max().item(), other[5].item()) == (1.0, 1.0, -1.0)


def test_the_current_device_and_stream_do_not_change(size: int) -> None:
    side, device = make_stream(), torch.cuda.current_device()
    with torch.cuda.stream(side):
        work = dist.all_reduce(torch.ones(4, device="cuda"), async_op=True)
        work.get_future().then(lambda _: None).wait()
        work.wait()
        dist.all_gather_into_tensor(torch.empty(4 * size, device="cuda"), torch.ones(4, device="cuda"))
        assert torch.cuda.current_stream() == side
        assert torch.cuda.current_device() == device


def test_strided_sparse_and_float8(rank: int, size: int) -> None:
    wide = torch.ones(30, 40, device="cuda")
    dist.all_reduce(wide[:, 10:20])
    assert wide.sum().item() == 30 * 30 + 30 * 10 * size
    entries: Any = torch.eye(size + 1, device="cuda")[rank].to_sparse()
    dist.all_reduce(entries)
    assert entries.to_dense().tolist() == [1.0] * size + [0.0]
    small = torch.ones(5, device="cuda").to(torch.float8_e5m2)
    dist.all_reduce(small)
    assert small.float().tolist() == [size] * 5
    most = torch.tensor([2**64 - 1], dtype=torch.uint64, device="cuda")
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    assert most.tolist() == [2**64 - 1]
    bits = torch.tensor([1 << rank], device="cuda")
    dist.all_reduce(bits, op=dist.ReduceOp.BOR)
    assert bits.item() == (1 << size) - 1


def test_messages(rank: int, size: int) -> None:
    if size == 1:
        pytest.skip("takes two ranks")
    after, before = (rank + 1) % size, (rank - 1) % size
    side = make_stream()
    with torch.cuda.stream(side):
        source = busy(torch.full((1 << 18,), float(rank), device="cuda"))
        target = torch.full((1 << 18, 2), -1.0, device="cuda")
        operations = [dist.P2POp(dist.isend, source, after), dist.P2POp(dist.irecv, target[:, 0], before)]
        works = dist.batch_isend_irecv(operations)
        source.fill_(-5.0)
    for work in works:
        work.wait()
    assert target.mean(0).tolist() == [before, -1.0]
    dist.send(target, after)
    assert dist.recv(torch.empty_like(target), before) == before


def test_objects_barriers_and_functional_collectives(rank: int, size: int) -> None:
    found: list[Any] = [None] * size
    dist.all_gather_object(found, {"rank": rank})
    assert found == [{"rank": r} for r in range(size)]
    dist.barrier()
    dist.barrier(device_ids=[torch.cuda.current_device()])
    mesh = init_device_mesh("cuda", (size,))
    total = functional.all_reduce(torch.ones(4, device="cuda"), "sum", mesh)
    assert total.tolist() == [size] * 4
    rows = functional.all_gather_tensor(torch.full((2,), float(rank), device="cuda"), 0, mesh)
    assert rows.tolist() == [float(r) for r in range(size) for _ in range(2)]


def test_groups(rank: int, size: int) -> None:
    groups = [dist.new_group(list(range(first, size))) for first in range(size)]
    for first in range(rank + 1):
        tensor = torch.ones(4, device="cuda")
        dist.all_reduce(tensor, group=groups[first])
        assert tensor.tolist() == [size - first] * 4
    for group in groups[: rank + 1]:
        dist.destroy_process_group(group)


def test_two_devices_in_one_call(size: int) -> None:
    with pytest.raises(ValueError, match="all tensors of a call must be on one device"):
        dist.all_gather_into_tensor(torch.empty(4 * size), torch.ones(4, device="cuda"))
    dist.barrier()


def test_a_stream_under_capture_is_refused(size: int) -> None:
    tensor = torch.ones(8, device="cuda")
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    refused: list[str] = []
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        tensor.mul_(2.0)
        try:
            dist.all_reduce(tensor)
        except ValueError as error:
            refused.append(str(error))
    assert "being captured into a CUDA graph" in refused[0]
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size] * 8


def make_model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(20, 600), nn.ReLU(), nn.Linear(600, 10)).cuda()


def train(model: Any, part: slice) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        rows = torch.randn(8 * dist.get_world_size(), 20, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(rows[part].cuda()).square().mean().backward()
        optimizer.step()


def trained_by_all(model: Any) -> Any:
    rank = dist.get_rank()
    train(model, slice(rank * 8, rank * 8 + 8))
    return model


def assert_as_alone(found: dict[str, torch.Tensor], tolerance: float = 1e-4) -> None:
    alone = make_model()
    train(alone, slice(None))
    for name, expected in alone.state_dict().items():
        torch.testing.assert_close(found[name], expected, rtol=tolerance, atol=tolerance / 10)


SWITCHES: list[dict[str, Any]] = [
    {},
    {"bucket_cap_mb": 0.001},
    {"static_graph": True},
    {"find_unused_parameters": True},
    {"gradient_as_bucket_view": True},
]


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_ddp(switches: dict[str, Any]) -> None:
    model = DistributedDataParallel(make_model(), device_ids=[torch.cuda.current_device()], **switches)
    assert_as_alone(trained_by_all(model).module.state_dict())


def test_ddp_with_hooks() -> None:
    for hook in (hooks.bf16_wire, hooks.fp16_wire):
        model = DistributedDataParallel(make_model())
        model.register_comm_hook(None, hook)
        assert_as_alone(trained_by_all(model).module.state_dict(), tolerance=2e-2)


def test_ddp_join(rank: int) -> None:
    model = DistributedDataParallel(make_model())
    with model.join():
        for _ in range(1 + rank):
            model(torch.ones(4, 20, device="cuda")).sum().backward()


def test_fsdp2() -> None:
    model = make_model()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    trained_by_all(model)
    assert_as_alone({name: tensor.full_tensor() for name, tensor in model.state_dict().items()})


def test_fsdp1() -> None:
    model = trained_by_all(FullyShardedDataParallel(make_model(), use_orig_params=True))
    assert_as_alone(model.state_dict())


def test_collectives_of_hvd_at_the_same_time(size: int) -> None:
    tensor = torch.ones(4, device="cuda")
    other = tensor.clone()
    work, handle = dist.all_reduce(tensor, async_op=True), hvd.allreduce_async_(other, op=hvd.Sum, name="beside")
    hvd.synchronize(handle)
    work.wait()
    assert tensor.tolist() == other.tolist() == [size] * 4
