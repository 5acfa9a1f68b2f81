"""Writes the docstrings that are made at import into the sources of the wheel, where editors and the site read them.

`documented` and `documented_as` (perseus_like/docstrings.py) complete a docstring when a module is imported, and
some classes have the docstring of another class. setup.py calls `write_docstrings` with the folder that becomes the
wheel.
"""

from __future__ import annotations

import ast
import importlib.util
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Definition = ast.FunctionDef | ast.ClassDef


class Docstrings:
    """The complete docstrings of the modules below a folder with the packages of the wheel. Nothing is imported."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        spec = importlib.util.spec_from_file_location("documentation", folder / "perseus_like/docstrings.py")
        assert spec is not None
        assert spec.loader is not None
        self._rules: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self._rules)

    def complete(self, path: Path, node: Definition) -> str | None:
        """Returns the docstring that a definition has after an import. None if the source has it already."""
        if isinstance(node, ast.ClassDef):
            copied = copied_docstring(node)
            return None if copied is None else self._of(path, copied)
        own, parameters = ast.get_docstring(node), [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Name) and decorator.id.startswith("documented") and own:
                failed = None if decorator.id == "documented" else self._constant(path, decorator.id)
                return str(self._rules.completed(own, node.name, parameters, failed))
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "documented_as" and own:
                return str(self._rules.completed_as(own, self._of(path, decorator.args[0]), parameters))
        return None

    def _of(self, path: Path, name: ast.expr) -> str:
        """Returns the docstring of a function or class that the module at `path` calls `name`."""
        found, node = self._definition(path, *ast.unparse(name).split("."))
        return self.complete(found, node) or ast.get_docstring(node) or ""

    def _constant(self, path: Path, decorator: str) -> str:
        """Returns the text `_FAILED` of the module that defines a decorator."""
        source, _ = self._definition(path, decorator)
        for node in ast.parse(source.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_FAILED":
                return str(ast.literal_eval(node.value))
        raise LookupError(f"{source} has no _FAILED for {decorator}")

    def _definition(self, path: Path, first: str, *rest: str) -> tuple[Path, Definition]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Definition) and node.name == first:
                return path, node
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if first == (alias.asname or alias.name):
                        module = self._module(path, node)
                        inner = module.parent if module.name == "__init__.py" else module.with_suffix("")
                        return (
                            self._definition(inner / f"{alias.name}.py", *rest)
                            if rest
                            else self._definition(module, alias.name)
                        )
        raise LookupError(f"{path} has no {first}")

    def _module(self, path: Path, node: ast.ImportFrom) -> Path:
        start = path.parents[node.level - 1] if node.level else self._folder
        folder = start.joinpath(*(node.module or "").split("."))
        return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def copied_docstring(node: ast.ClassDef) -> ast.expr | None:
    """Returns X of a class whose body begins with `__doc__ = X.__doc__`."""
    first = node.body[0]
    if isinstance(first, ast.Assign) and ast.unparse(first.targets[0]) == "__doc__":
        return first.value.value if isinstance(first.value, ast.Attribute) else None
    return None


def replacements(docstrings: Docstrings, path: Path) -> Iterator[tuple[int, int, str]]:
    """Yields the first and last line of each statement to replace, and the lines for its place."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Definition) and (text := docstrings.complete(path, node)) is not None:
            first = node.body[0]
            if "\\" in text or '"""' in text:
                raise ValueError(f"{path}: the docstring of {node.name} needs escapes")
            quoted = textwrap.indent(f'"""{text.rstrip()}\n"""\n', " " * first.col_offset)
            yield first.lineno, first.end_lineno or first.lineno, quoted


def write_docstrings(folder: Path) -> None:
    """Completes the docstrings of all modules below a folder that has the packages of the wheel."""
    docstrings = Docstrings(folder)
    found = {path: list(replacements(docstrings, path)) for path in sorted((folder / "perseus_like").rglob("*.py"))}
    for path, texts in found.items():
        lines = path.read_text().splitlines(keepends=True)
        for first, last, text in sorted(texts, reverse=True):
            lines[first - 1 : last] = [text]
        if texts:
            path.write_text("".join(lines))
