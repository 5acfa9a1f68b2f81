"""The older name of oneccl_bindings_for_pytorch."""

from oneccl_bindings_for_pytorch import __version__, cwd, set_env_default

__all__ = ["__version__", "cwd", "set_env_default"]
