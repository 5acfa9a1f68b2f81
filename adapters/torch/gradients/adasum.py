"""The delta form of Adasum: ranks step by themselves, and add up how far they have come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from perseus_like.collectives import Adasum
from perseus_like.collectives.compression import Compressed, is_called, wire_of
from perseus_like.gradients.agreement import ChangeExchange, OwnChanges, OwnerName, report_mixture
from perseus_like.process_sets import ProcessSet
from perseus_like.session import session

from ..tensors import collectives
from .ownership import describe

_OWNER = "DistributedOptimizer with op=Adasum"


class DeltaSum:
    """Combines the steps of one optimizer. Every parameter is a vector of its own."""

    def __init__(self, compression: Any, process_set: ProcessSet) -> None:
        self._compression = compression
        self._process_set = process_set
        self._generation = -1
        self._owner: OwnerName | None = None
        self._name = ""  # of its requests, once the ranks have agreed
        self._changes = ChangeExchange(process_set)

    def step(self, parameters: Iterable[tuple[str, torch.Tensor]], local_step: Callable[[], Any]) -> Any:
        """Returns the result of `local_step`. If it or a rank fails, parameters stay as `local_step` left them."""
        named = list(parameters)
        self._step_barrier(named)
        with torch.no_grad():
            starts = [parameter.detach().clone() for _, parameter in named]
        result = local_step()
        with torch.no_grad():
            deltas = [parameter.detach() - start for (_, parameter), start in zip(named, starts, strict=True)]
            # All requests are submitted before the first wait, so that small tensors are fused.
            waits = [self._send(name, delta) for (name, _), delta in zip(named, deltas, strict=True)]
            sums = [wait() for wait in waits]
            for (_, parameter), start, delta in zip(named, starts, sums, strict=True):
                parameter.copy_(start.add_(delta))
        return result

    def _step_barrier(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Raises DisagreementError on all ranks if they step different optimizers."""
        if self._owner is None or self._generation != session.generation:
            descriptions = [describe(*each) for each in named]
            self._owner = OwnerName(self._process_set)
            self._name = self._owner.meet(descriptions, _OWNER)
            self._changes.name_owner(_OWNER, descriptions)
            self._generation = session.generation
            return
        self._changes.send(self._owner, OwnChanges())
        if not self._changes.are_together():
            descriptions = [describe(*each) for each in named]
            report_mixture(self._owner.name, _OWNER, descriptions, False, [], self._process_set)

    def _send(self, name: str, delta: torch.Tensor) -> Callable[[], torch.Tensor]:
        full, compression = f"{self._name}.{name}", self._compression
        if is_called(compression):
            small = Compressed(compression, [delta])
            pending = collectives.allreduce(small.tensors[0], Adasum, full, process_set=self._process_set)
            return lambda: small.restore([pending.result()])[0]
        wire = wire_of(compression)
        return collectives.allreduce(
            delta, Adasum, full, process_set=self._process_set, wire=wire, in_place=True
        ).result
