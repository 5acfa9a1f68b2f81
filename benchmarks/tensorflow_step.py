"""TensorFlow's adapter: many tensors in one step, beside the torch adapter in the same process, or eager calls.

python -m benchmarks.tensorflow_step -np 2
python -m benchmarks.tensorflow_step --eager      # what a call of one float costs
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import harness
from .harness import Call, Contender, Result, World, ratio, resnet_shapes, scaled
from .many_tensors import RESNET, one_by_one

TORCH, TAPE, EACH, COPY = "torch adapter", "as a tape reduces them", "an allreduce each", "TensorFlow copies them"
ALLREDUCE, ONE_FLOAT = "allreduce", "one float"


def steps(shapes: Sequence[tuple[int, ...]]) -> dict[str, Call]:
    """Returns functions of TensorFlow over the same tensors. Each is traced once and returns new tensors."""
    import tensorflow as tf

    import perseus_like.tensorflow as hvd
    from perseus_like.gradients import GradientRules
    from perseus_like.tensorflow.gradients import TensorFlowReducer

    tensors = [tf.fill(shape, 0.0) for shape in shapes]
    variables = [tf.Variable(tensor) for tensor in tensors]
    reduction = TensorFlowReducer("benchmark", GradientRules(hvd.Sum))

    def each(*given: Any) -> list[Any]:
        return [hvd.allreduce(tensor, op=hvd.Sum, name=f"each_{place}") for place, tensor in enumerate(given)]

    bodies: dict[str, Callable[..., list[Any]]] = {
        TAPE: lambda *given: reduction(given, variables),
        EACH: each,
        COPY: lambda *given: [tensor + 1.0 for tensor in given],
    }

    def step(body: Callable[..., list[Any]]) -> Call:
        traced = tf.function(body, autograph=False)
        return lambda: traced(*tensors)

    return {name: step(body) for name, body in bodies.items()}


def check(world: World, shapes: Sequence[tuple[int, ...]]) -> None:
    import tensorflow as tf

    import perseus_like.tensorflow as hvd

    for number, shape in enumerate(shapes):
        summed = hvd.allreduce(tf.fill(shape, float(world.rank + number)), op=hvd.Sum)
        expected = world.size * (world.size - 1) // 2 + world.size * number
        if not bool(tf.reduce_all(summed == float(expected))):
            raise AssertionError(f"tensor {number} of {len(shapes)}: wrong sum on rank {world.rank}")


def eager_calls() -> dict[str, Call]:
    import numpy as np
    import tensorflow as tf

    import perseus_like.numpy as numpy_hvd
    import perseus_like.tensorflow as hvd

    number, five, array = tf.constant(1.0), [tf.ones([1])] * 5, np.ones(1, np.float32)
    variables = [tf.Variable(1.0)]
    return {
        ALLREDUCE: lambda: hvd.allreduce(number, op=hvd.Sum),
        "allreduce, named": lambda: hvd.allreduce(number, op=hvd.Sum, name="loss"),
        "grouped_allreduce of 5": lambda: hvd.grouped_allreduce(five, op=hvd.Sum),
        "grouped_allgather of 5": lambda: hvd.grouped_allgather(five),
        "broadcast": lambda: hvd.broadcast(number, 0),
        "broadcast_ of a variable": lambda: hvd.broadcast_(variables, 0),
        "NumPy adapter": lambda: numpy_hvd.allreduce(array, op=numpy_hvd.Sum),
        "TensorFlow adds 1": lambda: tf.add(number, 1.0),
    }


def on_every_rank(options: Any) -> None:
    import perseus_like.torch as hvd

    world = World()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    if options.eager:
        result = Result("tensorflow_eager", "Eager calls of TensorFlow", world, options, (ALLREDUCE,))
        result.measure(ONE_FLOAT, [Contender.of(name, call) for name, call in eager_calls().items()], size=4)
        slowest = scaled(result.best(ONE_FLOAT, ALLREDUCE), 1e6)
        result.bar(ONE_FLOAT, "an eager allreduce", "≤", 100, slowest, "µs")
    else:
        result = Result("tensorflow_step", "A step of TensorFlow", world, options, (TORCH, TAPE, EACH))
        shapes = resnet_shapes(2) if options.quick else resnet_shapes()
        check(world, shapes[:20])
        private = [torch.empty(shape).fill_(0) for shape in shapes]
        calls = {TORCH: one_by_one(hvd, private, "torch"), **steps(shapes)}
        work = "154 of a narrow network" if options.quick else RESNET
        result.measure(work, [Contender.of(name, call) for name, call in calls.items()])
        slower = ratio(result.best(work, TAPE), result.best(work, TORCH))
        result.bar(work, "one tf.function, of the torch adapter's time", "≤", 1.5, slower)
    result.publish()


if __name__ == "__main__":
    harness.main(
        on_every_rank,
        seconds=12,
        add_options=lambda parser: parser.add_argument("--eager", action="store_true", help="calls of one float"),
    )
