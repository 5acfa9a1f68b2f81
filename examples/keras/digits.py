"""Trains on handwritten digits with Keras' `fit`, on the backend that Keras uses (TensorFlow or torch).

    perseusrun -np 2 python examples/keras/digits.py --checkpoint /tmp/digits.keras

The exit code is 1 if the test accuracy is below --target.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import keras
import numpy as np

import perseus_like.keras as hvd

try:
    from sklearn.datasets import load_digits
except ImportError as error:
    raise ImportError("this example needs: pip install 'perseus-like[examples]'") from error

TEST_IMAGES = 357


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A perceptron on scikit-learn's digits.")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step")
    parser.add_argument("--learning-rate", type=float, default=0.1, help="of one rank; multiplied by their number")
    parser.add_argument("--checkpoint", help="a .keras file: the model after each epoch, saved by rank 0")
    parser.add_argument("--target", type=float, default=0.93, help="test accuracy to reach")
    return parser.parse_args()


def make_model(learning_rate: float) -> Any:
    layers = keras.layers
    model = keras.Sequential([layers.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(10)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(learning_rate, momentum=0.5))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def main() -> int:
    args = options()
    hvd.init()
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    mine = train[: len(train) // hvd.size() * hvd.size()][hvd.rank() :: hvd.size()]  # as many on each rank
    my_test = test[: len(test) // hvd.size() * hvd.size()][hvd.rank() :: hvd.size()]

    learning_rate = args.learning_rate * hvd.size()  # n ranks take n times as many images per step
    model = make_model(learning_rate)
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # all begin with rank 0's weights
        hvd.callbacks.MetricAverageCallback(),  # before what reads metrics
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=learning_rate, warmup_epochs=3, verbose=1),
    ]
    if args.checkpoint and hvd.rank() == 0:  # one rank saves for all
        callbacks.append(keras.callbacks.ModelCheckpoint(args.checkpoint))
    history = model.fit(
        images[mine],
        labels[mine],
        batch_size=args.batch_size,
        epochs=args.epochs,
        validation_data=(images[my_test], labels[my_test]),
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    accuracy = history.history["val_accuracy"][-1]  # of all ranks
    if hvd.rank() == 0:
        print(f"test accuracy {100 * accuracy:.1f} %")
    return 0 if accuracy >= args.target else 1


if __name__ == "__main__":
    sys.exit(main())
