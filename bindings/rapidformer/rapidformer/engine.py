"""The engine: joins the job, and changes a model, an optimizer and a scheduler as the switches ask."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from . import state, world
from .checks import check
from .loading import EvaluationLoader
from .options import InputError, learning_rates, parse
from .parallel import (
    average_gradients,
    clip_gradients,
    clip_shared,
    groups_by_name,
    is_shared,
    make_optimizer,
    parameter_groups,
    shared_optimizer,
    wrap,
)

Optimizer = torch.optim.Optimizer
SchedulerOf = Callable[..., Any]


class RapidformerEngine:
    """Reads the options from the command line and joins the job.

    `extra_args_provider` adds a script's own options to the parser.
    """

    def __init__(
        self,
        extra_args_provider: Callable[[argparse.ArgumentParser], Any] | None = None,
        arguments: list[str] | None = None,
    ) -> None:
        self.args = parse(sys.argv[1:] if arguments is None else arguments, extra_args_provider)
        _, size = world.join()
        if self.args.task is None and self.args.user_script is None:
            self.args.user_script = sys.argv[0]
        check(self.args, size)
        self.world = world.start(self.args.tensor_model_parallel_size, self.args.pipeline_model_parallel_size)
        self.device = self.world.device
        replicas = self.world.size_of("dp")
        if self.args.global_batch_size is None:
            self.args.global_batch_size = self.args.micro_batch_size * replicas
        self.accumulation = self.args.global_batch_size // (self.args.micro_batch_size * replicas)
        self.args.rank, self.args.world_size = self.world.rank, size
        state.set_args(self.args)
        torch.manual_seed(self.args.seed)
        uses_half = self.device.type == "cuda" and not torch.cuda.is_bf16_supported()
        self.dtype = torch.float16 if uses_half else torch.bfloat16
        self.scaler = torch.amp.GradScaler("cuda", enabled=uses_half and self.args.mixed_precision)
        self._parameters: list[nn.Parameter] = []

    def compose(
        self,
        model_obj: nn.Module,
        optimizer_obj: Optimizer | None = None,
        lr_scheduler_fn: SchedulerOf | None = None,
        iterations: int | None = None,
    ) -> tuple[Any, Any, Any]:
        """Returns the model, the optimizer and the scheduler as the switches ask.

        The optimizer may be another object of the same class. `lr_scheduler_fn(optimizer=…)` makes the scheduler.
        Without them, AdamW and Megatron's schedule are used.
        """
        wanted = None if optimizer_obj is None else groups_by_name(optimizer_obj, model_obj)
        kind = torch.optim.AdamW if optimizer_obj is None else type(optimizer_obj)
        model_obj.to(self.device)
        self._prepare(model_obj)
        optimizer: Any = None
        if self.args.zero_1_memory_optimization:
            groups = self._groups(model_obj, wanted)
            optimizer = shared_optimizer(groups, kind, self.world, self.accumulation)
        model: Any = model_obj
        if optimizer is None:
            model = wrap(model_obj, self.args, self.world)
            optimizer = make_optimizer(self._groups(model_obj, wanted), kind, self.args)
        if lr_scheduler_fn is None:
            share = learning_rates(self.args, iterations or self.args.train_iters or 1)
            scheduler: Any = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
        else:
            scheduler = lr_scheduler_fn(optimizer=optimizer)
        self._parameters = [value for value in model_obj.parameters() if value.requires_grad]
        return model, optimizer, scheduler

    def _groups(self, model: nn.Module, wanted: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
        """Returns the groups of an optimizer over the parameters that the model has now."""
        if wanted is None:
            return [{**group, "lr": self.args.lr} for group in parameter_groups(model, self.args.weight_decay)]
        by_name = dict(model.named_parameters())
        return [{**group, "params": [by_name[name] for name in group["params"]]} for group in wanted]

    def _prepare(self, model: nn.Module) -> None:
        """Applies the switches that leave the parameters as they are."""
        if self.args.checkpoint_activations:
            if not hasattr(model, "gradient_checkpointing_enable"):
                raise InputError(
                    f"{type(model).__name__} has no gradient_checkpointing_enable; leave out --checkpoint-activations"
                )
            enable: Any = model.gradient_checkpointing_enable
            enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if self.args.mixed_precision:
            forward = model.forward

            @functools.wraps(forward)
            def in_mixed_precision(*arguments: Any, **options: Any) -> Any:
                with torch.autocast(self.device.type, self.dtype):
                    return forward(*arguments, **options)

            model.forward = in_mixed_precision
        if self.args.onnx_runtime_training:
            state.get_logger().info("--onnx-runtime-training: ONNX Runtime's training has ended; torch.compile is used")
            model.compile()

    def backward(self, loss: torch.Tensor) -> None:
        """Computes gradients."""
        torch.autograd.backward(self.scaler.scale(loss))

    def finish_gradients(self, optimizer: Optimizer) -> float:
        """Averages gradients that no wrapper averages, clips them, and returns their norm."""
        if is_shared(optimizer):
            return clip_shared(optimizer, self.args.clip_grad)
        if self.scaler.is_enabled():
            self.scaler.unscale_(optimizer)
        if self.world.size_of("tp") * self.world.size_of("pp") > 1:
            average_gradients(self._parameters, self.world)
        return clip_gradients(self._parameters, self.args.clip_grad, self.world)

    def step(self, optimizer: Optimizer) -> None:
        """Steps the optimizer, unless float16 gradients overflowed."""
        self.scaler.step(optimizer)
        self.scaler.update()

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensors of all replicas, one after the other. In an evaluation, repeated samples are left out."""
        size = self.world.size_of("dp")
        gathered = tensor.contiguous()
        if size > 1:
            parts = [torch.empty_like(gathered) for _ in range(size)]
            dist.all_gather(parts, gathered, group=self.world.group("dp"))
            gathered = torch.cat(parts)
        loader = EvaluationLoader.present
        return gathered if loader is None else gathered[: loader.valid]

    def mean(self, value: torch.Tensor) -> float:
        """Returns the mean over the replicas."""
        total = value.detach().float().reshape(1).clone()
        dist.all_reduce(total, group=self.world.group("dp"))
        return float(total) / self.world.size_of("dp")
