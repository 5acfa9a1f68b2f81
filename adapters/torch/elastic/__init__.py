"""Elastic training with torch: `hvd.elastic.TorchState`, `ElasticSampler`, and `run` around the training function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from perseus_like.basics import restart
from perseus_like.elastic import ObjectState, State, run_fn

from .sampler import ElasticSampler
from .state import TorchState

_Result = TypeVar("_Result")


def run(func: Callable[..., _Result]) -> Callable[..., _Result]:
    """Decorates `train(state, …)`: it is called again, with the state of the last commit, when a collective fails.

    Between the calls there is a new session, of the ranks and process sets that `init` was given. Sets that were added
    later are added again by a reset callback.

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, epochs):
            ...
            state.commit()
    """
    return run_fn(func, restart)


__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]
