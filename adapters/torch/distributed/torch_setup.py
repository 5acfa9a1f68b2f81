"""Changes of torch before the first process group of this library is made."""

from __future__ import annotations

import functools
from typing import Any

from ..compat import process_groups


@functools.cache
def prepare_torch() -> None:
    """Once in a process."""
    process_groups.skip_flight_recorder(_is_ours)
    process_groups.keep_awaited_works()
    process_groups.accept_monitored_barrier(_is_ours)


def _is_ours(group: Any) -> bool:
    return getattr(group, "is_of_perseus", False)
