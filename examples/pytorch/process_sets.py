"""Trains two models at the same time on two teams of ranks. In the end, both teams vote together.

    perseusrun -np 4 python examples/pytorch/process_sets.py

The exit code is 1 if the vote is right less often than --target.
"""

from __future__ import annotations

import argparse
import sys

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
    parser = argparse.ArgumentParser(description="Two models on two process sets.")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="images per step of a team, shared among its ranks")
    parser.add_argument("--target", type=float, default=0.95, help="share of test images that the vote must get right")
    return parser.parse_args()


def make_teams() -> list[hvd.ProcessSet]:
    """Returns the process sets of all teams. All ranks must call it, because every rank must register every set."""
    half = hvd.size() // 2
    if half == 0:
        return [hvd.global_process_set]
    return [hvd.add_process_set(range(half)), hvd.add_process_set(range(half, hvd.size()))]


def make_model(team: hvd.ProcessSet, number: int) -> nn.Module:
    """Returns a perceptron for the first team, and a convolutional net for the second team."""
    if number == 0:
        hidden = [nn.Flatten(), nn.Linear(64, 128), hvd.SyncBatchNorm(128, process_set=team), nn.ReLU()]
        return nn.Sequential(*hidden, nn.Linear(128, 10))
    convolutions = [nn.Conv2d(1, 16, 3, padding=1), hvd.SyncBatchNorm(16, process_set=team), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(256, 10))


def train(model: nn.Module, team: hvd.ProcessSet, images: Tensor, labels: Tensor, args: argparse.Namespace) -> None:
    root = (team.ranks or [0])[0]  # by its rank in the job, as everywhere
    for tensor in model.state_dict().values():
        hvd.broadcast_(tensor, root_rank=root, process_set=team)
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), process_set=team)
    ranks, mine = team.size() or 1, team.rank() or 0
    order = torch.Generator().manual_seed(1)
    for epoch in range(args.epochs):
        for batch in torch.randperm(len(labels), generator=order).split(args.batch_size):
            own = batch[mine::ranks]
            optimizer.zero_grad()
            # This makes the mean over the team's images, also if ranks have different numbers of images.
            loss = functional.cross_entropy(model(images[own]), labels[own], reduction="sum") * ranks / len(batch)
            loss.backward()
            optimizer.step()
        if team.rank() == 0:
            print(f"ranks {team.ranks}, epoch {epoch + 1}: loss {loss.item():.3f}", flush=True)


def main() -> int:
    args = options()
    hvd.init()
    teams = make_teams()
    number = next(place for place, team in enumerate(teams) if team.included())
    team = teams[number]

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    learn, test = order[TEST_IMAGES:], order[:TEST_IMAGES]

    torch.manual_seed(hvd.rank())
    model = make_model(team, number)
    train(model, team, images[learn], labels[learn], args)  # the other team does other things meanwhile

    model.eval()
    with torch.no_grad():
        own = functional.softmax(model(images[test]), dim=1)
    for place, each in enumerate(teams):
        if each.included() and each.rank() == 0:
            right = (own.argmax(1) == labels[test]).float().mean()
            print(f"team {place}, ranks {each.ranks}: {right:.1%} of test images right", flush=True)
    # All ranks of a team have the same answer, so each rank contributes its part of it.
    vote = hvd.allreduce(own / (team.size() or 1), op=hvd.Sum, name="vote")
    right = (vote.argmax(1) == labels[test]).float().mean()
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks in {len(teams)} teams, the vote: {right:.1%} of test images right")
    for each in teams:
        hvd.remove_process_set(each)  # collective, too; nothing is done to the set of all
    return 0 if right >= args.target else 1


if __name__ == "__main__":
    sys.exit(main())
