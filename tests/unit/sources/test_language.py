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

ROOT = Path(__file__).parents[3]

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
# Names of classes, functions and variables, likewise. Comments and texts may use these words.
PRIVATE_NAMES = {
    "attend": "contribute, or begin_polling",
    "attendance": "participant",
    "blame": "report_…",
    "culprit": "origin",
    "delivery": "a copy, by its source and target",
    "driven": "target",
    "fetched": "copied_to_host",
    "gathering": "VariableSizeCollective",
    "give_up": "abort, or raise_timeout",
    "guarded": "as_status, to_python or to_c",
    "landing": "pinned_like",
    "meeting": "barrier",
    "said": "given",
    "settle": "synchronize_device",
    "twin": "by what it shares",
    "witness": "evidence",
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


def names_in_python(source: str) -> set[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


def names_in_cxx(source: str) -> set[str]:
    return set(
        re.findall(r"[A-Za-z_]\w*", re.sub(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', "", source, flags=re.DOTALL))
    )


def private_names(path: Path) -> list[str]:
    """Returns a line for each name of the sources that has a better one."""
    names = (names_in_python if path.suffix == ".py" else names_in_cxx)(path.read_text())
    plain = {re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).strip("_").lower(): name for name in names}
    return [f"{path}: {name}: say {PRIVATE_NAMES[key]}" for key, name in plain.items() if key in PRIVATE_NAMES]


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


def test_the_check_finds_private_names() -> None:
    assert names_in_python("x = Witness()  # a meeting") == {"x", "Witness"}
    assert names_in_cxx('void settle();  // said\n/* twin */ log("blame");') == {"void", "settle", "log"}


def test_names_are_those_of_the_field() -> None:
    sources = [Path(each) for each in files() if each.startswith(("csrc/", "perseus_like/", "adapters/", "bindings/"))]
    found = [line for path in sources if path.suffix != ".md" for line in private_names(ROOT / path)]
    assert not found, "\n".join(found)
