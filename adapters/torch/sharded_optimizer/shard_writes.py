"""Notices parameters that the program itself writes, although the ranks of a host share them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from ..parameter_memory import Named
from ..tensors.shared_memory import warn_once


class ProgramWrites:
    """Compares the versions of the parameters of a sharded optimizer with those after its last step."""

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}  # by id() of the parameter
        self._has_stepped = False

    def note(self, parameters: Iterable[torch.Tensor], after_step: bool) -> None:
        """Remembers the versions of all parameters."""
        self._versions = {id(parameter): parameter._version for parameter in parameters}
        self._has_stepped |= after_step

    def is_written(self, parameter: torch.Tensor) -> bool:
        return parameter._version != self._versions.get(id(parameter), parameter._version)

    def first(self, named: Sequence[Named]) -> str:
        """Returns the name of the first parameter that was written; "" if there is none.

        Before the first step, writes to all parameters do not count: the program loads a checkpoint, or the values of
        another rank.
        """
        written = [name for name, parameter in named if self.is_written(parameter)]
        is_load = not self._has_stepped and len(written) == len(named) > 1
        return written[0] if written and not is_load else ""


def warn_of_writers(name: str, ranks: int) -> None:
    """Warns that `ranks` ranks of this host have written parameters that they share, this one the parameter `name`."""
    warn_once(
        f"ZeroRedundancyOptimizer: {ranks} ranks of this host have written parameters since the last step, this rank "
        f"{name!r}. They share these parameters, so that an operation such as mul_(0.5) on every rank takes effect "
        "once for each rank. Compute new values from old ones on one rank of each host, between two barriers. Writing "
        "the same value on every rank, as load_state_dict does, is right"
    )
