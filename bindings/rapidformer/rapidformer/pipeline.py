"""Pipeline parallelism: a stage of a model that a script hands over, driven by torch.distributed.pipelining."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from .world import World

LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def next_token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns the mean cross entropy of each position's next token. Labels are shifted already."""
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


class Pipeline:
    """Called like a model, with the samples of a whole step: `pipeline(tokens, labels=labels)` returns the loss.

    The backward passes are done when it returns. The loss is that of the last stage, on every process.
    """

    def __init__(self, stage: nn.Module, world: World, micro_batches: int, loss: LossFunction) -> None:
        self.module, self._world = stage, world
        self._index, self._stages = world.rank_in("pp"), world.size_of("pp")
        made = PipelineStage(stage, self._index, self._stages, world.device, group=world.group("pp"))
        kind: Any = Schedule1F1B if micro_batches >= self._stages else ScheduleGPipe
        self._schedule = kind(made, micro_batches, loss_fn=loss)

    def __call__(self, *inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        losses: list[torch.Tensor] = []
        is_last = self._index == self._stages - 1
        options: dict[str, Any] = {"target": labels, "losses": losses} if is_last else {}
        self._schedule.step(*(inputs if self._index == 0 else ()), **options)
        loss = torch.stack(losses).mean().detach().float() if is_last else torch.zeros((), device=self._world.device)
        group = self._world.group("pp")
        dist.broadcast(loss, dist.get_global_rank(group, self._stages - 1), group)
        return loss
