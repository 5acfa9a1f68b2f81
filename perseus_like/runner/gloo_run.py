"""horovod.runner.gloo_run: the one name of it that programs replace in tests."""

from __future__ import annotations


def _get_min_start_hosts(settings: object) -> int:
    """Returns 1: an elastic job starts as soon as there are enough slots, on any number of hosts."""
    return 1


__all__: list[str] = []
