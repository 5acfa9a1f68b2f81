"""ZeroRedundancyOptimizer: the ranks of a host share parameters and states, and each rank updates its shard."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch

from perseus_like.collectives import Average, Sum, resolve_op
from perseus_like.collectives.arguments import member_id
from perseus_like.errors import UnavailableError
from perseus_like.gradients import checked_passes
from perseus_like.process_sets import ProcessSet, global_process_set
from perseus_like.protocol.messages import is_elastic

from ..compat.grad_scaler import around_scalers
from ..compat.training import mark_stepped
from ..gradients.ownership import register
from ..gradients.pass_counts import HorovodPassNames
from ..group_process_set import process_set_of
from .shard_by_torch import TorchRule
from .shard_reduction import ShardReduction, require_no_unscaling
from .shard_rules import KernelRule, Rule, check_options
from .sharded_update import ShardedUpdate


class ZeroRedundancyOptimizer(HorovodPassNames, torch.optim.Optimizer):
    """An optimizer of which the ranks of one host share parameters and states. Each rank updates a shard of them.

    A host has parameters and states once, and each rank has its own gradients. On one host, `step` adds the gradients
    of all ranks while it updates the shard. On several hosts, they are reduced during the backward pass, as for
    DistributedOptimizer. After `step`, gradients have no defined values. All ranks call `step` equally often.

    Args:
        params: parameters or parameter groups, as for `optimizer_class`; the same on all ranks.
        optimizer_class: torch.optim.SGD, Adam or AdamW, which the core updates in one pass, or another optimizer that
            updates each element by itself.
        process_group: a group of torch.distributed over the backend perseus, in place of `process_set`.
        process_set: the ranks that train together. If these are some of the ranks of several hosts, those of each
            host are a registered set, too. The default is all ranks of the job.
        op: Average or Sum, over the gradients of the ranks.
        backward_passes_per_step: on several hosts, the number of backward passes that are summed before gradients are
            reduced. On one host it has no effect: gradients are added locally until `step`.
        defaults: options of `optimizer_class`.

    Raises:
        UnavailableError: the optimizer, an option, a dtype or a device cannot be sharded, or the ranks of
            `process_set` on one host are not a registered set.
        ValueError: this rank is not in `process_set`, or an argument is wrong.
        HorovodInternalError: the ranks passed different parameters (DisagreementError), or a rank has ended.

    Examples:
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = hvd.ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
        >>> model(torch.ones(1, 4)).sum().backward()
        >>> norm = optimizer.clip_grad_norm_(1.0)
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[torch.optim.Optimizer],
        process_group: Any = None,
        process_set: ProcessSet = global_process_set,
        op: int = Average,
        backward_passes_per_step: int = 1,
        **defaults: Any,
    ) -> None:
        if process_group is not None:
            process_set = process_set_of(process_group, "ZeroRedundancyOptimizer")
        self._use(optimizer_class(params, **defaults), process_set, op, backward_passes_per_step, {})

    def _use(
        self, inner: torch.optim.Optimizer, process_set: ProcessSet, op: int, passes: int, names: dict[int, str]
    ) -> None:
        """Takes the parameter groups and the state of torch's optimizer, which it shares with this object."""
        chosen = resolve_op(op)
        if chosen not in (Average, Sum):
            raise ValueError(f"a sharded optimizer reduces gradients by Average or Sum, not {chosen.name}")
        for group in inner.param_groups:
            check_options(type(inner), group)
        has_kernel = KernelRule.has(type(inner), inner.param_groups)
        rule: Rule = KernelRule(type(inner)) if has_kernel else TorchRule(inner)
        member_id(process_set)
        super().__init__(inner.param_groups, inner.defaults)
        self.optim, self.param_groups, self.state = inner, inner.param_groups, inner.state
        self._step_supports_amp_scaling = True
        self._clip, self._passes = 1.0, checked_passes(passes)
        self._was_reducing = False  # when a GradScaler began to look for infinities
        self._update = ShardedUpdate(self, rule, process_set, chosen is Average, self._passes, names)
        register(self._update)
        weakref.finalize(self, self._update.close)
        around_scalers()
        if not is_elastic():  # workers that come later do not take part in what others have made before
            self._update.prepare()

    def _pass_counter(self) -> ShardReduction:
        return self._update.reduction

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters by the gradients of all ranks. Blocks until all ranks have done so.

        A gradient that a rank has not computed counts as zeros. If a GradScaler has found infinities on any rank, no
        rank updates. Returns the loss of this rank's closure.

        Raises:
            RuntimeError: the DistributedDataParallel that averaged the gradients no longer exists.
            HorovodInternalError: a rank has ended. Parameters may then be updated in part; restore the last commit.
        """
        loss = None
        if closure is not None:
            if self._update.reduction.pending:
                self._update.reduce()
            with torch.enable_grad():
                loss = closure()
        mark_stepped(self.optim)
        scaler, found = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        require_no_unscaling(self._was_reducing, found, scaler)
        self._was_reducing = False
        scale = 1.0 if scaler is None else float(scaler)
        clip, self._clip = self._clip, 1.0
        with torch.no_grad():
            self._update.step(scale, found is not None and bool(found), clip)
        return loss

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Makes the next `step` scale gradients so that their norm is at most `max_norm`. Collective.

        Each rank computes the norm of its shard of the reduced gradients. `step` multiplies by the factor, so the
        gradients that the program sees are not clipped. Call it after `GradScaler.unscale_`, if there is a scaler.

        Returns:
            The norm of the reduced gradients of all parameters, the same on all ranks.

        Raises:
            UnavailableError: `norm_type` is not 2.
        """
        if float(norm_type) != 2.0:
            raise UnavailableError(f"clip_grad_norm_: norm_type is {norm_type}; a sharded optimizer has only 2")
        with torch.no_grad():
            norm = self._update.norm()
        self._clip = min(1.0, max_norm / (norm + 1e-6)) if norm == norm else norm
        return torch.tensor(norm)

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self._update.reduction.pending:
            raise AssertionError(
                "zero_grad() was called after backward() but before step(): the gradients are being reduced over "
                "several hosts at this moment"
            )
        self._clip = 1.0
        self._update.discard_gradients()
        super().zero_grad(set_to_none)

    def synchronize(self) -> NoReturn:
        """Raises UnavailableError, because gradients are added during the update."""
        raise UnavailableError(
            "a sharded optimizer has no synchronize() and skip_synchronize(): gradients are added during step(); clip "
            "by optimizer.clip_grad_norm_(max_norm)"
        )

    skip_synchronize = synchronize

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Does nothing, as for torch's class of this name: `state_dict` is complete on every rank of the host."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state of this class, or of torch's optimizer, from any number of ranks. Call it on all ranks.

        Raises:
            ValueError: the state has other parameter groups.
        """
        groups = state_dict["param_groups"]
        if [len(group["params"]) for group in groups] != [len(group["params"]) for group in self.param_groups]:
            raise ValueError("load_state_dict: the state has other parameter groups than the optimizer; use its groups")
        for own, given in zip(self.param_groups, groups, strict=True):
            own.update({name: copy.deepcopy(value) for name, value in given.items() if name != "params"})
        numbers = [number for group in groups for number in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        self.state.clear()
        for number, parameter in zip(numbers, parameters, strict=True):
            if number in state_dict["state"]:
                self.state[parameter] = {
                    name: value.clone() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
                    for name, value in state_dict["state"][number].items()
                }
        self.adopt_state()

    def adopt_state(self) -> None:
        """Moves states that were loaded to the memory of the host. Call it on all ranks."""
        with torch.no_grad():
            self._update.adopt_loaded()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        if "_update" in self.__dict__:
            self._update.forget_memory()

    def _before_scaler_step(self) -> None:
        self._was_reducing = self._update.reduction.pending
        if not self._update.has_spread:
            self._update.spread_infinities()

    def _before_unscaling(self) -> None:
        """Makes all ranks find infinities now, because GradScaler does not look for them again in its `step`."""
        self._update.spread_infinities()

    def _after_unscaling(self) -> None:
        self._update.adopt_unscaled()

    def __reduce__(self) -> Any:
        """Returns a plain optimizer. A copy has other parameters, which only this rank trains."""
        state = {"defaults": self.defaults, "state": self.state, "param_groups": self.param_groups}
        return _restore, (type(self.optim), state)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()


def _restore(cls: type[torch.optim.Optimizer], state: dict[str, Any]) -> torch.optim.Optimizer:
    plain = cls.__new__(cls)
    plain.__setstate__(state)
    return plain


def shard(
    optimizer: torch.optim.Optimizer, process_set: ProcessSet, op: int, passes: int, names: dict[int, str]
) -> ZeroRedundancyOptimizer:
    """Returns a sharded optimizer with the parameters, options and state of `optimizer`."""
    sharded = ZeroRedundancyOptimizer.__new__(ZeroRedundancyOptimizer)
    sharded._use(optimizer, process_set, op, passes, names)
    return sharded
