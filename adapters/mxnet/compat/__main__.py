"""`python -m perseus_like.mxnet.compat`: says which private parts of the installed MXNet have changed."""

import mxnet as mx

from perseus_like.compat_probes import main

from .probes import PROBES

main(f"MXNet {mx.__version__}", PROBES)
