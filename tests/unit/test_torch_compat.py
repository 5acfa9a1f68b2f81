"""Checks each private part of torch on which the adapter relies. The name of a failed test says which part changed."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from perseus_like.torch.compat.__main__ import PROBES
from perseus_like.torch.distributed.process_group import PerseusGroup
from perseus_like.torch.distributed.works import PerseusWork, Works

# torch's base classes provide these members for a group or a work in Python, or only C++ backends use them.
OF_THE_BASE_CLASS = {
    *("BackendType", "CUSTOM", "GLOO", "MPI", "NCCL", "UCC", "UNDEFINED", "XCCL", "Options", "options"),
    *("boxed", "unbox", "_backend_id", "_id", "_pybind11_conduit_v1_", "_register_backend", "_set_default_backend"),
    *("_get_op_type", "_set_sequence_number_for_group", "block_current_stream", "is_success"),
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
