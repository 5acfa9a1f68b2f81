"""Measures the fused optimizer kernels on one core, against torch's and against a copy with the same traffic.

python -m benchmarks.optimizer_step
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import harness
from .harness import Contender, World, measure
from .record import Bar, Result, Row, publish, ratio

OURS = "ours"
THEIRS = "torch, fused"
COPY = "copy with the same traffic"
STREAMING = "streaming copy with the same traffic"
PARAMETERS = 12 * 1536 * 1536
OPTIONS = {"learning_rate": 1e-4, "weight_decay": 0.01}
# The bytes that a step reads and writes for each float32 parameter, including its gradient.
TRAFFIC = {"adam": 28, "adamw": 28, "sgd": 20}


def ours(kind: str, count: int) -> Callable[[], object]:
    from perseus_like import _core
    from perseus_like.tables import DType

    parameters, gradient, first, second = torch.randn(count), torch.randn(count), torch.zeros(count), torch.zeros(count)
    options: dict[str, Any] = {**OPTIONS, "kind": kind, "step": 2}
    if kind == "sgd":
        options["momentum"] = 0.9

    def once() -> None:
        _core.optimizer_step(
            *(options, int(DType.float32), [gradient.data_ptr()], parameters.data_ptr(), 0),
            *(first.data_ptr(), second.data_ptr(), count),
        )

    return once


def theirs(kind: str, count: int) -> Callable[[], object]:
    parameter = torch.nn.Parameter(torch.randn(count))
    parameter.grad = torch.randn(count)
    rate, decay = OPTIONS["learning_rate"], OPTIONS["weight_decay"]
    if kind == "sgd":
        return torch.optim.SGD([parameter], lr=rate, weight_decay=decay, momentum=0.9, fused=True).step
    which = torch.optim.AdamW if kind == "adamw" else torch.optim.Adam
    return which([parameter], lr=rate, weight_decay=decay, fused=True).step


def copy(nbytes: int, streaming: bool) -> Callable[[], object]:
    """Copies half of the bytes, so that it reads and writes so many."""
    from perseus_like import _core

    source, target = torch.ones(nbytes // 2, dtype=torch.uint8), torch.ones(nbytes // 2, dtype=torch.uint8)
    return lambda: _core.copy(target.data_ptr(), source.data_ptr(), nbytes // 2, streaming)


def on_every_rank(options: Any) -> None:
    torch.set_num_threads(1)
    world = World()
    count = PARAMETERS // 1000 if options.quick else PARAMETERS
    result = Result("optimizer_step", "Optimizer steps on one core", world, (OURS,), quick=options.quick)
    for kind, traffic in TRAFFIC.items():
        contenders = [
            Contender.of(OURS, ours(kind, count)),
            Contender.of(THEIRS, theirs(kind, count)),
            Contender.of(COPY, copy(traffic * count, streaming=False)),
            Contender.of(STREAMING, copy(traffic * count, streaming=True)),
        ]
        row = Row(kind, measure(world, contenders, harness.budget_of(options, untimed=1)), traffic * count)
        result.rows.append(row)
        if not options.quick:
            fastest = row.best([COPY, STREAMING])
            result.bars += [
                Bar(kind, "bandwidth / that of the faster copy", "≥", 0.9, ratio(fastest, row.median(OURS))),
                Bar(kind, "speed / torch, fused", "≥", 1.0, ratio(row.median(THEIRS), row.median(OURS))),
            ]
    publish(result, options.output)
    world.barrier()


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = harness.parser("Optimizer steps on one core.", seconds=5)
    options.set_defaults(np=1)
    parsed = options.parse_args(arguments)
    if harness.in_world():
        on_every_rank(parsed)
        return 0
    return harness.start_world("benchmarks.optimizer_step", arguments, parsed)


if __name__ == "__main__":
    sys.exit(main())
