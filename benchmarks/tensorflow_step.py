"""The same many tensors in one step of TensorFlow and through the torch adapter, in one process.

python -m benchmarks.tensorflow_step -np 2
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import harness
from .harness import Contender, World, resnet_shapes
from .many_tensors import RESNET, ours
from .record import Bar, Result, Row, publish, ratio

TORCH, TAPE, EACH, COPY = "torch adapter", "as a tape reduces them", "an allreduce each", "TensorFlow copies them"
LIMIT = 1.5


def steps(shapes: Sequence[tuple[int, ...]]) -> dict[str, Callable[[], Any]]:
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

    def step(body: Callable[..., list[Any]]) -> Callable[[], Any]:
        traced = tf.function(body, autograph=False)
        return lambda: traced(*tensors)

    return {name: step(body) for name, body in bodies.items()}


def contenders(shapes: Sequence[tuple[int, ...]]) -> list[Contender]:
    private = [torch.empty(shape).fill_(0) for shape in shapes]
    made = [Contender.of(TORCH, ours(private, "torch"))]
    return [*made, *(Contender.of(name, step) for name, step in steps(shapes).items())]


def check(world: World, shapes: Sequence[tuple[int, ...]]) -> None:
    import tensorflow as tf

    import perseus_like.tensorflow as hvd

    for number, shape in enumerate(shapes):
        summed = hvd.allreduce(tf.fill(shape, float(world.rank + number)), op=hvd.Sum)
        expected = world.size * (world.size - 1) // 2 + world.size * number
        if not bool(tf.reduce_all(summed == float(expected))):
            raise AssertionError(f"tensor {number} of {len(shapes)}: wrong sum on rank {world.rank}")


def bars(result: Result) -> list[Bar]:
    row = result.row(RESNET)
    if row is None or result.quick or result.world.size != 2:
        return []
    slower = ratio(row.median(TAPE), row.median(TORCH))
    return [Bar(RESNET, "one tf.function, of the torch adapter's time", "≤", LIMIT, slower)]


def on_every_rank(options: Any) -> None:
    world = World()
    import tensorflow as tf

    torch.set_num_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    result = Result("tensorflow_step", "A step of TensorFlow", world, (TORCH, TAPE, EACH))
    result.quick = options.quick
    shapes = resnet_shapes(2) if options.quick else resnet_shapes()
    check(world, shapes[:20])
    name = "154 of a narrow network" if options.quick else RESNET
    result.rows.append(Row(name, harness.measure(world, contenders(shapes), harness.budget_of(options))))
    result.bars = bars(result)
    publish(result, options.output)
    world.barrier()


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = harness.parser("A step of TensorFlow, against the torch adapter.", seconds=12).parse_args(arguments)
    if harness.in_world():
        on_every_rank(options)
        return 0
    return harness.start_world("benchmarks.tensorflow_step", arguments, options)


if __name__ == "__main__":
    sys.exit(main())
