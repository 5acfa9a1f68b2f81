"""Imports MXNet 1, or says what it needs: its last release is older than what pip installs beside it."""

from __future__ import annotations

import sys


def require_mxnet_1(version: str) -> None:
    """Raises ImportError unless the installed MXNet, of this version, is a release of MXNet 1."""
    if version.partition(".")[0] != "1":
        raise ImportError(
            f"perseus_like.mxnet: MXNet {version} is installed, but only MXNet 1.9 is supported; install it with "
            "`pip install mxnet==1.9.1 numpy==1.23.5`"
        )


try:
    from perseus_like.frameworks import mxnet as _mxnet
except (AttributeError, ImportError) as error:
    if isinstance(error, ModuleNotFoundError) and error.name == "mxnet":
        raise
    # MXNet imports this module before those that need an old NumPy.
    if base := sys.modules.get("mxnet.base"):
        require_mxnet_1(base.__version__)
    python = "" if sys.version_info < (3, 12) else " On this Python, it also needs `pip install 'setuptools<81'`."
    raise ImportError(
        f"perseus_like.mxnet: MXNet cannot be imported ({str(error).splitlines()[0]}). MXNet 1.9.1 needs NumPy before "
        "1.24 (`pip install numpy==1.23.5`); with NumPy 1.24 to 1.26, put `import numpy; numpy.bool = numpy.bool_` "
        f"before the import of MXNet.{python}"
    ) from error
require_mxnet_1(_mxnet.__version__)
