"""`make demo`: trains on digits in several processes, and compares speed and weights with other ways to train the same.

    perseusrun -np 2 -m examples.pytorch.digits_compared

All ways take the same steps on the same global batches: this library's ranks, one process with as many threads as one
rank, one process with as many threads as all ranks together, and torch's DistributedDataParallel over gloo. They take
turns, epoch by epoch, so that other work on the machine slows all of them down alike. The exit code is 1 if the
accuracy is below --target, or if weights differ.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Mapping

import torch
from torch import nn
from torch.utils.data import TensorDataset

import perseus_like.torch as hvd

from . import digits

# More channels than those of digits.py give the processes work to share.
WORKLOAD = ["--epochs", "7", "--width", "64", "--learning-rate", "0.02"]
TOLERANCE = 1e-4

RANKS = "ranks"
ONE = "one process"
ALL_THREADS = "one process with {} threads"
GLOO = "torch's DDP over gloo"


class Training:
    """One way to train: in this process alone with so many threads, by this library's ranks, or by gloo's."""

    def __init__(self, name: str, args: argparse.Namespace, data: TensorDataset, threads: int) -> None:
        self.name, self.threads, self.seconds = name, threads, list[float]()
        self.is_single = name not in (RANKS, GLOO)
        # On a busy machine, threads of one process wait long for each other.
        self.epochs = args.epochs if threads == torch.get_num_threads() else min(args.epochs, 2)
        torch.manual_seed(args.seed)
        self.model = digits.make_model(args)
        self._trained: nn.Module = self.model
        self._optimizer = digits.make_optimizer(self.model, args)
        if name == RANKS:
            named = self.model.named_parameters()
            self._optimizer = hvd.DistributedOptimizer(self._optimizer, named_parameters=named)
        elif name == GLOO:
            self._trained = nn.parallel.DistributedDataParallel(self.model)
        self._schedule = digits.make_schedule(self._optimizer, args)
        ranks, rank, each = (1, 0, hvd.size()) if self.is_single else (hvd.size(), hvd.rank(), 1)
        self._batches = digits.Batches(data, each * args.batch_size, ranks, rank, args.seed)

    def epoch(self, number: int) -> None:
        """Trains for an epoch. If one process trains, this is rank 0, and the other ranks sleep."""
        first = hvd.rank() == 0
        hvd.barrier()
        if (first or not self.is_single) and number < self.epochs:
            torch.set_num_threads(self.threads)
            label = f"epoch {number + 1}, {self.name}"
            batches = self._batches.epoch(number)
            self.seconds.append(digits.train_epoch(self._trained, self._optimizer, batches, label, show=first))
            self._schedule.step()
        hvd.barrier()

    def difference(self, other: Training) -> float:
        """Returns the largest difference of a parameter."""
        pairs = zip(self.model.parameters(), other.model.parameters(), strict=True)
        return max(float((one - another).detach().abs().max()) for one, another in pairs)


def trainings(args: argparse.Namespace, data: TensorDataset) -> list[Training]:
    """Returns the ways to train that this machine has enough cores for."""
    each = torch.get_num_threads()
    threads = {RANKS: each, ONE: each, GLOO: each}
    if each * hvd.size() <= len(os.sched_getaffinity(0)) and hvd.size() > 1:
        threads[ALL_THREADS.format(each * hvd.size())] = each * hvd.size()
    return [Training(name, args, data, count) for name, count in threads.items()]


def in_words(size: int, threads: int, seconds: Mapping[str, float], difference: float) -> str:
    """Returns what was measured: how many times as fast the ranks were as each other way, and whether weights agree."""
    others = [f"{seconds[name] / seconds[RANKS]:.1f} times as fast as {name}" for name in seconds if name != RANKS]
    weights = "same weights" if difference <= TOLERANCE else f"but weights differ by {difference:.0e}: FAILED"
    each = f"{threads} thread" + "s" * (threads > 1) + " each"
    return f"{size} ranks with {each}: {', '.join(others)}, {weights}"


def main() -> int:
    args = digits.options([*WORKLOAD, *sys.argv[1:]])
    hvd.init()
    torch.distributed.init_process_group("gloo")  # perseusrun has set its variables
    first = hvd.rank() == 0
    train, test = digits.load_data()
    ways = trainings(args, train)
    accuracy = 0.0
    for epoch in range(args.epochs):
        for way in ways:
            way.epoch(epoch)
        accuracy = digits.test_accuracy(ways[0].model, test)
        if first:
            print(f"epoch {epoch + 1}: test accuracy {accuracy:.2%}", flush=True)

    # The mean over a global batch is the mean of the ranks' means, so weights differ by rounding alone.
    difference = hvd.broadcast_object(
        max(ways[0].difference(way) for way in ways[1:] if way.epochs == args.epochs), root_rank=0
    )
    if first:
        seconds = {way.name: statistics.median(way.seconds) for way in ways}
        times = ", ".join(f"{name} {time:.2f} s" for name, time in seconds.items())
        print(digits.accuracy_in_words(accuracy, args))
        print(
            f"median time of an epoch: {times}; parameters differ by at most {difference:.0e}, allowed {TOLERANCE:.0e}"
        )
        print(in_words(hvd.size(), ways[0].threads, seconds, difference), flush=True)
    # gloo's models end before its group: their end waits for gloo's thread while it holds Python's lock, which the
    # thread may need.
    ways.clear()
    del way
    torch.distributed.destroy_process_group()
    return 0 if accuracy >= args.target and difference <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
