"""Which MXNet this is for."""

import mxnet as mx

if not mx.__version__.startswith("1."):
    raise ImportError(
        f"perseus_like.mxnet is for MXNet 1.9; this is {mx.__version__}, which has no Module, no ParameterDict and "
        "another C API: pip install mxnet==1.9.1"
    )
