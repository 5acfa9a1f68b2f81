"""Compression that sends each gradient as the product of two narrow matrices."""

from __future__ import annotations

from collections.abc import Callable

import torch

from perseus_like.collectives import Average
from perseus_like.process_sets import ProcessSet

from ..collectives import collectives
from ..feedback import FeedbackCompressor, Piece, joined, parted


class PowerSGDCompressor(FeedbackCompressor):
    """Low-rank approximation by one step of power iteration (Vogels et al., 2019, arXiv:1905.13727).

    A gradient of r rows and c columns costs rank · (r + c) elements in two allreduces; where that is no less than
    r · c, as for vectors, it is sent unchanged. The bytes do not grow with the number of ranks.
    """

    def __init__(self, rank: int = 4) -> None:
        super().__init__()
        if rank < 1:
            raise ValueError(f"power_sgd: rank is {rank}, but must be at least 1")
        self.rank = rank
        self._right: dict[int, torch.Tensor] = {}  # the last step's right factors, from which the next one begins

    def fresh(self) -> PowerSGDCompressor:
        new = super().fresh()
        new._right = {}
        return new

    def forget(self, key: int) -> None:
        super().forget(key)
        self._right.pop(key, None)

    def exchange(self, name: str, pieces: list[Piece], process_set: ProcessSet) -> Callable[[], bool]:
        narrow = [piece for piece in pieces if self._is_worth_it(piece)]
        whole = [piece for piece in pieces if not self._is_worth_it(piece)]
        left = [piece.matrix() @ self._right_of(piece) for piece in narrow]
        first = [*left, *(piece.values for piece in whole)]
        pending = collectives.allreduce(joined(first), Average, f"{name}.left", process_set=process_set, in_place=True)

        def finish() -> bool:
            reduced = pending.result()
            if not reduced.isfinite().all():
                for piece in pieces:
                    piece.mean.fill_(torch.nan)
                return False
            parts = parted(reduced, first)
            bases = [torch.linalg.qr(part)[0] for part in parts[: len(narrow)]]
            for piece, part in zip(whole, parts[len(narrow) :], strict=True):
                piece.mean.copy_(part)
                piece.values.zero_()
            if narrow:
                self._finish_narrow(name, narrow, bases, process_set)
            return True

        return finish

    def _finish_narrow(
        self, name: str, pieces: list[Piece], bases: list[torch.Tensor], process_set: ProcessSet
    ) -> None:
        right = [piece.matrix().t() @ basis for piece, basis in zip(pieces, bases, strict=True)]
        pending = collectives.allreduce(joined(right), Average, f"{name}.right", process_set=process_set, in_place=True)
        for piece, basis, factor in zip(pieces, bases, parted(pending.result(), right), strict=True):
            self._right[piece.key] = factor
            product = basis @ factor.t()
            piece.mean.copy_(product.view(-1))
            piece.matrix().sub_(product)

    def _is_worth_it(self, piece: Piece) -> bool:
        elements = len(piece.values)
        return self.rank * (piece.rows + elements // piece.rows) < elements

    def _right_of(self, piece: Piece) -> torch.Tensor:
        right = self._right.get(piece.key)
        if right is None:
            generator = torch.Generator().manual_seed(piece.key)  # the same on all ranks
            columns = len(piece.values) // piece.rows
            right = torch.randn(columns, self.rank, generator=generator, dtype=piece.values.dtype)
        return right.to(piece.values.device)
