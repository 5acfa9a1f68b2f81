"""Checks the verbs and a training on CUDA tensors against results that the CPU computes in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

import perseus_like.torch as hvd

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def values(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns a rank's input. Its small whole numbers have sums that are exact in every dtype."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(0, 5, shape, generator=generator).to(dtype)


def of_all(shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    return [values(rank, shape, dtype) for rank in range(hvd.size())]


def mine(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return values(hvd.rank(), shape, dtype).cuda()


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (33, 5), (1 << 20,)])
def test_allreduce(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    expected = torch.stack([each.double() for each in of_all(shape, dtype)]).sum(0).to(dtype)
    result = hvd.allreduce(mine(shape, dtype), op=hvd.Sum)
    assert result.is_cuda
    assert torch.equal(result.cpu(), expected)


@pytest.mark.parametrize(
    ("op", "reduce"),
    [(hvd.Min, torch.amin), (hvd.Max, torch.amax), (hvd.Product, torch.prod)],
    ids=["min", "max", "product"],
)
def test_other_operations(op: int, reduce: Callable[..., torch.Tensor]) -> None:
    stacked = torch.stack(of_all((100,), torch.float32))
    assert torch.equal(hvd.allreduce(mine((100,), torch.float32), op=op).cpu(), reduce(stacked, 0))


@pytest.mark.parametrize("compression", [hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16])
def test_averages_scaled_and_compressed(compression: object) -> None:
    tensors = [mine((count,), torch.float32) for count in (3, 1000, 40_001)]
    expected = [torch.stack(of_all((count,), torch.float32)).mean(0) for count in (3, 1000, 40_001)]
    results = hvd.grouped_allreduce(tensors, compression=compression, name="averages")
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result.cpu(), wanted, rtol=1e-2, atol=1e-2)
    scaled = hvd.allreduce(tensors[1], op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    torch.testing.assert_close(scaled.cpu(), expected[1] * hvd.size() * 2)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool])
def test_broadcast_and_gathers(dtype: torch.dtype) -> None:
    root = hvd.size() - 1
    assert torch.equal(hvd.broadcast(mine((50,), dtype), root).cpu(), values(root, (50,), dtype))
    rows = [values(rank, (rank + 1, 3), dtype) for rank in range(hvd.size())]
    assert torch.equal(hvd.allgather(rows[hvd.rank()].cuda()).cpu(), torch.cat(rows))
    sent = [values(rank, (hvd.size() * 2, 3), dtype) for rank in range(hvd.size())]
    part = slice(hvd.rank() * 2, hvd.rank() * 2 + 2)
    received = hvd.alltoall(sent[hvd.rank()].cuda())
    assert isinstance(received, torch.Tensor)
    assert torch.equal(received.cpu(), torch.cat([each[part] for each in sent]))


def test_results_in_memory_of_the_library() -> None:
    """The results are on the device, and their memory is reused only after the kernels that read them."""
    rows = torch.ones(1 << 20, device="cuda")
    total = torch.zeros((), dtype=torch.float64, device="cuda")
    for step in range(20):
        gathered = hvd.grouped_allgather([rows * step, rows[: hvd.rank() + 1]])
        shares = hvd.grouped_reducescatter([rows, rows], op=hvd.Sum)
        assert all(each.is_cuda for each in [*gathered, *shares])
        total += gathered[0].double().sum() + shares[1][0]
        del gathered, shares
    assert total.item() == hvd.size() * ((1 << 20) * 190 + 20)
    assert hvd.allgather(torch.empty(0, 3, device="cuda")).shape == (0, 3)


def test_a_tensor_that_is_computed_for_long_on_another_stream() -> None:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        busy = torch.ones(2048, 2048, device="cuda")
        for _ in range(200):
            busy = busy @ busy / 2048
        handle = hvd.allreduce_async(busy, op=hvd.Sum)
    result = hvd.synchronize(handle)  # on the default stream
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.testing.assert_close(result.sum().cpu() / busy.numel(), torch.tensor(float(hvd.size())))


def test_memory_that_is_freed_during_a_transfer() -> None:
    for step in range(50):
        handle = hvd.allreduce_async_(torch.full((1 << 20,), 1.0, device="cuda"), op=hvd.Sum, name=f"dropped {step}")
        other = torch.full((1 << 20,), -1.0, device="cuda")
        assert hvd.synchronize(handle)[123].item() == hvd.size()
        assert other[123].item() == -1.0


def test_a_stream_under_capture_is_refused() -> None:
    tensor = torch.ones(8, device="cuda")
    hvd.allreduce_(tensor, op=hvd.Average, name="before")
    graph = torch.cuda.CUDAGraph()
    refused: list[str] = []
    with torch.cuda.graph(graph):
        tensor.mul_(2.0)
        try:
            hvd.allreduce_(tensor, name="within")
        except ValueError as error:
            refused.append(str(error))
    assert "being captured into a CUDA graph" in refused[0]
    graph.replay()
    assert hvd.allreduce(tensor, op=hvd.Sum, name="after").tolist() == [2.0 * hvd.size()] * 8


@pytest.mark.parametrize("amp", [False, True])
def test_training_equals_one_process(amp: bool) -> None:
    def train(distributed: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(20, 600), torch.nn.ReLU(), torch.nn.Linear(600, 10)).cuda()
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if distributed:
            optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        scaler = torch.amp.GradScaler("cuda", enabled=amp)
        for step in range(5):
            generator = torch.Generator().manual_seed(step)
            inputs = torch.randn(8 * hvd.size(), 20, generator=generator)
            part = slice(hvd.rank() * 8, hvd.rank() * 8 + 8) if distributed else slice(None)
            with torch.autocast("cuda", enabled=amp):
                loss = model(inputs[part].cuda()).float().square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    for one, all_ranks in itertools.zip_longest(train(False), train(True)):
        torch.testing.assert_close(all_ranks, one, rtol=1e-2 if amp else 1e-4, atol=1e-2 if amp else 1e-5)


def test_a_tensor_on_another_device() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("takes two GPUs")
    elsewhere = (torch.cuda.current_device() + 1) % torch.cuda.device_count()
    with pytest.raises(ValueError, match="a process has one device"):
        hvd.allreduce(torch.ones(4, device=f"cuda:{elsewhere}"))
