"""Compares SyncBatchNorm with BatchNorm on the concatenated batches of all ranks."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import perseus_like.torch as hvd  # noqa: E402
from perseus_like.host_memory.host_sets import host_process_set  # noqa: E402

from .training import assert_equal_parameters  # noqa: E402

SHAPES = {"rows": (), "sequences": (5,), "images": (4, 3), "volumes": (2, 3, 2)}
CHANNELS = 3
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


class AnyBatchNorm(torch.nn.modules.batchnorm._BatchNorm):  # type: ignore[misc, name-defined]
    """BatchNorm1d, BatchNorm2d and BatchNorm3d in one class."""

    def _check_input_dim(self, input: Any) -> None: ...


def uneven(rank: int) -> int:
    return rank + 2


def batches(size: int, rest: tuple[int, ...], dtype: Any, rows: Callable[[int], int] = uneven, seed: int = 0) -> Any:
    """Returns the batch of every rank. Values are far from zero, and the mean differs between ranks."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for r in range(size):
        values = torch.randn((rows(r), CHANNELS, *rest), generator=generator, dtype=torch.float64)
        made.append((values * 2 + 5 + r).to(dtype))
    return made


def pair(dtype: Any, **options: Any) -> tuple[Any, Any]:
    """Returns a BatchNorm and a SyncBatchNorm with the same parameters and statistics."""
    torch.manual_seed(5)
    alone, together = AnyBatchNorm(CHANNELS, **options), hvd.SyncBatchNorm(CHANNELS, **options)
    if alone.affine:
        torch.nn.init.uniform_(alone.weight, 0.5, 2.0)
        torch.nn.init.uniform_(alone.bias)
    together.load_state_dict(alone.state_dict())
    kind = torch.float32 if dtype is torch.bfloat16 else dtype
    return alone.to(kind), together.to(kind)


def weighted(output: Any, rows: slice = slice(None)) -> Any:
    """Returns a loss whose gradient differs from row to row."""
    weights = torch.arange(1.0, 200.0, dtype=output.dtype)[rows]
    return (output.flatten(1).square() * weights[: len(output), None]).mean(1).sum()


def compare(
    rank: int,
    size: int,
    rest: tuple[int, ...] = (),
    dtype: Any = torch.float64,
    rows: Callable[[int], int] = uneven,
    memory_format: Any = torch.contiguous_format,
    **options: Any,
) -> None:
    alone, together = pair(dtype, **options)
    tolerance = {"rtol": TOLERANCES[dtype], "atol": TOLERANCES[dtype]}
    start = sum(rows(r) for r in range(rank))
    mine = slice(start, start + rows(rank))
    for step in range(3):
        everything = batches(size, rest, dtype, rows, step)
        whole = torch.cat(everything).requires_grad_()
        own = everything[rank].to(memory_format=memory_format).requires_grad_()
        expected, actual = alone(whole), together(own)
        assert actual.dtype == dtype
        assert actual.is_contiguous(memory_format=memory_format)
        torch.testing.assert_close(actual, expected[mine], **tolerance)
        for norm in (alone, together):
            norm.zero_grad()
        weighted(expected).backward()
        weighted(actual, mine).backward()
        scale = max(1.0, float(whole.grad.abs().max()))
        torch.testing.assert_close(own.grad, whole.grad[mine], rtol=tolerance["rtol"], atol=tolerance["atol"] * scale)
        for (name, theirs), ours in zip(alone.named_parameters(), together.parameters(), strict=True):
            total = hvd.allreduce(ours.grad, op=hvd.Sum, name=name)
            scale = max(1.0, float(theirs.grad.abs().max()))
            torch.testing.assert_close(total, theirs.grad, rtol=tolerance["rtol"], atol=tolerance["atol"] * scale)
        for (name, theirs), ours in zip(alone.named_buffers(), together.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs, **tolerance, msg=name)
    torch.testing.assert_close(together.eval()(own), alone.eval()(own), **tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_equals_batch_norm_on_the_whole_batch(shape: str, dtype: Any, rank: int, size: int) -> None:
    compare(rank, size, SHAPES[shape], dtype)


@pytest.mark.parametrize(
    "options",
    [{"affine": False}, {"momentum": None}, {"track_running_stats": False}, {"eps": 0.1, "momentum": 0.5}],
    ids=str,
)
def test_options(options: dict[str, Any], rank: int, size: int) -> None:
    compare(rank, size, (4,), **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_channels_last(dtype: Any, rank: int, size: int) -> None:
    compare(rank, size, (4, 3), dtype, memory_format=torch.channels_last)


def test_parameters_of_16_bits(rank: int, size: int) -> None:
    """`model.bfloat16()` converts all parameters of a model."""
    alone, together = pair(torch.float32)
    together.bfloat16()
    everything = batches(size, (4, 3), torch.bfloat16)
    whole, own = torch.cat(everything).float().requires_grad_(), everything[rank].clone().requires_grad_()
    start = sum(uneven(r) for r in range(rank))
    mine = slice(start, start + uneven(rank))
    expected, actual = alone(whole), together(own)
    weighted(expected).backward()
    weighted(actual.float(), mine).backward()
    assert actual.dtype == own.grad.dtype == together.weight.grad.dtype == torch.bfloat16
    torch.testing.assert_close(actual.float(), expected[mine], rtol=3e-2, atol=3e-2)
    scale = float(whole.grad.abs().max())
    torch.testing.assert_close(own.grad.float(), whole.grad[mine], rtol=3e-2, atol=3e-2 * scale)


def test_one_value_on_some_ranks_and_none_on_others(rank: int, size: int) -> None:
    compare(rank, size, rows=lambda r: 1 if r else 2)
    compare(rank, size, (2, 2), rows=lambda r: 0 if r == size - 1 and size > 1 else 2)


def test_a_mean_far_from_zero(rank: int, size: int) -> None:
    """E[x²] - E[x]² in float32 would have no correct digit."""
    everything = [values + 3000 for values in batches(size, (4, 4), torch.float32)]
    alone, together = pair(torch.float32)
    start = sum(uneven(r) for r in range(rank))
    expected = alone(torch.cat(everything))[start : start + uneven(rank)]
    torch.testing.assert_close(together(everything[rank]), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(together.running_var, alone.running_var, rtol=1e-5, atol=0)


def test_one_value_in_all_is_an_error_on_all_ranks(rank: int, size: int) -> None:
    norm = hvd.SyncBatchNorm(CHANNELS)
    with pytest.raises(ValueError, match="value per channel"):
        norm(torch.ones(int(rank == 0), CHANNELS))
    for wrong in (torch.ones(CHANNELS), torch.ones(2, CHANNELS + 1)):
        with pytest.raises(ValueError, match=r"dimensions|channels"):
            norm(wrong)


def test_a_rank_that_has_joined_has_no_values(rank: int, size: int) -> None:
    alone, together = pair(torch.float64)
    everything = batches(size, (), torch.float64)
    if rank < size - 1 or size == 1:
        whole = torch.cat(everything[: max(1, size - 1)]).requires_grad_()
        own = everything[rank].clone().requires_grad_()
        start = sum(uneven(r) for r in range(rank))
        mine = slice(start, start + uneven(rank))
        expected, actual = alone(whole), together(own)
        torch.testing.assert_close(actual, expected[mine])
        weighted(expected).backward()
        weighted(actual, mine).backward()
        torch.testing.assert_close(own.grad, whole.grad[mine])
        torch.testing.assert_close(together.running_var, alone.running_var)
    hvd.join()


def test_process_sets(rank: int, size: int, two_ranks: None) -> None:
    both = hvd.add_process_set([0, size - 1]) if size > 2 else hvd.global_process_set
    last = hvd.add_process_set([size - 1])
    everything = batches(size, (), torch.float64)
    for ranks in (both, last):
        alone, _ = pair(torch.float64)
        together = hvd.SyncBatchNorm(CHANNELS, process_set=ranks).double()
        together.load_state_dict(alone.state_dict())
        sharing = (ranks.ranks or []) if ranks.included() else [rank]
        expected = alone(torch.cat([everything[r] for r in sharing]))
        start = sum(uneven(r) for r in sharing if r < rank)
        torch.testing.assert_close(together(everything[rank]), expected[start : start + uneven(rank)])
        torch.testing.assert_close(together.running_mean, alone.running_mean)
    hvd.remove_process_set(last)
    if size > 2:
        hvd.remove_process_set(both)


def test_scopes(rank: int, size: int) -> None:
    assert host_process_set() is hvd.global_process_set  # this job runs on one host
    inside, everywhere = hvd.SyncBatchNorm(CHANNELS, comm_scope=0), hvd.SyncBatchNorm(CHANNELS, comm_scope=1)
    values = batches(size, (), torch.float32)[rank]
    assert torch.equal(inside(values), everywhere(values))
    assert "comm_scope=0" in str(inside)
    with pytest.raises(ValueError, match="comm_scope"):
        hvd.SyncBatchNorm(CHANNELS, comm_scope=2)
    with pytest.raises(ValueError, match="no choice"):
        hvd.SyncBatchNorm(CHANNELS, process_set=hvd.ProcessSet([0]), comm_scope=0)


def network() -> Any:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        *[torch.nn.Conv2d(2, CHANNELS, 3, bias=False), torch.nn.BatchNorm2d(CHANNELS), torch.nn.ReLU()],
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(4), torch.nn.BatchNorm1d(4, affine=False)),
        torch.nn.Linear(4, 2),
    )


@pytest.mark.parametrize("how", ["plain", "compiled", "checkpointed"])
def test_a_converted_model_trains_as_one_process(how: str, rank: int, size: int) -> None:
    alone = network()
    alone(torch.zeros(2, 2, 6, 6))
    alone = alone.double()
    together = hvd.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(alone))
    assert [type(part) for part in together.modules()].count(hvd.SyncBatchNorm) == 2
    assert list(together.state_dict()) == list(alone.state_dict())
    call: Callable[[Any], Any] = together
    if how == "compiled":
        call = torch.compile(together, backend="aot_eager")
    if how == "checkpointed":
        call = lambda images: torch.utils.checkpoint.checkpoint(together, images, use_reentrant=False)  # noqa: E731
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(together.parameters(), lr=0.1))
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        images = torch.randn(4 * size, 2, 6, 6, generator=generator, dtype=torch.float64)
        plain.zero_grad()
        alone(images).square().mean().backward()
        plain.step()
        optimizer.zero_grad()
        call(images[4 * rank : 4 * rank + 4]).square().mean().backward()
        optimizer.step()
    assert_equal_parameters(together, alone)
    if how != "checkpointed":  # checkpointing updates statistics twice, also without this library
        for theirs, ours in zip(alone.buffers(), together.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_conversion_keeps_parameters_and_modes(rank: int, size: int) -> None:
    model = network()
    model(torch.zeros(2, 2, 6, 6))
    model[1].eval().weight.requires_grad_(False)
    before = dict(model.named_parameters())
    statistics = model[1].running_mean
    converted = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    assert converted is model
    assert all(value is before[name] for name, value in converted.named_parameters())
    assert converted[1].running_mean is statistics
    assert not converted[1].training
    assert converted[3][2].training
    assert hvd.SyncBatchNorm.convert_sync_batchnorm(converted) is converted
    single = hvd.SyncBatchNorm.convert_sync_batchnorm(torch.nn.BatchNorm3d(4), comm_scope=0)
    assert isinstance(single, hvd.SyncBatchNorm)
    assert single.comm_scope == 0
    with pytest.raises(ValueError, match="channels yet"):
        hvd.SyncBatchNorm.convert_sync_batchnorm(torch.nn.LazyBatchNorm2d())


def test_copies(rank: int, size: int) -> None:
    norm = hvd.SyncBatchNorm(CHANNELS)
    values = batches(size, (), torch.float32)[rank]
    expected = norm(values)
    buffer = io.BytesIO()
    torch.save(norm, buffer)
    buffer.seek(0)
    for duplicate in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm)), torch.load(buffer, weights_only=False)):
        assert duplicate.process_set is hvd.global_process_set
        assert torch.equal(duplicate(values), expected)


def test_inputs_that_need_no_gradient(rank: int, size: int) -> None:
    norm = hvd.SyncBatchNorm(CHANNELS)
    values = batches(size, (), torch.float32)[rank]
    norm(values).sum().backward()
    torch.testing.assert_close(norm.bias.grad, torch.full((CHANNELS,), float(uneven(rank))))
    for parameter in norm.parameters():
        parameter.requires_grad_(False)
    assert not norm(values).requires_grad
    values.requires_grad_()
    if size == 1:
        return  # on one rank, SyncBatchNorm computes as BatchNorm does
    (slope,) = torch.autograd.grad(norm(values).square().sum(), values, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()
