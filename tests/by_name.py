"""Runs tests of in_world/ by name: `pytest tests/world -k NAME --ranks 2`.

A world of N ranks starts for each group of files (numpy, torch, …) that has matching tests, and all its ranks run these
tests. The first failure ends a world, because its ranks may not agree any more.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = [ROOT / "tests/world/in_world", ROOT / "tests/distributed/in_world"]
STOP_SECONDS = 30
# This matches what pytest prints about failures, to its end.
REPORT = re.compile(r"^=+ (?:FAILURES|ERRORS) =+$.*", re.MULTILINE | re.DOTALL)
# Lines of perseusrun's output that do not help: what a rank prints is in its file, and pytest's frames hide the test's.
NOISE = r"^\[\d+\]<stdout>:|/(?:_pytest|pluggy|pytest)/|<frozen runpy>|Extension modules:"


@dataclass
class World:
    """A world to start: the files that its ranks run, as pytest's arguments, with the Python that has the framework."""

    name: str
    files: list[str]
    python: Path = Path(sys.executable)
    variables: dict[str, str] = field(default_factory=dict)
    missing: str = ""


def pytest_on_a_rank(files: Sequence[str], *options: str) -> list[str]:
    """Returns the arguments for Python that run these files of in_world/ on a rank, until the first failure.

    The rank runs in another folder, because `-m pytest` would import the source tree before the installed package.
    """
    return [
        *["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:tmpdir", "--no-header"],
        "--disable-warnings",  # of the framework; tests assert this library's warnings
        *["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), *options, *files],
    ]


def all_worlds() -> Iterator[World]:
    """Yields a world for each group of files. Files that run with several releases run with one."""
    from tests.distributed import test_worlds as distributed
    from tests.world import test_worlds as world

    in_world, of_torch = FOLDERS
    for name, files in world.GROUPS.items():
        if name in world.OLDER_RELEASES or name == "keras_on_torch":
            continue
        found = World(name, [str(in_world / file) for file in files])
        if name in world.ENVIRONMENTS:
            folder = ROOT / f".venv-{world.ENVIRONMENTS[name]}"
            found.python = folder / "bin" / "python"
            found.missing = "" if found.python.exists() else f"there is no {folder.name}: `make environments` makes it"
        elif name in world.NEEDS and importlib.util.find_spec(world.NEEDS[name]) is None:
            found.missing = f"{world.NEEDS[name]} is not installed"
        if name in world.BACKENDS:
            found.variables = {"KERAS_BACKEND": world.BACKENDS[name]}
        yield found
    yield World("torch.distributed", [str(of_torch / file) for file in distributed.FILES])


def chosen(world: World, arguments: Sequence[str], keyword: str) -> list[str]:
    """Returns those of the world's files, or of their tests, that pytest's arguments and the words after -k may choose.

    Importing a framework takes seconds, so a file is left out if it contains no word of the expression.
    """
    words = re.findall(r"\w+", keyword.lower())
    wanted = [] if "not" in words else [word for word in words if word not in ("and", "or")]
    found = []
    for file in world.files:
        text = (file + Path(file).read_text()).lower()
        if wanted and not any(word in text for word in wanted):
            continue
        for argument in arguments:
            path, colons, test = argument.partition("::")
            if Path(file).is_relative_to(Path(path).resolve()):
                found.append(file + colons + test)
    return found


@dataclass
class Ended:
    """A world that has ended: its exit code, each rank's standard output, and what else perseusrun printed."""

    code: int
    ranks: list[str]
    launcher: str
    is_interrupted: bool = False

    def failures(self) -> dict[str, list[int]]:
        """Returns the ranks on which each failed test failed."""
        found: dict[str, list[int]] = {}
        for rank, text in enumerate(self.ranks):
            for test in re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE):
                found.setdefault(test, []).append(rank)
        return found

    def first_rank(self) -> int:
        """Returns the first rank with a failure that is not the loss of another rank."""
        for rank, text in enumerate(self.ranks):
            if re.search(REPORT, text) and "PeerLostError" not in text:
                return rank
        named = re.search(r"first failure: rank (\d+)", self.launcher)
        return int(named[1]) if named else 0

    def passed(self) -> list[str]:
        return [(re.findall(r"(\d+) passed", text) or ["0"])[-1] for text in self.ranks]


def run_world(world: World, ranks: int, options: Sequence[str], show_all: bool) -> Ended:
    """Runs the world to its end. With `show_all`, the ranks' output goes to the terminal at once, too."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        launcher = [str(world.python), "-m", "perseus_like.launch", "-np", str(ranks), "--output-filename", "ranks"]
        process = subprocess.Popen(
            [*launcher, str(world.python), *pytest_on_a_rank(world.files, *options)],
            cwd=folder,
            # Without a buffer, a rank has written its failure before it ends and other ranks notice.
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONUNBUFFERED": "1",
                **world.variables,
                "PERSEUS_IN_WORLD": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=None if show_all else subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        is_interrupted = False
        try:
            printed = process.communicate()[0] or ""
        except KeyboardInterrupt:  # the terminal has sent it to perseusrun, too
            is_interrupted, printed = True, ""
            with contextlib.suppress(subprocess.TimeoutExpired):
                printed = process.communicate(timeout=STOP_SECONDS)[0] or ""
            process.kill()
        written = [folder / "ranks" / f"rank.{rank}" / "stdout" for rank in range(ranks)]
        texts = [file.read_text(errors="replace").strip() if file.exists() else "" for file in written]
        here = os.path.relpath(ROOT, folder) + os.sep
        own = [line for line in printed.splitlines() if not re.search(NOISE, line)]
        return Ended(process.wait(), [text.replace(here, "") for text in texts], "\n".join(own), is_interrupted)


def report(world: World, ended: Ended) -> bool:
    """Prints how the world ended. Returns whether it passed."""
    size = len(ended.ranks)
    ranks = f"{size} rank" + "s" * (size > 1)
    if ended.code == 0 and len(set(ended.passed())) == 1:
        skipped = re.findall(r"^SKIPPED .*", ended.ranks[0], re.MULTILINE)
        print("\n".join([*skipped, f"{world.name}: {ended.ranks[0].splitlines()[-1]} on each of {ranks}"]))
        return True
    first = ended.first_rank()
    failure = re.search(REPORT, ended.ranks[first])
    print(f"{world.name}: " + ("interrupted" if ended.is_interrupted else f"the first failure is on rank {first}"))
    print(failure[0] if failure else f"{ended.ranks[first]}\n{ended.launcher}".strip())
    if ended.code == 0:
        print(
            f"{world.name}: the ranks ran different tests: {', '.join(ended.passed())} passed on ranks 0 to {size - 1}"
        )
    for test, failed in ended.failures().items():
        where = f"all {ranks}" if len(failed) == size else f"rank {', '.join(map(str, failed))} of {size}"
        print(f"{world.name}: {test} failed on {where}")
    return False


def run(config: pytest.Config) -> int:
    """Runs the tests that `config` names on `--ranks` ranks, and returns pytest's exit code."""
    ranks, keyword = config.option.ranks, config.option.keyword
    if ranks < 1:
        print(f"--ranks {ranks}: there must be at least one rank")
        return int(pytest.ExitCode.USAGE_ERROR)
    options = ["-ra", "--tb", "short" if config.option.tbstyle == "auto" else config.option.tbstyle]
    options += ["-k", keyword] if keyword else []
    options += ["-m", config.option.markexpr] if config.option.markexpr else []
    show_all = config.option.capture == "no"
    options += ["-s"] if show_all else []
    has_run, codes = False, {0}
    for world in all_worlds():
        world.files = chosen(world, config.args, keyword)
        if not world.files:
            continue
        if world.missing:
            print(f"{world.name}: not run: {world.missing}")
            continue
        if world.python != Path(sys.executable):
            print(f"{world.name}: with the package that {world.python.parents[1].name} has")
        begin = time.monotonic()
        ended = run_world(world, ranks, options, show_all)
        if ended.code == pytest.ExitCode.NO_TESTS_COLLECTED:
            continue
        has_run = True
        codes.add(0 if report(world, ended) else 1)
        print(f"{world.name}: {time.monotonic() - begin:.1f} s", flush=True)
        if ended.is_interrupted:
            return int(pytest.ExitCode.INTERRUPTED)
    if not has_run:
        where = " ".join(os.path.relpath(argument) for argument in config.args)
        named = f" and matches -k {keyword!r}" if keyword else ""
        print(f"no test in {where} runs in a world{named}; `git grep 'def test_' 'tests/*/in_world'` lists these tests")
        return int(pytest.ExitCode.NO_TESTS_COLLECTED)
    return max(codes)
