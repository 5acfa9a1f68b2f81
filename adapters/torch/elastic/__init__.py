"""Elastic training with torch: `hvd.elastic.TorchState`, `ElasticSampler`, and `run` around the training function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from perseus_like.elastic import ObjectState, State, run_fn
from perseus_like.world import restart

from .sampler import ElasticSampler
from .state import TorchState

_Result = TypeVar("_Result")


def run(func: Callable[..., _Result]) -> Callable[..., _Result]:
    """Decorates `train(state, …)`. If a collective fails, the function runs again with the state of the last commit.

    Before each such run a new session starts, with the ranks and process sets that `init` was given. A reset callback
    adds the sets that were added later.

    Args:
        func: the training function. Its first argument is the elastic state.

    Returns:
        A function with the same arguments and result.

    Examples:
        >>> @hvd.elastic.run
        ... def train(state):
        ...     for state.epoch in range(state.epoch, 3):
        ...         state.commit()
        ...     return state.epoch
        >>> train(hvd.elastic.TorchState(torch.nn.Linear(2, 1), epoch=0))
        2
    """
    return run_fn(func, restart)


__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]
__dir__ = __all__.copy  # for completion in editors and shells
