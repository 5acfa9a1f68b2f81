"""Horovod's path of `run`: horovod.runner.run."""

from .launch.run_function import run

__all__ = ["run"]
