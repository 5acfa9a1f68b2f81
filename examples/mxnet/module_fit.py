"""Trains by Module.fit with the key-value store on synthetic data, with the options of MXNet's ImageNet scripts.

perseusrun -np 2 python examples/mxnet/module_fit.py --kv-store dist_sync_perseus --benchmark 1
mpirun -np 2 sh examples/mxnet/config.sh
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from typing import Any

import mxnet as mx
import numpy as np

import perseus.mxnet as perseus


def make_symbol(classes: int, sync_batch_norm: bool) -> Any:
    data = mx.sym.Variable("data")
    for number, filters in enumerate((16, 32)):
        data = mx.sym.Convolution(data, kernel=(3, 3), pad=(1, 1), num_filter=filters, name=f"conv{number}")
        if sync_batch_norm:
            data = mx.sym.contrib.PerseusSyncBatchNorm(data, fix_gamma=False, comm_scope=0, name=f"norm{number}")
        else:
            data = mx.sym.BatchNorm(data, fix_gamma=False, name=f"norm{number}")
        data = mx.sym.Pooling(mx.sym.Activation(data, act_type="relu"), kernel=(2, 2), stride=(2, 2), pool_type="max")
    data = mx.sym.FullyConnected(mx.sym.flatten(data), num_hidden=classes, name="fc")
    return mx.sym.SoftmaxOutput(data, name="softmax")


def synthetic(options: argparse.Namespace, rank: int) -> Any:
    """Returns images whose brightness shows the class to which they belong."""
    random = np.random.RandomState(rank)
    count = options.batch_size * options.batches
    labels = random.randint(0, options.num_classes, count)
    shape = (count, *(int(extent) for extent in options.image_shape.split(",")))
    images = random.randn(*shape) * 0.2 + labels.reshape(-1, 1, 1, 1)
    return mx.io.NDArrayIter(images.astype("float32"), labels.astype("float32"), options.batch_size)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kv-store", default="dist_sync_perseus")
    parser.add_argument("--benchmark", type=int, default=1, help="1: synthetic data, all that this example has")
    parser.add_argument("--batch-size", type=int, default=16, help="of each rank")
    parser.add_argument("--batches", type=int, default=20, help="in an epoch")
    parser.add_argument("--num-epochs", type=int, default=3)
    parser.add_argument("--num-classes", type=int, default=4)
    parser.add_argument("--image-shape", default="3,16,16")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--gc-type", default="none", choices=("none", "fp16", "2bit"), help="gradient compression")
    parser.add_argument("--gc-threshold", type=float, default=0.5)
    parser.add_argument("--gpus", help="not here: this MXNet is for the CPU")
    parser.add_argument("--sync-batch-norm", action="store_true")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    kv = perseus.create(options.kv_store) if "perseus" in options.kv_store else mx.kv.create(options.kv_store)
    if options.gc_type != "none":
        kv.set_gradient_compression({"type": options.gc_type, "threshold": options.gc_threshold})
    data = synthetic(options, kv.rank)
    module = mx.mod.Module(make_symbol(options.num_classes, options.sync_batch_norm), context=mx.cpu())
    begin = time.perf_counter()
    module.fit(
        data,
        num_epoch=options.num_epochs,
        kvstore=kv,
        optimizer="sgd",
        optimizer_params={"learning_rate": options.lr, "momentum": 0.9},
        initializer=mx.init.Xavier(),
    )
    seconds = time.perf_counter() - begin
    ((_, accuracy),) = module.score(data, "acc")
    images = options.batch_size * options.batches * options.num_epochs * kv.num_workers
    mine = module.get_params()[0]["fc_weight"]
    same = np.array_equal(perseus.broadcast(mine, 0).asnumpy(), mine.asnumpy())
    print(f"rank {kv.rank} of {kv.num_workers}: accuracy {accuracy:.3f}, weights as on rank 0: {same}", flush=True)
    if kv.rank == 0:
        print(f"{images / seconds:.0f} images per second on {kv.num_workers} ranks", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
