"""The environment variables that give a rank its numbers."""

from __future__ import annotations

RANK_FACTS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")


def rank_variables(prefix: str, rank: int, size: int) -> dict[str, str]:
    """`PREFIX_RANK`, `PREFIX_SIZE`, … of one of `size` ranks that are all on this host."""
    values = (rank, size, rank, size, 0, 1)
    return {f"{prefix}_{fact}": str(value) for fact, value in zip(RANK_FACTS, values, strict=True)}
