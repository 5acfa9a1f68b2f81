"""Horovod's path of `run`, and of the few helpers of its launcher that scripts and tests import: horovod.runner."""

from ..launch.run_function import run

__all__ = ["run"]
