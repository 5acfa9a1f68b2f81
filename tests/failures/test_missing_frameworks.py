"""Checks that an adapter whose framework is not installed names it, and the command that installs it."""

import sys

import pytest

from tests.job import run_to_end


@pytest.mark.parametrize(
    ("framework", "extra"), [("torch", "torch"), ("tensorflow", "tensorflow"), ("keras", "tensorflow")]
)
def test_a_missing_framework_is_named_with_its_extra(framework: str, extra: str) -> None:
    program = f"import sys; sys.modules['{framework}'] = None; import perseus_like.{framework}"
    done = run_to_end([sys.executable, "-c", program])
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ModuleNotFoundError: perseus_like.{framework} needs ")
    assert last.endswith(f": pip install 'perseus-like[{extra}]'")
