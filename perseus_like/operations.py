"""The operations of a reduction, by Horovod's numbers, and their descriptions for the core."""

from __future__ import annotations

from enum import IntEnum

from .tables import ReduceOp
from .tensor import AS_IT_IS, AVERAGE, SUM, ReduceOptions


class Op(IntEnum):
    """The operation of an allreduce, with Horovod's numbers.

    `Average` is the sum divided by the number of ranks. As in Horovod, integers are summed in their own dtype, in which
    a large sum wraps, and the average is truncated: convert them to a wider dtype before. `Sum`, `Min`, `Max` and
    `Product` work element by element. `Adasum` adds the parts of the ranks' tensors that are orthogonal and averages
    those that are parallel (arXiv:2006.02924).
    """

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5

    def __repr__(self) -> str:
        """Returns the name, by which programs and signatures know the operation."""
        return self.name


Average, Sum, Adasum, Min, Max, Product = Op

# The reduction of each operation without factors, indexed by Op. A tuple avoids the Python hash function of Op's
# members.
UNSCALED = (
    AVERAGE,
    SUM,
    SUM,  # Adasum is a separate verb of the core, which ignores the operation
    *(ReduceOptions(int(op)) for op in (ReduceOp.min, ReduceOp.max, ReduceOp.product)),
)


def reduce_options(op: Op, prescale: float = 1.0, postscale: float = 1.0, wire_dtype: int = AS_IT_IS) -> ReduceOptions:
    """Returns the core's description of a reduction. For Adasum, it is that of Sum."""
    plain = UNSCALED[op]
    if prescale == 1.0 and postscale == 1.0 and wire_dtype == AS_IT_IS:
        return plain
    return ReduceOptions(plain.op, plain.average, prescale, postscale, wire_dtype)


def resolve_op(op: int | None, average: bool | None = None) -> Op:
    """Returns `op`, or the operation that the deprecated `average` stands for. The default is Average.

    Args:
        op: an operation, its number, or None.
        average: True stands for Average, False for Sum, None for neither.

    Returns:
        One of Average, Sum, Adasum, Min, Max and Product.

    Raises:
        ValueError: both arguments are given, or `op` is no operation.

    Examples:
        >>> from perseus_like.operations import resolve_op
        >>> resolve_op(None, average=False).name
        'Sum'
    """
    if op is None:
        return Op.Sum if average is False else Op.Average
    if average is not None:
        raise ValueError("op and average were both given; average is deprecated, use op alone")
    if type(op) is Op:
        return op
    try:
        return Op(op)
    except ValueError:
        raise ValueError(f"op is {op!r}; use one of {', '.join(Op.__members__)}") from None


__all__ = ["Adasum", "Average", "Max", "Min", "Product", "Sum"]
