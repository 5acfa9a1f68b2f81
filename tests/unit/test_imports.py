"""Which room may know of which: the table of docs/architecture.md as data, held against import and #include lines."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "csrc"

FRAMEWORKS = {"torch", "tensorflow", "keras", "mxnet"}
# mpi4py serves users' own communicators, yaml reads the launcher's configuration file, matplotlib draws timelines; all
# are optional.
OPTIONAL = {"mpi4py", "yaml", "matplotlib"}
REQUIRED = {"numpy", "cloudpickle"}
# Files that programs import by their folder, because they are started by their path and without the package.
BY_FOLDER = {"agent_protocol", "authentication", "messages", "rank_variables", "unstarted"}

# What a file of a room may include, by the beginning of the path; its own folder is always allowed.
INCLUDES: dict[str, tuple[str, ...]] = {
    "base": (),
    "device": ("base/",),
    "bootstrap": ("base/",),
    "transport": ("base/", "device/", "bootstrap/"),
    "control": ("base/", "transport/control_channel.h"),
    "engine": (
        *("base/", "device/", "control/", "tune/", "trace/", "bootstrap/"),
        *("transport/transport.h", "transport/control_channel.h", "transport/fabric.h", "transport/device_transport.h"),
    ),
    "tune": ("base/",),
    "trace": ("base/",),
    "capi": ("base/", "engine/", "bootstrap/"),
    # Beside the engine: the kernels, which the benchmarks measure by themselves.
    "bind": ("base/", "engine/", "bootstrap/", "capi/", "device/", "pybind11/"),
}
# Each engine's folder sees the interfaces and itself; only what makes fabrics and devices' transports sees all of them.
TRANSPORT_INTERFACES = re.compile(r"transport/[a-z_]+\.h$")
MAKES_FABRICS = {"transport/fabric.cc", "transport/device_transport.cc"}
VENDORS = re.compile(r"^(mpi|nccl|cuda|ccl|oneapi|Python|torch|tensorflow|mxnet)[/.]")


def sources() -> list[Path]:
    return [path for pattern in ("*.h", "*.cc", "*.cu") for path in sorted(CSRC.rglob(pattern))]


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^">]+)[">]', path.read_text(), re.MULTILINE)


def test_every_room_of_the_core_is_in_the_table() -> None:
    rooms = {path.name for path in CSRC.iterdir() if path.is_dir()}
    assert rooms <= INCLUDES.keys()


def may_include(path: Path, included: str) -> bool:
    room, *rest = path.relative_to(CSRC).parts
    folder = included.split("/")[0]
    if folder == "pybind11":
        return room == "bind"
    if folder not in INCLUDES:
        return not VENDORS.match(included)
    if room == "transport" and folder == "transport":
        own = f"transport/{rest[0]}/" if len(rest) > 1 else "transport/"
        whole = path.relative_to(CSRC).as_posix() in MAKES_FABRICS
        return whole or (included.startswith(own) and len(rest) > 1) or bool(TRANSPORT_INTERFACES.match(included))
    return folder == room or included.startswith(INCLUDES[room])


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.relative_to(CSRC).as_posix())
def test_includes(path: Path) -> None:
    assert [included for included in includes(path) if not may_include(path, included)] == []


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """The first part of each imported name, and how many levels up a relative import goes."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0], node.level


def python_files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", python_files("perseus_like"), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_package_knows_no_framework(path: Path) -> None:
    allowed = {*sys.stdlib_module_names, "perseus_like", *REQUIRED, *OPTIONAL, *BY_FOLDER}
    assert {name for name, level in imported(path) if level == 0} <= allowed


@pytest.mark.parametrize("path", python_files("adapters"), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_an_adapter_knows_its_framework_alone(path: Path) -> None:
    inside = path.relative_to(ROOT / "adapters")
    if len(inside.parts) == 1:
        assert list(imported(path)) == []
        return
    # Horovod has a second path for Keras below TensorFlow's.
    framework = "keras" if inside.parts[:2] == ("tensorflow", "keras") else inside.parts[0]
    own = {framework, *({"tensorflow"} if framework == "keras" else ())}
    allowed = {*sys.stdlib_module_names, "numpy", "ml_dtypes", "perseus_like", *own}
    assert {name for name, level in imported(path) if level == 0} <= allowed
    deepest = len(inside.parts) - 1
    assert all(level <= deepest for _, level in imported(path)), "a relative import leaves the adapter"
    others = re.findall(r"perseus_like\.(\w+)", path.read_text())
    assert not (set(others) & (FRAMEWORKS | {"numpy"})) - own - {framework}


def test_nobody_else_reads_the_environment() -> None:
    readers = [path for path in sources() if re.search(r"\bgetenv\b", path.read_text())]
    assert [path.relative_to(CSRC).as_posix() for path in readers] in ([], ["base/config.cc"])
    # What starts programs, Horovod's helpers for variables, and what torch loads, which loads nothing of ours.
    allowed = {"launch", "__main__.py", "util.py", "env.py", "autoload"}
    for path in [*python_files("perseus_like"), *python_files("adapters")]:
        if not allowed & set(path.parts):
            assert not re.search(r"os\.environ|getenv", path.read_text()), path
