"""Horovod's path of `run`, and of the helpers of its launcher that programs and tests import: horovod.runner."""

from ..launch.run_function import run
from .launcher_options import _HorovodArgs

__all__ = ["_HorovodArgs", "run"]
