"""Compares the verbs on MXNet's arrays with NumPy in float64, and checks their order in MXNet's engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mxnet as mx
import numpy as np
import pytest

import perseus_like.mxnet as hvd
from perseus_like import errors

from ..reference import adasum, assert_close, reduced, rows_of, values

DTYPES = [np.dtype(name) for name in ("uint8", "int8", "int32", "int64", "float16", "float32", "float64")]
FLOATS = DTYPES[4:]
SHAPES: list[tuple[int, ...]] = [(1,), (7,), (3, 5), (257, 33)]


def inputs(size: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[np.ndarray[Any, Any]]:
    return [values(rank, shape, dtype) for rank in range(size)]


def array(content: np.ndarray[Any, Any]) -> Any:
    return mx.nd.array(content, dtype=content.dtype)


@pytest.fixture
def numpy_arrays() -> Iterator[None]:
    mx.util.set_np()
    yield
    mx.util.reset_np()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_allreduce(dtype: np.dtype[Any], shape: tuple[int, ...], rank: int, size: int) -> None:
    given = inputs(size, shape, dtype)
    mine = array(given[rank])
    for op in ("Average", "Sum", "Min", "Max"):
        result = hvd.allreduce(mine, op=getattr(hvd, op))
        assert_close(result.asnumpy(), reduced(given, op))
    np.testing.assert_array_equal(mine.asnumpy(), given[rank])
    assert hvd.allreduce_(mine, average=False) is mine
    assert_close(mine.asnumpy(), reduced(given, "Sum"))


def test_product_adasum_and_factors(rank: int, size: int) -> None:
    given = inputs(size, (20,), np.dtype("float64"))
    mine = array(given[rank])
    assert_close(hvd.allreduce(mine, op=hvd.Product).asnumpy(), reduced(given, "Product"), roundings=8)
    assert_close(hvd.allreduce(mine, op=hvd.Adasum).asnumpy(), adasum(given), roundings=100)
    scaled = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    assert_close(scaled.asnumpy(), reduced(given, "Sum", 0.5, 3.0), roundings=8)


@pytest.mark.parametrize("in_place", [False, True])
def test_grouped_allreduce(in_place: bool, rank: int, size: int) -> None:
    members = [inputs(size, (number + 1, 3), dtype) for number, dtype in enumerate(FLOATS)]
    mine = [array(each[rank]) for each in members]
    verb = hvd.grouped_allreduce_ if in_place else hvd.grouped_allreduce
    results = verb(mine, op=hvd.Sum, name=f"grouped.{in_place}")
    assert (results is mine) == in_place
    for result, each in zip(results, members, strict=True):
        assert_close(result.asnumpy(), reduced(each, "Sum"))
    assert hvd.grouped_allreduce([]) == []


def test_broadcast(rank: int, size: int) -> None:
    given = inputs(size, (4, 2), np.dtype("int64"))
    root = size - 1
    mine = array(given[rank])
    np.testing.assert_array_equal(hvd.broadcast(mine, root).asnumpy(), given[root])
    np.testing.assert_array_equal(mine.asnumpy(), given[rank])
    assert hvd.broadcast_(mine, root, name="broadcast") is mine
    np.testing.assert_array_equal(mine.asnumpy(), given[root])


def test_allgather(rank: int, size: int) -> None:
    given = [values(each, (each + 1, 3), np.dtype("float32")) for each in range(size)]
    np.testing.assert_array_equal(hvd.allgather(array(given[rank])).asnumpy(), np.concatenate(given))
    pair = hvd.grouped_allgather([array(given[rank]), mx.nd.full((2,), rank, dtype="int32")])
    np.testing.assert_array_equal(pair[0].asnumpy(), np.concatenate(given))
    np.testing.assert_array_equal(pair[1].asnumpy(), np.repeat(np.arange(size), 2))


def test_allgather_waits_for_its_input(rank: int, size: int) -> None:
    product = mx.nd.ones((300, 300)) * (rank + 1)
    for _ in range(5):
        product = mx.nd.dot(product, mx.nd.eye(300))
    gathered = hvd.allgather(product).asnumpy()
    np.testing.assert_array_equal(gathered[::300, 0], np.arange(size) + 1)


def test_alltoall(rank: int, size: int) -> None:
    mine = mx.nd.array(np.repeat(np.arange(size), 2) * 100 + rank, dtype="int32")
    received: Any = hvd.alltoall(mine)
    np.testing.assert_array_equal(received.asnumpy(), rank * 100 + np.repeat(np.arange(size), 2))
    # The last rank receives all rows.
    splits = [0] * (size - 1) + [2 * size]
    received, rows = hvd.alltoall(mine, splits=mx.nd.array(splits, dtype="int32"))
    last = rank == size - 1
    assert received.shape[0] == (2 * size * size if last else 0)
    assert rows.asnumpy().tolist() == ([2 * size] * size if last else [0] * size)


@pytest.mark.parametrize(
    "splits",
    [
        lambda size: mx.nd.ones((size,), dtype="float32"),
        lambda size: [1.5] + [0.5] * (size - 1),
        lambda size: mx.nd.ones((size + 1,), dtype="int32"),
        lambda size: mx.nd.full((size,), 2 * size, dtype="int32"),
    ],
    ids=["of floats", "of fractions", "too many", "too large"],
)
def test_wrong_splits_are_errors_of_mxnet(splits: Any, rank: int, size: int) -> None:
    with pytest.raises(mx.base.MXNetError, match="splits") as caught:
        hvd.alltoall(mx.nd.zeros((size,)), splits(size))
    assert isinstance(caught.value, ValueError)
    assert hvd.allreduce(mx.nd.ones((2,)), op=hvd.Sum).asnumpy().max() == size


def test_rows_that_do_not_divide_are_errors_of_mxnet(two_ranks: None, size: int) -> None:
    with pytest.raises(mx.base.MXNetError, match="do not divide"):
        hvd.alltoall(mx.nd.zeros((size + 1,)))


@pytest.mark.parametrize("rows", [1, 5, 8])
def test_reducescatter(rows: int, rank: int, size: int) -> None:
    given = inputs(size, (rows, 3), np.dtype("float64"))
    expected = reduced(given, "Average")[rows_of(rank, size, rows)]
    assert_close(hvd.reducescatter(array(given[rank])).asnumpy(), expected)
    both = hvd.grouped_reducescatter([array(given[rank]), array(given[rank])], op=hvd.Sum)
    for result in both:
        assert_close(result.asnumpy(), reduced(given, "Sum")[rows_of(rank, size, rows)])


def test_arrays_of_mxnet_numpy(numpy_arrays: None, rank: int, size: int) -> None:
    result = hvd.allreduce(mx.np.array(float(rank)), op=hvd.Sum)
    assert isinstance(result, mx.np.ndarray)
    assert result.shape == ()
    assert result.item() == sum(range(size))
    assert hvd.allgather(mx.np.ones((rank, 2))).shape == (sum(range(size)), 2)


def test_bfloat16(rank: int, size: int) -> None:
    bfloat16 = np.dtype([("bfloat16", np.uint16)])
    result = hvd.allreduce(mx.nd.full((3,), rank + 1.0).astype(bfloat16), op=hvd.Sum)
    assert result.dtype == bfloat16
    assert result.astype("float32").asnumpy().tolist() == [sum(range(size + 1))] * 3


def test_order_with_other_work(rank: int, size: int) -> None:
    """Each operation on the input and the result has its effect in the order of the program."""
    for step in range(3):
        value = mx.nd.full((400, 400), rank + step)
        doubled = mx.nd.dot(value, mx.nd.eye(400)) * 2
        summed = hvd.allreduce(doubled, op=hvd.Sum, name="in order")
        doubled[:] = -1
        hvd.allreduce_(summed, op=hvd.Sum, name="in order, in place")
        summed += 1
        expected = size * sum(2 * (each + step) for each in range(size)) + 1
        assert summed.asnumpy().tolist() == [[expected] * 400] * 400
        assert doubled.asnumpy().min() == doubled.asnumpy().max() == -1


def test_many_collectives_are_in_progress_at_once(rank: int, size: int) -> None:
    """Ranks submit in opposite orders.

    If only some requests could be in progress, the ranks would wait for each other.
    """
    numbers = list(range(40))
    results = {
        number: hvd.allreduce(mx.nd.full((10,), number), op=hvd.Sum, name=f"many.{number}")
        for number in (numbers if rank % 2 else reversed(numbers))
    }
    for number in numbers:
        assert results[number].asnumpy().tolist() == [number * size] * 10


def test_priorities_are_accepted(size: int) -> None:
    results = [hvd.allreduce(mx.nd.ones((3,)), op=hvd.Sum, priority=-number) for number in range(5)]
    assert [result.asnumpy()[0] for result in results] == [size] * 5


def test_views_of_one_array(rank: int, size: int) -> None:
    whole = mx.nd.full((4, 2), rank + 1.0)
    hvd.grouped_allreduce_([whole[:1], whole[1:]], op=hvd.Sum, name="views")
    assert whole.asnumpy().tolist() == [[sum(range(size + 1))] * 2] * 4
    half = hvd.allreduce(whole[:2], op=hvd.Average)
    hvd.broadcast_(whole[2], 0)
    assert half.asnumpy().tolist() == [[sum(range(size + 1))] * 2] * 2


def test_results_in_layouts_of_onednn(rank: int, size: int) -> None:
    """The result of a convolution has a memory layout of oneDNN."""
    images = mx.nd.full((2, 16, 8, 8), rank + 1.0)
    convolved = mx.nd.Convolution(images, mx.nd.ones((16, 16, 3, 3)), no_bias=True, num_filter=16, kernel=(3, 3))
    summed = hvd.allreduce(convolved, op=hvd.Sum)
    hvd.allreduce_(convolved, op=hvd.Max, name="layout")
    assert summed.asnumpy().min() == summed.asnumpy().max() == 144 * sum(range(size + 1))
    assert convolved.asnumpy().min() == 144 * size


def test_ranks_that_disagree(two_ranks: None, rank: int, size: int) -> None:
    """The error is raised at the first wait for the result, once, and later calls work."""
    result = hvd.allreduce(mx.nd.ones((2 + rank,)), name="disagree")
    dependent = result * 2
    with pytest.raises(errors.DisagreementError, match=r"'disagree'.*float32\[2\].*float32\[3\]"):
        dependent.asnumpy()
    in_place = mx.nd.ones((2 + rank,))
    hvd.broadcast_(in_place, 0, name="disagree")
    with pytest.raises(hvd.HorovodInternalError):
        in_place.wait_to_read()
    assert hvd.allreduce(mx.nd.ones((2,)), op=hvd.Sum, name="disagree").asnumpy().tolist() == [size] * 2


def test_a_name_in_progress_is_an_error(two_ranks: None, rank: int, size: int) -> None:
    """Only this rank gets the error."""
    first = hvd.allreduce(mx.nd.ones((2,)), name="twice") if rank == 0 else None
    if rank == 0:
        with pytest.raises(ValueError, match="twice"):
            hvd.allreduce(mx.nd.ones((2,)), name="twice").asnumpy()
    hvd.barrier()
    first = hvd.allreduce(mx.nd.ones((2,)), name="twice") if first is None else first
    assert first.asnumpy().tolist() == [1, 1]


def test_mistakes_raise_at_the_call(size: int) -> None:
    ones = mx.nd.ones((3, 2))
    with pytest.raises(ValueError, match="NDArray"):
        hvd.allreduce(np.ones(3))
    with pytest.raises(ValueError, match="row_sparse"):
        hvd.allreduce(ones.tostype("row_sparse"))
    with pytest.raises(ValueError, match="both"):
        hvd.allreduce(ones, average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match="root_rank"):
        hvd.broadcast(ones, size)
    with pytest.raises(ValueError, match="splits"):
        hvd.alltoall(ones, splits=[1] * (size + 1))
    with pytest.raises(ValueError, match="Average or Sum"):
        hvd.reducescatter(ones, op=hvd.Max)
    with pytest.raises(ValueError, match="not registered"):
        hvd.allreduce(ones, process_set=hvd.ProcessSet([0]))
    # None of these calls counts, so unnamed calls of different ranks still match.
    assert hvd.allreduce(ones, op=hvd.Sum).asnumpy().max() == size


def test_process_sets(two_ranks: None, rank: int, size: int) -> None:
    others = hvd.add_process_set(range(1, size))
    if rank == 0:
        with pytest.raises(ValueError, match="rank 0 is not in"):
            hvd.allreduce(mx.nd.ones((2,)), process_set=others)
    else:
        total = hvd.allreduce(mx.nd.full((2,), rank), op=hvd.Sum, process_set=others)
        assert total.asnumpy().tolist() == [sum(range(size))] * 2
        assert hvd.broadcast(mx.nd.full((1,), rank), size - 1, process_set=others).asnumpy().tolist() == [size - 1]
        assert hvd.reducescatter(mx.nd.ones((size - 1,)), op=hvd.Sum, process_set=others).asnumpy() == [size - 1]
    hvd.remove_process_set(others)


def test_join(two_ranks: None, rank: int, size: int) -> None:
    if rank == 0:
        assert hvd.allreduce(mx.nd.ones((2,)), op=hvd.Sum, name="joined").asnumpy().tolist() == [1, 1]
    assert hvd.join() == 0
