"""Batch normalization over the batches of several ranks: the result is that of one process on the whole batch.

Ioffe and Szegedy, 2015, arXiv:1502.03167. An operator of MXNet's in Python, for gluon and for symbols; once this module
is imported it is where AIACC-Training has it, `mx.gluon.contrib.nn` and `mx.sym.contrib`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np

from perseus_like import basics
from perseus_like.collectives import Collectives, Sum
from perseus_like.hosts import host_process_set
from perseus_like.process_sets import ProcessSet, global_process_set
from perseus_like.session import session
from perseus_like.tensor import ArrayTensors

Array = Any
HOST, WORLD = 0, 1
OPERATOR = "perseus_sync_batch_norm"

_arrays: Collectives[np.ndarray[Any, Any]] = Collectives(ArrayTensors())
_USES_AT_ONCE = 16
_uses: dict[str, int] = {}  # the number of each layer's last use
session.on_start(_uses.clear)
_finding_the_host = threading.Lock()  # operators of several layers run at once


class _SyncBatchNorm(mx.operator.CustomOp):  # type: ignore[misc]
    """Keeps nothing between forward and backward: what backward needs is its second output, the statistics.

    Two uses of one layer are never forward at once, as both write its running statistics; so they are counted alike on
    all ranks. Backward they may be, and go by their numbers.
    """

    def __init__(self, eps: float, momentum: float, fix_gamma: bool, local: bool, comm_scope: int, key: str) -> None:
        super().__init__()
        self._eps, self._momentum, self._fix_gamma, self._local = eps, momentum, fix_gamma, local
        self._comm_scope = comm_scope
        self._key = f"sync_batch_norm.{key}"

    def forward(
        self, is_train: bool, req: Sequence[str], in_data: list[Array], out_data: list[Array], aux: list[Array]
    ) -> None:
        values, gamma, beta = in_data
        running_mean, running_variance = aux
        if self._fix_gamma:
            gamma[:] = 1
        wide = _wide(values)
        if is_train and not self._local:
            mean, variance, count = self._statistics(wide)
            use = _uses[self._key] = (_uses.get(self._key, -1) + 1) % _USES_AT_ONCE
            for running, new in ((running_mean, mean), (running_variance, variance)):
                running[:] = running * self._momentum + new.astype(running.dtype) * (1 - self._momentum)
        else:
            mean, variance, count, use = running_mean, running_variance, 0, 0
        slope = gamma.astype(wide.dtype) / (variance + self._eps).sqrt()
        shift = beta.astype(wide.dtype) - mean * slope
        normalized = wide * _by_channel(slope, wide) + _by_channel(shift, wide)
        self.assign(out_data[0], req[0], normalized.astype(values.dtype))
        numbers = mx.nd.array([count, use], dtype=wide.dtype)
        self.assign(out_data[1], req[1], mx.nd.concat(mean, variance, numbers, dim=0))

    def backward(
        self,
        req: Sequence[str],
        out_grad: list[Array],
        in_data: list[Array],
        out_data: list[Array],
        in_grad: list[Array],
        aux: list[Array],
    ) -> None:
        values, gamma = _wide(in_data[0]), in_data[1]
        gradient = _wide(out_grad[0])
        channels = values.shape[1]
        mean, variance = out_data[1][:channels], out_data[1][channels : 2 * channels]
        count, use = (int(number) for number in out_data[1][2 * channels :].asnumpy())
        scale = 1 / (variance + self._eps).sqrt()
        normalized = (values - _by_channel(mean, values)) * _by_channel(scale, values)
        by_beta = gradient.sum(_other_axes(values))
        by_gamma = (gradient * normalized).sum(_other_axes(values))
        by_values = gradient
        if count:
            sums = self._sum(np.concatenate([by_beta.asnumpy(), by_gamma.asnumpy()]), f"backward.{use}") / count
            mean_gradient, mean_product = (mx.nd.array(each, dtype=values.dtype) for each in np.split(sums, 2))
            by_values = gradient - _by_channel(mean_gradient, values) - normalized * _by_channel(mean_product, values)
        by_values = by_values * _by_channel(scale * gamma.astype(scale.dtype), values)
        self.assign(in_grad[0], req[0], by_values.astype(in_data[0].dtype))
        # This rank's own: who trains reduces them with all other gradients.
        self.assign(in_grad[1], req[1], by_gamma.astype(gamma.dtype) * (0 if self._fix_gamma else 1))
        self.assign(in_grad[2], req[2], by_beta.astype(gamma.dtype))

    def _statistics(self, values: Array) -> tuple[Array, Array, int]:
        """Mean and biased variance per channel, and how many values, of all ranks that share them."""
        mean, variance = (each.asnumpy().astype(np.float64) for each in mx.nd.moments(values, axes=_other_axes(values)))
        count = values.size // values.shape[1]
        total = self._sum(np.concatenate([[1], mean, variance + mean * mean]) * count, "forward")
        mean, squares = np.split(total[1:] / total[0], 2)
        dtype = values.dtype
        return (
            mx.nd.array(mean, dtype=dtype),
            mx.nd.array(np.maximum(squares - mean * mean, 0), dtype=dtype),
            int(total[0]),
        )

    def _sum(self, mine: np.ndarray[Any, Any], what: str) -> np.ndarray[Any, Any]:
        ranks = self._ranks()
        if ranks.size() == 1:
            return mine
        return _arrays.allreduce(mine, Sum, f"{self._key}.{what}", process_set=ranks).result()

    def _ranks(self) -> ProcessSet:
        basics.size()  # raises without a session
        if self._comm_scope == WORLD:
            return global_process_set
        with _finding_the_host:
            return host_process_set()


@mx.operator.register(OPERATOR)
class _SyncBatchNormProperties(mx.operator.CustomOpProp):  # type: ignore[misc]
    """Everything comes as a text."""

    def __init__(
        self,
        eps: str = "1e-5",
        momentum: str = "0.9",
        fix_gamma: str = "False",
        use_global_stats: str = "False",
        comm_scope: str = "0",
        key: str = "",
    ) -> None:
        super().__init__(need_top_grad=True)
        scope = _checked_scope(int(comm_scope))
        self._options = (float(eps), float(momentum), _is_true(fix_gamma), _is_true(use_global_stats), scope, key)

    def list_arguments(self) -> list[str]:
        return ["data", "gamma", "beta"]

    def list_outputs(self) -> list[str]:
        return ["output", "statistics"]

    def list_auxiliary_states(self) -> list[str]:
        return ["moving_mean", "moving_var"]

    def infer_shape(self, in_shape: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        values = in_shape[0]
        if len(values) < 2:
            raise ValueError(f"PerseusSyncBatchNorm needs (N, C, …), got {len(values)} dimensions")
        channels = [values[1]]
        return [values, channels, channels], [values, [2 * values[1] + 2]], [channels, channels]

    def infer_type(self, in_type: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        wide = np.float32 if in_type[0] == np.float16 else in_type[0]
        return [in_type[0], wide, wide], [in_type[0], wide], [wide, wide]

    def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> _SyncBatchNorm:
        return _SyncBatchNorm(*self._options)


class PerseusSyncBatchNorm(mx.gluon.nn.BatchNorm):  # type: ignore[misc]
    """gluon's BatchNorm over axis 1 with the mean and variance of several ranks' batches while training.

    Ranks make their layers in the same order, or name them alike. In evaluation it is local.

    Args:
        comm_scope: 0: the ranks of this host; 1: all ranks. With 0 the first forward in training is collective over the
            job where there are several hosts, as it registers a process set for each.
        num_devices: not needed, and there for MXNet's SyncBatchNorm's sake.
        others: as for BatchNorm.
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
        self._comm_scope = _checked_scope(comm_scope)

    def hybrid_forward(
        self,
        F: Any,  # noqa: N803
        x: Any,
        gamma: Any,
        beta: Any,
        running_mean: Any,
        running_var: Any,
    ) -> Any:
        names = ("eps", "momentum", "fix_gamma", "use_global_stats")
        options = {name: self._kwargs[name] for name in names}
        arguments = (x, gamma, beta, running_mean, running_var)
        return F.Custom(
            *arguments, op_type=OPERATOR, comm_scope=self._comm_scope, key=self.name, name="fwd", **options
        )[0]


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
    """The symbol of PerseusSyncBatchNorm; defaults and the names of parameters are those of MXNet's SyncBatchNorm.

    `key`, `ndev` and `output_mean_var=False` are accepted and need nothing.
    """
    if kwargs.pop("output_mean_var", False):
        raise ValueError("PerseusSyncBatchNorm gives no mean and variance; leave output_mean_var out")
    kwargs.pop("ndev", None)
    name = mx.name.NameManager.current.get(name, "perseussyncbatchnorm")
    # Custom operators have no initializers of their own for what is no parameter.
    if moving_mean is None:
        moving_mean = mx.sym.Variable(f"{name}_moving_mean", init=mx.init.Zero())
    if moving_var is None:
        moving_var = mx.sym.Variable(f"{name}_moving_var", init=mx.init.One())
    given = {"gamma": gamma, "beta": beta, "moving_mean": moving_mean, "moving_var": moving_var}
    options = {"eps": eps, "momentum": momentum, "fix_gamma": fix_gamma, "use_global_stats": use_global_stats}
    return mx.sym.Custom(
        data=data,
        op_type=OPERATOR,
        comm_scope=_checked_scope(comm_scope),
        key=kwargs.pop("key", None) or name,
        name=name,
        **options,
        **{argument: symbol for argument, symbol in given.items() if symbol is not None},
        **kwargs,
    )[0]


def inject() -> None:
    """Puts the layer where AIACC-Training's scripts look for it."""
    mx.gluon.contrib.nn.PerseusSyncBatchNorm = PerseusSyncBatchNorm
    mx.sym.contrib.PerseusSyncBatchNorm = sync_batch_norm_symbol


def _checked_scope(comm_scope: int) -> int:
    if comm_scope not in (HOST, WORLD):
        raise ValueError(f"comm_scope is {comm_scope!r}; it is 0 for this host or 1 for all ranks")
    return comm_scope


def _is_true(text: str) -> bool:
    return str(text) in ("True", "1")


def _wide(values: Array) -> Array:
    return values.astype(np.float32) if values.dtype == np.float16 else values


def _other_axes(values: Array) -> tuple[int, ...]:
    return tuple(axis for axis in range(values.ndim) if axis != 1)


def _by_channel(vector: Array, values: Array) -> Array:
    return vector.reshape((1, -1) + (1,) * (values.ndim - 2))
