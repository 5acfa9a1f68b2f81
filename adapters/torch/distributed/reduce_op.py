"""torch's reductions in the core's words."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from ..compat.process_groups import premultiplied_factor
from .travel import COMPLEX, UNSIGNED

SUM, _MIN, _MAX, _PRODUCT, _BAND, _BOR, _BXOR = range(7)  # the core's ReduceOp

_NUMBERS = {
    ReduceOp.SUM: SUM,
    ReduceOp.AVG: SUM,
    ReduceOp.MIN: _MIN,
    ReduceOp.MAX: _MAX,
    ReduceOp.PRODUCT: _PRODUCT,
    ReduceOp.BAND: _BAND,
    ReduceOp.BOR: _BOR,
    ReduceOp.BXOR: _BXOR,
    ReduceOp.PREMUL_SUM: SUM,
}
_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool}) | UNSIGNED
_BITWISE = frozenset({_BAND, _BOR, _BXOR})


class Reduction(NamedTuple):
    op: int  # of the core
    average: bool
    prescale: float
    name: str

    @property
    def keeps_bits(self) -> bool:
        """Whether signed and unsigned numbers of the same bits give the same bits."""
        return self.op not in (_MIN, _MAX) and not self.average and self.prescale == 1.0


def of(options: Any) -> Any:
    """The ReduceOp in torch's options, which may be one itself, or nothing."""
    if options is None:
        return ReduceOp.SUM
    return getattr(options, "reduceOp", options)


def resolve(what: str, options: Any, dtype: torch.dtype) -> Reduction:
    """ValueError for an operation that is not defined on the type."""
    given = of(options)
    kind = getattr(given, "op", given)
    number = _NUMBERS.get(kind)
    if number is None:
        raise ValueError(f"{what}: {given} is no reduction that is known here")
    name = kind.name
    _check(what, name, number, dtype)
    prescale = 1.0
    if kind == ReduceOp.PREMUL_SUM:
        factor = premultiplied_factor(given)
        prescale = float(factor.item()) if isinstance(factor, Tensor) else float(factor)
    return Reduction(number, kind == ReduceOp.AVG, prescale, name)


def _check(what: str, name: str, number: int, dtype: torch.dtype) -> None:
    bad = (number in _BITWISE and dtype not in _INTEGERS) or (dtype in COMPLEX and number != SUM)
    if bad:
        raise ValueError(f"{what}: {name} is not defined on {dtype}")
