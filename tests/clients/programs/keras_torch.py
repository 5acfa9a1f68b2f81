"""Trains with Keras 3 on torch: fit() has an optimizer that averages the gradients of all ranks."""

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch.distributed as dist

import perseus_like.torch as hvd


class Averaging(keras.optimizers.SGD):  # type: ignore[misc]
    """Steps with the mean of all ranks' gradients."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        return super().apply(hvd.grouped_allreduce(list(grads), name="gradients"), trainable_variables)


def main() -> None:
    dist.init_process_group("perseus")
    rank, size = dist.get_rank(), dist.get_world_size()
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(2)])
    model.compile(optimizer=Averaging(0.1), loss="mse")
    inputs = np.random.default_rng(1).normal(size=(32 * size, 8)).astype("float32")
    mine = inputs[rank::size]
    history = model.fit(mine, mine[:, :2], batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"]
    assert history[-1] < history[0]
    total = sum(float(np.abs(weight).astype("float64").sum()) for weight in model.get_weights())
    print(f"RESULT {dist.get_backend()} of {size} sum {total:.9f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
