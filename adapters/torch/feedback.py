"""Compression that leaves part of a gradient out, and adds that part to the next step's gradient (error feedback).

What is left out is late, not lost, which is why training still converges (Karimireddy et al., 2019, arXiv:1901.09847).
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from perseus_like.collectives import Average, Op, Sum
from perseus_like.collectives.compression import Compressor
from perseus_like.process_sets import ProcessSet

F = TypeVar("F", bound="FeedbackCompressor")


@dataclass(frozen=True)
class Piece:
    """A gradient of a bucket. Both tensors have one dimension, in the order of memory."""

    key: int  # of its parameter, the same in every step and on all ranks
    rows: int  # the size of its first dimension; 1 if it has fewer than two dimensions
    values: torch.Tensor  # the gradient and what was left out before; in float32 at least
    mean: torch.Tensor  # receives the mean over the ranks

    def matrix(self) -> torch.Tensor:
        return self.values.view(self.rows, -1)


class FeedbackCompressor(Compressor, ABC):
    """The base class for `DistributedOptimizer(compression=…)`. All ranks need the same class with the same options.

    A subclass defines `exchange`, which sends the pieces of a bucket. Needs the memory of all gradients once more.
    """

    def __init__(self) -> None:
        self._left_out: dict[int, torch.Tensor] = {}

    @abstractmethod
    def exchange(self, name: str, pieces: list[Piece], process_set: ProcessSet) -> Callable[[], bool]:
        """Starts to send `pieces`, and leaves in the `values` of each what is not sent.

        The function it returns waits, puts the means into place, the same bits on all ranks, and says whether what
        came was finite. Everything it starts has a name that begins with `name`.
        """

    def forget(self, key: int) -> None:
        """Drops what was left out of this gradient before."""
        self._left_out.pop(key, None)

    def rescale(self, factor: float) -> None:
        """Multiplies what was left out by a factor, because a GradScaler multiplies the next gradients by it."""
        for left_out in self._left_out.values():
            left_out.mul_(factor)

    def fresh(self: F) -> F:
        """Returns a copy that has seen no gradient."""
        new = copy.copy(self)
        FeedbackCompressor.__init__(new)
        return new

    def start(
        self, name: str, gradients: Mapping[int, torch.Tensor], average: bool, process_set: ProcessSet
    ) -> Callable[[], None]:
        """Starts to reduce `gradients` in place. Returns a function that waits."""
        with torch.no_grad():
            pieces = [self._piece(key, gradient) for key, gradient in gradients.items()]
            finish = self.exchange(name, pieces, process_set)

        def receive() -> None:
            finite = finish()
            for piece in pieces:
                if not finite:  # for example after an overflow of scaled gradients, whose step is skipped
                    self.forget(piece.key)
                if not average:
                    piece.mean.mul_(process_set.size() or 1)

        return receive

    def _piece(self, key: int, gradient: torch.Tensor) -> Piece:
        flat = gradient.as_strided((gradient.numel(),), (1,))
        left_out = self._left_out.get(key)
        if left_out is None:
            kind = torch.promote_types(gradient.dtype, torch.float32)
            self._left_out[key] = left_out = torch.zeros_like(flat, dtype=kind)
        return Piece(key, _rows_of(gradient), left_out.add_(flat), flat)

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Raises ValueError, because a single tensor has no next step."""
        raise ValueError(
            "this compression keeps what it leaves out for the next step, so it is for DistributedOptimizer only; "
            "use Compression.none, fp16 or bf16 here"
        )

    def __repr__(self) -> str:
        options = (f"{name}={value}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({', '.join(options)})"


def _rows_of(gradient: torch.Tensor) -> int:
    if gradient.dim() < 2 or not gradient.numel():
        return 1
    return gradient.shape[max(range(gradient.dim()), key=gradient.stride)]


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns all elements, one after the other."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def parted(elements: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns tensors of these elements in the shapes of `like`, the opposite of the function above."""
    parts = torch.split(elements, [tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def checked_compression(compression: Any, op: Op) -> Any:
    """Returns an instance for a class: `Compression.top_k()` for `Compression.top_k`. Others stay as they are."""
    if isinstance(compression, type) and issubclass(compression, FeedbackCompressor):
        compression = compression()
    if not isinstance(compression, FeedbackCompressor):
        return compression
    if op not in (Average, Sum):
        raise ValueError(f"{compression} knows Average and Sum, not {op.name}; use Compression.none, fp16 or bf16")
    return compression
