"""Compares names, parameters and defaults of Horovod's modules, as data, with those of this library."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.job import needs

needs("torch")
needs(
    "tensorflow"
)  # the tests import it, because what is imported here is imported by each process that collects tests

import perseus_like  # noqa: E402
import perseus_like.torch as hvd  # noqa: E402

API = json.loads((Path(__file__).parents[1] / "data" / "horovod_api.json").read_text())

# DistributedOptimizer() makes these classes from the optimizer that it is given. Programs do not call them.
NOT_CONSTRUCTED = {"_DistributedOptimizer", "_DistributedAdasumOptimizer"}


@functools.cache
def ours_of(module: str) -> Any:
    """Returns this library's module of the same path, or an empty object if there is none."""
    try:
        return importlib.import_module(module.replace("horovod", "perseus_like", 1))
    except ModuleNotFoundError:
        return SimpleNamespace()


DEFAULTS = {
    "Average": hvd.Average,
    "Compression": hvd.Compression,
    "global_process_set": perseus_like.global_process_set,
}

NAMES = [(module, name) for module in API for name in API[module]]

# A name with this ending stands for the object that the function of that name returns.
RETURNED = " (returned object)"


def found(module: str, name: str) -> Any:
    """Returns this library's object of that name. Raises an AttributeError if there is none."""
    if not name.endswith(RETURNED):
        return getattr(ours_of(module), name)
    tensorflow = importlib.import_module("tensorflow")
    made_of = {
        "DistributedGradientTape": tensorflow.GradientTape(),
        "DistributedOptimizer": tensorflow.compat.v1.train.GradientDescentOptimizer(0.1),
    }
    function = name.removesuffix(RETURNED).removeprefix("_")
    return type(getattr(ours_of(module), function)(made_of[function]))


def is_there(module: str, name: str) -> bool:
    try:
        found(module, name)
    except AttributeError:
        return False
    return True


def parameters_of(signature: str) -> list[tuple[str, bool, Any]]:
    """Returns (name, whether it has a default, the default) for each parameter of "f(a, b=1, *c)"."""
    tree = ast.parse(f"def {signature}: pass").body[0]
    assert isinstance(tree, ast.FunctionDef)
    arguments = tree.args
    defaults = [eval(ast.unparse(default), DEFAULTS) for default in arguments.defaults]
    plain = [argument.arg for argument in arguments.args]
    without = len(plain) - len(defaults)
    return [
        (name, place >= without, defaults[place - without] if place >= without else None)
        for place, name in enumerate(plain)
    ]


def assert_same_parameters(ours: Any, signature: str) -> None:
    expected = parameters_of(signature)
    actual = [parameter for parameter in inspect.signature(ours).parameters.values() if parameter.name != "self"]
    for (name, has_default, default), parameter in zip(expected, actual, strict=False):
        assert parameter.name == name
        assert (parameter.default is not inspect.Parameter.empty) == has_default
        if has_default:
            assert parameter.default == default
    assert len(actual) >= len(expected)
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for extra in actual[len(expected) :]:
        assert extra.kind in variable or extra.default is not inspect.Parameter.empty


def test_no_name_is_missing() -> None:
    missing: dict[str, set[str]] = {}
    for module, name in NAMES:
        if not is_there(module, name):
            missing.setdefault(module, set()).add(name)
    assert missing == {}


def assert_same(module: str, name: str) -> None:
    theirs, ours = API[module][name], found(module, name)
    if name == "__version__":
        assert ours  # this package's version; only the import alias horovod has Horovod's version
    elif theirs["kind"] == "constant":
        assert ours == theirs["value"]
    elif theirs["kind"] == "module":
        assert inspect.ismodule(ours)
    elif theirs["kind"] == "function":
        forwarded = theirs.get("forwards_to")
        signature = theirs["signature"] if forwarded is None else f"{name}({forwarded.split('(', 1)[1]}"
        assert_same_parameters(ours, signature)
    elif theirs["kind"] == "class":
        assert inspect.isclass(ours)
        if "signature" in theirs and name not in NOT_CONSTRUCTED:
            assert_same_parameters(ours, theirs["signature"])
        for base in theirs.get("bases", []):
            assert base.rsplit(".")[-1] in {cls.__name__ for cls in inspect.getmro(ours)}
        for attribute in theirs.get("attributes", []):
            assert hasattr(ours, attribute)
        for method, signature in theirs.get("methods", {}).items():
            assert callable(getattr(ours, method))
            if not signature.endswith("(*args, **kwargs)"):  # others are methods of the framework
                assert_same_parameters(getattr(ours, method), signature)


def difference(module: str, name: str) -> str:
    """Returns what differs between this library's object of that name and Horovod's, or an empty text."""
    try:
        assert_same(module, name)
    except (AssertionError, AttributeError) as error:
        return str(error) or "it differs"
    return ""


def test_names_have_the_same_parameters_and_defaults() -> None:
    wrong = {f"{module}.{name}": text for module, name in NAMES if (text := difference(module, name))}
    assert wrong == {}


def test_public_names_are_listed() -> None:
    for module in (hvd, perseus_like, importlib.import_module("perseus_like.tensorflow")):
        public = {
            name for name, value in vars(module).items() if not name.startswith("_") and not inspect.ismodule(value)
        }
        assert public <= set(module.__all__), public - set(module.__all__)
        assert all(hasattr(module, name) for name in module.__all__)
