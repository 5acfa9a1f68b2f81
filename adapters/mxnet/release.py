"""MXNet 1.9, and what is other in 2.0.

There a dictionary of parameters is a plain one. There is no Module, and a layer has no `hybrid_forward`, so
PerseusSyncBatchNorm is not there.
"""

import mxnet as mx

IS_2 = not mx.__version__.startswith("1.")
ParameterDict = dict if IS_2 else mx.gluon.parameter.ParameterDict
