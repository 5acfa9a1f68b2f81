"""Checks what editors and help() show of the public names: errors, readable signatures and docstrings.

The docstring of each public name explains arguments, result and errors, and has an example.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perseus_like import errors
from perseus_like.docstrings import completed
from tests.job import python_of, run_to_end

ROOT = Path(__file__).parents[3]
FRAMEWORKS = ("numpy", "torch", "tensorflow", "keras", "mxnet")
MODULES = (
    *("numpy", "torch", "torch.elastic", "tensorflow", "tensorflow.elastic", "elastic"),
    *("keras", "keras.elastic", "keras.callbacks"),
)
# One process imports the frameworks for all of these tests.
in_one_process = pytest.mark.xdist_group("public names")
FACES = ("numpy", "torch", "tensorflow", "keras", "tensorflow.keras")
# These functions and classes have arguments, but raise no errors of their own.
NEVER_RAISE = {
    *("ObjectState", "VariablesState", "TorchState", "run_fn", "elastic.run", "gpu_available"),
    *("check_num_rank_power_of_2", "broadcast_object_fn", "refs_to_vars", "vars_to_refs", "TensorFlowState"),
    *("MetricAverageCallback", "CommitStateCallback", "UpdateBatchStateCallback", "UpdateEpochStateCallback"),
    *("BroadcastGlobalVariablesCallback",),
}


def missing_parts(docstring: str | None, parameters: Iterable[str], returns: bool, raises: bool) -> list[str]:
    """Returns the parts that a docstring lacks.

    The docstring of a function without parameters only needs a sentence.
    """
    if not docstring:
        return ["a docstring"]
    if not (named := [name for name in parameters if name not in ("self", "cls") and not name.startswith("_")]):
        return []
    sections = {"Args:": True, "Returns:": returns, "Raises:": raises, "Examples:": True}
    lines = docstring.splitlines()
    missing = [title for title, is_needed in sections.items() if is_needed and title not in lines]
    described = {line.strip().split(":")[0].lstrip("*") for line in lines if line.startswith("    ")}
    missing += [f"argument {name}" for name in named if name.lstrip("*") not in described]
    if ">>>" not in docstring:
        missing.append("an example")
    return missing


def missing_of(name: str, value: Any, place: str) -> list[str]:
    """Returns the parts that the docstring of an imported object lacks."""
    text = inspect.getdoc(value)
    parameters: Iterable[str] = ()
    returns = False
    if callable(value) and not (inspect.isclass(value) and issubclass(value, BaseException | Enum)):
        signature = inspect.signature(value)
        parameters = signature.parameters
        returns = not inspect.isclass(value) and signature.return_annotation not in (None, "None")
    return missing_parts(text, parameters, returns, NEVER_RAISE.isdisjoint({name, place + name}))


def module_or_skip(module: str) -> ModuleType:
    """Returns perseus_like's module, or skips the test if its framework is not installed."""
    if importlib.util.find_spec({"elastic": "numpy"}.get(module, module.split(".")[0])) is None:
        pytest.skip(f"{module} is not installed")
    return importlib.import_module(f"perseus_like.{module}")


@in_one_process
@pytest.mark.parametrize("module", MODULES)
def test_each_public_name_is_documented(module: str) -> None:
    face = module_or_skip(module)
    place = "elastic." if module.endswith(".elastic") else ""
    found = {name: missing_of(name, getattr(face, name), place) for name in face.__all__}
    assert {name: missing for name, missing in found.items() if missing} == {}


@in_one_process
@pytest.mark.parametrize("module", MODULES)
def test_an_editor_completes_the_public_names(module: str) -> None:
    face = module_or_skip(module)
    assert dir(face) == sorted(face.__all__)


@in_one_process
@pytest.mark.parametrize("face", FACES)
def test_a_program_can_catch_each_error_by_the_name_in_docstrings(face: str) -> None:
    hvd = module_or_skip(face)
    classes = {errors.HorovodInternalError, errors.HostsUpdatedInterrupt, *errors.CLASSES.values()} - {ValueError}
    assert {each.__name__: getattr(hvd, each.__name__, None) for each in classes} == {
        each.__name__: each for each in classes
    }
    assert {each.__name__ for each in classes} <= set(hvd.__all__)


@in_one_process
@pytest.mark.parametrize("face", FACES)
def test_signatures_show_readable_defaults(face: str) -> None:
    hvd = module_or_skip(face)
    functions = [each for each in (getattr(hvd, name) for name in hvd.__all__) if inspect.isfunction(each)]
    assert len(functions) > 10
    assert [text for each in functions if "<" in (text := str(inspect.signature(each)))] == []


@in_one_process
@pytest.mark.parametrize("face", FACES)
def test_the_source_has_the_docstrings_for_editors(face: str) -> None:
    hvd = module_or_skip(face)
    if Path(errors.__file__).is_symlink():
        pytest.skip("an editable install has the sources of the repository, without the docstrings of the wheel")
    found = [getattr(hvd, name) for name in hvd.__all__]
    ours = [
        each
        for each in found
        if inspect.isfunction(each) or (inspect.isclass(each) and "perseus_like" in each.__module__)
    ]
    assert len(ours) > 20
    assert [each.__name__ for each in ours if docstring_in_source(each) != inspect.getdoc(each)] == []


def docstring_in_source(value: Any) -> str | None:
    """Returns what an editor shows, which reads the source and imports nothing."""
    text = Path(inspect.getsourcefile(value) or "").read_text()
    written = {
        node.name: ast.get_docstring(node)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    return written.get(value.__name__)


def definitions(path: Path) -> Iterator[tuple[ast.FunctionDef | ast.ClassDef, ast.ImportFrom | None]]:
    """Yields the functions and classes that a module imports from its own package or defines."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node, None
        elif isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
            wanted = {alias.name for alias in node.names}
            source = path.parent.joinpath(*node.module.split(".")).with_suffix(".py")
            if source.is_file():
                wanted = listed_names(source) if wanted == {"*"} else wanted
                yield from ((each, node) for each, _ in definitions(source) if each.name in wanted)


def listed_names(path: Path) -> set[str]:
    """Returns the names in a module's `__all__`. Without it, these are the functions and classes defined there."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return {node.name for node, _ in definitions(path)}


def test_each_public_name_of_mxnet_is_documented() -> None:
    """MXNet does not install beside today's NumPy, so its adapter is read and not imported."""
    found: dict[str, list[str]] = {}
    for node, _ in definitions(ROOT / "adapters/mxnet/__init__.py"):
        text = ast.get_docstring(node)
        decorators = {ast.unparse(each) for each in node.decorator_list}
        inits = [each for each in (node, *node.body) if isinstance(each, ast.FunctionDef)]
        inits = inits[:1] if isinstance(node, ast.FunctionDef) else [each for each in inits if is_init(each)]
        parameters = [each.arg for init in inits for each in (*init.args.args, *init.args.kwonlyargs)]
        if text and decorators & {"documented", "documented_for_engine"}:
            text = completed(text, node.name, parameters)
        returns = isinstance(node, ast.FunctionDef) and node.returns is not None and ast.unparse(node.returns) != "None"
        found[node.name] = missing_parts(text, parameters, returns, node.name not in NEVER_RAISE)
    assert len(found) > 15
    assert {name: missing for name, missing in found.items() if missing} == {}


def is_init(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "__init__"


@pytest.mark.parametrize(
    "framework",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in ("tensorflow", "keras"))) for name in FRAMEWORKS],
)
def test_the_examples_in_docstrings_are_correct(framework: str) -> None:
    python = Path(sys.executable) if importlib.util.find_spec(framework) else python_of(framework)
    done = run_to_end([python, ROOT / "tests/unit/sources/run_examples.py", framework])
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"


def test_standard_sections_are_added_to_a_docstring() -> None:
    text = completed(
        "Reduces.\n\n    Args:\n        op: own text.\n\n    Returns:\n        It.\n", "allreduce_", ["tensor", "op"]
    )
    assert text.startswith("Reduces.\n\nArgs:\n    tensor: the tensor to reduce, ")
    assert "overwrites it.\n    op: own text.\n\nReturns:\n    It.\n\nRaises:\n    ValueError: " in text


@pytest.mark.parametrize(
    ("module", "name"),
    [("perseus_like.objects", "broadcast_object"), ("perseus_like.torch.feedback", "FeedbackCompressor")],
)
def test_what_documents_tell_programs_to_import_stays(module: str, name: str) -> None:
    if ".torch." in module:
        pytest.importorskip("torch")
    assert hasattr(importlib.import_module(module), name)
