"""Checks that csrc/README.md names every file to change for a new verb, transport, setting, adapter or error."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
README = (ROOT / "csrc/README.md").read_text()
ROW = re.compile(r"^\| `([^`]+)` \| .+ \| `([^`]+)` \|$", re.MULTILINE)
# For each recipe: a pattern of an existing example, which occurs in each named file, and the folders of those files.
EXAMPLES = {
    "A new verb": (r"(?i)reduce_?scatter", ("csrc", "perseus_like", "adapters")),
    "A new transport": (r"SelfFabric|transport/self/", ("csrc/transport", "csrc/engine", "csrc/bind")),
    "A new setting": (r"PERSEUS_ALLREDUCE_MODE", ("csrc", "perseus_like", "adapters", "docs", "tests/hosts")),
    "A new adapter": (r"\bmxnet\b", ("perseus_like",)),
    "A new error text": (
        r'"timed_out"|timed_out = \d|\btimed_out,|, timed_out\)',
        ("csrc/base", "perseus_like", "adapters"),
    ),
}


def rows(recipe: str) -> list[tuple[str, str]]:
    """Returns the rows of a recipe: each has a pattern of files, and the text to look for in them."""
    section = re.search(rf"^### {recipe}\n(.*?)(?=^##)", README, re.MULTILINE | re.DOTALL)
    assert section is not None, f"csrc/README.md has no recipe {recipe!r}"
    return ROW.findall(section[1])


def files(pattern: str) -> set[Path]:
    return {path for path in ROOT.glob(pattern) if path.is_file()}


def is_written_here(path: Path) -> bool:
    return path.suffix in {".h", ".cc", ".cu", ".py", ".pyi", ".json", ".md"} and "__pycache__" not in path.parts


def test_each_named_file_contains_the_text() -> None:
    assert [
        f"{recipe}: {file} does not contain {sought!r}"
        for recipe in EXAMPLES
        for file, sought in rows(recipe)
        if not any(sought in path.read_text() for path in files(file) if "__pycache__" not in path.parts)
    ] == []


def not_named(recipe: str) -> list[str]:
    """Returns the files that have the recipe's example and are in none of its rows."""
    example, folders = EXAMPLES[recipe]
    named = {path for file, _ in rows(recipe) for path in files(file)}
    having = {
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and is_written_here(path) and re.search(example, path.read_text(), re.MULTILINE)
    }
    ignored = {ROOT / "csrc/README.md", *(ROOT / "docs/decisions").glob("*")}
    # The recipe copies a transport's own folder as a whole.
    missing = {path for path in having - named - ignored if path.parent != ROOT / "csrc/transport/self"}
    return sorted(path.relative_to(ROOT).as_posix() for path in missing)


def test_the_recipes_name_every_file() -> None:
    assert {recipe: missing for recipe in EXAMPLES if (missing := not_named(recipe))} == {}
