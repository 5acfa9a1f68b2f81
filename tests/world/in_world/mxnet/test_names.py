"""Compares names, parameters and defaults of horovod.mxnet, as data, with this library's."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import mxnet as mx
import pytest

import perseus_like
import perseus_like.mxnet as hvd

API = json.loads((Path(__file__).parents[3] / "data" / "horovod_mxnet_api.json").read_text())
DEFAULTS = {
    "Average": hvd.Average,
    "Compression": hvd.Compression,
    "global_process_set": perseus_like.global_process_set,
    "Union": Any,
}
NAMES = [(module, name) for module in API for name in API[module]]


def parameters_of(signature: str) -> list[tuple[str, Any]]:
    """Returns the name and the default of each parameter of "f(a, b=1)"."""
    tree = ast.parse(f"def {signature}: pass").body[0]
    assert isinstance(tree, ast.FunctionDef)
    defaults = [eval(ast.unparse(default), DEFAULTS) for default in tree.args.defaults]
    plain = [argument.arg for argument in tree.args.args]
    missing = [inspect.Parameter.empty] * (len(plain) - len(defaults))
    return list(zip(plain, [*missing, *defaults], strict=True))


def assert_same_parameters(ours: Any, signature: str) -> None:
    actual = [parameter for parameter in inspect.signature(ours).parameters.values() if parameter.name != "self"]
    expected = parameters_of(signature)
    found = [(parameter.name, parameter.default) for parameter in actual]
    assert found[: len(expected)] == expected
    assert all(parameter.default is not inspect.Parameter.empty for parameter in actual[len(expected) :])


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[f"{module}.{name}" for module, name in NAMES])
def test_name(module: str, name: str) -> None:
    theirs = API[module][name]
    ours = getattr(importlib.import_module(module.replace("horovod", "perseus_like", 1)), name)
    if theirs["kind"] == "constant":
        assert ours == theirs["value"]
    elif theirs["kind"] == "function":
        forwarded = theirs.get("forwards_to")
        assert_same_parameters(
            ours, theirs["signature"] if forwarded is None else f"{name}({forwarded.split('(', 1)[1]}"
        )
    elif theirs["kind"] == "class":
        if "signature" in theirs:
            assert_same_parameters(ours, theirs["signature"])
        for base in theirs.get("bases", []):
            assert base.rsplit(".")[-1] in {cls.__name__ for cls in inspect.getmro(ours)}
        assert all(hasattr(ours, attribute) for attribute in theirs.get("attributes", []) if name != "ProcessSet")
        for method, signature in theirs.get("methods", {}).items():
            assert_same_parameters(getattr(ours, method), signature)


def test_aliases_are_the_same_module() -> None:
    perseus = importlib.import_module("perseus.mxnet")
    assert perseus is hvd
    assert perseus.create is hvd.create
    assert mx.gluon.contrib.nn.PerseusSyncBatchNorm is perseus.PerseusSyncBatchNorm


def test_public_names_are_listed() -> None:
    public = {name for name, value in vars(hvd).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert public - {"register", "inject"} <= set(hvd.__all__)
    assert all(hasattr(hvd, name) for name in hvd.__all__)
    assert dir(hvd) == sorted(hvd.__all__)
    assert {"DisagreementError", "PeerLostError"} <= set(hvd.__all__)
