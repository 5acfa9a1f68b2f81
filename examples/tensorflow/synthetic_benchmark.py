"""Measures images per second of a convolutional net on random images, as Horovod's benchmark of this name does.

    perseusrun -np 2 python examples/tensorflow/synthetic_benchmark.py
    perseusrun -np 2 python examples/tensorflow/synthetic_benchmark.py --compression fp16

Compare with `-np 1`. On ranks that share cores, give both as many threads per rank (OMP_NUM_THREADS=1).
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from typing import Any

import tensorflow as tf

import perseus_like.tensorflow as hvd

COMPRESSIONS = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16, "bf16": hvd.Compression.bf16}
CLASSES = 1000


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Throughput of a distributed training step on random images.")
    parser.add_argument("--channels", type=int, default=64, help="of the first convolution")
    parser.add_argument("--batch-size", type=int, default=8, help="images per rank and step")
    parser.add_argument("--image-size", type=int, default=64, help="height and width")
    parser.add_argument("--warmup-batches", type=int, default=2)
    parser.add_argument("--batches-per-iteration", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--compression", choices=list(COMPRESSIONS), default="none")
    return parser.parse_args()


class Net(tf.Module):  # type: ignore[misc]
    """Four convolutions with a stride of 2, the mean over the image, and a linear layer."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        widths = [3, *(channels * 2**stage for stage in range(4))]
        self.kernels = [
            tf.Variable(tf.random.normal([3, 3, before, after], stddev=(2 / (9 * before)) ** 0.5))
            for before, after in itertools.pairwise(widths)
        ]
        self.last = tf.Variable(tf.random.normal([widths[-1], CLASSES], stddev=0.01))

    def __call__(self, images: Any) -> Any:
        for kernel in self.kernels:
            images = tf.nn.relu(tf.nn.conv2d(images, kernel, strides=2, padding="SAME"))
        return tf.matmul(tf.reduce_mean(images, [1, 2]), self.last)


def main() -> int:
    args = options()
    hvd.init()
    tf.random.set_seed(hvd.rank())
    net = Net(args.channels)
    weights = list(net.trainable_variables)
    hvd.broadcast_variables(weights, root_rank=0)
    images = tf.random.normal([args.batch_size, args.image_size, args.image_size, 3])
    labels = tf.random.uniform([args.batch_size], maxval=CLASSES, dtype=tf.int32)

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> None:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, net(images))
            loss = tf.reduce_mean(losses)
        tape = hvd.DistributedGradientTape(tape, compression=COMPRESSIONS[args.compression])
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.01 * gradient)

    def steps(count: int) -> None:
        for _ in range(count):
            step()

    def say(text: str) -> None:
        if hvd.rank() == 0:
            print(text, flush=True)

    parameters = sum(int(tf.size(weight)) for weight in weights)
    say(f"Model: {len(net.kernels)} convolutions, {parameters / 1e6:.1f} million parameters")
    say(f"Batch size: {args.batch_size}")
    say(f"Number of CPUs: {hvd.size()}")
    steps(args.warmup_batches)
    rates = []
    for iteration in range(args.iterations):
        hvd.barrier()
        started = time.perf_counter()
        steps(args.batches_per_iteration)
        rates.append(args.batch_size * args.batches_per_iteration / (time.perf_counter() - started))
        say(f"Iter #{iteration}: {rates[-1]:.1f} img/sec per CPU")
    mean, spread = statistics.fmean(rates), 1.96 * statistics.pstdev(rates)
    total = float(hvd.allreduce(tf.constant(mean, tf.float64), op=hvd.Sum, name="total"))
    say(f"Img/sec per CPU: {mean:.1f} +-{spread:.1f}")
    say(f"Total img/sec on {hvd.size()} CPU(s): {total:.1f} +-{hvd.size() * spread:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
