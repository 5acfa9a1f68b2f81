"""Measures the cost of a process that is part of a job: CPU time while idle, and memory beyond the gradients.

python -m benchmarks.idle -np 2
"""

from __future__ import annotations

import ctypes
import threading
import time
from pathlib import Path
from typing import Any

import torch

from . import harness, peers
from .harness import MIB, Contender, Result, World
from .training_step import big_model, sgd, step, tiny_model, wrapped

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


def on_every_rank(options: Any) -> None:
    torch.set_num_threads(1)
    import perseus_like.torch as hvd

    seconds = min(options.seconds, 0.1) if options.quick else options.seconds
    # The process first trains alone, and then in the job.
    model, data = tiny_model() if options.quick else big_model()
    Contender.of("alone", step(model, sgd(model), data)).run(STEPS)
    alone = memory_bytes()
    world = World()
    world.barrier()
    joined = memory_bytes()
    ours = world.most([processor_share(seconds)])[0]
    Contender.of("in the job", step(model, wrapped(hvd, model), data)).run(STEPS)
    world.barrier()
    beyond, at_join = world.most([memory_bytes() - alone, joined - alone])
    after = world.most([processor_share(seconds)])[0]
    world.barrier()
    peers.start_gloo(world)
    with_gloo = world.most([processor_share(seconds)])[0]

    result = Result("idle", "An idle process, and memory", world, options, ("ours",))
    result.facts = {
        "processor time after init, % of a core": ours * 100,
        "processor time after training steps, % of a core": after * 100,
        "the same with torch's gloo group in addition, % of a core": with_gloo * 100,
        "memory that init takes, MiB per rank": at_join / MIB,
        "memory beyond one process's training step, MiB per rank": beyond / MIB,
    }
    share, ranks = max(ours, after) * 100, world.size
    result.bar("idle", "processor time, % of a core", "≤", 0.2, share, "%", recorded="Horovod 8.8 %", ranks=ranks)
    result.bar("113 MB MLP", "memory beyond gradients, per rank", "≤", 64, beyond / MIB, "MiB", ranks=ranks)
    result.publish()


if __name__ == "__main__":
    harness.main(on_every_rank, seconds=10)
