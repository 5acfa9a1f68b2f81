"""Does in Python what torch does on a GPU with objects that have `__cuda_array_interface__`."""

from __future__ import annotations

import ctypes
from typing import Any

import torch


def take_in(interface: dict[str, Any], owner: Any) -> torch.Tensor:
    """A tensor over that memory, which is the host's here. It keeps the owner."""
    assert interface["typestr"] == "|u1"
    (address, read_only), (count,) = interface["data"], interface["shape"]
    assert not read_only
    memory: Any = (ctypes.c_char * count).from_address(address)
    memory.kept = owner
    return torch.frombuffer(memory, dtype=torch.uint8)
