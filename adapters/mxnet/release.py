"""Differences between MXNet 1.9 and 2.0.

In MXNet 2.0, `collect_params()` returns a plain dictionary. It has no Module, and its layers have no `hybrid_forward`,
so PerseusSyncBatchNorm does not work there.
"""

import mxnet as mx

IS_2 = not mx.__version__.startswith("1.")
ParameterDict = dict if IS_2 else mx.gluon.parameter.ParameterDict
