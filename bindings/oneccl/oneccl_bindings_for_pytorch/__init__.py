"""Registers perseus_like's torch.distributed backend under the name `ccl`, as Intel's bindings do."""

from collections.abc import MutableMapping
from importlib.metadata import version as _version
from pathlib import Path as _Path

from perseus_like_autoload import register as _register

__version__ = _version("oneccl_bind_pt")
# The folder of env/setvars.sh.
cwd = str(_Path(__file__).parent.absolute())


def set_env_default(env: MutableMapping[str, str], key: str, value: str) -> None:
    """Sets the variable `key` in `env` unless it is set already."""
    env.setdefault(key, value)


_register("ccl")

__all__ = ["__version__", "cwd", "set_env_default"]
