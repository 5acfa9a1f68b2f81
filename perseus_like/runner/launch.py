"""horovod.runner.launch: the command line is that of perseusrun."""

from ..launch import main as run_commandline

__all__ = ["run_commandline"]
