"""Trains on handwritten digits while workers come and go.

    perseusrun --min-np 1 --max-np 3 --host-discovery-script examples/elastic/hosts.sh \\
        python examples/elastic/pytorch_digits.py --epochs 60

Kill a worker, too, if you like. The exit code is 1 if the test accuracy is below --target.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import perseus_like.torch as hvd

try:
    from sklearn.datasets import load_digits
except ImportError as error:
    raise ImportError("this example needs: pip install 'perseus-like[examples]'") from error

TEST_IMAGES = 357


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A perceptron on scikit-learn's digits, in an elastic job.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16, help="images per worker and step")
    parser.add_argument("--learning-rate", type=float, default=0.05, help="of one worker; multiplied by their number")
    parser.add_argument("--commit-steps", type=int, default=10, help="steps between two commits")
    parser.add_argument("--target", type=float, default=0.93, help="share of test images that must be right")
    return parser.parse_args()


@hvd.elastic.run
def train(state: Any, dataset: TensorDataset, args: argparse.Namespace) -> None:
    """Trains from the epoch and batch of the last commit. It runs again whenever the workers have changed."""
    while state.epoch < args.epochs:
        # The sampler divides the images that this epoch has not yet had among the workers of now.
        loader = DataLoader(dataset, batch_size=args.batch_size, sampler=state.sampler)
        for batch, (images, labels) in enumerate(loader):
            state.optimizer.zero_grad()
            loss = functional.cross_entropy(state.model(images), labels)
            loss.backward()
            state.optimizer.step()
            state.sampler.record_batch(batch, args.batch_size)
            state.loss = loss.item()  # new workers may find no image left in this epoch
            if batch % args.commit_steps == args.commit_steps - 1:
                state.commit()  # a copy in memory; new workers get it
        if hvd.rank() == 0:
            print(f"epoch {state.epoch + 1} with {hvd.size()} workers: loss {state.loss:.3f}", flush=True)
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
        state.commit()


def main() -> int:
    args = options()
    hvd.init()
    images, labels = (torch.tensor(each) for each in load_digits(return_X_y=True))
    images = images.float() / 16
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    learn, test = order[TEST_IMAGES:], order[:TEST_IMAGES]
    dataset = TensorDataset(images[learn], labels[learn])

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    plain = torch.optim.SGD(model.parameters(), lr=args.learning_rate * hvd.size())
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(dataset)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, loss=0.0)

    def workers_have_changed() -> None:
        for group in optimizer.param_groups:
            group["lr"] = args.learning_rate * hvd.size()

    state.register_reset_callbacks([workers_have_changed])
    train(state, dataset, args)

    with torch.no_grad():
        accuracy = float((model(images[test]).argmax(1) == labels[test]).float().mean())
    if hvd.rank() == 0:
        print(f"{hvd.size()} workers in the end, test accuracy {accuracy:.1%}", flush=True)
    return 0 if accuracy >= args.target else 1


if __name__ == "__main__":
    sys.exit(main())
