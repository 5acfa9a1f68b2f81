"""`rapidformer bench OPTIONS --compare "" "--mixed-precision" …`: speed and memory of sets of switches, as a table."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import launch
from .checks import check
from .options import InputError, parse_known

RESULT_VARIABLE = "RAPIDFORMER_RESULT"


@dataclass
class Measured:
    """The result of one set of switches."""

    switches: str
    samples_per_second: float
    deviation: float
    peak_memory_mib: float
    loss: float


def run(arguments: Sequence[str]) -> int:
    """Measures each set of switches in a job of its own, one after the other, and prints the table."""
    if "--compare" not in arguments:
        raise InputError(
            'bench needs --compare and sets of switches behind it, for example --compare "" "--mixed-precision"'
        )
    place = list(arguments).index("--compare")
    common, sets = list(arguments[:place]), list(arguments[place + 1 :])
    if not sets:
        raise InputError('--compare needs sets of switches behind it; "" is the set without any')
    for switches in sets:
        args, others = parse_known([*common, *shlex.split(switches)])
        if others and args.user_script is None:
            raise InputError(f"bench: unknown options {' '.join(others)}; common options come before --compare")
        try:
            check(args, launch.job_size(os.environ))
        except InputError as error:
            raise InputError(f"with the switches {switches!r}: {error}") from None
    measured = [measure(common, switches) for switches in sets]
    print("\n".join(table(measured)))
    return 0


def measure(common: Sequence[str], switches: str) -> Measured:
    """Trains once with these switches."""
    from perseus_like.launch.program import module_command

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = [*module_command("rapidformer.__main__"), *common, *shlex.split(switches)]
        done = subprocess.run(
            command, env={**os.environ, RESULT_VARIABLE: str(file)}, capture_output=True, text=True, check=False
        )
        if done.returncode != 0 or not file.exists():
            print(done.stdout + done.stderr, file=sys.stderr)
            raise InputError(f"the training with the switches {switches!r} failed; its output is above")
        found = json.loads(file.read_text())
    numbers = (found["samples_per_second"], found["deviation"], found["peak_memory_mib"], found["losses"][-1])
    return Measured(switches, *numbers)


def table(measured: Sequence[Measured]) -> list[str]:
    """Returns the lines of a table in Markdown. Speed-ups are those over the first row."""
    lines = ["| switches | samples/s | speed-up | peak memory of a process | last loss |", "|---|---|---|---|---|"]
    for row in measured:
        times = row.samples_per_second / measured[0].samples_per_second if measured[0].samples_per_second else 0.0
        lines.append(
            f"| {row.switches or '(none)'} | {row.samples_per_second:.1f} ± {row.deviation:.1f} | {times:.2f}× "
            f"| {row.peak_memory_mib:.0f} MiB | {row.loss:.4f} |"
        )
    return lines
