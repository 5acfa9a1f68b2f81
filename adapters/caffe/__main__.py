"""`python -m perseus_like.caffe train --solver solver.prototxt`: Caffe's own command, on all ranks."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence

from perseus_like import basics

from .place import init, load_caffe
from .settings import Settings
from .signals import EFFECTS, SNAPSHOT, STOP, Requests
from .solver import DistributedSolver


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    load_caffe()  # says so before the job starts, where there is none
    basics.init()
    settings = Settings(options.solver)
    init(_device(options.gpu or _gpu_of(settings)))
    requests = Requests({signal.SIGINT: options.sigint_effect, signal.SIGHUP: options.sighup_effect})
    solver = DistributedSolver(_make_solver(options, settings), requests)
    if options.snapshot is not None:
        solver.restore(options.snapshot)
    for weights in options.weights.split(",") if options.weights else ():
        _copy_weights(solver, weights)
    if not solver.solve() and settings.snapshots_after_training(solver.iter):
        solver.snapshot()
    return 0


def _parser() -> argparse.ArgumentParser:
    """Caffe's flags begin with one dash or two."""
    parser = argparse.ArgumentParser(prog="python -m perseus_like.caffe", description=__doc__)
    train = parser.add_subparsers(dest="command", required=True).add_parser("train", help="train a net")
    train.add_argument("--solver", "-solver", required=True, help="the solver's prototxt")
    begin = train.add_mutually_exclusive_group()
    begin.add_argument("--snapshot", "-snapshot", help="a .solverstate to go on from")
    begin.add_argument("--weights", "-weights", help="a .caffemodel to begin with; several with commas between")
    train.add_argument(
        "--gpu",
        "-gpu",
        help="auto: each rank the GPU of its local rank; numbers with commas between: one for each local "
        "rank; without it what the solver's file says, or the CPU",
    )
    train.add_argument("--iterations", "-iterations", type=int, default=0, help="steps, in place of max_iter")
    train.add_argument("--level", "-level", type=int, default=0, help="the level of layers to use")
    train.add_argument("--stage", "-stage", default="", help="the stages of layers to use, with commas between")
    for name, default in (("sigint", STOP), ("sighup", SNAPSHOT)):
        switches = (f"--{name}_effect", f"-{name}_effect")
        what = f"what {name.upper()} to any rank does after the step on all of them (default {default})"
        train.add_argument(*switches, choices=EFFECTS, default=default, help=what)
    return parser


def _device(gpu: str | None) -> int | None:
    if gpu is None:
        return None
    if gpu in ("auto", "all"):
        return basics.local_rank()
    numbers = [int(number) for number in gpu.split(",")]
    if basics.local_rank() >= len(numbers):
        raise ValueError(f"--gpu {gpu} names {len(numbers)} devices, but this host has {basics.local_size()} ranks")
    return numbers[basics.local_rank()]


def _gpu_of(settings: Settings) -> str | None:
    """The value of --gpu that the solver's file stands for. None unless it names the mode: Caffe's default is a GPU."""
    if settings.get("solver_mode", "CPU") != "GPU":
        return None
    return settings.get("device_id", "0") if basics.local_size() == 1 else "auto"


def _make_solver(options: argparse.Namespace, settings: Settings) -> object:
    caffe = load_caffe()
    if not (options.level or options.stage or options.iterations):
        return caffe.get_solver(options.solver)
    with tempfile.NamedTemporaryFile("w", suffix=".prototxt") as file:
        file.write(settings.with_switches(options.level, options.stage, options.iterations))
        file.flush()
        return caffe.get_solver(file.name)


def _copy_weights(solver: DistributedSolver, path: str) -> None:
    for net in [solver.net, *getattr(solver, "test_nets", ())]:
        net.copy_from(path)


if __name__ == "__main__":
    sys.exit(main())
