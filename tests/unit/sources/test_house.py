"""Limits of what `make house` counts: methods of a class, files of a folder, files of one name. Lines are a report."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git, which lists the files")


@pytest.fixture(scope="module")
def house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", ROOT / "release/house.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_class_is_too_broad(house: ModuleType) -> None:
    assert house.broad_classes(house.files(ROOT, *house.SOURCES)) == []


def test_no_two_files_of_a_subtree_have_one_name(house: ModuleType) -> None:
    assert house.double_names(ROOT) == []


def test_no_folder_is_full(house: ModuleType) -> None:
    assert house.full_folders(ROOT) == []


def test_no_decorator_replaces_methods_by_name(house: ModuleType) -> None:
    assert house.replacing_decorators(house.files(ROOT, *house.SOURCES)) == []
