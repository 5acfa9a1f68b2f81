"""Trains a model whose layers are divided over pairs of ranks, of which there are several, as in Megatron-LM.

    perseusrun -np 4 python examples/pytorch/tensor_and_data_parallel.py

The two ranks of a pair have half of each layer and see the same images (tensor parallelism; Shoeybi et al., 2019,
arXiv:1909.08053). The pairs see different images, and ranks with the same half average their gradients (data
parallelism). The result is that of one process with the whole batch. The exit code is 1 if the test accuracy is below
--target.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import perseus_like.torch as hvd

try:
    from sklearn.datasets import load_digits
except ImportError as error:
    raise ImportError("this example needs: pip install 'perseus-like[examples]'") from error

TEST_IMAGES = 357


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Layers divided over two ranks, and images over pairs of ranks.")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32, help="images per step, shared among the pairs")
    parser.add_argument("--target", type=float, default=0.95, help="share of test images that must be right")
    return parser.parse_args()


class ToPair(torch.autograd.Function):
    """Passes on the input of a divided layer. Its gradient is the sum over the ranks that have parts of the layer."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, pair: hvd.ProcessSet) -> Tensor:
        ctx.pair = pair
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return hvd.allreduce(gradients[0], op=hvd.Sum, process_set=ctx.pair), None


class FromPair(torch.autograd.Function):
    """Adds the outputs of a layer's parts. Each rank computes the rest alike, so the gradient is passed on."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, pair: hvd.ProcessSet) -> Tensor:
        return hvd.allreduce(tensor, op=hvd.Sum, process_set=pair)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return gradients[0], None


class DividedBlock(nn.Module):
    """x + B gelu(A x + a) + b. A rank has some columns of the hidden layer: rows of A and a, and columns of B."""

    def __init__(self, width: int, hidden: int, pair: hvd.ProcessSet) -> None:
        super().__init__()
        self.pair = pair
        whole = [nn.Linear(width, hidden), nn.Linear(hidden, width)]  # the same on all ranks
        parts, mine = pair.size() or 1, pair.rank() or 0
        self.rows = nn.Parameter(whole[0].weight.chunk(parts, 0)[mine].clone())
        self.rows_bias = nn.Parameter(whole[0].bias.chunk(parts, 0)[mine].clone())
        self.columns = nn.Parameter(whole[1].weight.chunk(parts, 1)[mine].clone())
        self.bias = whole[1].bias

    def forward(self, tensor: Tensor) -> Tensor:
        entered: Tensor = ToPair.apply(tensor, self.pair)
        hidden = functional.gelu(functional.linear(entered, self.rows, self.rows_bias))
        added: Tensor = FromPair.apply(functional.linear(hidden, self.columns), self.pair)
        return tensor + added + self.bias


def process_set_of(*sets: range) -> hvd.ProcessSet:
    """Returns the set that this rank is in. Every rank must register every set."""
    registered = [hvd.global_process_set if len(ranks) == hvd.size() else hvd.add_process_set(ranks) for ranks in sets]
    return next(each for each in registered if each.included())


def main() -> int:
    args = options()
    hvd.init()
    parts = 2 if hvd.size() % 2 == 0 else 1
    pair = process_set_of(*(range(first, first + parts) for first in range(0, hvd.size(), parts)))
    alike = process_set_of(*(range(part, hvd.size(), parts) for part in range(parts)))  # they have the same part
    pairs, mine = alike.size() or 1, alike.rank() or 0

    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    learn, test = order[TEST_IMAGES:], order[:TEST_IMAGES]

    torch.manual_seed(1)
    blocks = [DividedBlock(64, 256, pair) for _ in range(2)]
    model = nn.Sequential(*blocks, nn.LayerNorm(64), nn.Linear(64, 10))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters(), process_set=alike
    )
    generator = torch.Generator().manual_seed(2)  # all ranks shuffle alike
    for epoch in range(args.epochs):
        losses = []
        shuffled = learn[torch.randperm(len(learn), generator=generator)]
        for batch in shuffled.split(args.batch_size)[: len(learn) // args.batch_size]:
            own = batch[mine::pairs]
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images[own]), labels[own])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        mean = hvd.allreduce(torch.stack(losses).mean(), name="loss")
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {float(mean):.4f}", flush=True)
    with torch.no_grad():
        right = float((model(images[test]).argmax(1) == labels[test]).float().mean())
    if hvd.rank() == 0:
        print(f"{pairs} times {parts} ranks, test accuracy {right:.1%}")
    return 0 if right >= args.target else 1


if __name__ == "__main__":
    sys.exit(main())
