"""One model's part in torch's `Join`, in which several models or optimizers can take part at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import JoinHook

from perseus_like.collectives import Max, Sum
from perseus_like.process_sets import ProcessSet
from perseus_like.tables import Start

from ...tensors import collectives

if TYPE_CHECKING:
    from .reducer import Reducer
    from .replication import Replication


class JoinParticipant(JoinHook):
    """The hook of one rank. After its last batch, the rank takes part in each pass of the ranks with batches."""

    def __init__(
        self,
        reducer: Reducer,
        replication: Replication,
        process_set: ProcessSet,
        divide_by_all: bool,
        state: Callable[[], Sequence[torch.Tensor]],
        buffers: Callable[[], Sequence[torch.Tensor]],
        syncs: bool,
    ) -> None:
        """`state` is the same on all ranks in the end. `buffers` are copied from one rank to all before a pass.

        `syncs`: the last pass reduced gradients; otherwise no buffers are copied before the next one.
        """
        self._syncs = syncs
        self._reducer = reducer
        self._replication = replication
        self._process_set = process_set
        self._state = state
        self._buffers = buffers
        self._active = self._size
        reducer.factor = None if divide_by_all else lambda: self._size / self._active

    def copy_buffers(self, present: bool) -> None:
        """Copies the buffers from a rank with batches to all."""
        self._replication.copy_from_present(self._buffers(), present)

    def announce(self, syncs: bool, present: bool = True) -> None:
        """Agrees before a pass on the number of ranks with a batch, and on whether they reduce gradients at its end."""
        name = f"{self._reducer.name}.attendance"
        mine = torch.tensor([int(present), int(syncs)])
        counts = collectives.allreduce(mine, Sum, name, process_set=self._process_set, start=Start.call).result()
        self._active, syncing = (int(number) for number in counts)
        self._syncs = syncing > 0

    def main_hook(self) -> None:
        """Takes part in a pass of the ranks with batches."""
        if self._syncs and self._buffers():
            self.copy_buffers(present=False)
        self.announce(False, present=False)
        if self._syncs:
            self._reducer.contribute()

    def post_hook(self, is_last_joiner: bool) -> None:
        """Copies the state of the last rank with batches to all ranks."""
        ranks = self._process_set.ranks
        assert ranks
        mine = (self._process_set.rank() or 0) + 1 if is_last_joiner else 0
        name = f"{self._reducer.name}.last"
        own = torch.tensor([mine])
        last = int(collectives.allreduce(own, Max, name, process_set=self._process_set, start=Start.call).result())
        self._replication.copy_from(ranks[last - 1], self._state())

    @property
    def _size(self) -> int:
        return self._process_set.size() or 1


def group_for_join(group: Any) -> Any:
    """Returns the group of torch.distributed over which `Join` communicates. RuntimeError or ValueError without one."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "Join([…]) communicates by torch.distributed, which has no process group; call "
            "torch.distributed.init_process_group('perseus'), or use the model's own join()"
        )
    if isinstance(group, ProcessSet):
        raise ValueError(
            "Join([…]) wants a model whose process_group is one of torch.distributed, and not a ProcessSet; make it "
            "with torch.distributed.new_group()"
        )
    return dist.group.WORLD if group is None else group
