"""The language of comments, docstrings and documents: no headless sentences, no private terms.

A headless sentence has no subject or no verb: "Who waits for a device." or "Of the same ranks." Its reader has to guess
the thing that it is about.
"""

from __future__ import annotations

import ast
import io
import os
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

# A first sentence must not begin with one of these words, unless it is a question.
HEADLESS = re.compile(r"(who|whose|whom|what|whatever|whether|which|how)\b", re.IGNORECASE)
LATER = re.compile(r"[.!;:] (Who|Whose|Whom|Whether) (?![^.?!]*\?)")
# These may begin a clause that is followed by a main clause, as in "When the job ends, the launcher prints …".
CLAUSE = re.compile(
    r"(of|by|where|when|that|as|with|for|per|until|against|though|and|or|but)\b",
    re.IGNORECASE,
)
MAIN_CLAUSE = re.compile(r"[,:]|\bthen\b|\bthat (is|means)\b|^that \w+ (is|means)\b", re.IGNORECASE)

# Words that this code base once used in meanings of its own, by the term that replaces them.
PRIVATE_TERMS = {
    r"leash(es)?": "launcher heartbeat",
    r"roll call": "missing-rank query",
    r"last words|farewell": "shutdown message",
    r"(say|says|said) once|say_once": "warn once",
    r"confess\w*": "report a failure",
    r"the house": "the library",
}


def first_sentence(text: str) -> str:
    flat = " ".join(text.split())
    return re.split(r"(?<=[.!?:;])\s", flat, maxsplit=1)[0]


def is_headless(text: str) -> bool:
    """Looks at the first sentence. A later sentence must not begin with "Who" or "Whose"."""
    sentence = first_sentence(text)
    if sentence.endswith("?"):
        return False
    if LATER.search(" ".join(text.split())):
        return True
    return bool(HEADLESS.match(sentence) or (CLAUSE.match(sentence) and not MAIN_CLAUSE.search(sentence)))


def texts_of_python(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of each docstring and of each block of comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield node.body[0].lineno, docstring
    comments = [
        (token.start[0], token.string.lstrip("#:").strip(), token.line.lstrip().startswith("#"))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    yield from blocks([(line, text) for line, text, is_alone in comments if is_alone])
    # A comment behind code may be a phrase without a verb, if it starts in lower case: "x = 3  # of the last batch".
    yield from ((line, text) for line, text, is_alone in comments if not is_alone and not text[:1].islower())


def texts_of_cxx(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of each block of `//` comments."""
    lines = enumerate(source.splitlines(), 1)
    matches = ((number, re.match(r"\s*///?<?\s?(.*)", line)) for number, line in lines)
    yield from blocks([(number, match[1]) for number, match in matches if match])


def texts_of_markdown(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of each paragraph and list item, without code, headings, tables and comments."""
    without_code = re.sub(r"```.*?```|<!--.*?-->", lambda match: "\n" * match[0].count("\n"), source, flags=re.DOTALL)
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(without_code.splitlines(), 1):
        item = re.match(r"\s*(?:[-*]|\d+\.)\s+([^a-z].*)", line)  # an item in lower case continues a sentence
        if item:
            yield from blocks(lines)
            lines = [(number, item[1])]
        elif line.strip() and not line.lstrip().startswith(("#", "|", ">", "    ")):
            lines.append((number, line.strip()))
        else:
            yield from blocks(lines)
            lines = []
    yield from blocks(lines)


def blocks(lines: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Joins the texts of consecutive lines."""
    start, texts, last = 0, list[str](), -1
    for number, text in lines:
        if number != last + 1 and texts:
            yield start, " ".join(texts)
            texts = []
        if not texts:
            start = number
        texts.append(text)
        last = number
    if texts:
        yield start, " ".join(texts)


READERS = {".py": texts_of_python, ".h": texts_of_cxx, ".cc": texts_of_cxx, ".md": texts_of_markdown}


def findings(path: Path) -> list[str]:
    """Returns a line for each headless first sentence and each private term."""
    found = []
    for number, text in READERS[path.suffix](path.read_text()):
        if is_headless(text):
            found.append(f"{path}:{number}: headless: {first_sentence(text)}")
        for term, better in PRIVATE_TERMS.items():
            if re.search(rf"\b({term})\b", text, re.IGNORECASE):
                found.append(f"{path}:{number}: private term, say {better!r}: {text[:100]}")
    return found


def files() -> list[str]:
    """Returns the files that have a reader, without what builds and tools leave in the folder. Needs no git."""
    found = []
    for folder, below, names in os.walk(ROOT):
        below[:] = [name for name in below if name == ".github" or not re.match(r"\.|__pycache__$|(build|dist)$", name)]
        found += [str((Path(folder) / name).relative_to(ROOT)) for name in names if Path(name).suffix in READERS]
    return sorted(found)


def test_the_check_finds_headless_sentences() -> None:
    for text in (
        "Who waits for a device never holds the host up.",
        "Of the same ranks. The first does whatever is alone.",
        "Whether messages are waited for.",
        "Where the elements are.",
        "Waits for the others. Who has none left helps.",
        "For as long as the device may use them.",
        "As a list.",
        "Until the input ends.",
        "And the model that this library trains.",
    ):
        assert is_headless(text), text
    for text in (
        "Returns the ranks. What follows is not looked at.",
        "What is a rank?",
        "When the job ends, the launcher prints the exit code.",
        "By then the core has reported the missing ranks.",
        "As in Horovod, an average of integers is rounded toward zero.",
    ):
        assert not is_headless(text), text
    source = '"""Returns."""\nx = 1  # Who\n# Of the\n# same ranks\ny = 2  # of x\n'
    assert list(texts_of_python(source)) == [(1, "Returns."), (3, "Of the same ranks"), (2, "Who")]
    assert list(texts_of_cxx("int x;\n// Whose\n// ranks\n")) == [(2, "Whose ranks")]
    assert list(texts_of_markdown("# What\n\nA\nb\n- C\n  d\n```\nof\n```\n")) == [(3, "A b"), (5, "C d")]


def test_language() -> None:
    found = [finding for name in files() for finding in findings(ROOT / name)]
    assert not found, "\n".join(found)
