"""Compression between hosts only: the gradients of a host's ranks are added exactly, in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from perseus_like.collectives import Sum
from perseus_like.host_memory.host_sets import host_process_set, leaders_process_set
from perseus_like.process_sets import ProcessSet
from perseus_like.session import session

from ..feedback import FeedbackCompressor, Piece
from ..tensors import collectives


class BetweenHosts(FeedbackCompressor):
    """`Compression.between_hosts(Compression.top_k(0.01))`: what `top_k` and `one_bit` do, between hosts.

    The lowest rank of each host compresses the host's sum, exchanges it with the others of its kind, and hands the
    mean to its host. So fewer ranks exchange, what is left out is the host's, and only these ranks keep it.
    """

    def __init__(self, inner: FeedbackCompressor | type[FeedbackCompressor]) -> None:
        super().__init__()
        self.inner = inner() if isinstance(inner, type) else inner
        if not isinstance(self.inner, FeedbackCompressor) or isinstance(self.inner, BetweenHosts):
            raise ValueError(
                f"between_hosts takes top_k or one_bit, not {inner!r}; "
                "fp16 and bf16 are exact within a host by themselves"
            )

    def fresh(self) -> BetweenHosts:
        return BetweenHosts(self.inner.fresh())

    def rescale(self, factor: float) -> None:
        self.inner.rescale(factor)

    def start(
        self, name: str, gradients: Mapping[int, torch.Tensor], average: bool, process_set: ProcessSet
    ) -> Callable[[], None]:
        """Does the same as FeedbackCompressor.start. ValueError for a process set of some ranks only."""
        if process_set.process_set_id != 0:
            raise ValueError(f"between_hosts compresses over all ranks, not over {process_set}")
        host, leaders = host_process_set(), leaders_process_set()
        tensors = list(gradients.values())
        hosts, ranks = leaders.size() or 1, session.core.size()
        # The mean of these over hosts is the mean over ranks, also if hosts have different numbers of ranks.
        with torch.no_grad():
            parts = (1.0, hosts / ranks, host)
            collectives.grouped_allreduce(tensors, Sum, f"{name}.within", *parts, in_place=True).result()
        finish = self.inner.start(name, gradients, True, leaders) if leaders.included() else None

        def receive() -> None:
            if finish is not None:
                finish()
            root = min(host.ranks or [0])
            back = f"{name}.back"
            pending = [
                collectives.broadcast(t, root, f"{back}.{key}", host, in_place=True) for key, t in gradients.items()
            ]
            for each in pending:
                each.result()
            if not average:
                for tensor in tensors:
                    tensor.mul_(ranks)

        return receive

    def exchange(self, name: str, pieces: list[Piece], process_set: ProcessSet) -> Callable[[], bool]:
        return self.inner.exchange(name, pieces, process_set)
