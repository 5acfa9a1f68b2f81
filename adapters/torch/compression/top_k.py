"""Compression that sends only the largest elements of each gradient."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from perseus_like.process_sets import ProcessSet

from ..feedback import FeedbackCompressor, Piece
from ..tensors import collectives

WHOLE_ELEMENTS = 1024  # a gradient of this size or less is sent whole


class TopKCompressor(FeedbackCompressor):
    """Sends the `ratio` of elements with the largest absolute values (Aji and Heafield, 2017, arXiv:1704.05021).

    Every rank receives every rank's choice: 8 · ratio · n bytes per float32 for n ranks.
    """

    def __init__(self, ratio: float = 0.01) -> None:
        super().__init__()
        if not 0 < ratio <= 1:
            raise ValueError(f"top_k: ratio is {ratio}, but must be above 0 and at most 1")
        self.ratio = ratio

    def exchange(self, name: str, pieces: list[Piece], process_set: ProcessSet) -> Callable[[], bool]:
        places = [self._choose(piece.values) for piece in pieces]
        chosen = [_take(piece, place) for piece, place in zip(pieces, places, strict=True)]
        pending = collectives.grouped_allgather([torch.cat(chosen), torch.cat(places)], name, process_set)

        def finish() -> bool:
            ranks = process_set.size() or 1
            values, indices = (gathered.view(ranks, -1) for gathered in pending.result())
            start = 0
            for piece, place in zip(pieces, places, strict=True):
                mine = slice(start, start := start + len(place))
                piece.mean.zero_()
                # Ranks are added one by one. A place occurs once per rank, so the order of additions is fixed.
                for rank in range(ranks):
                    piece.mean.index_add_(0, indices[rank, mine], values[rank, mine])
                piece.mean.div_(ranks)
            return bool(values.isfinite().all())

        return finish

    def _choose(self, values: torch.Tensor) -> torch.Tensor:
        elements = len(values)
        if elements <= WHOLE_ELEMENTS:
            return torch.arange(elements, dtype=torch.int32, device=values.device)
        places = _largest(values.abs(), math.ceil(self.ratio * elements))
        return places if elements > torch.iinfo(torch.int32).max else places.int()


def _largest(sizes: torch.Tensor, count: int) -> torch.Tensor:
    """Returns the places of the largest sizes. NaNs count as the largest."""
    if sizes.device.type != "cpu":
        return sizes.topk(count, sorted=False).indices
    rest = len(sizes) - count
    return torch.from_numpy(np.argpartition(sizes.numpy(), rest)[rest:])  # four times as fast as topk


def _take(piece: Piece, places: torch.Tensor) -> torch.Tensor:
    """Takes the values at these places, in the gradient's own dtype. The error of the conversion stays."""
    values = piece.values[places]
    taken = values.to(piece.mean.dtype)
    piece.values[places] = values - taken
    return taken
