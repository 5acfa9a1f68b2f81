"""Memory of a host, and time of a training's updates, over the number of ranks: one copy of all, or one for each rank.

    python -m benchmarks.one_copy_per_host --picture docs/one-copy-per-host.svg

Starts jobs of 1, 2, 4 and 8 ranks. Each trains the perceptron of benchmarks.sharded_optimizer by Adam, once with
DistributedOptimizer and once with ZeroRedundancyOptimizer. The memory is that of all ranks, beyond what they had before
the model. The time is that of `step()` on the slowest rank, with the wait for the reduction.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from . import harness
from .harness import World
from .idle import memory_bytes
from .sharded_optimizer import DISTRIBUTED, SHARDED, Training

MIB = 1 << 20
NAMES = (DISTRIBUTED, SHARDED)


def on_every_rank(options: Any) -> None:
    """Measures both optimizers in this job. Rank 0 writes the result."""
    import perseus_like.torch as hvd

    torch.set_num_threads(1)
    world = World()
    makers: dict[str, Callable[[torch.nn.Module], Any]] = {
        DISTRIBUTED: lambda model: hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)),
        SHARDED: lambda model: hvd.ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-4),
    }

    def memory() -> float:
        gc.collect()
        world.barrier()
        found = hvd.allreduce(torch.tensor([memory_bytes()], dtype=torch.float64), op=hvd.Sum, name="memory")
        return float(found[0]) / MIB

    for make in makers.values():
        Training(True, make).step()  # loads code that both need
    result: dict[str, list[float]] = {}
    for name, make in makers.items():
        before = memory()
        training = Training(options.quick, make)
        for _ in range(2):
            training.step()
        used = memory() - before
        seconds = [world.most([training.step()])[0] for _ in range(2 if options.quick else options.steps)]
        result[name] = [used, 1e3 * statistics.median(seconds)]
        del training
    if world.rank == 0:
        options.result.write_text(json.dumps(result))
    world.barrier()


def draw(found: dict[int, dict[str, list[float]]], picture: Path) -> None:
    """Draws memory and time over the number of ranks."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "perseus_like"})  # the same bytes each time
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for place, (axes, label) in enumerate(zip(panels, ("memory of the host, MiB", "time of step(), ms"), strict=True)):
        for name in NAMES:
            axes.plot(list(found), [each[name][place] for each in found.values()], marker="o", label=name)
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(found), list(map(str, found)))
        axes.set_xlabel("ranks")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    panels[0].legend()
    figure.savefig(picture, metadata={"Date": None})


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = harness.parser("Memory and time of updates over the number of ranks.", seconds=0)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4, 8], help="ranks (default %(default)s)")
    parser.add_argument("--steps", type=int, default=15, help="that are measured (default %(default)s)")
    parser.add_argument("--picture", type=Path, help="an SVG file to draw")
    parser.add_argument("--result", type=Path, help="for the ranks")
    options = parser.parse_args(arguments)
    if harness.in_world():
        on_every_rank(options)
        return 0
    found: dict[int, dict[str, list[float]]] = {}
    print(f"| ranks | {' | '.join(f'{name}: MiB | ms' for name in NAMES)} |\n|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="perseus-one-copy-") as folder:
        for count in options.counts:
            options.np = count
            result = Path(folder, "result.json")
            code = harness.start_world("benchmarks.one_copy_per_host", [*arguments, "--result", str(result)], options)
            if code != 0:
                return code
            found[count] = json.loads(result.read_text())
            cells = [f"{value:.0f}" for name in NAMES for value in found[count][name]]
            print(f"| {count} | {' | '.join(cells)} |", flush=True)
    if options.picture is not None:
        draw(found, options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
