"""Checks the private parts of the frameworks on which the adapters rely.

test_torch_compat.py has a test for each of torch's.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from perseus_like.compat_probes import Changed, changed, expect
from tests.job import python_of, run_to_end, succeeded

ADAPTERS = Path(__file__).parents[2] / "adapters"
WORDS = ("Relies on:", "Tried with:", "Notices:", "Lost then:")
# This program is like `python -m`, with the alias in NumPy that MXNet needs.
RUN = """
import runpy, sys
import numpy
vars(numpy).setdefault("bool", numpy.bool_)
runpy.run_module(sys.argv[1], run_name="__main__")
"""
# Each entry is a framework and the environment of `make environments` with the release to check. None is this one.
RELEASES = [
    ("torch", None),
    ("tensorflow", None),
    ("tensorflow", "tensorflow-2.15"),
    pytest.param("keras", None, marks=pytest.mark.slow),
    ("keras", "tensorflow-2.15"),
    ("mxnet", "mxnet"),
]


@pytest.mark.parametrize(("framework", "release"), RELEASES)
def test_the_private_parts_are_as_expected(framework: str, release: str | None) -> None:
    if release is None and importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    python = sys.executable if release is None else python_of(release)
    done = succeeded(run_to_end([python, "-c", RUN, f"perseus_like.{framework}.compat"]))
    count = len(documented(framework))
    assert f": {count} of {count} private parts are as expected" in done.stdout


def documented(framework: str) -> dict[str, str]:
    """Returns the comment of each public function of `compat`, in Python and in C++ headers."""
    modules = {path.stem: path for path in sorted((ADAPTERS / framework / "compat").glob("*.py"))}
    if framework == "torch":
        modules["autoload"] = ADAPTERS / "torch/distributed/autoload/compat.py"
    found = {}
    for module in modules.keys() - {"__init__", "__main__"}:
        body = ast.parse(modules[module].read_text()).body
        public = [each for each in body if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")]
        found.update({f"{module}.{each.name}": ast.get_docstring(each) or "" for each in public})
    for path in sorted((ADAPTERS / framework / "compat").glob("*.h")):
        for comment, name in re.findall(r"((?://.*\n)+)(?!//).*\b(\w+)\(", path.read_text()):
            if not re.search(r"For (tests|\w+\(\))", comment):
                found[f"{path.stem}.{name}"] = comment
    return found


@pytest.mark.parametrize("framework", ["keras", "mxnet", "tensorflow", "torch"])
def test_each_function_says_what_it_relies_on_and_has_a_probe(framework: str) -> None:
    text = (ADAPTERS / framework / "compat" / "__main__.py").read_text()
    probed = set(re.findall(r'^    "(\w+\.\w+)": _', text, re.M))
    functions = documented(framework)
    assert functions.keys() == probed
    for name, comment in functions.items():
        for word in WORDS:
            assert word in comment, name


def test_the_report_names_a_changed_part() -> None:
    def fail() -> None:
        expect(False, "the part is missing")

    assert changed({"good": lambda: expect(True, ""), "bad": fail}) == {"bad": "Changed: the part is missing"}
    with pytest.raises(Changed):
        fail()
