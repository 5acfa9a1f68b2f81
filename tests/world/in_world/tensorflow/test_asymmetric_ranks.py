"""Tests of ranks that do not make the same tapes: they train on, or all get an error that names a variable."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tensorflow as tf

import perseus_like.numpy as plain
import perseus_like.tensorflow as hvd
from perseus_like.tensorflow.errors import translated

pytestmark = [pytest.mark.usefixtures("two_ranks"), pytest.mark.parametrize("mode", ["eager", "graph"])]


_FACTORS = (1.0, 10.0)


def _gradient(weight: Any, mode: str) -> Any:
    def call() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * float(plain.rank() + 1))
        return hvd.DistributedGradientTape(tape).gradient(loss, weight)

    return (tf.function(call) if mode == "graph" else call)()


def _text_of(error: BaseException) -> str:
    return str(error if isinstance(error, hvd.HorovodInternalError | ValueError) else translated(error))


def _calls(mode: str) -> list[Callable[[], float | str]]:
    """Returns a function for each of two threads. They return the gradient, which is one of _FACTORS, or an error."""
    weight = tf.Variable(1.0, name="weight")

    def gradient(factor: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = weight * factor
        return hvd.DistributedGradientTape(tape).gradient(loss, weight)

    compute: Callable[[Any], Any] = tf.function(gradient) if mode == "graph" else gradient

    def call(factor: float) -> float | str:
        try:
            return float(compute(tf.constant(factor)))
        except Exception as error:
            return _text_of(error)

    return [functools.partial(call, factor) for factor in _FACTORS]


def test_extra_tapes(mode: str, rank: int, size: int) -> None:
    """One rank makes tapes that it does not use."""
    extra = [hvd.DistributedGradientTape(tf.GradientTape()) for _ in range(2 if rank == 0 else 0)]
    assert _gradient(tf.Variable([1.0, 1.0]), mode).numpy().tolist() == [(size + 1) / 2] * 2
    assert len(extra) == (2 if rank == 0 else 0)


def test_gradients_in_another_order(mode: str, rank: int, size: int) -> None:
    weights = [tf.Variable([1.0] * length, name=f"weight_{length}") for length in (4, 5)]
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its class is TensorFlow's or ours
        _gradient(weights[min(rank, 1)], mode)
    texts = plain.allgather_object(_text_of(caught.value))
    assert len(set(texts)) == 1
    for words in ("rank 0 has gradient 0, of weight_4", "rank 1 has gradient 0, of weight_5"):
        assert words in texts[0]
    for weight in weights:
        assert _gradient(weight, mode).numpy().tolist() == [(size + 1) / 2] * weight.shape[0]


@pytest.mark.parametrize("order", ["same order", "another order"])
def test_tapes_of_two_threads_in_turn(order: str, mode: str, rank: int, size: int) -> None:
    """The ranks get the right gradients, or they all get an error, if the two threads of each rank never overlap."""
    calls = _calls(mode)
    outcomes: list[float | str] = [0.0, 0.0]
    may_call = [threading.Event() for _ in calls]

    def work(number: int) -> None:
        may_call[number].wait()
        outcomes[number] = calls[number]()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for number in (1, 0) if order == "another order" and rank else (0, 1):
        may_call[number].set()
        threads[number].join()
    if order == "same order":
        assert outcomes == [*_FACTORS]
        return
    for everybody in plain.allgather_object(outcomes):
        for text in everybody:
            assert "rank 0 has gradients of thread" in str(text)


def test_tapes_of_two_threads_at_once(mode: str, rank: int, size: int) -> None:
    """On one rank, two threads of a pool call at the same time. The other rank makes the calls in another order."""
    calls = _calls(mode)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            if rank == 0:
                started = [pool.submit(call) for call in calls]
                time.sleep(0.1)  # nothing tells that a thread waits in a call, so it may not do so yet
                plain.barrier()
                outcomes = [each.result() for each in started]
            else:
                plain.barrier()
                outcomes = [call() for call in reversed(calls)]
            everybody = plain.allgather_object(outcomes)
            texts = [each for of_rank in everybody for each in of_rank if isinstance(each, str)]
            if len(texts) == 2 * size:
                break
    for text in texts:
        assert "rank 0 calls it in two threads at the same time" in text
    assert len(texts) == 2 * size
    assert _gradient(tf.Variable([1.0]), mode).numpy().tolist() == [(size + 1) / 2]
