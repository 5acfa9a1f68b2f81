"""Tests of ranks that do not make the same tapes: they train on, or all get an error that names a variable."""

from __future__ import annotations

from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

import perseus_like.numpy as plain  # noqa: E402
import perseus_like.tensorflow as hvd  # noqa: E402
from perseus_like.tensorflow.errors import translated  # noqa: E402

pytestmark = [pytest.mark.usefixtures("two_ranks"), pytest.mark.parametrize("mode", ["eager", "graph"])]


def _gradient(weight: Any, mode: str) -> Any:
    def call() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * float(plain.rank() + 1))
        return hvd.DistributedGradientTape(tape).gradient(loss, weight)

    return (tf.function(call) if mode == "graph" else call)()


def test_extra_tapes(mode: str, rank: int, size: int) -> None:
    """One rank makes tapes that it does not use."""
    extra = [hvd.DistributedGradientTape(tf.GradientTape()) for _ in range(2 if rank == 0 else 0)]
    assert _gradient(tf.Variable([1.0, 1.0]), mode).numpy().tolist() == [(size + 1) / 2] * 2
    assert len(extra) == (2 if rank == 0 else 0)


def test_gradients_in_another_order(mode: str, rank: int, size: int) -> None:
    weights = [tf.Variable([1.0] * length, name=f"weight_{length}") for length in (4, 5)]
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its class is TensorFlow's or ours
        _gradient(weights[min(rank, 1)], mode)
    error = caught.value
    texts = plain.allgather_object(str(error if isinstance(error, hvd.HorovodInternalError) else translated(error)))
    assert len(set(texts)) == 1
    for words in ("rank 0 has gradient 0, of weight_4", "rank 1 has gradient 0, of weight_5"):
        assert words in texts[0]
    for weight in weights:
        assert _gradient(weight, mode).numpy().tolist() == [(size + 1) / 2] * weight.shape[0]
