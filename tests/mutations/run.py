"""Undoes the mend of one past defect at a time, and checks that the tests which are named in its patch find the defect.

Each patch in this folder begins with lines `Defect:`, `Area:`, `Mended:` (a commit) and `Tests:` (pytest's arguments).
The program works on a copy of the sources in build/mutations, with environments that see the packages of .venv and of
.venv-mxnet. A patch that does not apply, or whose defect no test finds, is a failure.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

HERE = Path(__file__).parent.resolve()
ROOT = HERE.parents[1]
WORK = ROOT / "build" / "mutations"
TREE = WORK / "tree"
# The tests of one defect end long before this. The limit ends a hang, which does not count as found.
LIMIT_SECONDS = 900
TESTS_FAILED = 1  # pytest's exit code
Result = TypeVar("Result")


@dataclass(frozen=True)
class Mutation:
    name: str
    patch: Path
    area: str
    tests: str

    @property
    def changes_cxx(self) -> bool:
        return "+++ b/csrc/" in self.patch.read_text()


def mutation(patch: Path) -> Mutation:
    head = dict(line.split(": ", 1) for line in patch.read_text().splitlines()[:4])
    return Mutation(patch.stem, patch, head["Area"], head["Tests"])


def run(command: list[str | Path], **options: object) -> None:
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **options)  # type: ignore[call-overload]
    if done.returncode != 0:
        raise SystemExit(f"{shlex.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")


def copy_sources() -> None:
    """Copies the working tree's files that git knows, and keeps the times of files that have not changed."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout.split(b"\0")
    wanted = {Path(os.fsdecode(name)) for name in names if name and (ROOT / os.fsdecode(name)).is_file()}
    for file in wanted:
        source, copy = ROOT / file, TREE / file
        if not copy.exists() or copy.read_bytes() != source.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
            copy.chmod(source.stat().st_mode)
    for folder in ("csrc", "perseus_like", "adapters", "tests"):
        for copy in (TREE / folder).rglob("*"):
            if copy.is_file() and copy.relative_to(TREE) not in wanted and "__pycache__" not in copy.parts:
                copy.unlink()


def site_of(environment: Path) -> Path:
    paths = {"base": str(environment), "platbase": str(environment)}
    return Path(sysconfig.get_path("purelib", vars=paths))


def make_environment(name: str, first: str) -> None:
    """Makes an environment in TREE that sees the folder `first` and the packages of ROOT's environment of that name."""
    folder = TREE / name
    if not (folder / "bin" / "python").exists():
        venv.create(folder, symlinks=True)
    # The name of this file sorts after __editable__*.pth.
    (site_of(folder) / "packages.pth").write_text(f"{first}\n{site_of(ROOT / name)}\n")
    script = folder / "bin" / "pytest"
    script.write_text(f"#!{folder}/bin/python\nimport sys, pytest\nsys.exit(pytest.main())\n")
    script.chmod(0o755)


def install() -> None:
    """Compiles what has changed, without optimization, and installs links to the files of TREE."""
    variables = {"PERSEUS_BUILD_FOLDER": str(WORK / "core"), "SETUPTOOLS_SCM_PRETEND_VERSION": "0.0.1"}
    variables["CMAKE_ARGS"] = "-DCMAKE_BUILD_TYPE=Debug"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", TREE / ".venv/bin/python", "install", "--quiet"]
    run([*pip, "--no-deps", "--no-build-isolation", "--editable", TREE], env=os.environ | variables)


def prepare() -> None:
    copy_sources()
    make_environment(".venv", "")
    install()
    (links,) = TREE.glob("build/__editable__.*")
    if (ROOT / ".venv-mxnet").exists():
        make_environment(".venv-mxnet", str(links))


def pytest(tests: str) -> tuple[int, str]:
    """Returns the exit code and the output of pytest with these arguments, which may follow variables."""
    words = shlex.split(tests)
    variables = dict(word.split("=", 1) for word in itertools.takewhile(lambda word: "=" in word, words))
    path = f"{TREE}/.venv/bin:{ROOT}/.venv/bin:{os.environ['PATH']}"
    command = [str(TREE / ".venv/bin/pytest"), "-q", "-x", "-p", "no:cacheprovider", *words[len(variables) :]]
    try:
        done = subprocess.run(
            command,
            cwd=TREE,
            env={**os.environ, "PATH": path, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"the tests did not end within {LIMIT_SECONDS} s"
    return done.returncode, done.stdout


def first_failed(output: str) -> str:
    failed = (line.partition(" ")[2] for line in output.splitlines() if line.startswith("FAILED "))
    return next(failed, "").partition(" - ")[0]


def apply(each: Mutation, *options: str) -> str:
    """Applies a patch to TREE, or undoes it with `--reverse`. Returns why this is not possible, or an empty text."""
    command: list[str | Path] = ["git", "apply", "--directory", str(TREE.relative_to(ROOT)), *options, each.patch]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode != 0 else ""


def fault_without(each: Mutation) -> str:
    """Returns why the tests cannot find this defect: they fail without it. An empty text: they pass."""
    code, output = pytest(each.tests)
    return f"the tests do not pass without the defect:\n{output[-4000:]}" if code != 0 else ""


def outcome(each: Mutation) -> tuple[bool, str]:
    """Returns whether the tests find the defect, and by which test, or why not."""
    if error := apply(each):
        return False, f"the patch does not apply; renew it: {error}"
    try:
        if each.changes_cxx:
            install()  # also compiles again what an earlier patch has changed
        code, output = pytest(each.tests)
    finally:
        if error := apply(each, "--reverse"):
            raise SystemExit(f"{each.name} cannot be undone: {error}")
    if code != TESTS_FAILED or not first_failed(output):
        return False, f"no test finds the defect; pytest ended with {code}:\n{output[-4000:]}"
    return True, first_failed(output)


def timed(function: Callable[..., Result], *arguments: object) -> tuple[Result, float]:
    """Returns the function's result, and the seconds that it took."""
    begin = time.monotonic()
    return function(*arguments), time.monotonic() - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="mutations to run (default: all)")
    names = parser.parse_args().names
    mutations = [mutation(patch) for patch in sorted(HERE.glob("*.patch"))]
    if unknown := set(names) - {each.name for each in mutations}:
        parser.error(f"there is no {', '.join(sorted(unknown))}.patch in {HERE}")
    _, seconds = timed(prepare)
    print(f"prepared in {seconds:.0f} s", flush=True)
    chosen = [each for each in mutations if each.name in names or not names]
    # From the first patch of C++ on, the core is not compiled without a defect.
    python, cxx = ([each for each in chosen if each.changes_cxx is is_cxx] for is_cxx in (False, True))
    missed = 0
    for group in [*([each] for each in python), cxx]:
        without = {each.name: timed(fault_without, each) for each in group}
        for each in group:
            fault, before = without[each.name]
            (is_found, text), after = timed(outcome, each) if not fault else ((False, fault), 0)
            missed += not is_found
            word = "found" if is_found else "MISSED"
            print(f"{word} {each.name} ({each.area}, {before:.0f} + {after:.0f} s): {text}", flush=True)
    print(f"{len(chosen) - missed} passed, {missed} failed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
