"""Checks that all languages number dtypes, reductions, errors, verbs and starts by the tables in csrc/base/tables.h."""

from __future__ import annotations

import re
import subprocess
import sys
from enum import IntEnum
from pathlib import Path

import pytest

from perseus_like import _core, errors, tables

ROOT = Path(__file__).parents[3]
ENUMS = [tables.DType, tables.ReduceOp, tables.ErrorKind, tables.Verb, tables.Start]


def numbers(enum: type[IntEnum]) -> dict[str, int]:
    return {name: int(member) for name, member in enum.__members__.items()}


def test_the_module_is_generated_from_the_header() -> None:
    subprocess.run([sys.executable, str(ROOT / "csrc/generate_tables.py"), "--check"], check=True)


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.__name__)
def test_python_has_the_compiled_numbers(enum: type[IntEnum]) -> None:
    assert numbers(enum) == numbers(getattr(_core, enum.__name__))


def test_each_kind_of_error_has_a_class() -> None:
    assert list(errors.CLASSES) == [kind.name for kind in tables.ErrorKind]


def test_tensorflow_has_the_same_numbers() -> None:
    tf = pytest.importorskip("tensorflow")
    from perseus_like.tensorflow import errors as translated
    from perseus_like.tensorflow.requests import DTYPES

    names = {dtype.name: number for dtype, number in DTYPES.items()}
    assert names == {tf.as_dtype(name.replace("boolean", "bool")).name: n for name, n in numbers(tables.DType).items()}
    assert list(translated._CLASSES) == [kind.name for kind in tables.ErrorKind]


def test_no_other_file_defines_these_numbers() -> None:
    """Python uses the enums in `tables`, and C and C++ make their enums from the lists in the header."""
    names = "|".join(enum.__name__ for enum in ENUMS)
    defined = re.compile(
        rf"^ *(class|enum|enum class) (Perseus)?({names})\b(?!.*PERSEUS_(?:ROW|ENUMERATOR))", re.MULTILINE
    )
    folders = {"perseus_like": ("*.py", "*.pyi"), "adapters": ("*.py", "*.h", "*.cc"), "csrc": ("*.h", "*.cc")}
    sources = [path for folder, globs in folders.items() for glob in globs for path in (ROOT / folder).rglob(glob)]
    found = {path.relative_to(ROOT).as_posix() for path in sources if defined.search(path.read_text())}
    assert found == {"perseus_like/tables.py"}
