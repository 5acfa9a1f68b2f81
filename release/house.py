"""Prints how large the project is: lines, files, names and calls, each beside its bar.

    python release/house.py            # what the sources say, and three walks through the installed package
    python release/house.py --sources  # without the walks, for any checkout: --root FOLDER

The limits are tests, too: tests/unit/sources/test_house.py, and for calls tests/world/in_world/torch/test_calls.py and
tests/distributed/in_world/test_calls.py. Lines are a report.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("csrc", "perseus_like", "adapters", "bindings")
CODE = {".cc", ".h", ".py", ".cu", ".cmake", ".txt", ".map", ".json", ".toml"}
MOST_METHODS = 25
# The names of these folders' files are Horovod's.
HOROVODS_PATHS = (("perseus_like", "common"), ("perseus_like", "runner"))
MOST_FILES = 20
MOST_TEST_FILES = 90
SHORT_FILE = 30
SHORT_FUNCTION = 3

LAUNCH = """
import json, sys
from pathlib import Path
import perseus_like

folder = str(Path(perseus_like.__file__).resolve().parent)
calls = []


def note(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.startswith(folder) and "<" not in frame.f_code.co_name:
        calls.append((frame.f_code.co_filename[len(folder) + 1 :], frame.f_code.co_name))


from perseus_like.launch import main

sys.setprofile(note)
try:
    main(["-np", "2", "true"])
finally:
    sys.setprofile(None)
    Path(sys.argv[1]).write_text(json.dumps(calls))
"""

Calls = list[tuple[str, str]]


def files(root: Path, *folders: str) -> list[Path]:
    """Returns the files that git knows in these folders, with links and generated assembler left out."""
    listed = subprocess.run(["git", "ls-files", *folders], cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    paths = [root / line for line in listed.stdout.splitlines()]
    return [path for path in paths if path.suffix in CODE and path.is_file() and not path.is_symlink()]


def lines_of(paths: Iterable[Path]) -> int:
    return sum(path.read_text().count("\n") for path in paths)


def classes(paths: Iterable[Path]) -> Iterator[ast.ClassDef]:
    for path in paths:
        if path.suffix == ".py":
            yield from (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef))


def broad_classes(paths: Iterable[Path]) -> list[str]:
    """Returns the Python classes with more than MOST_METHODS public methods in their bodies."""
    return [
        node.name
        for node in classes(paths)
        if sum(isinstance(part, ast.FunctionDef) and not part.name.startswith("_") for part in node.body) > MOST_METHODS
    ]


def replacing_decorators(paths: Iterable[Path]) -> list[str]:
    """Returns the decorators of classes that set attributes by name: functions that use `setattr` on their argument."""
    setters = {
        node.name
        for path in paths
        if path.suffix == ".py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and any(name.id == "setattr" for name in names_in(node))
    }
    used = {ast.unparse(word).split("(")[0].split(".")[-1] for node in classes(paths) for word in node.decorator_list}
    return sorted(setters & used)


def names_in(node: ast.AST) -> Iterator[ast.Name]:
    return (part for part in ast.walk(node) if isinstance(part, ast.Name))


def full_folders(root: Path) -> list[str]:
    counts = Counter(path.parent.relative_to(root) for path in files(root, *SOURCES, "tests", "benchmarks"))
    most = {Path("tests/cpp"): MOST_TEST_FILES}
    return sorted(f"{folder} {count}" for folder, count in counts.items() if count > most.get(folder, MOST_FILES))


def double_names(root: Path) -> list[str]:
    """Returns the names that two files of one subtree have. A transport, or an adapter, is a subtree."""
    seen: dict[tuple[str, str], list[Path]] = {}
    for path in files(root, *SOURCES):
        parts = path.relative_to(root).parts
        subtree = "/".join(parts[:2]) if parts[0] in {"adapters", "bindings"} else parts[0]
        if parts[:3] == ("adapters", "tensorflow", "keras") or parts[:2] in HOROVODS_PATHS:
            subtree = "/".join(parts[:3])
        if parts[:2] == ("csrc", "transport"):
            subtree = "/".join(parts[:3])
        if path.suffix in {".py", ".cc"} and path.name not in {"__init__.py", "__main__.py"}:
            seen.setdefault((subtree, path.name), []).append(path)
    return sorted(f"{subtree}: {name}" for (subtree, name), paths in seen.items() if len(paths) > 1)


def short_modules(paths: Iterable[Path]) -> list[str]:
    """Returns the modules of under SHORT_FILE lines. A C++ header and its source are one module."""
    lines: Counter[Path] = Counter()
    for path in paths:
        lines[path.with_suffix("") if path.suffix in {".cc", ".h"} else path] += lines_of([path])
    return [str(path) for path, count in lines.items() if count < SHORT_FILE]


def short_functions(paths: Iterable[Path]) -> list[str]:
    """Returns the functions of one to three lines that one place calls, which is in their file.

    Public names that another file has are left out: other files call them, or they belong to an interface.
    """
    texts = {path: path.read_text() for path in paths if path.suffix == ".py"}
    words = {path: Counter(re.findall(r"\w+", text)) for path, text in texts.items()}
    in_files = Counter(word for counts in words.values() for word in counts)
    found = []
    for path, text in texts.items():
        nodes = list(ast.walk(ast.parse(text)))
        calls = {ast.unparse(node.func).rpartition(".")[2]: node.lineno for node in nodes if isinstance(node, ast.Call)}
        for node in nodes:
            if not isinstance(node, ast.FunctionDef) or node.end_lineno is None or node.decorator_list:
                continue
            body = node.body[1:] if ast.get_docstring(node) else node.body
            is_short = 0 < node.end_lineno - (body[0].lineno if body else 0) + 1 <= SHORT_FUNCTION
            is_called_once = words[path][node.name] == 2 and node.name in calls
            # An override calls the method of its base class by its own name.
            calls_itself = node.lineno <= calls.get(node.name, 0) <= node.end_lineno
            is_own = node.name.startswith("_") or in_files[node.name] == 1
            if is_short and is_called_once and is_own and not calls_itself:
                found.append(f"{path}:{node.lineno} {node.name}")
    return found


def from_sources(root: Path) -> list[tuple[str, object, str]]:
    sources = files(root, *SOURCES)
    makefile = (root / "Makefile").read_text()
    targets = {name for line in re.findall(r"^\.PHONY:(.*)", makefile, re.MULTILINE) for name in line.split()}
    names_verb = [path for path in sources if re.search(r"reduce_?scatter", path.read_text(), re.IGNORECASE)]
    return [
        ("lines of the sources", lines_of(sources), "≤ 64,000"),
        ("source files that name reduce-scatter", len(names_verb), "≤ 32"),
        (f"Python classes with over {MOST_METHODS} public methods", ", ".join(broad_classes(sources)) or 0, "0"),
        ("class decorators that replace methods by name", ", ".join(replacing_decorators(sources)) or 0, "0"),
        (f"folders over {MOST_FILES} files", ", ".join(full_folders(root)) or 0, "0"),
        ("file names twice in one subtree", ", ".join(double_names(root)) or 0, "0"),
        (
            f"functions of at most {SHORT_FUNCTION} lines with one caller in their file",
            len(short_functions(sources)),
            "≤ 50",
        ),
        (f"files under {SHORT_FILE} lines, a header with its source", len(short_modules(sources)), "≤ 40"),
        ("lines of the Makefile; its targets", f"{makefile.count(chr(10))}; {len(targets)}", "≤ 200; 10"),
        ("pages of decisions", len(list((root / "docs/decisions").glob("*.md"))), "about 30"),
        ("lines of tests", lines_of(files(root, "tests")), "≤ 44,000"),
        ("lines of benchmarks", lines_of(files(root, "benchmarks")), "≤ 3,000"),
    ]


def calls_of(command: list[str | Path]) -> Calls:
    """Runs a command that writes its calls into the file that is its last word."""
    with tempfile.TemporaryDirectory() as name:
        result = Path(name, "calls.json")
        subprocess.run([sys.executable, *command, result], cwd=name, check=True)
        return [(file, function) for file, function in json.loads(result.read_text())]


def walk(name: str) -> Calls:
    ranks = ["-m", "perseus_like.launch", "-np", "2", sys.executable]
    return calls_of([*ranks, ROOT / "tests/walks.py", name])


def counted(calls: Calls) -> str:
    return f"{len(calls)} in {len({file for file, _ in calls})}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--sources", action="store_true")
    options = parser.parse_args()
    rows = from_sources(options.root)
    if not options.sources:
        rows.append(("calls and files of one gradient", counted(walk("gradient")), "≤ 26 in 6"))
        rows.append(("calls and files of dist.all_reduce", counted(walk("all_reduce")), "≤ 14 in 4"))
        rows.append(("calls of the launcher for two ranks", len(calls_of(["-c", LAUNCH])), "≤ 700"))
    width = max(len(name) for name, _, _ in rows)
    for name, value, bar in rows:
        print(f"{name:{width}}  {bar:>10}  {value}")


if __name__ == "__main__":
    main()
