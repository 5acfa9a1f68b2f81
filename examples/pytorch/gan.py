"""Trains two models: a generator learns to draw points that a discriminator cannot tell from real points.

    perseusrun -np 2 python examples/pytorch/gan.py

Real points lie around eight places on a circle. The exit code is 1 if the share of drawn points near these
places is less than --target.
"""

from __future__ import annotations

import argparse
import math
import sys

import torch
from torch import Tensor, nn
from torch.nn import functional

import perseus_like.torch as hvd

PLACES, SPREAD, NOISE = 8, 0.1, 8


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A generative adversarial net on points in the plane.")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch-size", type=int, default=128, help="points per rank and step")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--target", type=float, default=0.5, help="share of points near one of the places")
    return parser.parse_args()


def places() -> Tensor:
    angles = torch.arange(PLACES) * (2 * math.pi / PLACES)
    return torch.stack([angles.cos(), angles.sin()], 1)


def real_points(count: int, generator: torch.Generator) -> Tensor:
    chosen = places()[torch.randint(PLACES, (count,), generator=generator)]
    return chosen + SPREAD * torch.randn(count, 2, generator=generator)


def perceptron(inputs: int, outputs: int) -> nn.Module:
    hidden = [nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2)]
    return nn.Sequential(*hidden, nn.Linear(64, outputs))


def judge(verdicts: Tensor, real: bool) -> Tensor:
    return functional.binary_cross_entropy_with_logits(verdicts, torch.full_like(verdicts, float(real)))


def closeness(points: Tensor) -> tuple[float, int]:
    """Returns the share of all ranks' points that are near a place, and the number of places that have such points.

    A point is near a place if the distance is less than three spreads.
    """
    distances, nearest = torch.cdist(points, places()).min(1)
    near = torch.bincount(nearest[distances < 3 * SPREAD], minlength=PLACES).double()
    counts = hvd.allreduce(torch.cat([near, near.new_tensor([len(points)])]), op=hvd.Sum, name="closeness")
    return float(counts[:-1].sum() / counts[-1]), int((counts[:-1] > 0).sum())


def main() -> int:
    args = options()
    hvd.init()
    torch.manual_seed(args.seed)
    generator, discriminator = perceptron(NOISE, 2), perceptron(2, 1)
    optimizers = []
    for model in (generator, discriminator):
        # Each model has its own optimizer. Gradients of one model are reduced while the other one waits for its turn.
        plain = torch.optim.Adam(model.parameters(), args.learning_rate, betas=(0.5, 0.99))
        optimizers.append(hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters()))
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer_g, optimizer_d = optimizers
    own = torch.Generator().manual_seed(args.seed + hvd.rank())  # each rank sees other points

    def draw(count: int) -> Tensor:
        points: Tensor = generator(torch.randn(count, NOISE, generator=own))
        return points

    for step in range(1, args.steps + 1):
        optimizer_d.zero_grad()
        real, drawn = real_points(args.batch_size, own), draw(args.batch_size)
        (judge(discriminator(real), True) + judge(discriminator(drawn.detach()), False)).backward()
        optimizer_d.step()

        # The generator's loss passes through the discriminator. The discriminator's optimizer must not reduce these
        # gradients. It would wait for its step(), and raise an error when the next backward pass starts.
        discriminator.requires_grad_(False)
        optimizer_g.zero_grad()
        judge(discriminator(drawn), True).backward()
        optimizer_g.step()
        discriminator.requires_grad_(True)

        if step % 250 == 0 or step == args.steps:
            with torch.no_grad():
                share, reached = closeness(draw(512))
            if hvd.rank() == 0:
                print(f"step {step}: {share:.0%} of the points near {reached} of {PLACES} places", flush=True)
    return 0 if share >= args.target else 1


if __name__ == "__main__":
    sys.exit(main())
