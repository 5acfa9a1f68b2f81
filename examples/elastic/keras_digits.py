"""Trains on handwritten digits with Keras' `fit` while workers come and go.

    perseusrun --min-np 1 --max-np 3 --host-discovery-script examples/elastic/hosts.sh \\
        python examples/elastic/keras_digits.py --epochs 60

Kill a worker, too, if you like. The exit code is 1 if the test accuracy is below --target.
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
    parser = argparse.ArgumentParser(description="A perceptron on scikit-learn's digits, in an elastic job.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16, help="images per worker and step")
    parser.add_argument("--learning-rate", type=float, default=0.1, help="of one worker; multiplied by their number")
    parser.add_argument("--target", type=float, default=0.93, help="share of test images that must be right")
    return parser.parse_args()


def make_model(learning_rate: float) -> Any:
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential([layers.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(10)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(learning_rate, momentum=0.5))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


class Report(keras.callbacks.Callback):  # type: ignore[misc]
    """Prints a line at the end of each epoch."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if hvd.rank() == 0:
            print(f"epoch {self.state.epoch} with {hvd.size()} workers: loss {logs['loss']:.3f}", flush=True)


@hvd.elastic.run  # type: ignore[untyped-decorator]
def train(state: Any, images: Any, labels: Any, args: argparse.Namespace) -> None:
    """Trains from the epoch of the last commit. It runs again whenever the workers have changed."""
    count = len(labels) // hvd.size()  # as many on each worker
    mine = np.arange(hvd.rank(), count * hvd.size(), hvd.size())
    callbacks = [
        hvd.elastic.UpdateEpochStateCallback(state),
        Report(state),
        # At the end of each epoch, too. A commit is a copy in memory; new workers get it.
        hvd.elastic.CommitStateCallback(state, batches_per_commit=count),
    ]
    epochs = args.epochs - state.epoch
    state.model.fit(images[mine], labels[mine], args.batch_size, epochs, callbacks=callbacks, verbose=0)


def main() -> int:
    args = options()
    hvd.init()
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(labels))
    learn, test = order[TEST_IMAGES:], order[:TEST_IMAGES]

    model = make_model(args.learning_rate * hvd.size())
    state = hvd.elastic.KerasState(model, epoch=0)

    def workers_have_changed() -> None:
        model.optimizer.learning_rate = args.learning_rate * hvd.size()

    state.register_reset_callbacks([workers_have_changed])
    train(state, images[learn], labels[learn], args)

    accuracy = float(model.evaluate(images[test], labels[test], verbose=0, return_dict=True)["accuracy"])
    if hvd.rank() == 0:
        print(f"{hvd.size()} workers in the end, test accuracy {accuracy:.1%}", flush=True)
    return 0 if accuracy >= args.target else 1


if __name__ == "__main__":
    sys.exit(main())
