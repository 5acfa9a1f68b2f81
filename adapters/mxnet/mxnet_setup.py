"""Imports MXNet, or says what it needs: its last release is older than what pip installs beside it."""

from __future__ import annotations

import sys

try:
    from perseus_like.frameworks import mxnet as _mxnet  # noqa: F401
except (AttributeError, ImportError) as error:
    if isinstance(error, ModuleNotFoundError) and error.name == "mxnet":
        raise
    python = "" if sys.version_info < (3, 12) else " On this Python, it also needs `pip install 'setuptools<81'`."
    raise ImportError(
        f"perseus_like.mxnet: MXNet cannot be imported ({str(error).splitlines()[0]}). MXNet 1.9.1 needs NumPy before "
        "1.24 (`pip install numpy==1.23.5`); with NumPy 1.24 to 1.26, put `import numpy; numpy.bool = numpy.bool_` "
        f"before the import of MXNet.{python}"
    ) from error
