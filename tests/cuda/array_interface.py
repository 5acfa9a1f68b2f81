"""Makes tensors from objects that have `__cuda_array_interface__`, as torch does on a GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import torch


def tensor_from(interface: dict[str, Any], owner: Any) -> torch.Tensor:
    """Returns a tensor over the memory that `interface` describes, which is host memory. The tensor keeps `owner`."""
    assert interface["typestr"] == "|u1"
    (address, read_only), (count,) = interface["data"], interface["shape"]
    assert not read_only
    memory: Any = (ctypes.c_char * count).from_address(address)
    memory.kept = owner
    return torch.frombuffer(memory, dtype=torch.uint8)
