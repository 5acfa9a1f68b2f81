"""A sampler that shares out what is left of an epoch, among however many ranks there are."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import Sampler

from perseus_like import rank, size


class ElasticSampler(Sampler[int]):
    """A sampler that divides what is left of an epoch among the ranks there are now.

    Each rank gets every size-th index of the same order. All ranks get equally many; the last round begins anew.
    `record_batch` counts what was processed. After a change of the ranks, or after an earlier state is restored,
    `reset` (which `load_state_dict` calls) divides the rest.

    Args:
        dataset: any object with a length.
        shuffle: if true, each epoch has a random order, which is the same on all ranks.
        seed: the seed of the order, the same on all ranks.

    Raises:
        NotInitializedError: `init` was not called.

    Examples:
        >>> sampler = hvd.elastic.ElasticSampler(range(4), shuffle=False)
        >>> list(sampler)
        [0, 1, 2, 3]
        >>> sampler.record_batch(batch_idx=0, batch_size=2)
        >>> sampler.reset()
        >>> list(sampler)
        [2, 3]
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Starts an epoch, with an order of its own. No sample of it has been processed."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Notes that all ranks have processed a batch of this size."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Shares out the rest of the epoch among the ranks there are now."""
        self.num_replicas = size()
        self.rank = rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        padded = itertools.cycle(self.remaining_indices)
        return itertools.islice(padded, self.rank, self.total_size, self.num_replicas)

    def __len__(self) -> int:
        return self.num_samples


__all__ = ["ElasticSampler", "rank", "size"]
