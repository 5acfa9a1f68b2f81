"""Copies the sources of the site of `make docs` to a folder, at the same relative paths, so that links stay valid.

    python docs/site/stage.py build/docs

A README.md becomes the index.md of its folder. Files that a document links to are copied too. A link to something that
does not exist fails here or in `mkdocs build --strict`. The page of the launcher's options is written from `--help`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2].resolve()
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")


def documents() -> list[Path]:
    """Every Markdown file that git knows."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / line for line in listed.stdout.splitlines() if not line.startswith(".github/")]


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

    copy = to / staged_name(page.relative_to(ROOT).as_posix())
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(LINK.sub(replaced, page.read_text()))


def write_launcher_page(to: Path) -> None:
    """Writes the page of the options of `perseusrun`."""
    shown = subprocess.run(
        [sys.executable, "-m", "perseus_like.launch", "--help-all"],
        cwd=to,
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "100"},
    )
    head = "# Options of perseusrun\n\n[Launching](../launching.md) explains how jobs start. `perseusrun --help`:\n\n"
    (to / "docs/api/launcher.md").write_text(f"{head}```text\n{shown.stdout}```\n")


def main(to: Path) -> None:
    """Makes the folder anew."""
    shutil.rmtree(to, ignore_errors=True)
    for page in documents():
        stage(page, to)
    write_launcher_page(to)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
