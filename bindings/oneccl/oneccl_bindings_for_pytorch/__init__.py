"""The torch.distributed backend `ccl`: perseus_like's, under the name that scripts for Intel's bindings say."""

from collections.abc import MutableMapping
from importlib.metadata import version as _version
from pathlib import Path as _Path

from perseus_like_autoload import register as _register

__version__ = _version("oneccl_bind_pt")
# Where env/setvars.sh is.
cwd = str(_Path(__file__).parent.absolute())


def set_env_default(env: MutableMapping[str, str], key: str, value: str) -> None:
    """Sets what is not set yet."""
    env.setdefault(key, value)


_register("ccl")

__all__ = ["__version__", "cwd", "set_env_default"]
