"""The class of a wrapped optimizer, as type checkers see it.

Python has no type for "the wrapped class with more methods". For a type checker, `AnyOptimizer` is a subclass of each
of torch's optimizers. So `optimizer = hvd.DistributedOptimizer(optimizer)` may take the place of any of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import optim

if TYPE_CHECKING:

    class AnyOptimizer(
        optim.ASGD,
        optim.Adadelta,
        optim.Adagrad,
        optim.AdamW,
        optim.Adam,
        optim.Adamax,
        optim.LBFGS,
        optim.NAdam,
        optim.RAdam,
        optim.RMSprop,
        optim.Rprop,
        optim.SGD,
        optim.SparseAdam,
    ):
        _init_group: Any  # differs among the classes

else:
    AnyOptimizer = optim.Optimizer
