"""Trains with batch normalization over all ranks' batches, because one rank's batches are too small for statistics.

    perseusrun -np 2 python examples/keras/sync_batch_norm.py

Each rank has 2 images per step. With SyncBatchNormalization the moving statistics are the same on all ranks, and the
model is the one that a single process gets of the whole batches. The exit code is 1 if the statistics differ, or if the
test accuracy is below --target.
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
    parser = argparse.ArgumentParser(description="A perceptron with batch normalization on scikit-learn's digits.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=2, help="images per rank and step")
    parser.add_argument("--target", type=float, default=0.85, help="test accuracy to reach")
    return parser.parse_args()


def make_model() -> Any:
    layers = keras.layers
    model = keras.Sequential(
        [
            *[layers.Input((64,)), layers.Dense(64, use_bias=False), hvd.SyncBatchNormalization(momentum=0.95)],
            *[layers.Activation("relu"), layers.Dense(10)],
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), loss, metrics=["accuracy"])
    return model


def same_on_all_ranks(values: Any) -> bool:
    everywhere = np.asarray(hvd.allgather(values[np.newaxis]))
    return bool(np.all(everywhere == everywhere[0]))


def main() -> int:
    args = options()
    hvd.init()
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    mine = train[: len(train) // hvd.size() * hvd.size()][hvd.rank() :: hvd.size()]  # as many on each rank

    model = make_model()
    model.fit(
        images[mine],
        labels[mine],
        batch_size=args.batch_size,
        epochs=args.epochs,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()],
        verbose=2 if hvd.rank() == 0 else 0,
    )
    norm = model.layers[1]
    same = all(same_on_all_ranks(np.array(each)) for each in norm.get_weights())
    _, accuracy = model.evaluate(images[test], labels[test], verbose=0)
    if hvd.rank() == 0:
        print(f"the statistics are {'the same on all ranks' if same else 'of each rank its own'}")
        print(f"test accuracy {100 * accuracy:.1f} %")
    return 0 if same and accuracy >= args.target else 1


if __name__ == "__main__":
    sys.exit(main())
