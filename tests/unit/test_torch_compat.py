"""Checks each private part of torch on which the adapter relies. The name of a failed test says which part changed."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

from perseus_like.compat_probes import changed
from perseus_like.torch import compat
from perseus_like.torch.compat.__main__ import PROBES
from perseus_like.torch.distributed.process_group import PerseusGroup
from perseus_like.torch.distributed.works import PerseusWork, Works
from tests.job import run_to_end

MODULES = {
    path.stem: f"perseus_like.torch.compat.{path.stem}"
    for path in Path(compat.__file__).parent.glob("*.py")
    if path.stem not in ("__init__", "__main__")
} | {"autoload": "perseus_like_autoload.compat"}
# torch's base classes provide these members for a group or a work in Python, or only C++ backends use them.
OF_THE_BASE_CLASS = {
    *(
        "BackendType",
        "CUSTOM",
        "GLOO",
        "MPI",
        "NCCL",
        "UCC",
        "UNDEFINED",
        "XCCL",
        "Options",
        "options",
        "boxed",
        "unbox",
    ),
    *("_backend_id", "_id", "_pybind11_conduit_v1_", "_register_backend", "_set_default_backend", "_get_op_type"),
    *("_set_sequence_number_for_group", "block_current_stream", "is_success"),
}


@pytest.mark.parametrize("name", PROBES)
def test_the_private_part_is_as_expected(name: str) -> None:
    PROBES[name]()


@pytest.mark.parametrize(("ours", "theirs"), [(PerseusGroup, dist.ProcessGroup), (PerseusWork, dist.Work)])
def test_each_member_of_torchs_class_is_implemented_or_refused(ours: type, theirs: type) -> None:
    offered = {name for name in dir(theirs) if not name.startswith("__")} - OF_THE_BASE_CLASS
    missing = [name for name in sorted(offered) if getattr(ours, name) is getattr(theirs, name)]
    assert missing == [], f"torch {torch.__version__}: {ours.__name__} neither implements nor refuses these"


def test_the_class_for_several_works_implements_each_member_of_work() -> None:
    offered = {name for name in dir(dist.Work) if not name.startswith("__")} - OF_THE_BASE_CLASS
    used_alone = {"source_rank", "_source_rank", "_get_sequence_number", "timeout"}
    assert {name for name in offered - used_alone if getattr(Works, name) is getattr(dist.Work, name)} == set()


def functions_of(module: ModuleType) -> list[str]:
    functions = [each for each in vars(module).values() if inspect.isfunction(inspect.unwrap(each))]
    own = [each for each in functions if each.__module__ == module.__name__]
    return [each.__name__ for each in own if not each.__name__.startswith("_")]


def test_each_function_says_what_it_relies_on_and_has_a_probe() -> None:
    functions = {}
    for name, path in MODULES.items():
        module = importlib.import_module(path)
        functions.update({f"{name}.{each}": getattr(module, each) for each in functions_of(module)})
    assert functions.keys() == PROBES.keys()
    for name, function in functions.items():
        for word in ("Relies on:", "Tried with:", "Notices:", "Lost then:"):
            assert word in (function.__doc__ or ""), name


def test_the_report_names_a_changed_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_current_graph_task_id")
    found = changed(PROBES)
    assert list(found) == ["core.current_backward"]
    assert "_current_graph_task_id" in found["core.current_backward"]


def test_the_probes_run_as_a_program() -> None:
    done = run_to_end([sys.executable, "-m", "perseus_like.torch.compat"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"torch {torch.__version__}: {len(PROBES)} of {len(PROBES)} private parts" in done.stdout
