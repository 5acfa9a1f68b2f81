"""Batch normalization over the batches of all ranks: the result is that of one process on the whole batch."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from perseus_like import world
from perseus_like.collectives import Sum
from perseus_like.collectives.automatic_names import names
from perseus_like.host_memory.host_sets import host_process_set
from perseus_like.process_sets import ProcessSet, global_process_set
from perseus_like.world import size

from .compat.dynamo import not_compiled
from .compat.training import BatchNormBase, is_batch_norm
from .data_movement import allgather_async
from .ops import synchronize
from .reductions import allreduce_async
from .tensors import collectives

__all__ = ["Sum", "SyncBatchNorm", "allgather_async", "allreduce_async", "size", "synchronize"]

Tensor = torch.Tensor
HOST, WORLD = 0, 1
_HALVES = (torch.float16, torch.bfloat16)


class SyncBatchNorm(BatchNormBase):
    """torch.nn.BatchNorm1d, 2d and 3d with the mean and variance of all ranks' batches while training.

    Batches may be of different sizes, also empty; ranks that have joined count as having none. Costs one allreduce
    forward, 8 (2 C + 1) bytes for C channels, and one backward, 8 C bytes in float32. In evaluation it is local.
    `SyncBatchNorm.convert_sync_batchnorm(model)` replaces the layers of a model.

    Args:
        num_features: the number C of channels, which are dimension 1 of the input.
        eps: is added to the variance.
        momentum: the weight of a batch in the running statistics. None stands for a cumulative average.
        affine: if true, the layer has a weight and a bias.
        track_running_stats: if true, the layer keeps running statistics for evaluation.
        process_set: the ranks that share statistics. On other ranks they are each rank's own.
        comm_scope: 1: the ranks of `process_set`; 0: the ranks of this host only. With 0 the first forward in
            training is collective over the job, as it registers a process set for each host.
        device: the device of the parameters.
        dtype: the dtype of the parameters.

    Raises:
        ValueError: `comm_scope` is neither 0 nor 1, or is 0 with a `process_set`.

    Examples:
        >>> layer = hvd.SyncBatchNorm(3)
        >>> layer(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 3, 8, 8])
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
        comm_scope: int = WORLD,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        if comm_scope not in (HOST, WORLD):
            raise ValueError(f"comm_scope is {comm_scope!r}; it is 0 for this host or 1 for all ranks")
        if comm_scope == HOST and process_set is not global_process_set:
            raise ValueError("comm_scope=0 means the ranks of each host, which leaves no choice of a process set")
        self.process_set = process_set
        self.comm_scope = comm_scope

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_set: ProcessSet = global_process_set, comm_scope: int = WORLD
    ) -> torch.nn.Module:
        """Returns the module, in which every BatchNorm is now a SyncBatchNorm with the same parameters and buffers.

        The result is another module only if `module` itself is a BatchNorm.
        """
        if isinstance(module, cls):
            return module
        if is_batch_norm(module):
            return cls._like(module, process_set, comm_scope)
        for name, child in module.named_children():
            converted = cls.convert_sync_batchnorm(child, process_set, comm_scope)
            if converted is not child:
                module.add_module(name, converted)
        return module

    @classmethod
    def _like(cls, norm: BatchNormBase, process_set: ProcessSet, comm_scope: int) -> SyncBatchNorm:
        if isinstance(norm, torch.nn.modules.lazy.LazyModuleMixin):
            raise ValueError(f"{norm} does not know its channels yet; run a batch through the model, then convert it")
        options = (norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        converted = cls(norm.num_features, *options, process_set, comm_scope, device="meta")
        # The tensors stay the same, because an optimizer may hold them.
        for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            setattr(converted, name, getattr(norm, name))
        return converted.train(norm.training)

    def forward(self, input: Tensor) -> Tensor:
        """`input`: (N, C, …). ValueError, on all ranks, if they have one value per channel between them."""
        self._check_input_dim(input)
        return self._training_forward(input) if self.training else super().forward(input)

    @not_compiled  # a compiler cannot trace calls of the core
    def _training_forward(self, input: Tensor) -> Tensor:
        world.size()  # raises without a session
        ranks = self.process_set if self.comm_scope == WORLD else host_process_set()
        if not ranks.included() or ranks.size() == 1:
            return super().forward(input)
        name = _name_of(self, ranks)
        with torch.no_grad():
            mean, variance, count = _statistics(input, f"{name}.forward", ranks)
            # Only a rank with so few values reads the sum of all ranks, because that waits for the device.
            is_empty = False
            if input.numel() <= self.num_features:
                everywhere = count.item()
                if everywhere == 1:
                    raise ValueError(f"SyncBatchNorm: all ranks have one value per channel between them: {input.shape}")
                is_empty = everywhere == 0
            if not is_empty:
                self._track(mean, variance, count)
        normalized: Tensor = _Normalize.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, mean, variance, count, self.eps, f"{name}.backward", ranks
        )
        return normalized

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm needs (N, C, …), got {input.dim()} dimensions")
        if input.shape[1] != self.num_features:
            raise ValueError(f"SyncBatchNorm of {self.num_features} channels got {input.shape[1]}")

    def _track(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Updates running statistics as BatchNorm does: the variance that goes in is the unbiased one."""
        if self.running_mean is None or self.running_var is None:
            return
        factor: Any = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if factor is None:  # a tensor, because reading the number would wait for the device
                factor = self.num_batches_tracked.to(self.running_mean.dtype).reciprocal()
        factor = 0.0 if factor is None else factor
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_((variance * (count / (count - 1))).to(self.running_var.dtype), factor)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, comm_scope={self.comm_scope}"  # type: ignore[no-untyped-call]


def _statistics(values: Tensor, name: str, ranks: ProcessSet) -> tuple[Tensor, Tensor, Tensor]:
    """Returns mean and biased variance per channel over all ranks, and the number of values per channel.

    Sums are sent as float64, so that a mean far from zero does not hide the variance. The number is a tensor: it stays
    on the device, and the host does not wait for it.
    """
    channels = values.shape[1]
    count = values.numel() // channels
    sums = torch.zeros(2 * channels + 1, dtype=torch.float64, device=values.device)
    if count:
        mean, variance = (moment.double() for moment in _local_moments(values))
        sums[:channels], sums[channels:-1] = mean * count, (variance + mean * mean) * count
        sums[-1:].fill_(count)
    total = collectives.allreduce(sums, Sum, name, process_set=ranks, in_place=True).result()
    everywhere = total[-1]
    mean, squares = (total[:-1] / everywhere.clamp(min=1)).view(2, channels)
    dtype = torch.float32 if values.dtype in _HALVES else values.dtype
    return mean.to(dtype), (squares - mean * mean).clamp_(min=0).to(dtype), everywhere


def _local_moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Returns mean and biased variance per channel of this rank's values; in float32 for 16-bit floats."""
    if values.dtype not in _HALVES:
        return torch.batch_norm_update_stats(values, None, None, 0.0)  # five times as fast as var_mean
    # It accumulates in the dtype of the running statistics; a momentum of 0 does not change them.
    zeros = torch.zeros(values.shape[1], dtype=torch.float32, device=values.device)
    return torch.batch_norm_update_stats(values, zeros, zeros.clone(), 0.0)


class _Normalize(torch.autograd.Function):
    """Normalizes with known mean and variance (Ioffe and Szegedy, 2015, arXiv:1502.03167).

    The gradients of weight and bias are this rank's own; the optimizer reduces them with all others.
    """

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        count: Tensor,
        eps: float,
        name: str,
        ranks: ProcessSet,
    ) -> Tensor:
        ctx.save_for_backward(values, weight, mean, variance, count)
        ctx.rest = (eps, name, ranks)
        # Mean and variance are wider than 16-bit weights, and torch needs one dtype.
        scale, shift = (each if each is None else each.to(mean.dtype) for each in (weight, bias))
        return functional.batch_norm(values, mean, variance, scale, shift, False, 0.0, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        values, weight, mean, variance, count = ctx.saved_tensors
        eps, name, ranks = ctx.rest
        wide = torch.float32 if values.dtype in _HALVES else values.dtype
        grad_output, values, type_of_values = grad_output.to(wide), values.to(wide), values.dtype
        by_weight, by_bias = _local_sums(grad_output, values, mean.to(wide), variance.to(wide), eps)
        grad_input = None
        if ctx.needs_input_grad[0]:
            sums = collectives.allreduce(torch.cat([by_bias, by_weight]), Sum, name, process_set=ranks).result()
            mean_gradient, mean_product = (sums / count).view(2, len(mean))
            slope = (variance + eps).rsqrt()
            slope = slope if weight is None else slope * weight
            # slope * (gradient - its mean - normalized values * mean of their product), in two passes.
            offsets = (-slope * mean_product, -slope * mean_gradient)
            grad_input = functional.batch_norm(values, mean, variance, *offsets, False, 0.0, eps)
            by_channel = (1, -1, *[1] * (values.dim() - 2))
            grad_input = grad_input.addcmul_(grad_output, slope.view(by_channel)).to(type_of_values)
        if weight is None:
            return (grad_input, *[None] * 8)
        return (grad_input, by_weight.to(weight.dtype), by_bias.to(weight.dtype), *[None] * 6)


def _local_sums(gradient: Tensor, values: Tensor, mean: Tensor, variance: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Returns for each channel the sum of gradient times normalized value, and the sum of the gradient."""
    if not values.numel():
        return torch.zeros_like(mean), torch.zeros_like(mean)
    # In evaluation mode, these two sums are the gradients of weight and bias. There are no saved statistics: on CUDA,
    # this must be empty tensors.
    unsaved = mean.new_empty(0)
    _, by_weight, by_bias = torch.ops.aten.native_batch_norm_backward(
        gradient, values, torch.ones_like(mean), mean, variance, unsaved, unsaved, False, eps, [False, True, True]
    )
    return by_weight, by_bias


# Layers are numbered at their first use, which has the same order on all ranks. A copy of a layer gets its own number.
_names: weakref.WeakKeyDictionary[SyncBatchNorm, tuple[int, str]] = weakref.WeakKeyDictionary()


def _name_of(layer: SyncBatchNorm, ranks: ProcessSet) -> str:
    epoch, name = _names.get(layer, (-1, ""))
    if epoch != names.epoch:
        name = names.reserve("sync_batch_norm", ranks.require_id())
        _names[layer] = (names.epoch, name)
    return name
