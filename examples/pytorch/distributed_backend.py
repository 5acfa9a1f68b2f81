"""Trains on handwritten digits by torch's own data parallelism over the backend `perseus`.

    perseusrun -np 2 python examples/pytorch/distributed_backend.py
    perseusrun -np 2 python examples/pytorch/distributed_backend.py --by fsdp
    torchrun --nproc-per-node 2 examples/pytorch/distributed_backend.py

`--by ddp` is DistributedDataParallel: each rank has all parameters. `--by fsdp` is FSDP2: each rank has a shard of the
parameters, gradients and optimizer states, and gathers those of a layer when it computes the layer. Only the name of
the backend differs from a program for gloo or NCCL. The exit code is 1 if the test accuracy is below --target.
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

try:
    from sklearn.datasets import load_digits
except ImportError as error:
    raise ImportError("this example needs: pip install 'perseus-like[examples]'") from error

TEST_IMAGES = 357


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="DDP and FSDP2 over the backend perseus.")
    parser.add_argument("--by", choices=["ddp", "fsdp"], default="ddp")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32, help="images per step, shared among the ranks")
    parser.add_argument("--target", type=float, default=0.95, help="share of test images that must be right")
    return parser.parse_args()


def parallel(model: nn.Sequential, by: str) -> nn.Module:
    """Returns the model whose backward pass averages the gradients of all ranks."""
    if by == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard  # torch 2.6 or later

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)  # one gather for each layer
    fully_shard(model, mesh=mesh)
    return model


def main() -> int:
    args = options()
    dist.init_process_group("perseus")
    rank, size = dist.get_rank(), dist.get_world_size()

    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    learn, test = order[TEST_IMAGES:], order[:TEST_IMAGES]

    torch.manual_seed(1)  # the same parameters on all ranks
    layers = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    model = parallel(nn.Sequential(*layers), args.by)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)  # after sharding, so that its states are sharded, too
    generator = torch.Generator().manual_seed(2)  # all ranks shuffle alike
    for epoch in range(args.epochs):
        losses = []
        shuffled = learn[torch.randperm(len(learn), generator=generator)]
        for batch in shuffled.split(args.batch_size)[: len(learn) // args.batch_size]:
            own = batch[rank::size]
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images[own]), labels[own])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        mean = torch.stack(losses).mean() / size
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {float(mean):.4f}", flush=True)

    own = test[rank::size]
    with torch.no_grad():
        right = (model(images[own]).argmax(1) == labels[own]).sum()
    dist.all_reduce(right)
    accuracy = int(right) / len(test)
    if rank == 0:
        kept = sum(part.numel() for part in optimizer_states(optimizer))
        print(f"{size} ranks by {args.by}, {kept} numbers of optimizer state on rank 0, test accuracy {accuracy:.1%}")
    dist.destroy_process_group()
    return 0 if accuracy >= args.target else 1


def optimizer_states(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Returns what this rank keeps of the first moments of the gradients."""
    moments = [state["exp_avg"] for state in optimizer.state.values()]
    return [moment.to_local() if hasattr(moment, "to_local") else moment for moment in moments]


if __name__ == "__main__":
    sys.exit(main())
