"""Tests of the verbs on torch tensors, and of their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import perseus_like.torch as hvd  # noqa: E402

DTYPES = [
    *[torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64],
    *[torch.float16, torch.bfloat16, torch.float32, torch.float64],
]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def mine(rank: int, shape: tuple[int, ...] = (4, 3), dtype: Any = torch.float32) -> Any:
    """Returns small whole numbers, which every dtype represents exactly."""
    count = int(np.prod(shape))
    return (torch.arange(count, dtype=torch.float64).reshape(shape) % 5 + rank).to(dtype)


@dtypes
def test_allreduce(dtype: Any, rank: int, size: int) -> None:
    for shape in [(), (0,), (5,), (2, 3, 4)]:
        expected = sum(mine(r, shape, torch.float64) for r in range(size))
        result = hvd.allreduce(mine(rank, shape, dtype), op=hvd.Sum)
        assert result.dtype == dtype
        assert result.shape == torch.Size(shape)
        assert torch.equal(result.double(), torch.as_tensor(expected))
        tensor = mine(rank, shape, dtype)
        assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
        assert torch.equal(tensor, result)
        handle = hvd.allreduce_async_(tensor, op=hvd.Max)
        assert hvd.synchronize(handle) is tensor
        assert torch.equal(hvd.synchronize(hvd.allreduce_async(tensor, op=hvd.Min)), tensor)


@dtypes
def test_broadcast_allgather_alltoall(dtype: Any, rank: int, size: int) -> None:
    root = size - 1
    assert torch.equal(hvd.broadcast(mine(rank, dtype=dtype), root), mine(root, dtype=dtype))
    tensor = mine(rank, dtype=dtype)
    assert hvd.broadcast_(tensor, root) is tensor
    assert torch.equal(tensor, mine(root, dtype=dtype))
    assert torch.equal(hvd.synchronize(hvd.broadcast_async(mine(rank, dtype=dtype), 0)), mine(0, dtype=dtype))
    assert torch.equal(hvd.synchronize(hvd.broadcast_async_(tensor, 0)), tensor)
    gathered = hvd.allgather(mine(rank, (rank + 1, 2), dtype))
    assert torch.equal(gathered, torch.cat([mine(r, (r + 1, 2), dtype) for r in range(size)]))
    one, two = hvd.grouped_allgather([mine(rank, (1,), dtype), mine(rank, (rank, 2), dtype)])
    assert torch.equal(one, torch.cat([mine(r, (1,), dtype) for r in range(size)]))
    assert torch.equal(two, torch.cat([mine(r, (r, 2), dtype) for r in range(size)]))
    sent = mine(rank, (2 * size, 2), dtype)
    expected = torch.cat([mine(r, (2 * size, 2), dtype)[2 * rank : 2 * rank + 2] for r in range(size)])
    assert torch.equal(hvd.alltoall(sent), expected)
    received, counts = hvd.alltoall(sent, splits=torch.full((size,), 2, dtype=torch.int32))
    assert torch.equal(received, expected)
    assert counts.dtype == torch.int32
    assert counts.tolist() == [2] * size
    pair = hvd.synchronize(hvd.alltoall_async(sent))
    assert torch.equal(pair[0], expected)


@pytest.mark.parametrize("form", ["list", "tensor"])
def test_alltoall_gives_the_received_splits(form: str, rank: int, size: int) -> None:
    """Rank r sends (r + 2 s) % 4 rows to rank s, and does not send its last row."""
    sent = [[(r + 2 * s) % 4 for s in range(size)] for r in range(size)]
    tensors = [mine(r, (sum(sent[r]) + 1, 2)) + 10 * r for r in range(size)]
    splits = torch.tensor(sent[rank], dtype=torch.int32) if form == "tensor" else sent[rank]
    starts = [sum(sent[r][:rank]) for r in range(size)]
    expected = torch.cat([tensors[r][start : start + sent[r][rank]] for r, start in enumerate(starts)])
    for pair in (
        hvd.alltoall(tensors[rank], splits),
        hvd.synchronize(hvd.alltoall_async(tensors[rank], splits=splits)),
        hvd.alltoall(tensors[rank].clone().requires_grad_(), splits=splits),
    ):
        received, counts = pair
        assert torch.equal(received, expected)
        assert counts.dtype == torch.int32
        assert counts.tolist() == [sent[r][rank] for r in range(size)]


def test_splits_that_are_not_int32_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="int32"):
        hvd.alltoall(torch.ones(size), splits=torch.ones(size, dtype=torch.int64))


@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_reducescatter(op: str, rank: int, size: int) -> None:
    total = sum(mine(r, (2 * size + 1, 2), torch.float64) for r in range(size))
    total = total / size if op == "Average" else total
    start = sum(2 + (r < 1) for r in range(rank))
    expected = total[start : start + 2 + (rank < 1)]
    result = hvd.reducescatter(mine(rank, (2 * size + 1, 2)), op=getattr(hvd, op))
    torch.testing.assert_close(result.double(), expected, rtol=1e-6, atol=1e-6)
    handle = hvd.grouped_reducescatter_async([mine(rank, (2 * size + 1, 2))] * 2, op=getattr(hvd, op))
    for share in hvd.synchronize(handle):
        assert torch.equal(share, result)
    half = hvd.reducescatter(mine(rank, (2 * size + 1, 2)), op=getattr(hvd, op), compression=hvd.Compression.fp16)
    torch.testing.assert_close(half, result, rtol=1e-2, atol=1e-2)


def test_forms_of_groups(rank: int, size: int) -> None:
    tensors = [mine(rank), mine(rank, (2,), torch.int32)]
    results = hvd.grouped_allreduce(tensors, op=hvd.Sum)
    assert isinstance(results, list)
    in_place = hvd.grouped_allreduce_(tensors, op=hvd.Sum)
    assert isinstance(in_place, tuple)
    assert in_place[0] is tensors[0]
    for one, two in zip(results, in_place, strict=True):
        assert torch.equal(one, two)
    assert isinstance(hvd.synchronize(hvd.grouped_allreduce_async_(tensors)), tuple)
    assert isinstance(hvd.synchronize(hvd.grouped_allreduce_async(tensors)), list)
    assert isinstance(hvd.grouped_allgather([torch.ones(1)]), tuple)
    assert isinstance(hvd.grouped_reducescatter([torch.ones(size)]), list)


def test_groups_are_all_or_nothing(rank: int, size: int, two_ranks: None) -> None:
    """One tensor that differs makes the whole group fail, and the tensors of an in-place call do not change."""
    for odd in (torch.ones(2 + (rank == 0)), torch.ones(2, dtype=torch.float64 if rank else torch.float32)):
        group = [torch.full((3,), float(rank)), odd, torch.full((1000, 1000), float(rank))]
        before = [tensor.clone() for tensor in group]
        for verb in (hvd.grouped_allreduce_, hvd.grouped_allreduce, hvd.grouped_reducescatter):
            with pytest.raises(hvd.HorovodInternalError, match="all or nothing") as caught:
                verb(group, name="all or nothing")
            assert len(set(hvd.allgather_object(str(caught.value)))) == 1
        assert all(torch.equal(old, new) for old, new in zip(before, group, strict=True))
    with pytest.raises(hvd.HorovodInternalError, match="columns"):
        hvd.grouped_allgather([torch.ones(2), torch.ones(1, 2 + rank)], name="columns")
    with pytest.raises(hvd.HorovodInternalError, match="members"):
        hvd.grouped_allgather([torch.ones(2)] * (1 + rank), name="members")
    with pytest.raises(ValueError, match="float8_e5m2"):
        hvd.grouped_allreduce([torch.ones(2), torch.ones(2).to(torch.float8_e5m2)])
    assert hvd.grouped_allreduce([torch.ones(2)] * 2, op=hvd.Sum, name="all or nothing")[1].tolist() == [size] * 2


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_numbers(dtype: Any, rank: int, size: int) -> None:
    def part(rank: int, shape: tuple[int, ...] = (4, 3)) -> Any:
        return torch.complex(mine(rank, shape, torch.float64), -mine(rank, shape, torch.float64) - 1).to(dtype)

    ranks = range(size)
    for shape in [(), (0,), (2, 3)]:
        total = sum(part(r, shape) for r in ranks)
        assert torch.equal(hvd.allreduce(part(rank, shape), op=hvd.Sum), total)
        assert torch.equal(hvd.broadcast(part(rank, shape), size - 1), part(size - 1, shape))
    tensor = part(rank)
    assert hvd.allreduce_(tensor) is tensor
    assert torch.allclose(tensor, sum(part(r) for r in ranks) / size)
    assert torch.equal(hvd.allreduce(part(rank).conj(), op=hvd.Sum), sum(part(r) for r in ranks).conj().resolve_conj())
    for gathered in (hvd.allgather(part(rank, (rank, 2))), hvd.grouped_allgather([part(rank, (rank, 2))])[0]):
        assert torch.equal(gathered, torch.cat([part(r, (r, 2)) for r in ranks]))
    received = torch.cat([part(r, (size, 2))[rank : rank + 1] for r in ranks])
    assert torch.equal(hvd.alltoall(part(rank, (size, 2))), received)
    mine_of_all = sum(part(r, (size, 2)) for r in ranks)[rank : rank + 1]
    assert torch.equal(hvd.reducescatter(part(rank, (size, 2)), op=hvd.Sum), mine_of_all)
    for op in (hvd.Max, hvd.Min, hvd.Product):
        with pytest.raises(ValueError, match=f"{op.name} of complex tensors"):
            hvd.allreduce(part(rank), op=op)
    with pytest.raises(ValueError, match="dimension 0"):
        hvd.allgather(part(rank, ()))


def test_any_strides(rank: int, size: int) -> None:
    total = sum(mine(r, (2, 3, 4, 5)) for r in range(size))
    turned = mine(rank, (2, 3, 4, 5)).permute(3, 1, 0, 2)
    assert torch.equal(hvd.allreduce(turned, op=hvd.Sum), total.permute(3, 1, 0, 2))
    images = mine(rank, (2, 3, 4, 5)).to(memory_format=torch.channels_last)
    hvd.allreduce_(images, op=hvd.Sum)
    assert torch.equal(images, total)
    assert images.is_contiguous(memory_format=torch.channels_last)
    expanded = torch.full((1,), float(rank)).expand(4)
    assert hvd.allreduce(expanded, op=hvd.Sum).tolist() == [size * (size - 1) / 2] * 4
    negated = torch.complex(mine(rank), mine(rank)).conj().imag
    assert torch.equal(hvd.allreduce(negated, op=hvd.Sum), -sum(mine(r) for r in range(size)))


def test_tensors_that_are_not_dense_are_refused() -> None:
    with pytest.raises(ValueError, match="sparse_allreduce_async"):
        hvd.allreduce(torch.eye(3).to_sparse())
    with pytest.raises(ValueError, match="float8_e5m2"):
        hvd.allreduce(torch.ones(2).to(torch.float8_e5m2))
    with pytest.raises(ValueError, match="list"):
        hvd.allreduce([1.0, 2.0])  # type: ignore[arg-type]


def test_compression(rank: int, size: int) -> None:
    tensor = torch.linspace(-1, 1, 100) * (rank + 1)
    expected = torch.linspace(-1, 1, 100) * (size * (size + 1) / 2)
    for compression, tolerance in ((hvd.Compression.fp16, 2e-3), (hvd.Compression.bf16, 2e-2)):
        result = hvd.allreduce(tensor, op=hvd.Sum, compression=compression)
        assert result.dtype == torch.float32
        torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance * size)
        grouped = hvd.grouped_allreduce([tensor, tensor], op=hvd.Sum, compression=compression)
        torch.testing.assert_close(grouped[1], expected, rtol=tolerance, atol=tolerance * size)
        learned = tensor.clone().requires_grad_()
        loss: Any = hvd.allreduce(learned, op=hvd.Sum, compression=compression).sum()
        loss.backward()
        assert learned.grad.tolist() == [size] * 100
        small, context = compression.compress(tensor)
        assert small.element_size() == 2
        assert compression.decompress(small, context).dtype == torch.float32
    assert hvd.allreduce(torch.arange(3), op=hvd.Sum, compression=hvd.Compression.fp16).tolist() == [0, size, 2 * size]


def test_a_custom_compressor(rank: int, size: int) -> None:
    class Halved(hvd.Compression.none):
        @staticmethod
        def compress(tensor: Any) -> tuple[Any, Any]:
            return tensor / 2, None

        @staticmethod
        def decompress(tensor: Any, ctx: Any) -> Any:
            return tensor * 2 + 1

    assert hvd.allreduce(torch.ones(2), op=hvd.Sum, compression=Halved).tolist() == [size + 1.0] * 2


def gradient(verb: Callable[[Any], Any], tensor: Any, weight: float = 1.0) -> Any:
    """Returns the gradient of `weight * sum`. The gradient of this sum is an expanded, non-contiguous tensor."""
    tensor = tensor.clone().requires_grad_()
    loss: Any = verb(tensor).sum() * weight
    loss.backward()
    return tensor.grad


def test_gradients_of_allreduce(rank: int, size: int) -> None:
    ranks = float(sum(r + 1 for r in range(size)))
    summed = gradient(lambda t: hvd.allreduce(t, op=hvd.Sum), mine(rank), rank + 1)
    assert torch.equal(summed, torch.full((4, 3), ranks))
    averaged = gradient(lambda t: hvd.allreduce(t), mine(rank), rank + 1)
    torch.testing.assert_close(averaged, torch.full((4, 3), ranks / size))
    scaled = gradient(lambda t: hvd.allreduce(t, op=hvd.Sum, prescale_factor=2, postscale_factor=4), mine(rank))
    assert torch.equal(scaled, torch.full((4, 3), 8.0 * size))
    grouped = gradient(lambda t: sum(hvd.grouped_allreduce([t, 2 * t], op=hvd.Sum)), mine(rank), rank + 1)
    assert torch.equal(grouped, torch.full((4, 3), 3 * ranks))
    with pytest.raises(RuntimeError, match="no gradient"):
        gradient(lambda t: hvd.allreduce(t, op=hvd.Max), mine(rank))


def test_gradients_of_allgather(rank: int, size: int) -> None:
    weights = torch.arange(size * (size + 1) / 2).unsqueeze(1)
    start = rank * (rank + 1) // 2
    tensor = torch.ones(rank + 1, 3)
    got = gradient(lambda t: hvd.allgather(t) * weights, tensor)
    assert torch.equal(got, weights[start : start + rank + 1].expand(-1, 3))
    got = gradient(lambda t: hvd.grouped_allgather([t, t[:1]])[0] * weights, tensor, rank + 1)
    factor = sum(r + 1 for r in range(size)) / size
    torch.testing.assert_close(got, weights[start : start + rank + 1].expand(-1, 3) * factor)


def test_gradients_of_broadcast(rank: int, size: int) -> None:
    root = size - 1
    got = gradient(lambda t: hvd.broadcast(t, root), mine(rank), rank + 1)
    expected = (size + 1) / 2 if rank == root else 0.0
    torch.testing.assert_close(got, torch.full((4, 3), expected))


def test_gradients_of_alltoall(rank: int, size: int) -> None:
    got = gradient(lambda t: hvd.alltoall(t), torch.ones(2 * size, 2), rank + 1)
    assert torch.equal(got[:, 0], torch.arange(1.0, size + 1).repeat_interleave(2))
    # Rows that were not sent have zero gradients.
    got = gradient(lambda t: hvd.alltoall(t, splits=[1] * size)[0], torch.ones(size + 2, 2), rank + 1)
    assert got[:, 0].tolist() == [*range(1, size + 1), 0, 0]


def test_gradients_of_reducescatter(rank: int, size: int) -> None:
    rows = torch.cat([torch.full((2 + (r < 1),), float(r + 1)) for r in range(size)])
    averaged = gradient(lambda t: hvd.reducescatter(t), torch.ones(2 * size + 1, 2), rank + 1)
    assert torch.equal(averaged[:, 0], rows)
    upstream = torch.ones(2 * size + 1, 2, requires_grad=True)
    share: Any = hvd.reducescatter(upstream, op=hvd.Sum)
    share.backward(seed := torch.full((2 + (rank < 1), 2), rank + 1.0))
    assert torch.equal(upstream.grad[:, 0], rows * size)
    assert torch.equal(seed, torch.full_like(seed, rank + 1.0))  # the incoming gradient is not changed
    grouped = gradient(lambda t: hvd.grouped_reducescatter([t, t], op=hvd.Sum)[1], torch.ones(2 * size + 1), rank + 1)
    assert torch.equal(grouped, rows * size)


def test_sparse_tensors(rank: int, size: int) -> None:
    indices = torch.tensor([[0, rank + 1], [2, 0]])
    values = torch.tensor([1.0, 2.0 * (rank + 1)])
    tensor = torch.sparse_coo_tensor(indices, values, (size + 1, 3), check_invariants=True)
    total = torch.zeros(size + 1, 3)
    for r in range(size):
        total[0, 2] += 1.0
        total[r + 1, 0] += 2.0 * (r + 1)
    wait = hvd.sparse_allreduce_async(tensor, "sparse.sum", hvd.Sum)
    assert torch.equal(wait().to_dense(), total)
    wait = hvd.sparse_allreduce_async(tensor, "sparse.average", hvd.Average)
    torch.testing.assert_close(wait().to_dense(), total / size)
    empty = torch.sparse_coo_tensor(
        torch.empty(2, 0, dtype=torch.int64), torch.empty(0), (size + 1, 3), check_invariants=True
    )
    alone = hvd.sparse_allreduce_async(tensor if rank == 0 else empty, "sparse.alone", hvd.Sum)()
    assert alone.to_dense().sum() == 3.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64], ids=str)
def test_sparse_tensors_of_many_kinds(dtype: Any, rank: int, size: int) -> None:
    """The values are rows, some indices occur twice, and one rank has no values."""

    def of(r: int) -> Any:
        rows = torch.tensor([[r, 2, 2]]) if r != 1 else torch.empty((1, 0), dtype=torch.int64)
        values = mine(r, (rows.shape[1], 3), dtype)
        return torch.sparse_coo_tensor(rows, values, (size + 2, 3), check_invariants=True)

    total = sum(of(r).to_dense().double() for r in range(size))
    waits = [hvd.sparse_allreduce_async(of(rank), f"kinds.{n}", hvd.Sum) for n in range(3)]
    for wait in reversed(waits):
        result = wait()
        assert result.is_sparse
        assert result.dtype == dtype
        assert torch.equal(result.to_dense().double(), total)
    if dtype.is_floating_point:
        averaged = hvd.sparse_allreduce_async(of(rank), "kinds.average", hvd.Average)()
        assert averaged.dtype == dtype
        torch.testing.assert_close(averaged.to_dense().double(), total / size, rtol=1e-2, atol=1e-2)
    with pytest.raises(ValueError, match="Average and Sum"):
        hvd.sparse_allreduce_async(of(rank), "kinds.max", hvd.Max)
    with pytest.raises(ValueError, match="COO"):
        hvd.sparse_allreduce_async(torch.ones(2), "kinds.dense", hvd.Sum)


def test_arena_tensors(rank: int, size: int) -> None:
    tensor = hvd.empty((3, 5))
    assert tensor.shape == (3, 5)
    assert tensor.dtype == torch.float32
    assert hvd.empty((2, 2), torch.bfloat16).dtype == torch.bfloat16
    assert hvd.empty(0).shape == (0,)
    tensor.fill_(rank + 1)
    hvd.allreduce_(tensor, op=hvd.Sum)
    assert (tensor == size * (size + 1) / 2).all()


def test_join(rank: int, size: int) -> None:
    for step in range(rank + 1):
        total = hvd.allreduce(torch.ones(3), op=hvd.Sum)  # without a name, although the ranks' numbers of calls differ
        assert total.tolist() == [float(size - step)] * 3
        one, _ = hvd.grouped_allreduce([torch.ones(1), torch.ones(2)], op=hvd.Sum, name=f"join.group{step}")
        assert one.item() == size - step
    assert hvd.join() == size - 1
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [float(size)] * 3
