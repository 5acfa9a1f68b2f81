"""Translates torch's reductions into those of the core."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from perseus_like import tables

from ..compat.process_groups import premultiplied_factor
from .layout_conversion import COMPLEX, UNSIGNED

SUM = int(tables.ReduceOp.sum)
_NUMBERS = {
    ReduceOp.SUM: SUM,
    ReduceOp.AVG: SUM,
    ReduceOp.MIN: int(tables.ReduceOp.min),
    ReduceOp.MAX: int(tables.ReduceOp.max),
    ReduceOp.PRODUCT: int(tables.ReduceOp.product),
    ReduceOp.BAND: int(tables.ReduceOp.band),
    ReduceOp.BOR: int(tables.ReduceOp.bor),
    ReduceOp.BXOR: int(tables.ReduceOp.bxor),
    ReduceOp.PREMUL_SUM: SUM,
}
_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool}) | UNSIGNED
_BITWISE = frozenset(_NUMBERS[op] for op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR))
_ORDERS = frozenset(_NUMBERS[op] for op in (ReduceOp.MIN, ReduceOp.MAX))


class Reduction(NamedTuple):
    op: int  # of the core
    average: bool
    prescale: float
    name: str

    @property
    def keeps_bits(self) -> bool:
        """Returns whether signed and unsigned numbers with the same bits have results with the same bits."""
        return self.op not in _ORDERS and not self.average and self.prescale == 1.0


def of(options: Any) -> Any:
    """Returns the ReduceOp in torch's options. `options` may be a ReduceOp itself, or None."""
    if options is None:
        return ReduceOp.SUM
    return getattr(options, "reduceOp", options)


def resolve(what: str, options: Any, dtype: torch.dtype) -> Reduction:
    """Returns the core's form of a reduction. ValueError if it is not defined for the dtype."""
    given = of(options)
    kind = getattr(given, "op", given)
    number = _NUMBERS.get(kind) if isinstance(kind, ReduceOp.RedOpType) else None  # integers are equal to some kinds
    if number is None:
        raise ValueError(f"{what}: {given} is no reduction that is known here")
    name = kind.name
    if (number in _BITWISE and dtype not in _INTEGERS) or (dtype in COMPLEX and number != SUM):
        raise ValueError(f"{what}: {name} is not defined on {dtype}")
    prescale = 1.0
    if kind == ReduceOp.PREMUL_SUM:
        factor = premultiplied_factor(given)
        prescale = float(factor.item()) if isinstance(factor, Tensor) else float(factor)
    return Reduction(number, kind == ReduceOp.AVG, prescale, name)
