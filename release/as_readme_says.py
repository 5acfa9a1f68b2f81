"""Does what README says, as an ordinary user without a compiler: a new environment, `pip install`, a job of two ranks.

    python3 as_readme_says.py VERSION [torch] [tensorflow] [numpy]

Runs in a folder with the programs with_torch.py, with_tensorflow.py and with_numpy.py. pip finds the release by
PIP_EXTRA_INDEX_URL. Needs Python's standard library alone. Prints a line for each framework; the exit code is 1 if one
of them failed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

REQUIREMENTS = {"torch": "perseus-like[torch]", "tensorflow": "perseus-like[tensorflow]", "numpy": "perseus-like"}
EXPECTED = {"torch": "rank 1 of 2: loss ", "tensorflow": "loss ", "numpy": "rank 1 of 2 agrees"}
INSTALL_SECONDS, RUN_SECONDS = 3600, 300


def main(version: str, frameworks: list[str]) -> int:
    """Returns the exit code."""
    compilers = [name for name in ("cc", "c++", "g++", "clang++") if shutil.which(name)]
    who = f"Python {sys.version.split()[0]}, user {os.getuid()}, {', '.join(compilers) or 'no compiler'}"
    results = [f"{framework}: {trial(framework, version)}" for framework in frameworks]
    print(who, *results, sep="\n  ", flush=True)
    return int(any(": FAILED" in result for result in results))


def trial(framework: str, version: str) -> str:
    """Returns what happened, in one line."""
    begin = time.monotonic()
    environment = Path(f"env-{framework}").resolve()
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    # The environment is as `activate` makes it.
    variables = {**os.environ, "PATH": f"{environment / 'bin'}:{os.environ['PATH']}"}
    try:
        done = run(["pip", "install", "--quiet", REQUIREMENTS[framework]], variables, INSTALL_SECONDS)
        if f"No matching distribution found for {framework}" in done.stderr:
            return f"no release of {framework} has a wheel for this Python"
        if done.returncode != 0:
            return f"FAILED: pip install {REQUIREMENTS[framework]}:\n{done.stderr[-2000:]}"
        installed = run(["pip", "show", "perseus-like"], variables, RUN_SECONDS).stdout
        if f"Version: {version}\n" not in installed:
            return f"FAILED: pip has chosen another release than {version}:\n{installed[:200]}"
        took = f"pip {time.monotonic() - begin:.0f} s"
        begin = time.monotonic()
        command = ["perseusrun", "-np", "2", f"with_{framework}.py"]
        done = run(command, variables, RUN_SECONDS)
        if done.returncode != 0 or EXPECTED[framework] not in done.stdout:
            return f"FAILED: {' '.join(command)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return f"right ({took}, job {time.monotonic() - begin:.0f} s)"
    finally:
        shutil.rmtree(environment, ignore_errors=True)


def run(command: list[str], variables: dict[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=seconds, check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:] or list(REQUIREMENTS)))
