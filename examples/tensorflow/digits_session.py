"""Trains on handwritten digits as scripts for TensorFlow 1 do: with a graph, an optimizer and a monitored session.

    perseusrun -np 2 python examples/tensorflow/digits_session.py --checkpoints /tmp/digits

The exit code is 1 if the test accuracy is below --target.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

import perseus_like.tensorflow as hvd

try:
    from sklearn.datasets import load_digits
except ImportError as error:
    raise ImportError("this example needs: pip install 'perseus-like[examples]'") from error

TEST_IMAGES = 357


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A perceptron on scikit-learn's digits.")
    parser.add_argument("--steps", type=int, default=600, help="of all ranks together")
    parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step")
    parser.add_argument("--learning-rate", type=float, default=0.1, help="of one rank; multiplied by their number")
    parser.add_argument("--checkpoints", help="folder of checkpoints, from which training continues")
    parser.add_argument("--target", type=float, default=0.93, help="test accuracy to reach")
    return parser.parse_args()


class Test(tf.train.SessionRunHook):  # type: ignore[misc]
    """Measures the test accuracy before the session ends."""

    def __init__(self, accuracy: Any, feed: dict[Any, Any]) -> None:
        self.accuracy, self.feed = accuracy, feed
        self.result = 0.0

    def end(self, session: Any) -> None:
        self.result = float(session.run(self.accuracy, self.feed))


def main() -> int:
    args = options()
    hvd.init()
    tf.disable_eager_execution()
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:][hvd.rank() :: hvd.size()]

    batch, answers = tf.placeholder(tf.float32, [None, 64]), tf.placeholder(tf.int64, [None])
    weights = [tf.Variable(tf.random_normal(shape) * 0.15) for shape in ([64, 64], [64, 10])]
    biases = [tf.Variable(tf.zeros([width])) for width in (64, 10)]
    logits = tf.matmul(tf.nn.relu(tf.matmul(batch, weights[0]) + biases[0]), weights[1]) + biases[1]
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=answers, logits=logits))
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), answers), tf.float32))

    optimizer = tf.train.GradientDescentOptimizer(args.learning_rate * hvd.size())
    optimizer = hvd.DistributedOptimizer(optimizer)
    train_step = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())

    final = Test(accuracy, {batch: images[test], answers: labels[test]})
    hooks = [
        hvd.BroadcastGlobalVariablesHook(0),  # all ranks begin with rank 0's variables
        tf.train.StopAtStepHook(last_step=args.steps // hvd.size()),
        final,
    ]
    folder = args.checkpoints if hvd.rank() == 0 else None  # one rank saves for all
    random = np.random.default_rng(hvd.rank())
    with tf.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks) as session:
        for step in itertools.count(1):
            if session.should_stop():
                break
            rows = random.choice(train, args.batch_size)
            _, lost = session.run([train_step, loss], {batch: images[rows], answers: labels[rows]})
            if hvd.rank() == 0 and step % 50 == 0:
                print(f"step {step}: loss {lost:.3f}", flush=True)
    if hvd.rank() == 0:
        print(f"test accuracy {100 * final.result:.1f} %")
    return 0 if final.result >= args.target else 1


if __name__ == "__main__":
    sys.exit(main())
