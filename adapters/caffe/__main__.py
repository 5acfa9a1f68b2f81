"""`python -m perseus_like.caffe train --solver solver.prototxt`: Caffe's own command, on all ranks."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence

from perseus_like import world

from .caffe_setup import init, load_caffe
from .settings import Settings
from .signals import EFFECTS, SNAPSHOT, STOP, SignalRequests
from .solver import DistributedSolver


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    load_caffe()  # raises before the job starts if pycaffe is missing
    world.init()
    settings = Settings(options.solver)
    init(_device(options.gpu or _gpu_of(settings)))
    requests = SignalRequests({signal.SIGINT: options.sigint_effect, signal.SIGHUP: options.sighup_effect})
    solver = DistributedSolver(_make_solver(options, settings), requests)
    if options.snapshot is not None:
        solver.restore(options.snapshot)
    for weights in options.weights.split(",") if options.weights else ():
        for net in [solver.net, *getattr(solver, "test_nets", ())]:
            net.copy_from(weights)
    if not solver.solve() and settings.snapshots_after_training(solver.iter):
        solver.snapshot()
    return 0


def _parser() -> argparse.ArgumentParser:
    """Returns the parser. Caffe's options begin with one dash or two."""
    parser = argparse.ArgumentParser(prog="python -m perseus_like.caffe", description=__doc__)
    train = parser.add_subparsers(dest="command", required=True).add_parser("train", help="train a net")
    train.add_argument("--solver", "-solver", required=True, help="the solver's prototxt")
    begin = train.add_mutually_exclusive_group()
    begin.add_argument("--snapshot", "-snapshot", help="a .solverstate file to continue from")
    begin.add_argument(
        "--weights", "-weights", help="a .caffemodel file with the first weights; several, separated by commas"
    )
    train.add_argument(
        "--gpu",
        "-gpu",
        help="auto: each rank uses the GPU of its local rank; numbers, separated by commas: one for each local "
        "rank; default: the device in the solver's file, or the CPU",
    )
    train.add_argument("--iterations", "-iterations", type=int, default=0, help="number of steps, instead of max_iter")
    train.add_argument("--level", "-level", type=int, default=0, help="level of the layers to use")
    train.add_argument("--stage", "-stage", default="", help="stages of the layers to use, separated by commas")
    for name, default in (("sigint", STOP), ("sighup", SNAPSHOT)):
        switches = (f"--{name}_effect", f"-{name}_effect")
        what = f"action of all ranks after the current step if any rank receives {name.upper()} (default {default})"
        train.add_argument(*switches, choices=EFFECTS, default=default, help=what)
    return parser


def _device(gpu: str | None) -> int | None:
    if gpu is None:
        return None
    if gpu in ("auto", "all"):
        return world.local_rank()
    numbers = [int(number) for number in gpu.split(",")]
    if world.local_rank() >= len(numbers):
        raise ValueError(
            f"--gpu {gpu}: {len(numbers)} devices for {world.local_size()} ranks of this host; list one for each"
        )
    return numbers[world.local_rank()]


def _gpu_of(settings: Settings) -> str | None:
    """Returns the value of --gpu for the solver's file. None unless the file sets the mode."""
    if settings.get("solver_mode", "CPU") != "GPU":
        return None
    return settings.get("device_id", "0") if world.local_size() == 1 else "auto"


def _make_solver(options: argparse.Namespace, settings: Settings) -> object:
    caffe = load_caffe()
    if not (options.level or options.stage or options.iterations):
        return caffe.get_solver(options.solver)
    with tempfile.NamedTemporaryFile("w", suffix=".prototxt") as file:
        file.write(settings.with_switches(options.level, options.stage, options.iterations))
        file.flush()
        return caffe.get_solver(file.name)


if __name__ == "__main__":
    sys.exit(main())
