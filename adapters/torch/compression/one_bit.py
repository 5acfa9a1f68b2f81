"""Compression that sends only the sign of each element."""

from __future__ import annotations

from collections.abc import Callable

import torch

from perseus_like.process_sets import ProcessSet

from ..feedback import FeedbackCompressor, Piece, joined, parted
from ..tensors import collectives

SHORTEST_ROW = 32  # elements; for shorter rows, sending two means each costs too much


class OneBitCompressor(FeedbackCompressor):
    """Sends one bit per element, and for each row of the matrix the means of its positive and its negative values.

    Seide et al., 2014, "1-bit stochastic gradient descent". Every rank receives every rank's bits: n / 8 bytes per
    element for n ranks, and 8 n per row.
    """

    def exchange(self, name: str, pieces: list[Piece], process_set: ProcessSet) -> Callable[[], bool]:
        rows = [
            piece.matrix() if len(piece.values) >= SHORTEST_ROW * piece.rows else piece.values.view(1, -1)
            for piece in pieces
        ]
        positive = [matrix >= 0 for matrix in rows]
        sizes = [_sizes(matrix, bits) for matrix, bits in zip(rows, positive, strict=True)]
        for matrix, bits, size in zip(rows, positive, sizes, strict=True):
            matrix.sub_(_restored(bits, size, matrix.dtype))
        pending = collectives.grouped_allgather([pack(joined(positive)), joined(sizes)], name, process_set)

        def finish() -> bool:
            ranks = process_set.size() or 1
            all_packed, all_sizes = (gathered.view(ranks, -1) for gathered in pending.result())
            totals = [torch.zeros_like(matrix) for matrix in rows]
            for rank in range(ranks):
                all_bits = unpack(all_packed[rank], sum(bits.numel() for bits in positive))
                theirs = zip(totals, parted(all_bits, positive), parted(all_sizes[rank], sizes), strict=True)
                for total, bits, size in theirs:
                    total.add_(_restored(bits, size, total.dtype))
            for piece, total in zip(pieces, totals, strict=True):
                piece.mean.copy_(total.view(-1).div_(ranks))
            return bool(all_sizes.isfinite().all())

        return finish


def _sizes(matrix: torch.Tensor, positive: torch.Tensor) -> torch.Tensor:
    """Returns for each row the mean of the positive values, and the mean of the others."""
    count = positive.view(torch.uint8).sum(1, dtype=torch.int32)
    high = matrix.clamp(min=0).sum(1).div_(count.clamp(min=1))
    low = matrix.clamp(max=0).sum(1).div_((matrix.shape[1] - count).clamp(min=1))
    return torch.stack([high, low], 1).float()


def _restored(positive: torch.Tensor, sizes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    high, low = sizes[:, :1], sizes[:, 1:]
    return positive.to(dtype).mul_(high - low).add_(low)  # in a third of the time of torch.where


def pack(bits: torch.Tensor) -> torch.Tensor:
    """Packs eight truth values into a byte, padded with False. Bit b of byte i is element b · bytes + i."""
    padding = -len(bits) % 8
    planes = torch.nn.functional.pad(bits, (0, padding)).view(torch.uint8).view(8, -1)
    packed = planes[0]
    for bit in range(1, 8):
        packed = packed | (planes[bit] << bit)
    return packed


def unpack(packed: torch.Tensor, count: int) -> torch.Tensor:
    """Returns the `count` truth values that were packed."""
    planes = torch.empty((8, len(packed)), dtype=torch.uint8, device=packed.device)
    for bit, plane in enumerate(planes):
        torch.bitwise_right_shift(packed, bit, out=plane).bitwise_and_(1)
    return planes.view(torch.bool).view(-1)[:count]
