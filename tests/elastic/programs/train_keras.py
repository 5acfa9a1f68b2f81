"""Trains a Keras model on TensorFlow in an elastic job.

The arguments are the number of seconds that a backward pass takes, the number of passes in a step, and the class of
the state. With one pass, a tape reduces the gradients, otherwise the optimizer does. TensorFlow traces each function
once in each process, also if ranks join and leave.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import keras
import tensorflow as tf

import perseus_like.keras as keras_hvd
import perseus_like.tensorflow as hvd

sys.path.insert(0, str(Path(__file__).parent))
import steps as task  # type: ignore[import-not-found]


@tf.function  # type: ignore[untyped-decorator]
def reduced_gradients_of(model: Any, inputs: Any) -> Any:
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(model(inputs))
    return tape.gradient(loss, model.trainable_variables)


@tf.function  # type: ignore[untyped-decorator]
def make_pass(model: Any, optimizer: Any, inputs: Any) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(inputs))
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)


@hvd.elastic.run
def train(state: Any, model: Any, optimizer: Any, pause: float, passes: int) -> None:
    task.report("start", rank=hvd.rank(), size=hvd.size(), step=state.step)
    while state.last is None or state.step < state.last:
        inputs = tf.fill((1, task.WEIGHTS), task.gradient(state.step))
        if passes == 1:
            gradients = reduced_gradients_of(model, inputs)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        else:
            make_pass(model, optimizer, inputs)
        task.end_step(hvd, state, pause)


def main(pause: float, passes: int, state_class: str = "TensorFlowKerasState") -> None:
    hvd.init()
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((task.WEIGHTS,)), layer])
    optimizer = keras.optimizers.SGD(task.LEARNING_RATE, momentum=task.MOMENTUM)
    if passes > 1:
        optimizer = keras_hvd.DistributedOptimizer(optimizer, backward_passes_per_step=passes)
    optimizer.build(model.trainable_variables)
    if state_class == "TensorFlowKerasState":
        state: Any = hvd.elastic.TensorFlowKerasState(model, optimizer, step=0, last=None)
    else:
        state = hvd.elastic.TensorFlowState([*model.variables, *optimizer.variables], step=0, last=None)
    train(state, model, optimizer, pause, passes)
    weights = hvd.allgather_object(model.get_weights()[0].flatten().tolist())
    task.report_end(hvd.rank(), hvd.size(), state.step, weights, passes)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
