"""Trains on handwritten digits with gluon. Each rank computes gradients of its part, and the trainer averages them.

perseusrun -np 2 python examples/mxnet/digits.py
perseusrun -np 2 python examples/mxnet/digits.py --sync-batch-norm --compare-single
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import perseus_like.mxnet as hvd

try:
    from sklearn.datasets import load_digits
except ImportError as error:
    raise ImportError("this example needs: pip install 'perseus-like[examples]'") from error

ROWS = 16  # of each rank in a step
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


def make_net(options: argparse.Namespace) -> Any:
    mx.random.seed(1)
    net = gluon.nn.HybridSequential(prefix="digits_")
    with net.name_scope():
        net.add(gluon.nn.Conv2D(16, 3, padding=1, in_channels=1))
        if options.sync_batch_norm:
            net.add(mx.gluon.contrib.nn.PerseusSyncBatchNorm(in_channels=16, comm_scope=1))
        net.add(gluon.nn.Activation("relu"), gluon.nn.MaxPool2D(), gluon.nn.Flatten())
        net.add(gluon.nn.Dense(64, activation="relu", in_units=256), gluon.nn.Dense(10, in_units=64))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def train(net: Any, trainer: Any, images: Any, labels: Any, epochs: int, rows: int, part: slice) -> None:
    """Trains on `rows` images per step, of which `part` are this rank's. All ranks use the same order of images."""
    order = np.random.RandomState(0)
    for epoch in range(epochs):
        shuffled = order.permutation(len(images))
        for start in range(0, len(images) - rows + 1, rows):
            mine = shuffled[start : start + rows][part]
            with autograd.record():
                loss = LOSS(net(mx.nd.array(images[mine])), mx.nd.array(labels[mine]))
            loss.backward()
            trainer.step(len(mine))
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {float(loss.mean().asscalar()):.3f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--learning-rate", type=float, default=0.02, help="for each rank")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as 16-bit floats")
    parser.add_argument("--sync-batch-norm", action="store_true", help="normalize over the batches of all ranks")
    parser.add_argument("--compare-single", action="store_true", help="then train on one process, and compare weights")
    options = parser.parse_args()

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype("float32")
    labels = digits.target.astype("float32")
    train_images, train_labels = images[:1440], labels[:1440]

    settings = {"learning_rate": options.learning_rate * size, "momentum": 0.9}
    net = make_net(options)
    hvd.broadcast_parameters(net.collect_params())
    compression = hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", settings, compression=compression)
    part = slice(rank * ROWS, (rank + 1) * ROWS)
    train(net, trainer, train_images, train_labels, options.epochs, ROWS * size, part)

    test = slice(1440 + rank, None, size)
    right = (net(mx.nd.array(images[test])).argmax(1) == mx.nd.array(labels[test])).sum()
    counts = hvd.allreduce(mx.nd.concat(right, mx.nd.array([len(images[test])]), dim=0), op=hvd.Sum).asnumpy()
    if rank == 0:
        print(f"accuracy on {int(counts[1])} images: {100 * counts[0] / counts[1]:.1f} %")

    if options.compare_single and rank == 0:
        alone = make_net(options)
        if options.sync_batch_norm:
            alone = make_net(argparse.Namespace(sync_batch_norm=False))
            print("(one process has no other batches to normalize over)")
        plain = gluon.Trainer(alone.collect_params(), "sgd", settings)
        train(alone, plain, train_images, train_labels, options.epochs, ROWS * size, slice(None))
        pairs = zip(net.collect_params().values(), alone.collect_params().values(), strict=False)
        difference = max(float((one.data() - other.data()).abs().max().asscalar()) for one, other in pairs)
        print(f"parameters differ from one process's by at most {difference:.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
