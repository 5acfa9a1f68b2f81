"""The module `horovod.tensorflow.gradient_aggregation_eager`."""

from perseus_like.process_sets import global_process_set

from .gradient_aggregation import LocalGradientAggregationHelperEager
from .rank_tensors import size_op

__all__ = ["LocalGradientAggregationHelperEager", "global_process_set", "size_op"]
