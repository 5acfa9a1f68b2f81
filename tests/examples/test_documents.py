"""Checks that the documents agree with the sources: settings, error texts, links and names of files."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.job import run_to_end, succeeded

ROOT = Path(__file__).parent.parent.parent.resolve()
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), ROOT / "csrc/README.md", ROOT / "adapters/README.md"])
ERROR_TEXTS = re.findall(r"^### `(.+)`$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def list_items(page: str) -> list[str]:
    """Returns the items of the page's lists, each with the comment after it."""
    return re.split(r"\n(?=- |\n#)", (ROOT / page).read_text())


MIGRATION = [item for item in list_items("docs/migrating-from-horovod.md") if item.startswith("- ")]


def names_no_test(claim: str) -> bool:
    comments = re.findall(r"<!--(.*?)-->", claim, re.DOTALL)
    named = [test.partition("::") for comment in comments for test in comment.split()]
    return (
        len(comments) != 1
        or not named
        or not all(
            (ROOT / file).exists() and f"\ndef {function}(" in (ROOT / file).read_text() for file, _, function in named
        )
    )


def test_claims_have_tests() -> None:
    assert MIGRATION
    assert [claim for claim in MIGRATION if names_no_test(claim)] == []


def test_environment_page_is_up_to_date() -> None:
    generate = ROOT / "docs/generate_environment.py"
    succeeded(run_to_end([sys.executable, generate, "--check"]))


def named_in(page: Path) -> Iterator[Path]:
    """Yields the targets of a page's links, and the files that its words in code style seem to name."""
    text = page.read_text()
    yield from (page.parent / link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link)
    folders = "csrc|adapters|perseus_like|tests|docs|examples|cmake"
    yield from (ROOT / path for path in re.findall(rf"`((?:{folders})/[\w./-]+)`", text))
    if page.parent.name == "csrc":
        modules = "base|bootstrap|transport|control|trace|tune|engine|bind|device"
        yield from (page.parent / path for path in re.findall(rf"`((?:{modules})/[\w./-]+)`", text))


def test_files_that_are_named_exist() -> None:
    assert [f"{relative(page)}: {path}" for page in PAGES for path in named_in(page) if not path.exists()] == []


def sources() -> str:
    """Returns the text of all sources. Adjacent string literals are joined, as the compiler joins them."""
    folders = {"csrc": ("*.cc", "*.h"), "perseus_like": ("*.py",), "adapters": ("*.py", "*.cc")}
    files = (path for name, globs in folders.items() for glob in globs for path in (ROOT / name).rglob(glob))
    text = "\n".join(path.read_text() for path in sorted(files))
    return re.sub(r'"\s*\n\s*f?"', "", text)


def test_error_texts_are_those_of_the_sources() -> None:
    text = sources()
    assert ERROR_TEXTS
    for trouble in ERROR_TEXTS:
        pieces = [piece.strip() for piece in trouble.split("…") if len(piece.strip()) > 3]
        assert pieces, trouble
        assert [piece for piece in pieces if piece not in text] == [], trouble


def test_extras_are_quoted_for_zsh() -> None:
    """In zsh, an unquoted `perseus-like[mpich]` is a pattern that matches no file, which is an error."""
    texts = {relative(page): page.read_text() for page in PAGES} | {"the sources": sources()}
    assert [name for name, text in texts.items() if re.search(r"pip install [^'\"\n`]*perseus-like\[", text)] == []
