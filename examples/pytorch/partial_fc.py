"""Trains a classifier of many classes, whose last layer is divided over the ranks, as in InsightFace's Partial FC.

    perseusrun -np 2 python examples/pytorch/partial_fc.py

The backbone is data-parallel. Each rank has the weights of some classes, and computes their logits for the images of
all ranks. The weights of the classes, their gradients and the logits exist once, not once per rank (An et al., 2021,
arXiv:2010.05222). The result is that of one process with the whole batch. The exit code is 1 if the test accuracy is
below --target.
"""

from __future__ import annotations

import argparse
import math
import sys

import torch
from torch import Tensor, nn
from torch.nn import functional

import perseus_like.torch as hvd

PIXELS, FEATURES, SCALE = 64, 32, 16.0


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A softmax over many classes, which are divided over the ranks.")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=128, help="images per step, shared among the ranks")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40, help="steps per epoch")
    parser.add_argument("--target", type=float, default=0.9, help="share of test images that must be right")
    return parser.parse_args()


class DividedClasses(nn.Module):
    """The last layer. This rank has the classes from `first` up to `last`; all ranks together have all of them."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.last = (classes * rank // hvd.size() for rank in (hvd.rank(), hvd.rank() + 1))
        every = torch.randn(classes, FEATURES)  # the same on all ranks, so that the result does not depend on them
        self.weight = nn.Parameter(every[self.first : self.last].clone())

    def logits(self, features: Tensor) -> Tensor:
        return SCALE * functional.linear(functional.normalize(features), functional.normalize(self.weight))

    def loss(self, features: Tensor, labels: Tensor) -> Tensor:
        """Returns this rank's share of the mean cross entropy of all ranks' images."""
        everyones = hvd.allgather(features, name="features")
        # The gradient of an allgather is an average over the ranks. Here each rank contributes a part of it.
        everyones.register_hook(lambda gradient: gradient * hvd.size())
        labels = hvd.allgather(labels, name="labels")
        logits = self.logits(everyones)
        largest = hvd.allreduce(logits.detach().amax(1), op=hvd.Max, name="largest")
        total = hvd.allreduce((logits - largest[:, None]).exp().sum(1), op=hvd.Sum, name="total")
        is_mine = (labels >= self.first) & (labels < self.last)
        place = torch.where(is_mine, labels - self.first, 0)
        own = torch.where(is_mine, logits.gather(1, place[:, None])[:, 0], 0.0)
        right = hvd.allreduce(own, op=hvd.Sum, name="right")
        return (total.log() + largest - right).mean() / hvd.size()  # the shares of all ranks add up

    @torch.no_grad()
    def predict(self, features: Tensor) -> Tensor:
        """Returns the class of each image. All ranks pass the same images."""
        values, classes = self.logits(features).max(1)
        everyones = hvd.allgather(values[None], name="values")
        best = everyones.argmax(0)
        return hvd.allgather((classes + self.first)[None], name="classes").gather(0, best[None])[0]


def batch_of(number: int, args: argparse.Namespace, people: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the images and labels of a step: noisy pictures of random people, the same on all ranks."""
    random = torch.Generator().manual_seed(number)
    labels = torch.randint(args.classes, (args.batch_size,), generator=random)
    return people[labels] + 0.5 * torch.randn(args.batch_size, PIXELS, generator=random), labels


def main() -> int:
    args = options()
    hvd.init()
    torch.manual_seed(0)
    people = torch.randn(args.classes, PIXELS)
    backbone = nn.Sequential(nn.Linear(PIXELS, 128), nn.ReLU(), nn.Linear(128, FEATURES))
    head = DividedClasses(args.classes)
    # Sum, because each rank computes its share of the loss. The weights of the classes are not reduced.
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(backbone.parameters(), lr=3e-3), backbone.named_parameters(), op=hvd.Sum
    )
    for_classes = torch.optim.Adam(head.parameters(), lr=3e-2)
    for epoch in range(args.epochs):
        sum_of_losses = torch.zeros(())
        for step in range(args.steps):
            images, labels = batch_of(epoch * args.steps + step, args, people)
            own = slice(hvd.rank(), None, hvd.size())
            optimizer.zero_grad()
            for_classes.zero_grad()
            loss = head.loss(backbone(images[own]), labels[own])
            loss.backward()
            optimizer.step()
            for_classes.step()
            sum_of_losses += loss.detach()
        mean = float(hvd.allreduce(sum_of_losses, op=hvd.Sum, name="epoch")) / args.steps
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {mean:.4f}, of a guess {math.log(args.classes):.4f}", flush=True)
    images, labels = batch_of(-1, args, people)
    with torch.no_grad():
        right = float((head.predict(backbone(images)) == labels).float().mean())
    if hvd.rank() == 0:
        print(f"{head.last - head.first} of {args.classes} classes on rank 0, test accuracy {right:.1%}")
    return 0 if right >= args.target else 1


if __name__ == "__main__":
    sys.exit(main())
