"""ImageNet training in the shape of torch's `main.py`, with AIACC-Training's names in the place of torch.distributed's.

    mpirun -np 2 python examples/pytorch/imagenet_perseus.py --world-size 1 --rank 0 --dist-url tcp://127.0.0.1:88
    perseusrun -np 2 python examples/pytorch/imagenet_perseus.py --arch small --image-size 32 --epochs 2

The script has the arguments for a world of one process, as such scripts do, but rank and size come from the launcher.
Without a folder of images, the script makes images whose class is the brightest quarter. The exit code is 1 if the
accuracy is below --target.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import perseus
import perseus.torch.distributed as dist


class SyntheticImages(Dataset[tuple[Tensor, int]]):
    """Images of noise, of which one quarter is brighter."""

    def __init__(self, count: int, size: int, first: int = 0) -> None:
        self.count, self.size, self.first = count, size, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(self.first + index)
        image = torch.randn(3, self.size, self.size, generator=generator)
        quarter, half = (self.first + index) % 4, self.size // 2
        image[:, quarter // 2 * half :, quarter % 2 * half :][:, :half, :half] += 0.5
        return image, quarter


def small() -> nn.Module:
    """Returns a small model of a few convolutions."""
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32)):
        layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 4))


def build(arch: str) -> nn.Module:
    if arch == "small":
        return small()
    from torchvision import models  # type: ignore[import-not-found, import-untyped, unused-ignore]

    model: nn.Module = models.__dict__[arch](num_classes=4)
    return model


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="ImageNet training")
    parser.add_argument("-a", "--arch", default="small", help="small, or a model of torchvision")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("-b", "--batch-size", type=int, default=32, help="of all ranks together")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--wd", "--weight-decay", dest="weight_decay", type=float, default=1e-4)
    parser.add_argument("-p", "--print-freq", type=int, default=10)
    parser.add_argument("--resume", type=Path, help="checkpoint from which training continues, and which it writes")
    parser.add_argument("-e", "--evaluate", action="store_true", help="only evaluate")
    parser.add_argument("--world-size", type=int, default=-1, help="number of nodes")
    parser.add_argument("--rank", type=int, default=-1, help="of this node")
    parser.add_argument("--dist-url", default="env://")
    parser.add_argument("--dist-backend", default="nccl")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gpu", type=int)
    parser.add_argument("--images", type=int, default=640)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--target", type=float, default=0.0, help="accuracy to reach, in percent")
    return parser.parse_args()


def main() -> int:
    args = parse()
    torch.manual_seed(args.seed)
    if dist.use_perseus():
        dist.init_process_group(args.dist_backend, args.dist_url, world_size=args.world_size, rank=args.rank)
    args.rank, args.world_size, args.gpu = dist.get_rank(), dist.get_world_size(), dist.get_local_rank()
    batch = max(1, args.batch_size // args.world_size)

    model = perseus.torch.nn.parallel.DistributedDataParallel(build(args.arch), device_ids=[args.gpu])
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
    begin = 0
    if args.resume and args.resume.exists() and args.rank == 0:
        checkpoint = torch.load(args.resume, weights_only=True)
        begin = checkpoint["epoch"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    if args.resume:
        began = torch.tensor(begin)
        for tensor in (began, *model.state_dict().values()):
            dist.broadcast(tensor, 0)
        begin = int(began)
        dist.broadcast_optimizer_state(optimizer)

    train_set = SyntheticImages(args.images, args.image_size)
    sampler: DistributedSampler[Any] = DistributedSampler(train_set, args.world_size, args.rank, seed=args.seed)
    loader = DataLoader(train_set, batch, sampler=sampler)
    test_set = SyntheticImages(args.images // 4, args.image_size, first=1_000_000)
    test_sampler: DistributedSampler[Any] = DistributedSampler(test_set, args.world_size, args.rank, shuffle=False)
    test_loader = DataLoader(test_set, batch, sampler=test_sampler)

    accuracy = validate(test_loader, model) if args.evaluate else 0.0
    for epoch in range(begin, 0 if args.evaluate else args.epochs):
        sampler.set_epoch(epoch)
        train(loader, model, criterion, optimizer, epoch, args)
        accuracy = validate(test_loader, model)
        if args.rank == 0:
            print(f"Epoch [{epoch + 1}] Acc@1 {accuracy:.2f} on {args.world_size} ranks", flush=True)
            if args.resume:
                state = {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
                # A reader finds the old file or the new one, never half of one.
                unfinished = Path(f"{args.resume}.unfinished")
                torch.save({"epoch": epoch + 1, **state}, unfinished)
                unfinished.replace(args.resume)
    if dist.is_initialized():
        dist.destroy_process_group()
    return 0 if accuracy >= args.target else 1


def train(loader: Any, model: Any, criterion: Any, optimizer: Any, epoch: int, args: argparse.Namespace) -> None:
    model.train()
    for number, (images, target) in enumerate(loader):
        loss = criterion(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % args.print_freq == 0 and args.rank == 0:
            print(f"Epoch: [{epoch}][{number}/{len(loader)}] Loss {loss.item():.4e}", flush=True)


def validate(loader: Any, model: Any) -> float:
    """Returns the percentage of all ranks' images that the model classifies right."""
    model.eval()
    counts = torch.zeros(2)
    with torch.no_grad():
        for images, target in loader:
            counts += torch.tensor([int((model(images).argmax(1) == target).sum()), len(target)])
    if dist.is_initialized():
        dist.all_reduce(counts, op=dist.ReduceOp.SUM)
    return 100 * float(counts[0] / counts[1])


if __name__ == "__main__":
    sys.exit(main())
