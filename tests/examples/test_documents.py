"""Checks that the documents agree with the sources: settings, error texts, links and names of files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent.resolve()
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), ROOT / "csrc/README.md", ROOT / "adapters/README.md"])
ERROR_TEXTS = re.findall(r"^### `(.+)`$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def list_items(page: str) -> list[str]:
    """Returns the items of the page's lists, each with the comment after it."""
    return re.split(r"\n(?=- |\n#)", (ROOT / page).read_text())


MIGRATION = [item for item in list_items("docs/migrating-from-horovod.md") if item.startswith("- ")]


@pytest.mark.parametrize("claim", MIGRATION, ids=[claim[2:40] for claim in MIGRATION])
def test_claims_have_tests(claim: str) -> None:
    (comment,) = re.findall(r"<!--(.*?)-->", claim, re.DOTALL)
    named = comment.split()
    assert named
    for test in named:
        file, _, function = test.partition("::")
        assert f"\ndef {function}(" in (ROOT / file).read_text(), test


def test_environment_page_is_up_to_date() -> None:
    generate = ROOT / "docs/generate_environment.py"
    done = subprocess.run([sys.executable, generate, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_link_targets_exist(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_files_that_are_named_exist(page: Path) -> None:
    """Words in code style that look like a path in this repository are paths of existing files."""
    text = page.read_text()
    paths = re.findall(r"`((?:csrc|adapters|perseus_like|tests|docs|examples|cmake)/[\w./-]+)`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    if page.parent.name == "csrc":
        modules = "base|bootstrap|transport|control|trace|tune|engine|bind|device"
        paths = re.findall(rf"`((?:{modules})/[\w./-]+)`", text)
        assert [path for path in paths if not (page.parent / path).exists()] == []


@pytest.fixture(scope="module")
def sources() -> str:
    """Returns the text of all sources. Adjacent string literals are joined, as the compiler joins them."""
    folders = {"csrc": ("*.cc", "*.h"), "perseus_like": ("*.py",), "adapters": ("*.py",)}
    files = (path for name, globs in folders.items() for glob in globs for path in (ROOT / name).rglob(glob))
    text = "\n".join(path.read_text() for path in sorted(files))
    return re.sub(r'"\s*\n\s*f?"', "", text)


@pytest.mark.parametrize("trouble", ERROR_TEXTS)
def test_error_texts_are_those_of_the_sources(trouble: str, sources: str) -> None:
    pieces = [piece.strip() for piece in trouble.split("…") if len(piece.strip()) > 3]
    assert pieces
    assert [piece for piece in pieces if piece not in sources] == []
