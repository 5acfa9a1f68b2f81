"""The import alias `horovod`. This folder's parent is added to the module search path to install it."""

from perseus_like import run
from perseus_like.names import HOROVOD_VERSION, install_horovod_alias

install_horovod_alias()

__version__ = HOROVOD_VERSION

__all__ = ["__version__", "run"]
