"""The training that all programs of this folder share: SGD with momentum and a gradient that differs between steps.

The final weights are wrong if a step is missing or is made twice, or if weights are restored without their momentum.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

LEARNING_RATE, MOMENTUM, WEIGHTS, STEPS_PER_COMMIT = 0.01, 0.9, 8, 5


def rank_variables() -> list[str | None]:
    """Returns the rank variables of the environment at this time."""
    facts = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    return [os.environ.get(f"HOROVOD_{fact}") for fact in facts]


def wait_for(name: str) -> None:
    """Blocks until the test has made this file."""
    while not Path(name).exists():
        time.sleep(0.01)


def gradient(step: int) -> float:
    return 1.0 + step % 7


def expected_weights(steps: int, passes: int) -> np.ndarray:
    """Returns the weights after `steps`, if the optimizer uses the sum of the gradients of each `passes` of them."""
    weights, momentum = np.ones(WEIGHTS), np.zeros(WEIGHTS)
    for last in range(passes - 1, steps, passes):
        momentum = MOMENTUM * momentum + sum(gradient(last - back) for back in range(passes))
        weights = weights - LEARNING_RATE * momentum
    return weights


def last_step(step: int, last: int | None) -> int | None:
    """Returns the last step, or None if the end is open. After the test has made a file, some more steps follow."""
    return step + 4 * STEPS_PER_COMMIT if last is None and Path("finish").exists() else last


def end_step(hvd: Any, state: Any, seconds: float) -> None:
    """Ends a step, and makes a commit every STEPS_PER_COMMIT steps.

    A step takes `seconds`, as real steps take time, so that workers also die in the middle of a step.
    """
    state.step += 1
    time.sleep(seconds)
    if state.step % STEPS_PER_COMMIT == 0:
        state.last = hvd.broadcast_object(last_step(state.step, state.last))
        state.commit()
        if hvd.rank() == 0:
            report("commit", step=state.step, size=hvd.size())


def report(kind: str, **content: object) -> None:
    """Writes one line by one system call, so that lines of workers do not mix."""
    os.write(sys.stdout.fileno(), (json.dumps({"kind": kind, "pid": os.getpid(), **content}) + "\n").encode())


def report_end(rank: int, size: int, steps: int, weights: list[list[float]], passes: int = 1) -> None:
    """Reports whether the weights of all ranks are the same, and whether they are right."""
    same = all(each == weights[0] for each in weights)
    right = bool(np.allclose(weights[0], expected_weights(steps, passes), rtol=1e-4))
    report("end", rank=rank, size=size, steps=steps, same=same, right=right)
