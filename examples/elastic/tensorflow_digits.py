"""Trains on handwritten digits with TensorFlow while workers come and go.

    perseusrun --min-np 1 --max-np 3 --host-discovery-script examples/elastic/hosts.sh \\
        python examples/elastic/tensorflow_digits.py --epochs 60

Kill a worker, too, if you like. The exit code is 1 if the test accuracy is below --target.
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
    parser = argparse.ArgumentParser(description="A perceptron on scikit-learn's digits, in an elastic job.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16, help="images per worker and step")
    parser.add_argument("--learning-rate", type=float, default=0.1, help="of one worker; multiplied by their number")
    parser.add_argument("--commit-steps", type=int, default=10, help="steps between two commits")
    parser.add_argument("--target", type=float, default=0.93, help="share of test images that must be right")
    return parser.parse_args()


def make_weights() -> list[Any]:
    tf.random.set_seed(0)
    return [
        tf.Variable(tf.random.normal([64, 64]) * 0.15),
        tf.Variable(tf.zeros([64])),
        tf.Variable(tf.random.normal([64, 10]) * 0.15),
        tf.Variable(tf.zeros([10])),
    ]


def logits_of(weights: list[Any], images: Any) -> Any:
    hidden = tf.nn.relu(tf.matmul(images, weights[0]) + weights[1])
    return tf.matmul(hidden, weights[2]) + weights[3]


# TensorFlow traces this once in each process, also if workers come and go.
@tf.function  # type: ignore[untyped-decorator]
def step(weights: list[Any], images: Any, labels: Any, learning_rate: Any) -> Any:
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits_of(weights, images))
        loss = tf.reduce_mean(losses)
    tape = hvd.DistributedGradientTape(tape)
    for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
        weight.assign_sub(learning_rate * gradient)
    return loss


@hvd.elastic.run
def train(state: Any, images: Any, labels: Any, args: argparse.Namespace) -> None:
    """Trains from the epoch and image of the last commit. It runs again whenever the workers have changed."""
    learning_rate = tf.constant(args.learning_rate * hvd.size())
    at_once = args.batch_size * hvd.size()
    while state.epoch < args.epochs:
        # All workers have the same order, and divide the images that this epoch has not yet had.
        order = np.random.default_rng(state.epoch).permutation(len(labels))
        for number in range((len(order) - state.done) // at_once):
            mine = order[state.done :][hvd.rank() : at_once : hvd.size()]
            state.loss = float(step(state.variables, images[mine], labels[mine], learning_rate))
            state.done += at_once
            if number % args.commit_steps == args.commit_steps - 1:
                state.commit()  # a copy in memory; new workers get it
        state.epoch, state.done = state.epoch + 1, 0
        if hvd.rank() == 0:
            print(f"epoch {state.epoch} with {hvd.size()} workers: loss {state.loss:.3f}", flush=True)
        state.commit()


def main() -> int:
    args = options()
    hvd.init()
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(labels))
    learn, test = order[TEST_IMAGES:], order[:TEST_IMAGES]

    state: Any = hvd.elastic.TensorFlowState(make_weights(), epoch=0, done=0, loss=0.0)
    train(state, images[learn], labels[learn], args)

    right = tf.argmax(logits_of(state.variables, images[test]), 1) == labels[test]
    accuracy = float(tf.reduce_mean(tf.cast(right, tf.float32)))
    if hvd.rank() == 0:
        print(f"{hvd.size()} workers in the end, test accuracy {accuracy:.1%}", flush=True)
    return 0 if accuracy >= args.target else 1


if __name__ == "__main__":
    sys.exit(main())
