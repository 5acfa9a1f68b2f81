"""Runs the programs of the steps on a GPU one after another in this process, which is one of two ranks.

    perseusrun -np 2 python tests/benchmarks/gpu_programs.py OUTPUT

Each writes to OUTPUT.NAME.RANK. A new process for each would spend most of its time on imports.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks" / ".."))
    from benchmarks.fifteen_minutes import Step, gpu_steps

    def program_of(step: Step) -> list[str]:
        """Returns the module and its arguments. Empty for a test, and for the step that kills a rank."""
        command = list(step.command)
        is_program = "-m" in command and command[command.index("-m") + 1].startswith("benchmarks.")
        return command[command.index("-m") + 1 :] if is_program and not step.tool and step.name != "lost_rank" else []

    output, rank = sys.argv[1], os.environ["PERSEUS_RANK"]
    for step in gpu_steps(small=True):
        if program := program_of(step):
            sys.argv = program
            with Path(f"{output}.{step.name}.{rank}").open("w") as file, contextlib.redirect_stdout(file):
                runpy.run_module(program[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
