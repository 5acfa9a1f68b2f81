"""Copies the sources of the site of `make docs` to a folder, at the same relative paths, so that links stay valid.

    python docs/site/stage.py build/docs

A README.md becomes the index.md of its folder. Files that a document links to are copied too. A link to something that
does not exist fails here or in `mkdocs build --strict`. The page of the launcher's options is written from its parser.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

from perseus_like.launch.command_line import make_parser

ROOT = Path(__file__).parents[2].resolve()
# A reader who searches the words of an error wants to know what to do, and seldom why something was decided.
BOOSTS = {"docs/troubleshooting.md": 10, "docs/decisions/": 0.2, "tests/": 0.2}
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")


def documents() -> list[Path]:
    """Every Markdown file that git knows. A symbolic link is not a document of its own."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = [ROOT / line for line in listed.stdout.splitlines() if not line.startswith(".github/")]
    return [page for page in found if not page.is_symlink()]


def staged_name(link: str) -> str:
    """The link after README.md was renamed to index.md."""
    return re.sub(r"(^|/)README\.md$", r"\1index.md", link)


def stage(page: Path, to: Path) -> None:
    """Copies a page and the files it links to."""

    def replaced(found: re.Match[str]) -> str:
        link = found[2]
        if "://" in link or link.startswith("mailto:"):
            return found[0]
        target = page.parent / link
        if target.is_file() and target.suffix != ".md":
            copy = to / target.resolve().relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(target, copy)
        return found[1] + staged_name(link) + found[3]

    name = page.relative_to(ROOT).as_posix()
    copy = to / staged_name(name)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(front_matter(name) + LINK.sub(replaced, page.read_text()))


def front_matter(name: str) -> str:
    """Returns the head of a page, which says how important it is in a search."""
    boosts = [boost for start, boost in BOOSTS.items() if name.startswith(start)]
    return f"---\nsearch:\n  boost: {boosts[0]}\n---\n\n" if boosts else ""


def write_launcher_page(to: Path) -> None:
    """Writes the page of the options of `perseusrun`, with a table for each group of options."""
    parser = make_parser()
    page = "# Options of perseusrun\n\n[Launching](../launching.md) explains how jobs start.\n"
    for group in parser._action_groups:
        shown = [action for action in group._group_actions if action.help not in (None, argparse.SUPPRESS)]
        if shown and group.title:
            page += f"\n## {group.title[0].upper()}{group.title[1:]}\n\n| option | meaning |\n|---|---|\n"
            page += "".join(row_of(parser, action) for action in shown)
    (to / "docs/api/launcher.md").write_text(page)


def row_of(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Returns the line of a table for an option: its names, its value and its help text."""
    formatter = parser._get_formatter()
    meaning = " ".join(formatter._expand_help(action).split()).replace("|", "\\|").replace("<", "&lt;")
    value = "" if action.nargs == 0 else f" {formatter._format_args(action, action.dest.upper())}"
    names = ", ".join(f"`{name}{value}`" for name in action.option_strings or [action.dest])
    return f"| {names} | {meaning} |\n"


def main(to: Path) -> None:
    """Makes the folder anew."""
    shutil.rmtree(to, ignore_errors=True)
    for page in documents():
        stage(page, to)
    write_launcher_page(to)
    shutil.copy(Path(__file__).with_name("site.css"), to)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
