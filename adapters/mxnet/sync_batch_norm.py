"""Batch normalization over the batches of several ranks, for gluon and for symbols.

The result is that of one process with the whole batch (Ioffe and Szegedy, 2015, arXiv:1502.03167). Importing this
module adds the layer to `mx.gluon.contrib.nn` and `mx.sym.contrib`, as AIACC-Training does.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np

from .batch_statistics import HOST, OPERATOR, checked_scope
from .compat.gluon import options_of

_numbers = itertools.count()
Values = Any  # mxnet.nd.NDArray or mxnet.sym.Symbol


class PerseusSyncBatchNorm(mx.gluon.nn.BatchNorm):  # type: ignore[misc]
    """gluon's BatchNorm over axis 1 with the mean and variance of several ranks' batches while training.

    All ranks first train their layers in the same order. In evaluation the layer is local. A layer that is hybridized
    and evaluated before it is trained needs the same name on all ranks, as gluon gives them.

    Args:
        in_channels: the number of channels; 0 for that of the first batch.
        momentum: the weight of the old value in the running statistics.
        epsilon: is added to the variance.
        center: if true, the layer has an offset.
        scale: if true, the layer has a factor.
        use_global_stats: if true, the layer uses the running statistics in training, too.
        comm_scope: 0 for the ranks of this host, 1 for all ranks. With 0 and several hosts, all ranks of the job must
            take part in the first forward pass in training, which registers a process set for each host.
        num_devices: ignored; an argument of MXNet's SyncBatchNorm.
        kwargs: further arguments of gluon's BatchNorm.

    Raises:
        ValueError: `comm_scope` is neither 0 nor 1.

    Examples:
        >>> layer = hvd.PerseusSyncBatchNorm(in_channels=3)
        >>> layer.initialize()
        >>> layer(mx.nd.ones((4, 3, 2, 2))).shape
        (4, 3, 2, 2)
    """

    def __init__(
        self,
        in_channels: int = 0,
        num_devices: int | None = None,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        use_global_stats: bool = False,
        comm_scope: int = HOST,
        **kwargs: Any,
    ) -> None:
        options = {"center": center, "scale": scale, "use_global_stats": use_global_stats, "in_channels": in_channels}
        super().__init__(axis=1, momentum=momentum, epsilon=epsilon, **options, **kwargs)
        self._comm_scope = checked_scope(comm_scope)
        self._half = False
        self._number: int | None = None  # among the layers that have been trained

    def cast(self, dtype: Any) -> None:
        self._half = np.dtype(dtype) == np.float16
        super().cast(dtype)

    def hybrid_forward(
        self,
        F: Any,  # noqa: N803
        x: Values,
        gamma: Values,
        beta: Values,
        running_mean: Values,
        running_var: Values,
    ) -> Values:
        given = (x, gamma, beta, running_mean, running_var)
        if options_of(self)["use_global_stats"]:
            return super().hybrid_forward(F, *given)
        if mx.util.is_np_array():
            given = tuple(each.as_nd_ndarray() for each in given)
        half = self._half if F is mx.sym else x.dtype == np.float16
        options = {name: options_of(self)[name] for name in ("eps", "momentum", "fix_gamma")}
        terms = _terms(F, *given, half=half, comm_scope=self._comm_scope, key=self._key(), **options)
        result = _added(F, terms, half, "fwd")
        return result.as_np_ndarray() if mx.util.is_np_array() else result

    def _key(self) -> str:
        """Returns the name of the layer's requests.

        It does not contain gluon's name of a layer in training, because a rank may have made more layers than others.
        """
        if self._number is None and mx.autograd.is_training():
            self._number = next(_numbers)
        return self.name if self._number is None else f"number_{self._number}"


def sync_batch_norm_symbol(
    data: Any,
    gamma: Any = None,
    beta: Any = None,
    moving_mean: Any = None,
    moving_var: Any = None,
    eps: float = 1e-3,
    momentum: float = 0.9,
    fix_gamma: bool = True,
    use_global_stats: bool = False,
    comm_scope: int = HOST,
    name: str | None = None,
    **kwargs: Any,
) -> Any:
    """Returns the symbol of PerseusSyncBatchNorm. Defaults and parameter names are those of MXNet's SyncBatchNorm.

    `ndev` and `output_mean_var=False` are accepted and ignored. float16 data needs an explicit `Cast`.
    """
    if kwargs.pop("output_mean_var", False):
        raise ValueError("PerseusSyncBatchNorm returns no mean and variance; leave output_mean_var out")
    kwargs.pop("ndev", None)
    key = kwargs.pop("key", None)
    if kwargs:
        raise ValueError(f"PerseusSyncBatchNorm has no argument {', '.join(kwargs)}; leave it out")
    scope = checked_scope(comm_scope)
    name = mx.name.NameManager.current.get(name, "perseussyncbatchnorm")
    options: dict[str, Any] = {"eps": eps, "momentum": momentum, "fix_gamma": fix_gamma}
    # A custom operator has no initializers for its auxiliary states.
    initial = {"gamma": None, "beta": None, "moving_mean": mx.init.Zero(), "moving_var": mx.init.One()}
    given = [
        mx.sym.Variable(f"{name}_{argument}", init=initial[argument]) if symbol is None else symbol
        for argument, symbol in zip(initial, (gamma, beta, moving_mean, moving_var), strict=True)
    ]
    if use_global_stats:
        return mx.sym.BatchNorm(data, *given, use_global_stats=True, name=name, **options)
    half = data.infer_type_partial()[1][0] is np.float16
    with mx.name.Prefix(f"{name}_"):
        terms = _terms(mx.sym, data, *given, half=half, comm_scope=scope, key=key or name, **options)
    return _added(mx.sym, terms, half, name)


def inject() -> None:
    """Adds the layer to the modules in which scripts for AIACC-Training look for it."""
    mx.gluon.contrib.nn.PerseusSyncBatchNorm = PerseusSyncBatchNorm
    mx.sym.contrib.PerseusSyncBatchNorm = sync_batch_norm_symbol


def _terms(
    F: Any,  # noqa: N803
    values: Values,
    gamma: Values,
    beta: Values,
    running_mean: Values,
    running_variance: Values,
    *,
    half: bool,
    fix_gamma: bool,
    **options: Any,
) -> tuple[Values, Values]:
    """Returns two terms whose sum is the result; float32 if `half`, which means that the values are float16.

    Only operators of MXNet see the values, because they know oneDNN's layouts. MXNet's operators over axes are slow. So
    sums over the batch and repetitions for the batch are matrix products with ones, which run at the speed of BLAS.
    """
    # The sum has rows as its layout. Otherwise each operator would convert oneDNN's layout again.
    wide = F.cast(values, dtype="float32") if half else values + 0
    row = F.slice_axis(wide, axis=0, begin=0, end=1)  # (1, C, …)
    by_channel = F.reshape(row, shape=(-3, -1))  # (C, positions)
    positions = F.ones_like(F.slice_axis(by_channel, axis=0, begin=0, end=1))
    one_channel = F.reshape(F.slice_axis(wide, axis=1, begin=0, end=1), shape=(0, -1))
    rows = F.ones_like(F.slice_axis(one_channel, axis=1, begin=0, end=1))  # (N, 1)

    def total(array: Values) -> Values:
        of_positions = F.reshape_like(F.dot(rows, array, transpose_a=True), by_channel)
        return F.reshape(F.dot(of_positions, positions, transpose_b=True), shape=(-1,))

    def repeated(vector: Values) -> Values:
        return F.dot(rows, F.reshape_like(F.dot(F.reshape(vector, shape=(-1, 1)), positions), row))

    # Differences to about this rank's mean: squares of large values would lose small differences.
    offset = F.BlockGrad(F.broadcast_div(total(wide), F.sum(rows) * F.sum(positions)))
    distances = wide - F.BlockGrad(repeated(offset))
    sums = (total(distances), total(F.square(distances)), F.size_array(wide))
    factor = F.ones_like(gamma) if fix_gamma else gamma
    statistics = (running_mean, running_variance)
    slope, shift, _ = F.Custom(offset, *sums, factor, beta, *statistics, op_type=OPERATOR, **options)
    return distances * repeated(slope), repeated(shift)


def _added(F: Any, terms: Sequence[Values], half: bool, name: str) -> Values:  # noqa: N803
    if half:
        return F.cast(F.elemwise_add(*terms), dtype="float16", name=name)
    return F.elemwise_add(*terms, name=name)
