"""Measures the cost of a process that is part of a job: CPU time while idle, and memory beyond the gradients.

python -m benchmarks.idle -np 2
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from . import harness, peers
from .harness import World
from .record import Bar, Result, publish
from .training_step import big_model, sgd, step, tiny_model, wrapped

MIB = 1 << 20
STEPS = 5


def processor_share(seconds: float) -> float:
    """Returns the share of one core that all threads of this process use while the caller sleeps."""
    begin, used = time.monotonic(), time.process_time()
    threading.Event().wait(seconds)
    return (time.process_time() - used) / (time.monotonic() - begin)


def memory_bytes() -> float:
    """Returns the memory of this process. Of shared memory it counts this process's part, as Pss does.

    Pages of files, such as those of libraries, do not count: how many of them count for this process depends on the
    programs that run beside it.
    """
    # This returns unused memory of malloc to the system, so that gradients of one phase do not count in the next.
    ctypes.CDLL(None).malloc_trim(0)
    rollup = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return 1024.0 * sum(float(rollup[name].split()[0]) for name in ("Pss_Anon", "Pss_Shmem"))


def times(count: int, run: Callable[[], object]) -> None:
    for _ in range(count):
        run()


def on_every_rank(options: Any) -> None:
    torch.set_num_threads(1)
    import perseus_like.torch as hvd

    # The process first trains alone, and then in the job.
    model, data = tiny_model() if options.quick else big_model()
    times(STEPS, step(model, sgd(model), data))
    alone = memory_bytes()
    world = World()
    world.barrier()
    joined = memory_bytes()
    ours = world.most([processor_share(options.seconds)])[0]
    run = step(model, wrapped(hvd, model), data)
    times(STEPS, run)
    world.barrier()
    beyond, at_join = world.most([memory_bytes() - alone, joined - alone])
    after = world.most([processor_share(options.seconds)])[0]
    world.barrier()
    peers.start_gloo(world)
    with_gloo = world.most([processor_share(options.seconds)])[0]

    result = Result("idle", "An idle process, and memory", world, ("ours",), quick=options.quick)
    result.facts = {
        "processor time after init, % of a core": ours * 100,
        "processor time after training steps, % of a core": after * 100,
        "the same with torch's gloo group in addition, % of a core": with_gloo * 100,
        "memory that init takes, MiB per rank": at_join / MIB,
        "memory beyond one process's training step, MiB per rank": beyond / MIB,
    }
    if not options.quick:
        result.bars = [
            Bar("idle", "processor time, % of a core", "≤", 0.2, max(ours, after) * 100, "%", recorded="Horovod 8.8 %"),
            Bar("113 MB MLP", "memory beyond gradients, per rank", "≤", 64, beyond / MIB, "MiB"),
        ]
    publish(result, options.output)
    world.barrier()
    peers.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = harness.parser("Processor time and memory of an idle process.", seconds=10).parse_args(arguments)
    if options.quick:
        options.seconds = min(options.seconds, 0.1)
    if harness.in_world():
        on_every_rank(options)
        return 0
    return harness.start_world("benchmarks.idle", arguments, options)


if __name__ == "__main__":
    sys.exit(main())
