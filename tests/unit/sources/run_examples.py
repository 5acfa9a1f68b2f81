"""Runs the examples in the docstrings of an adapter's public names, on one rank: run_examples.py torch

Prints doctest's report of each example that fails, and then the number of examples. The exit code is 1 if one failed.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import sys
from typing import Any

import numpy as np

# For each adapter, the packages that its examples use, by the names that users give these packages.
PACKAGES = {
    "torch": {"torch": "torch"},
    "tensorflow": {"tf": "tensorflow"},
    "keras": {"keras": "keras"},
    "mxnet": {"mx": "mxnet"},
    "numpy": {},
}


def public_objects(module: Any) -> dict[str, Any]:
    """Returns the objects of `__all__`, and those of its submodules that belong to Horovod's API."""
    found: dict[str, Any] = {}
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.ismodule(value):
            if name in ("elastic", "callbacks"):
                found |= {f"{name}.{inner}": each for inner, each in public_objects(value).items()}
        else:
            found[name] = value
    return found


def main(framework: str) -> int:
    """Runs the examples of one adapter, and returns the exit code."""
    hvd = importlib.import_module(f"perseus_like.{framework}")
    packages = {short: importlib.import_module(name) for short, name in PACKAGES[framework].items()}
    hvd.init()
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    parser = doctest.DocTestParser()
    seen: set[str] = set()
    for name, value in public_objects(hvd).items():
        text = inspect.getdoc(value) or ""
        if text in seen:
            continue
        seen.add(text)
        names = {"hvd": hvd, "np": np, **packages}
        runner.run(parser.get_doctest(text, names, f"hvd.{name}", None, None))
    print(f"{runner.tries} examples, {runner.failures} failed")
    return int(runner.failures > 0 or runner.tries == 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
