"""Trains in NumPy, which starts quickly, in an elastic job. The argument is the number of seconds that a step takes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import perseus_like.numpy as hvd
from perseus_like import HostsUpdatedInterrupt
from perseus_like.elastic import ObjectState, run_fn
from perseus_like.world import restart

sys.path.insert(0, str(Path(__file__).parent))
import steps as task  # type: ignore[import-not-found]

steps_of_process = 0  # no state that is committed: it is lost with the process


def main(pause: float) -> None:
    host = os.environ.get("HOROVOD_HOSTNAME", "")
    task.report("script", variables=task.rank_variables(), host=host)
    if host == os.environ.get("FAILS_ON"):
        sys.exit(6)
    if host == os.environ.get("WAITS_ON"):
        task.wait_for("go")
    hvd.init()
    state: Any = ObjectState(
        hvd.broadcast_object,
        hvd.rank,
        step=0,
        last=None,
        weights=np.ones(task.WEIGHTS, np.float32),
        momentum=np.zeros(task.WEIGHTS, np.float32),
    )
    run_fn(train, restart)(state, pause)
    weights = hvd.allgather_object(state.weights.tolist())
    task.report_end(hvd.rank(), hvd.size(), state.step, weights)


def train(state: Any, pause: float) -> None:
    global steps_of_process
    facts = (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size())
    right = task.rank_variables() == [str(fact) for fact in facts]
    task.report(
        "start",
        rank=hvd.rank(),
        size=hvd.size(),
        step=state.step,
        has_right_variables=right,
        host=os.uname().nodename,
        steps_of_process=steps_of_process,
        has_mpi="libmpi" in Path("/proc/self/maps").read_text(),
    )
    while state.last is None or state.step < state.last:
        mine = np.full(task.WEIGHTS, task.gradient(state.step), np.float32)
        state.momentum = task.MOMENTUM * state.momentum + hvd.allreduce(mine, name="gradient")
        state.weights = state.weights - np.float32(task.LEARNING_RATE) * state.momentum
        if str(state.step + 1) == os.environ.get("FAILS_AT_STEP"):
            raise RuntimeError("the same in every generation")
        steps_of_process += 1
        try:
            task.end_step(hvd, state, pause)
        except HostsUpdatedInterrupt:
            task.report("interrupted", step=state.step)
            raise


if __name__ == "__main__":
    main(float(sys.argv[1]))
