"""Tests of functions that send parameters and objects from one rank to all, with MXNet."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import perseus_like.mxnet as hvd


def equal_on_all_ranks(array: Any) -> bool:
    mine = array.asnumpy()
    return all(np.array_equal(mine, other) for other in hvd.allgather_object(mine))


def test_dictionary_of_arrays(rank: int) -> None:
    params = {"weight": mx.nd.full((2, 3), rank), "bias": mx.nd.full((3,), rank, dtype="float64")}
    hvd.broadcast_parameters(params)
    assert params["weight"].asnumpy().tolist() == [[0.0] * 3] * 2
    assert params["bias"].asnumpy().tolist() == [0.0] * 3


def test_gluon_parameters(rank: int, size: int) -> None:
    mx.random.seed(rank)
    net = gluon.nn.Dense(3, in_units=4)
    net.initialize(mx.init.Normal())
    root = size - 1
    expected = hvd.broadcast_object(net.weight.data().asnumpy(), root)
    hvd.broadcast_parameters(net.collect_params(), root, prefix="gluon.")
    np.testing.assert_array_equal(net.weight.data().asnumpy(), expected)


@pytest.mark.parametrize("hybrid", [False, True])
def test_deferred_initialization(hybrid: bool, rank: int) -> None:
    """The shapes are known after the first batch. Then root's values are sent to all ranks."""
    mx.random.seed(100 + rank)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(5, in_units=4), gluon.nn.Dense(3), gluon.nn.BatchNorm())
    net.initialize(mx.init.Normal())
    if hybrid:
        net.hybridize()
    hvd.broadcast_parameters(net.collect_params(), prefix=f"deferred.{hybrid}.")
    net(mx.nd.ones((2, 4)))
    assert all(equal_on_all_ranks(parameter.data()) for parameter in net.collect_params().values())
    # Afterwards, it is an ordinary parameter.
    net.initialize(mx.init.Normal(), force_reinit=True)
    assert net[0].weight.data().shape == (5, 4)


def test_several_devices_of_one_process(rank: int) -> None:
    net = gluon.nn.Dense(3, in_units=4)
    net.initialize(mx.init.Constant(rank), ctx=[mx.cpu(0), mx.cpu(1)])
    hvd.broadcast_parameters(net.collect_params(), prefix="devices.")
    for copy in net.weight.list_data():
        assert copy.asnumpy().max() == 0


def test_parameters_that_are_not_a_dictionary_are_an_error() -> None:
    with pytest.raises(ValueError, match="list"):
        hvd.broadcast_parameters([mx.nd.ones((1,))])


def test_objects(rank: int, size: int) -> None:
    assert hvd.broadcast_object({"rank": rank}, size - 1) == {"rank": size - 1}
    assert hvd.allgather_object((rank, "text")) == [(each, "text") for each in range(size)]


def test_compression() -> None:
    small, context = hvd.Compression.fp16.compress(mx.nd.ones((2,)))
    assert small.dtype == np.float16
    assert hvd.Compression.fp16.decompress(small, context).dtype == np.float32
    whole = mx.nd.ones((2,), dtype="int32")
    assert hvd.Compression.fp16.compress(whole) == (whole, None)
    assert hvd.Compression.none.compress(whole) == (whole, None)
