"""horovod.runner.common.util.env."""

from __future__ import annotations

import os

_PAIRS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def get_env_rank_and_size() -> tuple[int, int]:
    """Rank and size as the launcher says, before init(); (0, 1) without one. RuntimeError for one without the other."""
    for names in _PAIRS:
        values = [os.environ.get(name) for name in names]
        if None not in values:
            rank, size = (int(value) for value in values if value is not None)
            return rank, size
        if values != [None, None]:
            raise RuntimeError(f"of {names[0]} and {names[1]} only one is set; the launcher sets both")
    return 0, 1


__all__ = ["get_env_rank_and_size"]
