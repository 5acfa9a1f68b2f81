"""Tests of the verbs on TensorFlow's tensors, eager, in a tf.function and compiled by XLA, and of their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import perseus_like.tensorflow as hvd
from perseus_like.tensorflow.errors import translated

from ..reference import assert_close, reduced, rows_of, values

NAMES = ["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
Call = Callable[..., Any]


def eagerly(function: Call) -> Call:
    return function


def in_a_graph(function: Call) -> Call:
    wrapped: Call = tf.function(function)
    return wrapped


def compiled(function: Call) -> Call:
    wrapped: Call = tf.function(function, jit_compile=True)
    return wrapped


modes = pytest.mark.parametrize("mode", [eagerly, in_a_graph, compiled])


def array_type(dtype: str) -> np.dtype[Any]:
    found: np.dtype[Any] = np.dtype(tf.as_dtype(dtype).as_numpy_dtype)
    return found


def inputs(size: int, shape: tuple[int, ...], dtype: str, seed: int = 0) -> list[Any]:
    return [values(rank, shape, array_type(dtype), seed) for rank in range(size)]


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [
        *((mode, dtype) for mode in (eagerly, in_a_graph) for dtype in NAMES),
        # Compiling is slow, so only some dtypes are compiled.
        *((compiled, dtype) for dtype in ("int32", "bfloat16", "float32")),
    ],
)
def test_allreduce(mode: Any, dtype: str, rank: int, size: int) -> None:
    arrays = inputs(size, (2, 3), dtype)

    def reduce(tensor: Any) -> list[Any]:
        return [
            hvd.allreduce(tensor, op=hvd.Sum),
            hvd.allreduce(tensor, op=hvd.Min),
            hvd.allreduce(tensor, op=hvd.Max),
            hvd.allreduce(tensor, op=hvd.Average),
            hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
        ]

    results = mode(reduce)(tf.constant(arrays[rank]))
    for result, op in zip(results, ["Sum", "Min", "Max", "Average"], strict=False):
        assert_close(result.numpy(), reduced(arrays, op), roundings=size)
    assert_close(results[4].numpy(), reduced(arrays, "Sum", 0.5, 3.0), roundings=3 * size)


@modes
def test_complex_numbers(mode: Any, rank: int, size: int) -> None:
    parts = [np.array([complex(r, 2 * r), 1j], np.complex64) for r in range(size)]
    variable = tf.Variable(parts[rank])

    def communicate(tensor: Any) -> list[Any]:
        total = hvd.grouped_allreduce([tensor, tf.math.real(tensor)], op=hvd.Sum)[0]
        return [total, hvd.allgather(tensor), hvd.broadcast(tensor, size - 1)]

    total, gathered, last = mode(communicate)(tf.constant(parts[rank]))
    np.testing.assert_array_equal(total, np.sum(parts, 0))
    np.testing.assert_array_equal(gathered, np.concatenate(parts))
    np.testing.assert_array_equal(last, parts[-1])
    mean = tf.Variable(np.mean(parts, 0))
    with tf.GradientTape() as tape, tf.GradientTape() as alone:
        losses = [tf.reduce_sum(tf.abs(values) ** 2) for values in (hvd.allreduce(variable), mean)]
    np.testing.assert_allclose(tape.gradient(losses[0], variable), alone.gradient(losses[1], mean))
    hvd.broadcast_variables([variable], 0)
    np.testing.assert_array_equal(variable, parts[0])
    with pytest.raises(ValueError, match="Max of complex"):
        hvd.allreduce(variable, op=hvd.Max)


@modes
def test_other_verbs(mode: Any, rank: int, size: int) -> None:
    arrays = inputs(size, (2 * size + 1, 2), "float32")
    even = [array[: 2 * size] for array in arrays]

    def communicate(tensor: Any) -> list[Any]:
        return [
            hvd.broadcast(tensor, size - 1),
            hvd.allgather(tensor),
            *hvd.grouped_allgather([tensor, tensor[:1]]),
            hvd.reducescatter(tensor, op=hvd.Sum),
            *hvd.grouped_reducescatter([tensor, 2 * tensor]),
            hvd.alltoall(tensor[: 2 * size]),
            *hvd.grouped_allreduce([tensor, 2 * tensor], op=hvd.Sum),
        ]

    results = [result.numpy() for result in mode(communicate)(tf.constant(arrays[rank]))]
    rows = rows_of(rank, size, 2 * size + 1)
    total = reduced(arrays, "Sum")
    expected = [
        arrays[size - 1],
        np.concatenate(arrays),
        np.concatenate(arrays),
        np.concatenate([array[:1] for array in arrays]),
        total[rows],
        total[rows] / size,
        2 * total[rows] / size,
        np.concatenate([array[2 * rank : 2 * rank + 2] for array in even]),
        total,
        2 * total,
    ]
    for result, wanted in zip(results, expected, strict=True):
        assert_close(result, np.asarray(wanted), roundings=2 * size)


@pytest.mark.parametrize("mode", [eagerly, in_a_graph])
def test_sizes_that_differ_between_ranks(mode: Any, rank: int, size: int) -> None:
    sent = [[(r + 2 * s) % 4 for s in range(size)] for r in range(size)]
    arrays = [values(r, (sum(sent[r]) + 1, 2), array_type("int32")) for r in range(size)]

    def communicate(tensor: Any, splits: Any) -> Any:
        return hvd.allgather(tensor), *hvd.alltoall(tensor, splits)

    gathered, received, counts = mode(communicate)(tf.constant(arrays[rank]), tf.constant(sent[rank]))
    np.testing.assert_array_equal(gathered, np.concatenate(arrays))
    starts = [sum(sent[r][:rank]) for r in range(size)]
    parts = [arrays[r][start : start + sent[r][rank]] for r, start in enumerate(starts)]
    np.testing.assert_array_equal(received, np.concatenate(parts))
    assert counts.numpy().tolist() == [sent[r][rank] for r in range(size)]


@modes
def test_gradients(mode: Any, rank: int, size: int) -> None:
    """The gradient of an average is an average, of a sum a sum, and of the other verbs each rank's own rows."""
    weights = [values(r, (2 * size, 2), array_type("float64"), seed=1) for r in range(size)]
    mean = np.mean(weights, 0)
    tensor = tf.constant(values(rank, (2 * size, 2), array_type("float64")))
    mine = tf.constant(weights[rank])
    rows = rows_of(rank, size, 2 * size)

    def differentiate(tensor: Any, weight: Any, verb: Call) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            result = verb(tensor)
            loss = tf.reduce_sum(result * weight[: result.shape[0] or tf.shape(result)[0]])
        return tape.gradient(loss, tensor)

    def gradient_of(verb: Call) -> Any:
        return mode(lambda tensor, weight: differentiate(tensor, weight, verb))(tensor, mine).numpy()

    assert_close(gradient_of(lambda x: hvd.allreduce(x)), mean)
    assert_close(gradient_of(lambda x: hvd.allreduce(x, op=hvd.Sum)), mean * size)
    assert_close(gradient_of(lambda x: hvd.grouped_allreduce([x, x], op=hvd.Sum)[0]), mean * size)
    expected = mean if rank == 1 else np.zeros_like(mean)
    assert_close(gradient_of(lambda x: hvd.broadcast(x, 1)), expected)
    sent_back = np.concatenate([weights[r][2 * rank : 2 * rank + 2] for r in range(size)])
    assert_close(gradient_of(lambda x: hvd.alltoall(x)), sent_back)
    shares = np.concatenate([weight[:2] for weight in weights])
    assert_close(gradient_of(lambda x: hvd.reducescatter(x)), shares)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        loss = tf.reduce_sum(hvd.allgather(tensor[: rank + 1]) * float(rank + 1))
    gradient = tape.gradient(loss, tensor).numpy()
    assert_close(gradient[: rank + 1], np.full((rank + 1, 2), (size + 1) / 2))
    assert not gradient[rank + 1 :].any()
    assert rows.stop > rows.start


@pytest.mark.parametrize("mode", [eagerly, in_a_graph])
def test_indexed_slices(mode: Any, rank: int, size: int) -> None:
    def reduce(op: Any) -> Any:
        slices = tf.IndexedSlices(tf.fill([2, 3], float(rank + 1)), tf.constant([0, rank]), tf.constant([size, 3]))
        return tf.convert_to_tensor(hvd.allreduce(slices, op=op))

    expected = np.zeros((size, 3))
    for r in range(size):
        expected[0] += r + 1
        expected[r] += r + 1
    assert_close(mode(lambda: reduce(hvd.Sum))().numpy(), expected)
    assert_close(mode(lambda: reduce(hvd.Average))().numpy(), expected / size)


@pytest.mark.parametrize("factor", ["prescale_factor", "postscale_factor"])
@pytest.mark.parametrize("dtype", [tf.int32, tf.float16, tf.float32])
def test_factors_scale_indexed_slices(dtype: Any, factor: str, rank: int, size: int) -> None:
    """Integer tensors are scaled too, although their dtype cannot represent the factor."""
    slices = tf.IndexedSlices(tf.constant([[10, 20]], dtype), tf.constant([rank]))
    factors: dict[str, Any] = {factor: 0.5}
    scaled = hvd.allreduce(slices, op=hvd.Sum, **factors)
    assert scaled.dtype == dtype
    assert scaled.values.numpy().tolist() == [[5, 10]] * size


def test_compression_and_adasum(rank: int, size: int) -> None:
    arrays = inputs(size, (50,), "float32")
    for compression, digits in [(hvd.Compression.fp16, "float16"), (hvd.Compression.bf16, "bfloat16")]:
        result = hvd.allreduce(tf.constant(arrays[rank]), compression=compression)
        assert result.dtype == tf.float32
        assert_close(result.numpy().astype(array_type(digits)), reduced(arrays, "Average"), roundings=4)
    same = tf.ones([8])
    assert_close(hvd.allreduce(same, op=hvd.Adasum).numpy(), np.ones(8))


def test_functions_are_traced_once(rank: int, size: int) -> None:
    """Neither eager calls with any name nor further calls of a traced function add a trace."""
    from tensorflow.python.eager import context

    variable, rows = tf.Variable(float(rank)), tf.ones([size])

    def call_all(value: Any, name: str | None) -> Any:
        hvd.allgather(rows, name=name)
        hvd.broadcast(value, 0, name=name)
        hvd.broadcast_([variable], 0, name=name)
        hvd.grouped_allreduce([value, rows], op=hvd.Sum, name=name)
        return hvd.allreduce(value, op=hvd.Sum, name=name)

    call_all(tf.constant(1.0), None)
    before = context.context().list_function_names()
    for number in range(5):
        assert float(call_all(tf.constant(float(number)), f"step_{number}")) == number * size
    assert context.context().list_function_names() == before

    function = tf.function(lambda value: call_all(value, "traced"))
    for number in range(5):
        assert float(function(tf.constant(float(number)))) == number * size
    assert function.experimental_get_tracing_count() == 1


def test_the_table_of_defaults_agrees_with_the_operations() -> None:
    """An eager call omits attributes with the default value. Tapes read these values from the same table."""
    from tensorflow.python.framework import op_def_registry

    from perseus_like.tensorflow.native import operation_of
    from perseus_like.tensorflow.requests.eager import DEFAULTS
    from perseus_like.tensorflow.requests.gradients import RULES

    found: dict[str, set[Any]] = {}
    for verb in RULES:
        for attribute in op_def_registry.get(operation_of(verb)).attr:
            if attribute.HasField("default_value"):
                value = getattr(attribute.default_value, attribute.default_value.WhichOneof("value"))
                found.setdefault(attribute.name, set()).add(value.decode() if isinstance(value, bytes) else value)
    assert found == {name: {value} for name, value in DEFAULTS.items()}


def test_graphs_know_shapes() -> None:
    def check_shapes(tensor: Any) -> None:
        assert hvd.allreduce(tensor).shape.as_list() == [None, 3]
        assert hvd.broadcast(tensor, 0).shape.as_list() == [None, 3]
        assert hvd.allgather(tensor).shape.as_list() == [None, 3]
        assert hvd.reducescatter(tensor).shape.as_list() == [None, 3]
        received, splits = hvd.alltoall(tensor, tf.constant([1]))
        assert received.shape.as_list() == [None, 3]
        assert splits.shape.as_list() == [None]
        assert hvd.rank_op().shape.as_list() == []

    tf.function(check_shapes).get_concrete_function(tf.TensorSpec([None, 3]))


def test_rank_and_size_operations_and_join(rank: int, size: int) -> None:
    # These names are private, but other programs use them.
    assert hvd.mpi_ops._basics.rank() == rank
    assert hvd.mpi_ops._allreduce(tf.ones(2)).numpy().tolist() == [size] * 2
    assert tf.function(lambda: [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()])() == [
        rank,
        size,
        rank,
        size,
    ]
    assert hvd.process_set_included_op() == 1
    if rank == 0:
        assert hvd.allreduce(tf.ones([3]), op=hvd.Sum, name="of_one").numpy().tolist() == [1, 1, 1]
    last = hvd.join()
    assert last.numpy() == 0
    assert tf.function(lambda: hvd.join())().numpy() in range(size)

    def communicate() -> None:
        hvd.barrier()

    tf.function(communicate)()


def test_a_disagreement_has_the_same_error_on_all_ranks(two_ranks: None, rank: int, size: int) -> None:
    texts = []
    for mode in (eagerly, in_a_graph, compiled):
        with pytest.raises(RuntimeError if mode is eagerly else tf.errors.OpError) as caught:
            mode(lambda: hvd.allreduce(tf.ones([2 + (rank == 1)]), name="weight"))()
        found = translated(caught.value) if mode is not eagerly else caught.value
        assert isinstance(found, hvd.HorovodInternalError)
        assert "float32[2]" in str(found)
        assert "rank 1 has float32[3]" in str(found)
        texts.append(str(found))
    assert len({tuple(each) for each in hvd.allgather_object(texts)}) == 1


def test_mistakes_are_value_errors(rank: int, size: int) -> None:
    mistakes: list[Callable[[], Any]] = [
        lambda: hvd.allreduce(tf.constant("text")),
        lambda: hvd.allgather(tf.constant(1.0)),
        lambda: hvd.broadcast(tf.ones([2]), size),
        lambda: hvd.alltoall(tf.ones([size]), splits=[1] * (size + 1)),
        lambda: hvd.alltoall(tf.ones([size]), splits=[-1] * size),
        lambda: hvd.reducescatter(tf.ones([size]), op=hvd.Max),
        lambda: hvd.allreduce(tf.ones([2]), op=hvd.Sum, average=True),
        lambda: hvd.allreduce(tf.ones([2]), process_set=hvd.ProcessSet([0])),
    ]
    for mistake in mistakes:
        with pytest.raises(ValueError):  # noqa: PT011
            mistake()
    assert hvd.allreduce(tf.ones([2])).numpy().tolist() == [1, 1]


def test_variables_and_objects(rank: int, size: int) -> None:
    variables = [tf.Variable([float(rank), 1.0]), tf.Variable(rank), tf.Variable(tf.ones([3], tf.bfloat16) * rank)]
    hvd.broadcast_variables(variables, root_rank=1)
    assert [variable.numpy().reshape(-1)[0] for variable in variables] == [1, 1, 1]
    assert hvd.broadcast_object({"rank": rank}, 1) == {"rank": 1}
    assert hvd.broadcast_object_fn(1)(rank) == 1
    assert hvd.allgather_object(rank) == list(range(size))
    assert hvd.refs_to_vars(hvd.vars_to_refs(variables))[0] is variables[0]
