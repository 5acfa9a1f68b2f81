"""Eager calls of TensorFlow's verbs on tensors of one float: what a call costs before there is anything to move.

python -m benchmarks.tensorflow_eager -np 2
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from . import harness
from .harness import Contender, World
from .record import Bar, Result, Row, publish

WORK = "one float"
ALLREDUCE, NAMED = "allreduce", "allreduce, named"
GROUPED, GATHERED = "grouped_allreduce of 5", "grouped_allgather of 5"
BROADCAST, IN_PLACE = "broadcast", "broadcast_ of a variable"
NUMPY, COPY = "NumPy adapter", "TensorFlow adds 1"
LIMIT_MICROSECONDS = 100.0


def contenders() -> list[Contender]:
    import numpy as np
    import tensorflow as tf

    import perseus_like.numpy as numpy_hvd
    import perseus_like.tensorflow as hvd

    number, five, array = tf.constant(1.0), [tf.ones([1])] * 5, np.ones(1, np.float32)
    variables = [tf.Variable(1.0)]
    return [
        Contender.of(ALLREDUCE, lambda: hvd.allreduce(number, op=hvd.Sum)),
        Contender.of(NAMED, lambda: hvd.allreduce(number, op=hvd.Sum, name="loss")),
        Contender.of(GROUPED, lambda: hvd.grouped_allreduce(five, op=hvd.Sum)),
        Contender.of(GATHERED, lambda: hvd.grouped_allgather(five)),
        Contender.of(BROADCAST, lambda: hvd.broadcast(number, 0)),
        Contender.of(IN_PLACE, lambda: hvd.broadcast_(variables, 0)),
        Contender.of(NUMPY, lambda: numpy_hvd.allreduce(array, op=numpy_hvd.Sum)),
        Contender.of(COPY, lambda: tf.add(number, 1.0)),
    ]


def bars(result: Result) -> list[Bar]:
    row = result.row(WORK)
    if row is None or result.quick or result.world.size != 2:
        return []
    seconds = row.median(ALLREDUCE)
    value = None if seconds is None else seconds * 1e6
    return [Bar(WORK, "an eager allreduce", "≤", LIMIT_MICROSECONDS, value, " µs")]


def on_every_rank(options: Any) -> None:
    world = World()
    ours = (ALLREDUCE, NAMED, GROUPED, GATHERED, BROADCAST, IN_PLACE)
    result = Result("tensorflow_eager", "Eager calls of TensorFlow", world, ours)
    result.quick = options.quick
    result.rows.append(Row(WORK, harness.measure(world, contenders(), harness.budget_of(options)), bytes=4))
    result.bars = bars(result)
    publish(result, options.output)
    world.barrier()


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = harness.parser("Eager calls of TensorFlow, one float each.", seconds=3).parse_args(arguments)
    if harness.in_world():
        on_every_rank(options)
        return 0
    return harness.start_world("benchmarks.tensorflow_eager", arguments, options)


if __name__ == "__main__":
    sys.exit(main())
