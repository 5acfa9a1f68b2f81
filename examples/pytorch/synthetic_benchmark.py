"""Measures images per second of a convolutional net or a perceptron, as Horovod's benchmark of this name does.

    perseusrun -np 2 python examples/pytorch/synthetic_benchmark.py
    perseusrun -np 2 python examples/pytorch/synthetic_benchmark.py --model mlp --compression bf16

Compare with `-np 1`. On ranks that share cores, give both as many threads per rank (OMP_NUM_THREADS=1).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch
from torch import Tensor, nn
from torch.nn import functional

import perseus_like.torch as hvd

COMPRESSIONS = {
    "none": hvd.Compression.none,
    "fp16": hvd.Compression.fp16,
    "bf16": hvd.Compression.bf16,
    "top_k": hvd.Compression.top_k(ratio=0.01),
    "one_bit": hvd.Compression.one_bit(),
}
CLASSES = 1000


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Throughput of a distributed training step on random images.")
    parser.add_argument("--model", choices=["resnet", "mlp"], default="resnet")
    parser.add_argument("--batch-size", type=int, default=8, help="images per rank and step")
    parser.add_argument("--image-size", type=int, default=64, help="height and width")
    parser.add_argument("--warmup-batches", type=int, default=2)
    parser.add_argument("--batches-per-iteration", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--compression", choices=list(COMPRESSIONS), default="none")
    return parser.parse_args()


class Block(nn.Module):
    """Two convolutions and a shortcut (He et al., 2016, arXiv:1512.03385)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm_one = nn.BatchNorm2d(channels)
        self.two = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm_two = nn.BatchNorm2d(channels)
        same = stride == 1 and channels_in == channels
        self.around = nn.Identity() if same else nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        hidden = functional.relu(self.norm_one(self.one(images)))
        return functional.relu(self.norm_two(self.two(hidden)) + self.around(images))


def resnet() -> nn.Module:
    """A ResNet of 18 layers, with 11.7 million parameters."""
    blocks: list[nn.Module] = []
    channels_in = 64
    for stage, channels in enumerate((64, 128, 256, 512)):
        blocks += [Block(channels_in, channels, 1 if stage == 0 else 2), Block(channels, channels, 1)]
        channels_in = channels
    stem = [nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


def perceptron(image_size: int) -> nn.Module:
    """Returns a perceptron with little to compute for each parameter, so that communication takes most of the time."""
    pixels = 3 * image_size * image_size
    return nn.Sequential(
        nn.Flatten(), nn.Linear(pixels, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, CLASSES)
    )


def main() -> int:
    args = options()
    hvd.init()
    torch.manual_seed(hvd.rank())
    model = resnet() if args.model == "resnet" else perceptron(args.image_size)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.01 * hvd.size()),
        named_parameters=model.named_parameters(),
        compression=COMPRESSIONS[args.compression],
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    images = torch.randn(args.batch_size, 3, args.image_size, args.image_size)
    labels = torch.randint(CLASSES, (args.batch_size,))

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

    def say(text: str) -> None:
        if hvd.rank() == 0:
            print(text, flush=True)

    say(f"Model: {args.model}, {parameters / 1e6:.1f} million parameters, {torch.get_num_threads()} threads per rank")
    say(f"Batch size: {args.batch_size}")
    say(f"Number of CPUs: {hvd.size()}")
    steps(args.warmup_batches)
    rates = []
    for iteration in range(args.iterations):
        hvd.barrier()
        started = time.perf_counter()
        steps(args.batches_per_iteration)
        rates.append(args.batch_size * args.batches_per_iteration / (time.perf_counter() - started))
        say(f"Iter #{iteration}: {rates[-1]:.1f} img/sec per CPU")
    mean, spread = statistics.fmean(rates), 1.96 * statistics.pstdev(rates)
    total = float(hvd.allreduce(torch.tensor(mean, dtype=torch.float64), op=hvd.Sum, name="total"))
    say(f"Img/sec per CPU: {mean:.1f} +-{spread:.1f}")
    say(f"Total img/sec on {hvd.size()} CPU(s): {total:.1f} +-{hvd.size() * spread:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
