"""Data loaders: which samples a process gets, in which order, and from where after a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, Sampler

from . import state
from .options import InputError
from .world import World, current


class TrainingBatches(Sampler[list[int]]):
    """The micro-batches of one process, without an end.

    The samples of a step are the same for any number of processes and any micro-batch size. A last incomplete step of
    an epoch is left out.
    """

    def __init__(self, count: int, step: int, micro: int, replica: int, replicas: int, seed: int | None) -> None:
        if count < step:
            raise InputError(f"the training data has {count} samples, less than one step of --global-batch-size {step}")
        self.steps_per_epoch = count // step
        self.first_step = 0
        self._count, self._step, self._micro, self._seed = count, step, micro, seed
        self._replica, self._replicas = replica, replicas

    def __iter__(self) -> Iterator[list[int]]:
        epoch, first = divmod(self.first_step, self.steps_per_epoch)
        while True:
            order = self._order(epoch)
            for step in range(first, self.steps_per_epoch):
                samples = order[step * self._step : (step + 1) * self._step]
                for begin in range(0, self._step, self._micro * self._replicas):
                    mine = begin + self._replica * self._micro
                    yield samples[mine : mine + self._micro]
            epoch, first = epoch + 1, 0

    def _order(self, epoch: int) -> list[int]:
        if self._seed is None:
            return list(range(self._count))
        generator = torch.Generator().manual_seed(self._seed + epoch)
        order: list[int] = torch.randperm(self._count, generator=generator).tolist()
        return order


class EvaluationBatches(Sampler[list[int]]):
    """Batches in the data's order. The last one repeats samples, so that all processes have equally many."""

    def __init__(self, count: int, micro: int, replica: int, replicas: int) -> None:
        self.count, self.whole = count, micro * replicas
        self._micro, self._replica = micro, replica

    def __len__(self) -> int:
        return -(-self.count // self.whole)

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(len(self)):
            begin = number * self.whole + self._replica * self._micro
            yield [min(index, self.count - 1) for index in range(begin, begin + self._micro)]


class EvaluationLoader:
    """A data loader that knows how many samples of the present batch of all processes are not repeated."""

    present: EvaluationLoader | None = None

    def __init__(self, loader: DataLoader[Any], batches: EvaluationBatches, device: torch.device) -> None:
        self._loader, self._batches, self._device = loader, batches, device
        self.valid = 0

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        left = self._batches.count
        EvaluationLoader.present = self
        try:
            for batch in self._loader:
                self.valid = min(left, self._batches.whole)
                left -= self.valid
                yield to_device(batch, self._device)
        finally:
            EvaluationLoader.present = None


def to_device(batch: Any, device: torch.device) -> Any:
    """Returns the batch with its tensors on the device."""
    if hasattr(batch, "items"):
        return {key: to_device(value, device) for key, value in batch.items()}
    return batch.to(device) if isinstance(batch, torch.Tensor) else batch


def training_batches(count: int, world: World, shuffle: bool) -> TrainingBatches:
    args = state.get_args()
    return TrainingBatches(
        *(count, args.global_batch_size, args.micro_batch_size, world.rank_in("dp"), world.size_of("dp")),
        args.seed if shuffle else None,
    )


def make_loader(
    dataset: Any, batches: Sampler[list[int]], collate: Callable[[list[Any]], Any] | None = None
) -> DataLoader[Any]:
    """Returns a loader of these batches of the data set."""
    return DataLoader(dataset, batch_sampler=batches, collate_fn=collate, num_workers=state.get_args().num_workers)


def build_data_loader(
    dataset: Any,
    micro_batch_size: int | None = None,
    num_workers: int | None = None,
    drop_last: bool = True,
    task_collate_fn: Callable[[list[Any]], Any] | None = None,
    shuffle: bool = True,
) -> DataLoader[Any]:
    """Returns a loader of this process's part of the data set, for one epoch of a loop that a user wrote.

    Call `loader.sampler.set_epoch(epoch)` for another order in each epoch.
    """
    args, world = state.get_args(), current()
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset, world.size_of("dp"), world.rank_in("dp"), shuffle=shuffle, seed=args.seed, drop_last=drop_last
    )
    return DataLoader(
        dataset,
        micro_batch_size or args.micro_batch_size,
        sampler=sampler,
        num_workers=args.num_workers if num_workers is None else num_workers,
        drop_last=drop_last,
        collate_fn=task_collate_fn,
    )


def evaluation_loader(dataset: Any, collate: Callable[[list[Any]], Any] | None) -> EvaluationLoader:
    """Returns a loader of this process's part of the data set."""
    world = current()
    micro = state.get_args().micro_batch_size
    batches = EvaluationBatches(len(dataset), micro, world.rank_in("dp"), world.size_of("dp"))
    return EvaluationLoader(make_loader(dataset, batches, collate), batches, world.device)
