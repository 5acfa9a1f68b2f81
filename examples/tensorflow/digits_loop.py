"""Trains on handwritten digits with a custom training loop in a tf.function.

    perseusrun -np 2 python examples/tensorflow/digits_loop.py

The exit code is 1 if the test accuracy is below --target.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np
import tensorflow as tf

import perseus_like.tensorflow as hvd

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
    parser.add_argument("--target", type=float, default=0.93, help="test accuracy to reach")
    return parser.parse_args()


def make_weights(seed: int) -> list[Any]:
    tf.random.set_seed(seed)
    return [
        tf.Variable(tf.random.normal([64, 64]) * 0.15),
        tf.Variable(tf.zeros([64])),
        tf.Variable(tf.random.normal([64, 10]) * 0.15),
        tf.Variable(tf.zeros([10])),
    ]


def logits_of(weights: list[Any], images: Any) -> Any:
    hidden = tf.nn.relu(tf.matmul(images, weights[0]) + weights[1])
    return tf.matmul(hidden, weights[2]) + weights[3]


def main() -> int:
    args = options()
    hvd.init()
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]

    weights = make_weights(seed=hvd.rank())
    hvd.broadcast_variables(weights, root_rank=0)  # all begin with rank 0's
    learning_rate = args.learning_rate * hvd.size()  # n ranks take n times as many images per step

    @tf.function  # type: ignore[untyped-decorator]
    def step(batch: Any, answers: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(answers, logits_of(weights, batch))
            loss = tf.reduce_mean(losses)
        tape = hvd.DistributedGradientTape(tape)  # its gradients are the means of all ranks'
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(learning_rate * gradient)
        return loss

    for epoch in range(args.epochs):
        shuffled = np.random.default_rng(epoch).permutation(train)  # the same on all ranks
        mine = shuffled[: len(shuffled) // hvd.size() * hvd.size()][hvd.rank() :: hvd.size()]
        for begin in range(0, len(mine) - args.batch_size + 1, args.batch_size):
            rows = mine[begin : begin + args.batch_size]
            loss = step(images[rows], labels[rows])
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {float(loss):.3f}")

    my_test = test[hvd.rank() :: hvd.size()]
    right = tf.reduce_sum(tf.cast(tf.argmax(logits_of(weights, images[my_test]), 1) == labels[my_test], tf.int64))
    accuracy = int(hvd.allreduce(right, op=hvd.Sum)) / len(test)
    if hvd.rank() == 0:
        print(f"test accuracy {100 * accuracy:.1f} %")
    return 0 if accuracy >= args.target else 1


if __name__ == "__main__":
    sys.exit(main())
