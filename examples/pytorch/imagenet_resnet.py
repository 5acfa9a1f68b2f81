"""Trains a ResNet as on ImageNet, with the options of such scripts, on images that it generates.

    perseusrun -np 2 python examples/pytorch/imagenet_resnet.py --depth 18 --image-size 64 --classes 10 --epochs 3
    perseusrun -np 2 python examples/pytorch/imagenet_resnet.py --sync-batch-norm all --batches-per-allreduce 2 --bf16
    perseusrun -np 2 python examples/pytorch/imagenet_resnet.py --checkpoints run/   # again: continues

To train on real images, replace SyntheticImages by your own data set. The exit code is 1 if the accuracy of the last
epoch is below --target.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, Subset
from torch.utils.data.distributed import DistributedSampler

import perseus_like.torch as hvd

try:
    from tqdm import tqdm
except ImportError as error:
    raise ImportError("this example needs: pip install 'perseus-like[examples]'") from error

LAYERS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
COMPRESSIONS = {
    "none": hvd.Compression.none,
    "fp16": hvd.Compression.fp16,
    "bf16": hvd.Compression.bf16,
    "top_k": hvd.Compression.top_k,
    "one_bit": hvd.Compression.one_bit,
}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A ResNet on synthetic images.")
    model = parser.add_argument_group("model and data")
    model.add_argument("--depth", type=int, choices=list(LAYERS), default=50)
    model.add_argument("--width", type=int, default=64, help="channels of the first stage")
    model.add_argument("--classes", type=int, default=1000)
    model.add_argument("--image-size", type=int, default=224, help="height and width")
    model.add_argument("--train-images", type=int, default=2560)
    model.add_argument("--test-images", type=int, default=512)
    model.add_argument("--workers", type=int, default=0, help="processes that read images, per rank")
    training = parser.add_argument_group("training")
    training.add_argument("--epochs", type=int, default=90)
    training.add_argument("--batch-size", type=int, default=32, help="images per rank and backward pass")
    training.add_argument("--base-lr", type=float, default=0.0125, help="learning rate of one rank and one pass")
    training.add_argument("--warmup-epochs", type=float, default=5, help="until the learning rate is that of all ranks")
    training.add_argument("--momentum", type=float, default=0.9)
    training.add_argument("--weight-decay", type=float, default=5e-5)
    training.add_argument("--label-smoothing", type=float, default=0.0)
    training.add_argument("--clip", type=float, default=0.0, help="largest norm of the gradient; 0: any")
    training.add_argument("--seed", type=int, default=42)
    training.add_argument("--target", type=float, default=0.0, help="test accuracy to reach")
    training.add_argument("--checkpoints", type=Path, help="folder to resume from and to save to after each epoch")
    memory = parser.add_argument_group("speed and memory")
    memory.add_argument("--no-cuda", action="store_true", help="train on the CPU even if there is a GPU")
    memory.add_argument("--bf16", action="store_true", help="compute in bfloat16 where that is safe (autocast)")
    memory.add_argument("--channels-last", action="store_true")
    memory.add_argument("--checkpoint-activations", action="store_true", help="compute them again in backward")
    memory.add_argument("--compile", nargs="?", const="inductor", metavar="BACKEND", help="torch.compile")
    distributed = parser.add_argument_group("distribution")
    distributed.add_argument("--batches-per-allreduce", type=int, default=1, help="passes summed before each step")
    distributed.add_argument("--compression", choices=list(COMPRESSIONS), default="none")
    distributed.add_argument("--gradient-predivide-factor", type=float, default=1.0)
    distributed.add_argument("--groups", type=int, default=0, help="number of groups in which gradients are reduced")
    distributed.add_argument("--adasum", action="store_true", help="add up the ranks' steps instead of gradients")
    distributed.add_argument("--sync-batch-norm", choices=["no", "host", "all"], default="no", help="whose statistics")
    args = parser.parse_args()
    if args.adasum and args.clip:
        parser.error("--clip needs reduced gradients, and --adasum reduces steps")
    return args


class Block(nn.Module):
    """Two or three convolutions and a shortcut (He et al., 2016, arXiv:1512.03385)."""

    def __init__(self, channels_in: int, channels: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        out = 4 * channels if bottleneck else channels
        if bottleneck:  # the stride at the middle one, as in torchvision
            shapes = [(channels_in, channels, 1, 1), (channels, channels, 3, stride), (channels, out, 1, 1)]
        else:
            shapes = [(channels_in, channels, 3, stride), (channels, channels, 3, 1)]
        layers: list[nn.Module] = []
        for before, after, kernel, step in shapes:
            layers += [nn.Conv2d(before, after, kernel, step, kernel // 2, bias=False), nn.BatchNorm2d(after)]
            layers += [nn.ReLU(inplace=True)]
        self.way = nn.Sequential(*layers[:-1])
        self.around: nn.Module = nn.Identity()
        if stride != 1 or channels_in != out:
            self.around = nn.Sequential(nn.Conv2d(channels_in, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        nn.init.zeros_(self.way[-1].get_parameter("weight"))  # each block begins as the way around it

    def forward(self, images: Tensor) -> Tensor:
        return functional.relu(self.way(images) + self.around(images))


class ResNet(nn.Module):
    """A ResNet of 18 to 152 layers."""

    def __init__(self, depth: int, width: int, classes: int, checkpointed: bool) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.blocks = nn.ModuleList()
        channels_in, bottleneck = width, depth >= 50
        for stage, count in enumerate(LAYERS[depth]):
            channels = width * 2**stage
            for place in range(count):
                stride = 2 if stage > 0 and place == 0 else 1
                self.blocks.append(Block(channels_in, channels, stride, bottleneck))
                channels_in = 4 * channels if bottleneck else channels
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels_in, classes))

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.stem(images)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False) if self.checkpointed else block(hidden)
        logits: Tensor = self.head(hidden)
        return logits


class SyntheticImages(Dataset[tuple[Tensor, int]]):
    """Each class is a coarse pattern of colours; an image is its class's pattern, moved and noisy."""

    def __init__(self, count: int, classes: int, size: int, first: int = 0) -> None:
        self._count, self._classes, self._size, self._first = count, classes, size, first

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        number = self._first + place
        label = number % self._classes
        coarse = torch.randn(1, 3, 4, 4, generator=torch.Generator().manual_seed(label))
        own = torch.Generator().manual_seed(1_000_000 + number)
        shift = int(torch.randint(max(1, self._size // 8), (), generator=own))
        pattern = functional.interpolate(coarse, size=(self._size, self._size), mode="bilinear")[0].roll(shift, 2)
        return pattern + 0.5 * torch.randn(pattern.shape, generator=own), label


class Mean:
    """Computes the mean of a value over the images of all ranks."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._total = torch.zeros(2, dtype=torch.float64)

    def add(self, total: Tensor, images: int) -> None:
        self._total += torch.tensor([float(total), images])

    def value(self) -> float:
        """Returns the mean. All ranks must call it."""
        total, images = hvd.allreduce(self._total, op=hvd.Sum, name=self._name).tolist()
        return float(total / images)


class Training:
    """A training: the model, the optimizer, and this rank's share of the images."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        use_cuda = torch.cuda.is_available() and not args.no_cuda
        self.device = torch.device("cuda", hvd.local_rank()) if use_cuda else torch.device("cpu")
        torch.manual_seed(args.seed)
        model: nn.Module = ResNet(args.depth, args.width, args.classes, args.checkpoint_activations)
        if args.sync_batch_norm != "no":
            model = hvd.SyncBatchNorm.convert_sync_batchnorm(model, comm_scope=int(args.sync_batch_norm == "all"))
        layout = torch.channels_last if args.channels_last else torch.contiguous_format
        self.model: Any = model.to(self.device, memory_format=layout)  # type: ignore[call-overload]
        self.forward: Any = torch.compile(self.model, backend=args.compile) if args.compile else self.model
        self.optimizer = self._make_optimizer()
        train = SyntheticImages(args.train_images, args.classes, args.image_size)
        self.sampler: DistributedSampler[Any] = DistributedSampler(train, hvd.size(), hvd.rank(), seed=args.seed)
        loading = {"num_workers": args.workers, "pin_memory": use_cuda}
        step_images = args.batch_size * args.batches_per_allreduce
        self.train_batches = DataLoader(train, step_images, sampler=self.sampler, **loading)
        test = SyntheticImages(args.test_images, args.classes, args.image_size, first=args.train_images)
        self.test_batches = DataLoader(Subset(test, range(hvd.rank(), len(test), hvd.size())), step_images, **loading)

    def _make_optimizer(self) -> Any:
        args = self.args
        plain = torch.optim.SGD(self.model.parameters(), args.base_lr, args.momentum, weight_decay=args.weight_decay)
        return hvd.DistributedOptimizer(
            plain,
            named_parameters=self.model.named_parameters(),
            compression=COMPRESSIONS[args.compression],
            backward_passes_per_step=args.batches_per_allreduce,
            op=hvd.Adasum if args.adasum else hvd.Average,
            gradient_predivide_factor=args.gradient_predivide_factor,
            groups=args.groups,
        )

    def set_learning_rate(self, epoch: float) -> None:
        """Sets the learning rate, which grows in the first epochs and falls later.

        It grows by the number of ranks (Goyal et al., 2017, arXiv:1706.02677), except with Adasum, which itself makes
        longer steps.
        """
        args = self.args
        ranks = 1 if args.adasum else hvd.size()
        warm = min(1.0, epoch / args.warmup_epochs) if args.warmup_epochs else 1.0
        falls = sum(epoch >= args.epochs * part for part in (1 / 3, 2 / 3, 8 / 9))
        factor = args.batches_per_allreduce * (1 + warm * (ranks - 1)) * 0.1**falls
        for group in self.optimizer.param_groups:
            group["lr"] = args.base_lr * factor

    def autocast(self) -> Any:
        return torch.autocast(self.device.type, torch.bfloat16) if self.args.bf16 else contextlib.nullcontext()

    def on_device(self, batches: DataLoader[Any]) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in batches:
            yield images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)

    def train(self, epoch: int) -> float:
        """Trains for an epoch and returns the mean loss."""
        args, mean = self.args, Mean("train.loss")
        self.model.train()
        self.sampler.set_epoch(epoch)
        batches = self.on_device(self.train_batches)
        total, is_silent = len(self.train_batches), hvd.rank() != 0
        progress = tqdm(batches, f"epoch {epoch + 1}", total, leave=False, disable=is_silent)
        for number, (images, labels) in enumerate(progress):
            self.set_learning_rate(epoch + number / len(self.train_batches))
            self.optimizer.zero_grad()
            passes = math.ceil(len(images) / args.batch_size)  # of the last batch perhaps fewer than usual
            for some, their in zip(images.split(args.batch_size), labels.split(args.batch_size), strict=True):
                with self.autocast():
                    loss = functional.cross_entropy(self.forward(some), their, label_smoothing=args.label_smoothing)
                (loss / passes).backward()
                mean.add(loss.detach() * len(some), len(some))
            self.step()
        return mean.value()

    def step(self) -> None:
        if not self.args.clip:
            self.optimizer.step()
            return
        self.optimizer.synchronize()  # the norm is that of the mean gradient, on all ranks the same
        nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip)
        with self.optimizer.skip_synchronize():
            self.optimizer.step()

    def test(self) -> float:
        """Returns the share of test images that are recognised."""
        mean = Mean("test.accuracy")
        self.model.eval()
        with torch.no_grad(), self.autocast():
            for images, labels in self.on_device(self.test_batches):
                mean.add((self.forward(images).argmax(1) == labels).sum(), len(images))
        return mean.value()

    def save(self, epochs: int) -> None:
        """Replaces the file at once, so that a reader finds the old file or the new one, never half of one."""
        folder: Path = self.args.checkpoints
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / "unfinished"
        state = {"epochs": epochs, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, unfinished)
        unfinished.replace(folder / "last.pt")

    def resume(self) -> int:
        """Loads a checkpoint, and returns the number of complete epochs. Only rank 0 needs the file."""
        epochs, file = 0, self.args.checkpoints and self.args.checkpoints / "last.pt"
        if hvd.rank() == 0 and file and file.exists():
            saved = torch.load(file, map_location=self.device, weights_only=True)
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            epochs = saved["epochs"]
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)
        return int(hvd.broadcast_object(epochs, root_rank=0))


def main() -> int:
    args = options()
    hvd.init()
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks, ResNet-{args.depth}, {args.train_images} images of {args.image_size}²", flush=True)
    training = Training(args)
    done = training.resume()
    accuracy = training.test() if done >= args.epochs else 0.0
    for epoch in range(done, args.epochs):
        loss = training.train(epoch)
        accuracy = training.test()
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss:.3f}, test accuracy {accuracy:.1%}", flush=True)
            if args.checkpoints:
                training.save(epoch + 1)
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks, test accuracy {accuracy:.1%}, target {args.target:.0%}", flush=True)
    return 0 if accuracy >= args.target else 1


if __name__ == "__main__":
    sys.exit(main())
