"""Horovod's paths: what horovod.common.X holds is found in perseus_like.common.X, whatever file it lives in."""

from . import basics, elastic, exceptions, process_sets, util

__all__ = ["basics", "elastic", "exceptions", "process_sets", "util"]
