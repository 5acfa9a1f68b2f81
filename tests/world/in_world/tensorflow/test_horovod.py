"""Tests of error classes and private names that programs for Horovod use, under TensorFlow."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import perseus_like.tensorflow as hvd


def eagerly(function: Callable[[], Any]) -> Any:
    return function()


def in_a_function(function: Callable[[], Any]) -> Any:
    return tf.function(function)()


def in_a_session(function: Callable[[], Any]) -> Any:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(function())


modes = pytest.mark.parametrize("mode", [eagerly, in_a_function, in_a_session])


@modes
def test_disagreements_are_failed_preconditions(mode: Any, two_ranks: None, rank: int) -> None:
    disagreements: list[Callable[[], Any]] = [
        lambda: hvd.allreduce(tf.ones([17 + rank]), name="weight"),
        lambda: hvd.allreduce(tf.ones([2], tf.float32 if rank else tf.int32), name="weight"),
        lambda: hvd.allgather(tf.ones([2, 3 + rank]), name="weight"),
        lambda: hvd.broadcast(tf.ones([2]), rank, name="weight"),
        lambda: hvd.alltoall(tf.ones([hvd.size(), 3 + rank]), name="weight"),
        lambda: hvd.reducescatter(tf.ones([2, 3 + rank]), name="weight"),
    ]
    for disagreement in disagreements:
        with pytest.raises(tf.errors.FailedPreconditionError, match="weight") as caught:
            mode(disagreement)
        if mode is eagerly:
            assert isinstance(caught.value, hvd.HorovodInternalError)


@modes
def test_mistakes_are_invalid_arguments(mode: Any, two_ranks: None, rank: int, size: int) -> None:
    sets = [hvd.add_process_set([0]), hvd.add_process_set([1])]
    others = sets[rank == 0]
    mistakes: list[Callable[[], Any]] = [
        lambda: hvd.alltoall(tf.ones([size + 1])),
        lambda: hvd.alltoall(tf.ones([1]), splits=tf.ones([size], tf.int32)),
        lambda: hvd.alltoall(tf.ones([size]), splits=tf.ones([size + 1], tf.int32)),
        lambda: hvd.alltoall(tf.ones([size]), splits=tf.fill([size], 0.5)),
        lambda: hvd.allgather(tf.constant(1.0)),
        lambda: hvd.allreduce(tf.ones([2]), process_set=others),
        lambda: hvd.broadcast(tf.ones([2]), size),
        lambda: hvd.broadcast(tf.ones([2]), rank, process_set=others),
    ]
    for mistake in mistakes:
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            mode(mistake)
        if mode is eagerly:
            assert isinstance(caught.value, ValueError)
    for each in sets:
        hvd.remove_process_set(each)


@modes
def test_an_unknown_process_set_is_a_value_error(mode: Any, rank: int) -> None:
    """In graphs, the error is raised when the node would be made."""
    unknown = hvd.ProcessSet([rank])
    unknown.process_set_id = 10
    with pytest.raises(ValueError, match="no process set with id 10"):
        mode(lambda: hvd.allreduce(tf.ones([4]), process_set=unknown))


@pytest.mark.parametrize("op", [hvd.Min, hvd.Max, hvd.Product, hvd.Adasum])
def test_sparse_gradients_are_only_summed(op: Any) -> None:
    slices = tf.IndexedSlices(tf.ones([1, 3]), tf.constant([0]))
    with pytest.raises(NotImplementedError, match="IndexedSlices"):
        hvd.allreduce(slices, op=op)
    with pytest.raises(NotImplementedError, match="IndexedSlices"):
        hvd.grouped_allreduce([tf.ones([2]), slices], op=op)


def test_errors_can_be_pickled(two_ranks: None, rank: int) -> None:
    with pytest.raises(hvd.HorovodInternalError) as caught:
        hvd.allreduce(tf.ones([2 + rank]), name="weight")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is type(caught.value)
    assert str(again) == str(caught.value)


def test_empty_splits_mean_equal_parts(rank: int, size: int) -> None:
    received, counts = hvd.alltoall(tf.fill([size], rank), splits=[])
    assert (received.numpy().tolist(), counts.numpy().tolist()) == (list(range(size)), [1] * size)


@modes
def test_uint16_is_communicated(mode: Any, rank: int, size: int) -> None:
    def tensor() -> Any:
        return tf.cast(tf.fill([size], 40000 + rank), tf.uint16)

    def values(function: Callable[[], Any]) -> Any:
        result = mode(function)
        return getattr(result, "numpy", lambda: result)().tolist()

    assert values(lambda: hvd.allreduce(tensor(), op=hvd.Max)) == [40000 + size - 1] * size
    assert values(lambda: hvd.allgather(tensor())) == [40000 + each for each in range(size) for _ in range(size)]
    assert values(lambda: hvd.broadcast(tensor(), size - 1)) == [40000 + size - 1] * size
    assert values(lambda: hvd.alltoall(tensor())) == [40000 + each for each in range(size)]


def test_private_helpers() -> None:
    from perseus_like.tensorflow.util import _cache, _executing_eagerly, _make_subgraph, refs_to_vars, vars_to_refs

    assert hvd._executing_eagerly()
    assert hvd.util._executing_eagerly is _executing_eagerly
    with tf.Graph().as_default():
        assert not _executing_eagerly()

    calls = []

    @_cache
    def remember(number: int) -> int:
        calls.append(number)
        return -number

    assert [remember(2), remember(2), remember(3)] == [-2, -2, -3]
    with tf.Graph().as_default():
        assert remember(2) == -2
    assert calls == [2, 3, 2]
    assert _make_subgraph(lambda x: x + 1)(tf.constant(1)) == 2
    variable = tf.Variable(1.0)
    assert refs_to_vars(vars_to_refs([[variable]]))[0][0] is variable


def test_private_verbs(rank: int, size: int) -> None:
    ones = tf.ones([size])
    assert hvd._allreduce(ones).numpy().tolist() == [size] * size
    assert hvd._grouped_allreduce([ones, ones])[1].numpy().tolist() == [size] * size
    assert hvd._reducescatter(ones).numpy().tolist() == [size]
    assert hvd._grouped_reducescatter([ones])[0].numpy().tolist() == [size]
    assert hvd.mpi_ops._normalize_name("a/b:0") == "a_b_0"
    assert hvd.check_num_rank_power_of_2(4)
    assert hvd.handle_average_backwards_compatibility(None, False) == hvd.Sum
    assert hvd.gpu_available("tensorflow") in (True, False)
    assert hvd.mpi_ops.gpu_available is hvd.gpu_available


def test_the_data_service_is_refused() -> None:
    with pytest.raises(ImportError, match="DispatchServer"):
        __import__("perseus_like.tensorflow.data.compute_service")


def test_the_private_function_that_other_optimizers_use(rank: int, size: int) -> None:
    """ElasticDL and OpenSeq2Seq call this private function with and without variables."""
    reduce = hvd._make_allreduce_grads_fn("mine", "", "", hvd.Compression.none, False, hvd.Average, 1.0, 0)
    variables = [tf.Variable([1.0, 2.0]), tf.Variable([3.0])]
    gradients = [tf.constant([float(rank), 1.0]), None]
    for reduced in (reduce(gradients, variables), reduce(gradients)):
        assert reduced[0].numpy().tolist() == [(size - 1) / 2, 1.0]
        assert reduced[1] is None


def test_classes_that_programs_look_for() -> None:
    optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
    assert isinstance(optimizer, hvd._DistributedOptimizer)
    assert isinstance(optimizer, hvd._LegacyOptimizer)
    assert isinstance(hvd.DistributedGradientTape(tf.GradientTape()), hvd._DistributedGradientTape)
