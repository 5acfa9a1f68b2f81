"""Checks that the Python programs and shell commands of all documents run unchanged.

A Python block that begins with an import is a program. Any other Python block continues the block before it. Shell
commands run in a folder with the first program of the page, or of README, as `train.py`. A block that the test must not
run has a comment before it: `<!-- not run: REASON -->`. A block that needs a recent torch has the comment
`<!-- torch 2.5 or later -->`. Blocks without a language are output and drawings.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.job import run_to_end, succeeded

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
COMMENT = r"<!-- (?:not run: (?P<reason>[^\n]+)|torch (?P<torch>[\d.]+) or later) -->\n"
BLOCK = re.compile(rf"^(?:{COMMENT})?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass
class Block:
    """A page's block. `is_run` is false if a comment says why it is not run; `torch` is the oldest release for it."""

    page: str
    line: int
    language: str
    text: str
    is_run: bool
    torch: str = "0"

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Returns the page's blocks. A Python block that continues a program is a part of that program's block."""
    text, found = page.read_text(), list[Block]()
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        name, is_run = page.relative_to(ROOT).as_posix(), not match["reason"]
        block = Block(name, line, match["language"], match["text"], is_run, match["torch"] or "0")
        programs = [each for each in found if each.language == "python" and each.is_run]
        is_continuation = block.language == "python" and not re.match(r"import |from ", block.text)
        if is_continuation and block.is_run:
            assert programs, f"{block} continues no program"
            programs[-1].text += block.text
        else:
            found.append(block)
    return found


BLOCKS = [block for page in PAGES for block in blocks(page)]
RUN = [block for block in BLOCKS if block.is_run]
# Those of the README run in the fast suite, the others with `make test-all`.
MARKED = [pytest.param(each, marks=[pytest.mark.slow] * (each.page != "README.md"), id=str(each)) for each in RUN]


def test_every_block_has_a_language_that_is_run() -> None:
    assert {block.language for block in RUN} == {"python", "sh"}


@pytest.mark.parametrize("block", MARKED)
def test_block(block: Block, tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "perseus_like.launch", "--no-prefix", "-np", "2", sys.executable]
    of_page = [each for each in BLOCKS if each.page == block.page and each.language == "python" and each.is_run]
    readme = next(each for each in BLOCKS if each.page == "README.md" and each.language == "python")
    program = block if block.language == "python" else [*of_page, readme][0]
    for framework in re.findall(r"^(?:import|from) (torch|tensorflow|keras)\b", program.text, re.MULTILINE):
        if importlib.util.find_spec(framework) is None:
            pytest.skip(f"no {framework}")
    if block.torch != "0":
        pytest.importorskip("torch", minversion=block.torch)
    (tmp_path / "train.py").write_text(program.text)
    command = [*launcher, "train.py"] if block.language == "python" else ["bash", "-e", "-c", block.text]
    done = succeeded(run_to_end(command, tmp_path, joined=True))
    if block is readme:
        assert sorted(re.findall(r"^rank (\d) of 2: loss \d", done.stdout, re.MULTILINE)) == ["0", "1"], done.stdout
