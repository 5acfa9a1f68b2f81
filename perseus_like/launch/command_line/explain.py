"""`perseusrun --explain TEXT`: finds the sections about an error in docs/troubleshooting.md, which is installed."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PAGE = Path(__file__).with_name("troubleshooting.md")  # a link in the sources, a copy in the package
_MOST_SHOWN = 3
_LONGEST_WORD = 40
_MARKS = " ,;:.()"
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


@dataclass(frozen=True)
class Section:
    """A section of the page. The heading is the text of an error, in which … stands for what varies."""

    heading: str
    body: str

    def pieces(self) -> list[str]:
        """Returns the parts of the heading that do not vary."""
        return [piece.strip() for piece in self.heading.strip("`").split("…") if len(piece.strip()) > 3]

    def word(self) -> str:
        """Returns the beginning of its longest part, which `find` finds."""
        parts = [part for piece in self.pieces() for part in piece.split(": ")]  # the first may be a mere name
        longest = max(parts, key=len).strip(_MARKS)
        return textwrap.shorten(longest, _LONGEST_WORD, placeholder="").strip(_MARKS)

    def count(self, pattern: str) -> int:
        """Returns how often a pattern occurs. The heading counts more than the rest."""
        return 10 * len(re.findall(pattern, self.heading.lower())) + len(re.findall(pattern, self.body.lower()))


def sections() -> list[Section]:
    """Returns the sections of the page in their order; none if the installation lacks the page."""
    text = _PAGE.read_text() if _PAGE.exists() else ""
    parts = re.split(r"^###? (.+)\n", text, flags=re.MULTILINE)[1:]
    found = (Section(heading, body.strip()) for heading, body in zip(parts[::2], parts[1::2], strict=True))
    return [section for section in found if section.body]


def find(text: str) -> list[Section]:
    """Returns the sections about an error, or those in which a text or all of its words occur, the best first."""
    known = sections()
    if exact := about(text, known):
        return [exact]
    # "stall" is no part of "install".
    patterns = [rf"(?<![a-z]){re.escape(part)}" for part in (text.lower(), *re.findall(r"\w{3,}", text.lower()))]
    whole, words = patterns[0], patterns[1:]
    found = [each for each in known if each.count(whole)] or [
        each for each in known if words and all(each.count(word) for word in words)
    ]
    return sorted(found, key=lambda each: -sum(each.count(pattern) for pattern in patterns))


def about(text: str, known: list[Section] | None = None) -> Section | None:
    """Returns the section whose heading the error `text` has; of several, the one with the longest heading."""
    one_line = " ".join(text.split())
    fitting = [
        section
        for section in (sections() if known is None else known)
        if section.heading.startswith("`")
        and section.pieces()
        and re.search(".*".join(map(re.escape, section.pieces())), one_line)
    ]
    return max(fitting, key=lambda section: sum(map(len, section.pieces())), default=None)


def pointer(section: Section) -> str:
    """Returns the line that ends an error text about which there is a section."""
    return f"more about it: perseusrun --explain {shlex.quote(section.word())}"


class Explain(argparse.Action):
    """`--explain TEXT`: prints what the page says about an error, and exits."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        found = find(values)
        if not found:
            parser.exit(1, f"perseusrun: --explain {values!r}: no error text has this; give a part of the text\n")
        width = min(100, shutil.get_terminal_size().columns)
        print("\n\n".join(_rendered(section, width) for section in found[:_MOST_SHOWN]))
        if more := [section.heading for section in found[_MOST_SHOWN:]]:
            print("\nalso: " + "\n      ".join(textwrap.shorten(heading, width - 6) for heading in more))
        parser.exit()


def _rendered(section: Section, width: int) -> str:
    blocks = [textwrap.fill(section.heading, width)]
    for block in _LINK.sub(r"\1", section.body).split("\n\n"):
        is_text = not block.startswith(("|", "    ", "```"))
        lines = re.split(r"\n(?=- )", block) if is_text else [block]
        blocks.append("\n".join(_filled(line, width) if is_text else line for line in lines))
    return "\n\n".join(blocks)


def _filled(text: str, width: int) -> str:
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(" ".join(text.split()), width, subsequent_indent=indent, break_on_hyphens=False)
