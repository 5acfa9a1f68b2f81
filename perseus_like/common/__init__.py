"""Horovod's paths: perseus_like.common.X offers the names of horovod.common.X, which are defined elsewhere."""

from . import basics, elastic, exceptions, process_sets, util

__all__ = ["basics", "elastic", "exceptions", "process_sets", "util"]
