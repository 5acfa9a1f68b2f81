"""Trains on handwritten digits in several processes, and explains the usual steps of a distributed training.

    perseusrun -np 2 python examples/pytorch/digits.py
    perseusrun -np 2 python examples/pytorch/digits.py --checkpoint digits.pt     # again: continues from the checkpoint

The exit code is 1 if the test accuracy is below --target. digits_compared.py, which `make demo` runs, also trains in
other ways and compares.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import perseus_like.torch as hvd

try:
    from sklearn.datasets import load_digits
    from tqdm import tqdm
except ImportError as error:
    raise ImportError("this example needs: pip install 'perseus-like[examples]'") from error

TEST_IMAGES = 357


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A small convolutional net on scikit-learn's digits.")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step")
    parser.add_argument("--learning-rate", type=float, default=0.05, help="of one rank; multiplied by their number")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--checkpoint", type=Path, help="file to resume from, if it is there, and to save to")
    parser.add_argument("--target", type=float, default=0.97, help="test accuracy to reach")
    parser.add_argument("--width", type=int, default=16, help="channels of the first layer")
    return parser.parse_args(arguments)


def make_model(args: argparse.Namespace) -> nn.Module:
    """Returns a model without dropout and batch normalization, whose results depend on how a batch is divided."""
    model = nn.Sequential(
        nn.Conv2d(1, args.width, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(args.width, 2 * args.width, 3, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * args.width * 4 * 4, 4 * args.width),
        nn.GELU(),
        nn.Linear(4 * args.width, 10),
    )
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.constant_(layer.get_parameter("bias"), 0.0)
    return model


def scaled_learning_rate(args: argparse.Namespace) -> float:
    """n ranks take n times as many images per step, so a step may be n times as long."""
    return float(args.learning_rate * hvd.size())


def make_optimizer(model: nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), scaled_learning_rate(args), args.momentum)


def make_schedule(optimizer: torch.optim.Optimizer, args: argparse.Namespace, epochs_done: int = 0) -> LambdaLR:
    for group in optimizer.param_groups:
        group["initial_lr"] = scaled_learning_rate(args)  # a checkpoint may be of another number of ranks
    return LambdaLR(optimizer, lambda epoch: float(0.85**epoch), last_epoch=epochs_done - 1)


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Returns 1440 images for training and 357 for testing, divided at random but always in the same way."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[TEST_IMAGES:], order[:TEST_IMAGES]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


class Batches:
    """Yields a rank's parts of the global batches, which are the same for any number of ranks."""

    def __init__(self, data: TensorDataset, batch_size: int, ranks: int, rank: int, seed: int) -> None:
        self._sampler: DistributedSampler[Any] = DistributedSampler(data, ranks, rank, seed=seed, drop_last=True)
        self._loader = DataLoader(data, batch_size, sampler=self._sampler, drop_last=True)

    def epoch(self, number: int) -> DataLoader[Any]:
        self._sampler.set_epoch(number)  # another order in each epoch, the same one on all ranks
        return self._loader


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: DataLoader[Any], label: str, show: bool
) -> float:
    """Trains for an epoch and returns the seconds."""
    start = time.perf_counter()
    model.train()
    progress = tqdm(batches, label, leave=False, disable=not show)
    for images, labels in progress:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        progress.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
    return time.perf_counter() - start


def test_accuracy(model: nn.Module, data: TensorDataset) -> float:
    """Returns the share of right answers of all ranks.

    Each rank tests its share of the images. Shares differ in size, so ranks add up hits and images.
    """
    model.eval()
    images, labels = (tensor[hvd.rank() :: hvd.size()] for tensor in data.tensors)
    with torch.no_grad():
        hits = int((model(images).argmax(1) == labels).sum())
    counts: list[int] = hvd.allreduce(torch.tensor([hits, len(labels)]), op=hvd.Sum, name="test").tolist()
    return counts[0] / counts[1]


def save(path: Path, epochs: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replaces the file at once, so that a reader finds the old file or the new one, never half of one."""
    unfinished = path.with_name(path.name + ".unfinished")
    torch.save({"epochs": epochs, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, unfinished)
    unfinished.replace(path)


def resume(path: Path | None, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Loads a checkpoint, and returns the number of complete epochs. Only rank 0 needs the file."""
    epochs = 0
    if hvd.rank() == 0 and path is not None and path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        epochs = saved["epochs"]
        print(f"resuming from {path} after {epochs} epochs", flush=True)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return int(hvd.broadcast_object(epochs, root_rank=0))


def main() -> int:
    args = options()
    hvd.init()
    first = hvd.rank() == 0
    train, test = load_data()

    torch.manual_seed(args.seed)
    model = make_model(args)
    optimizer = hvd.DistributedOptimizer(make_optimizer(model, args), named_parameters=model.named_parameters())
    done = resume(args.checkpoint, model, optimizer)
    schedule = make_schedule(optimizer, args, done)

    batches = Batches(train, args.batch_size, hvd.size(), hvd.rank(), args.seed)
    accuracy = test_accuracy(model, test) if done >= args.epochs else 0.0
    for epoch in range(done, args.epochs):
        train_epoch(model, optimizer, batches.epoch(epoch), f"epoch {epoch + 1}", show=first)
        schedule.step()
        accuracy = test_accuracy(model, test)
        if first:
            print(f"epoch {epoch + 1}: test accuracy {accuracy:.2%}", flush=True)
            if args.checkpoint is not None:
                save(args.checkpoint, epoch + 1, model, optimizer)

    if first:
        print(accuracy_in_words(accuracy, args), flush=True)
    return 0 if accuracy >= args.target else 1


def accuracy_in_words(accuracy: float, args: argparse.Namespace) -> str:
    word = "good" if accuracy >= args.target else "FAILED"
    return f"{hvd.size()} ranks, test accuracy {accuracy:.2%}, target {args.target:.0%}: {word}"


if __name__ == "__main__":
    sys.exit(main())
