"""Conversions for the reduction of dtypes that the core does not compute with."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .layout_conversion import BYTE_FLOATS, UNSIGNED
from .reduce_op import SUM, Reduction

Convert = Callable[[Tensor], Tensor]
_NARROW = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32})
_SIGN = torch.iinfo(torch.int64).min


class DTypeFallback(NamedTuple):
    """Converts by `there` to a new tensor, which `reduction` reduces, and converts the result by `back`."""

    reduction: Reduction
    there: Convert
    back: Convert


def dtype_fallback(dtype: torch.dtype, reduction: Reduction, size: int) -> DTypeFallback | None:
    """Returns None if the core supports the dtype, or if reducing the same bits as a signed dtype is right.

    Averages of integers of up to 32 bits are computed in 64 bits. Those of 64 bits wrap if the sum does.
    """
    if dtype in BYTE_FLOATS:
        # The result is rounded once, at the end.
        return DTypeFallback(reduction, lambda given: given.to(torch.float32), lambda found: found.to(dtype))
    if reduction.average and dtype in _NARROW:
        # The sum is divided, so it must not wrap before.
        return DTypeFallback(reduction, lambda given: given.to(torch.int64), lambda found: found.to(dtype))
    if dtype not in UNSIGNED or reduction.keeps_bits:
        return None
    if dtype is not torch.uint64:
        return DTypeFallback(reduction, lambda given: given.to(torch.int64), lambda found: found.to(dtype))
    if reduction.op != SUM:
        # Unsigned numbers have the order of signed ones with the first bit inverted.
        return DTypeFallback(reduction, _with_first_bit_inverted, lambda found: (found ^ _SIGN).view(torch.uint64))
    plain = reduction._replace(average=False, prescale=1.0)
    factor = reduction.prescale
    divisor = np.uint64(size if reduction.average else 1)
    return DTypeFallback(
        plain,
        lambda given: _scaled(given, factor),
        lambda found: torch.from_numpy(found.view(torch.uint64).numpy() // divisor),
    )


def _with_first_bit_inverted(given: Tensor) -> Tensor:
    return given.contiguous().view(torch.int64) ^ _SIGN


def _scaled(given: Tensor, factor: float) -> Tensor:
    if not given.is_cpu:
        raise ValueError(
            f"uint64 tensors on {given.device} are not averaged or multiplied: torch has no such arithmetic there; "
            "pass tensor.cpu(), or a tensor of int64"
        )
    numbers = given.contiguous().numpy()
    if factor != 1.0:
        numbers = (numbers.astype(np.longdouble) * factor).astype(np.uint64)
    return torch.from_numpy(numbers.copy()).view(torch.int64)
