"""The optimizers whose update can be divided among ranks: their states, and their options for the core's kernel."""

from __future__ import annotations

from typing import Any

import torch

from perseus_like.errors import UnavailableError

_ADAM = ("exp_avg", "exp_avg_sq")
_STATES = {torch.optim.Adam: _ADAM, torch.optim.AdamW: _ADAM, torch.optim.SGD: ("momentum_buffer",)}
MASTER = "master"  # the float32 copy of a bfloat16 parameter
_WHOLE_TENSORS = {
    "LBFGS": "it needs all gradients at once",
    "Adafactor": "it divides by norms of rows and columns",
    "Muon": "it multiplies whole matrices",
    "SparseAdam": "it takes sparse gradients only",
}


def states_of(optimizer_class: type[torch.optim.Optimizer]) -> tuple[str, ...]:
    """Returns the names of the states of one element. UnavailableError if the optimizer cannot be sharded."""
    known = _STATES.get(optimizer_class)
    if known is not None:
        return known
    name = optimizer_class.__name__
    reason = _WHOLE_TENSORS.get(name, "the core has no kernel for it")
    raise UnavailableError(
        f"ZeroRedundancyOptimizer cannot shard {name}: {reason}; use SGD, Adam or AdamW, or DistributedOptimizer "
        "without shard=True"
    )


def check_options(optimizer_class: type[torch.optim.Optimizer], group: dict[str, Any]) -> None:
    """Raises UnavailableError if the kernel does not have an option of this group."""
    for option in ("amsgrad", "capturable", "differentiable"):
        if group.get(option):
            raise UnavailableError(
                f"ZeroRedundancyOptimizer cannot shard {optimizer_class.__name__} with {option}=True: the core's "
                f"kernel does not have it; omit {option}, or use DistributedOptimizer without shard=True"
            )


def check_dtype(name: str, parameter: torch.Tensor) -> None:
    """Raises UnavailableError if the kernel does not have the parameter's dtype."""
    if parameter.dtype not in (torch.float32, torch.bfloat16):
        raise UnavailableError(
            f"ZeroRedundancyOptimizer: {name!r} is {parameter.dtype}; only float32 and bfloat16 parameters can be "
            "sharded; use DistributedOptimizer without shard=True"
        )


def kernel_options(
    optimizer_class: type[torch.optim.Optimizer], group: dict[str, Any], step: int, scale: float
) -> dict[str, Any]:
    """Returns the options of `_core.optimizer_step` for a group of torch's optimizer."""
    options: dict[str, Any] = {
        "step": step,
        "gradient_scale": -scale if group.get("maximize") else scale,
        "learning_rate": float(group["lr"]),
        "weight_decay": float(group["weight_decay"]),
    }
    if optimizer_class is torch.optim.SGD:
        momentum = {name: float(group[name]) for name in ("momentum", "dampening")}
        return {**options, **momentum, "kind": "sgd", "nesterov": bool(group["nesterov"])}
    decoupled = optimizer_class is torch.optim.AdamW or bool(group.get("decoupled_weight_decay"))
    beta1, beta2 = (float(beta) for beta in group["betas"])
    rest = {"beta1": beta1, "beta2": beta2, "epsilon": float(group["eps"])}
    return {**options, **rest, "kind": "adamw" if decoupled else "adam"}


def states_used(kinds: tuple[str, ...], group: dict[str, Any], parameter: torch.Tensor) -> tuple[str, ...]:
    """Returns the states that a parameter has in this group."""
    used = () if "momentum" in group and not group["momentum"] else kinds
    return (*used, MASTER) if parameter.dtype is torch.bfloat16 else used
