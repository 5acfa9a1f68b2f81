"""Trains a Keras model on TensorFlow in an elastic job. The argument is the number of seconds that a step takes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import keras
import tensorflow as tf

import perseus_like.tensorflow as hvd

sys.path.insert(0, str(Path(__file__).parent))
import steps as task  # type: ignore[import-not-found]


@tf.function  # type: ignore[untyped-decorator]
def gradients_of(model: Any, inputs: Any) -> Any:
    """Returns the gradients. TensorFlow traces this function once in each process, also if ranks join and leave."""
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(model(inputs))
    return tape.gradient(loss, model.trainable_variables)


@hvd.elastic.run
def train(state: Any, pause: float) -> None:
    task.report("start", rank=hvd.rank(), size=hvd.size(), step=state.step)
    while state.last is None or state.step < state.last:
        gradients = gradients_of(state.model, tf.fill((1, task.WEIGHTS), task.gradient(state.step)))
        state.optimizer.apply_gradients(zip(gradients, state.model.trainable_variables, strict=True))
        task.end_step(hvd, state, pause)


def main(pause: float) -> None:
    hvd.init()
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((task.WEIGHTS,)), layer])
    optimizer = keras.optimizers.SGD(task.LEARNING_RATE, momentum=task.MOMENTUM)
    optimizer.build(model.trainable_variables)
    state: Any = hvd.elastic.TensorFlowKerasState(model, optimizer, step=0, last=None)
    train(state, pause)
    weights = hvd.allgather_object(model.get_weights()[0].flatten().tolist())
    task.report_end(hvd.rank(), hvd.size(), state.step, weights)


if __name__ == "__main__":
    main(float(sys.argv[1]))
