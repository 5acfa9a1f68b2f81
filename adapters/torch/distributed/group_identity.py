"""The answers to torch's queries of a process group in Python: names, rank, size, store and options."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.distributed_c10d import Store


class GroupIdentity:
    """Answers for groups in Python. The C++ base class would ask its Backend objects, and such a group has none.

    It comes before the C++ class in the list of bases.
    """

    is_of_perseus = True
    supports_splitting = False
    bound_device_id: torch.device | None = None
    _store: Store
    _rank: int
    _size: int
    _backend_name = "perseus"  # for what asks torch for the backend's name
    _group_name = ""
    _group_desc = "undefined"

    def getRank(self) -> int:  # noqa: N802
        return self._rank

    def getSize(self) -> int:  # noqa: N802
        return self._size

    rank = getRank
    size = getSize

    def getBackendName(self) -> str:  # noqa: N802
        return self._backend_name

    name = _get_backend_name = getBackendName

    def getGroupName(self) -> str:  # noqa: N802
        return self._group_name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._group_name = name

    def _set_group_name(self, name: str) -> None:
        self.setGroupName(name)

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._group_desc

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._group_desc = description

    _set_group_desc = setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def get_group_store(self) -> Store:
        return self._store

    def _get_backend(self, device: torch.device) -> Any:
        return self

    def get_backend(self, device: torch.device) -> Any:
        return self._get_backend(device)

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        """Does nothing, because it is for completion hooks, which such a group does not have."""

    def _set_sequence_number_for_group(self) -> None:
        """Does nothing, because all members count from 0."""
