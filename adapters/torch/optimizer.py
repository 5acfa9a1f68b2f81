"""DistributedOptimizer: a torch optimizer that steps with the gradients of all ranks."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NoReturn, overload

import torch

from perseus_like.collectives import Adasum, Average, Sum, resolve_op
from perseus_like.collectives.arguments import member_id
from perseus_like.collectives.compression import NoneCompressor
from perseus_like.errors import UnavailableError
from perseus_like.gradients import GradientRules, Groups, checked_passes, gradient_rules, number_of_groups
from perseus_like.process_sets import ProcessSet, global_process_set

from .any_optimizer import AnyOptimizer
from .compat.grad_scaler import around_scalers
from .compat.training import mark_stepped, without_hooks
from .feedback import checked_compression
from .gradients import GradientBuckets
from .gradients.adasum import DeltaSum
from .gradients.pass_counts import HorovodPassNames
from .reductions import allreduce_async_
from .sharded_optimizer import ZeroRedundancyOptimizer
from .sharded_optimizer import shard as sharded
from .tensors import collectives

Named = tuple[str, torch.Tensor]
_REDUCED_BEFORE = (
    "optimizer.step() called without optimizer.skip_synchronize() after synchronize(); the gradients are not reduced "
    "again. Write: with optimizer.skip_synchronize(): optimizer.step()"
)


class _DistributedOptimizer(HorovodPassNames, AnyOptimizer):
    """Methods added to the wrapped optimizer's class. Without buckets (one rank, or a copy) they change nothing."""

    _buckets: GradientBuckets | None = None
    _rules: GradientRules
    _names: dict[int, str]
    _wrapped: torch.optim.Optimizer | None = None
    _should_synchronize = True

    @staticmethod
    def find_duplicates(lst: Iterable[Any]) -> set[Any]:
        """Returns the values that occur more than once."""
        seen: set[Any] = set()
        return {value for value in lst if value in seen or seen.add(value)}  # type: ignore[func-returns-value]

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        """Returns the name of each parameter, under Horovod's name for it."""
        parameters = (parameter for group in self.param_groups for parameter in group["params"])
        return {each: self._names[id(each)] for each in parameters if id(each) in self._names}

    def _allreduce_grad_async(self, p: torch.Tensor) -> tuple[int, None]:
        """Starts an allreduce of the gradient of `p` in place, and returns its handle.

        `step` does not use it. Programs that are written for Horovod call it, or look for it to know this class.
        """
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        rules = self._rules
        name = f"allreduce.{self._names.get(id(p), 'unnamed')}"
        return allreduce_async_(p.grad, None, name, rules.op, *rules.factors, rules.process_set), None

    def _pass_counter(self) -> GradientBuckets | None:
        return self._buckets

    def synchronize(self) -> None:
        """Blocks until all gradients are reduced. Call it before clipping; see `skip_synchronize`."""
        if self._buckets is not None:
            self._buckets.common_name.enter_thread()
            self._buckets.synchronize(self._all_parameters())
            if isinstance(self, torch.optim.SparseAdam):
                self._make_sparse()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Returns a context in which `step` uses gradients unchanged:

        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        """
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    # The hooks of the wrapped class run when its `step` is called from here.
    @without_hooks
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduces gradients, unless that was done, and steps. A closure's loss is reduced too, so that all ranks
        that search along it take the same way.
        """
        buckets = self._buckets
        if self._wrapped is not None and "step" in vars(self._wrapped):  # by a schedule of the wrapped optimizer
            mark_stepped(self._wrapped)
        if buckets is None:
            return super().step() if closure is None else super().step(closure)
        if closure is not None:
            return self._step_with_closure(buckets, closure)
        if self._should_synchronize:
            if not buckets.passes.synchronized:
                self.synchronize()
            elif not self._synchronized_for_scaler:
                warnings.warn(_REDUCED_BEFORE, stacklevel=2)
        buckets.passes.synchronized = False
        self._synchronized_for_scaler = False
        return super().step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Raises AssertionError while gradients are being reduced: call step() or synchronize() first."""
        if self._buckets is not None and self._buckets.passes.ready:
            raise AssertionError(
                "zero_grad() was called after backward() but before step() or synchronize(): the gradients are being "
                "reduced at this moment; call step() or synchronize() first, or freeze these parameters while the loss "
                "of another model passes through them"
            )
        super().zero_grad(set_to_none)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Discards gradients that are being reduced, then loads the state."""
        if self._buckets is not None:
            self._buckets.abandon()
        super().load_state_dict(*args, **kwargs)
        # A learning-rate schedule made before wrapping holds the wrapped optimizer.
        if self._wrapped is not None:
            self._wrapped.state, self._wrapped.param_groups = self.state, self.param_groups

    def _before_unscaling(self) -> None:
        """Reduces gradients, so that GradScaler divides those of all ranks, and all ranks find the same infinities."""
        if self._buckets is not None and self._should_synchronize and not self._buckets.passes.synchronized:
            self.synchronize()
            self._synchronized_for_scaler = True

    def _before_scaler_step(self) -> None:
        self._before_unscaling()

    def _after_scaler_step(self) -> None:
        """Begins a new step, also if GradScaler has skipped this one."""
        self._synchronized_for_scaler = False
        if self._buckets is not None:
            self._buckets.passes.synchronized = False

    def _after_scale_change(self, factor: float) -> None:
        if self._buckets is not None:
            self._buckets.rescale(factor)

    _synchronized_for_scaler = False

    def __reduce__(self) -> Any:
        """Returns a plain optimizer of the wrapped class. A copy has other parameters, which only this rank trains."""
        return _restore, (type(self).__bases__[1], self.__getstate__())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()

    def _step_with_closure(self, buckets: GradientBuckets, closure: Callable[[], Any]) -> Any:
        if buckets.passes.ready:
            self.synchronize()

        def reduced() -> Any:
            loss = closure()
            if not buckets.passes.synchronized:
                self.synchronize()
            buckets.passes.synchronized = False
            return self._reduce_loss(loss)

        return super().step(reduced)

    def _reduce_loss(self, loss: Any) -> Any:
        if not isinstance(loss, float | torch.Tensor):
            return loss
        tensor = loss.detach() if isinstance(loss, torch.Tensor) else torch.tensor(loss, dtype=torch.float64)
        reduced = collectives.allreduce(tensor, self._rules.op, process_set=self._rules.process_set).result()
        return reduced if isinstance(loss, torch.Tensor) else reduced.item()

    def _make_sparse(self) -> None:
        """Makes gradients sparse again that `sparse_as_dense` has made dense, because SparseAdam takes only those."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.layout is torch.strided:
                    parameter.grad = parameter.grad.to_sparse(1)

    def _all_parameters(self) -> list[Named]:
        names = self._names
        return [
            (names.get(id(parameter)) or f"group {number}, parameter {place}", parameter)
            for number, group in enumerate(self.param_groups)
            for place, parameter in enumerate(group["params"])
        ]


class _DistributedAdasumOptimizer(_DistributedOptimizer):
    """Methods added for op=Adasum: `step` steps with this rank's gradients, then combines the steps of all ranks.

    `backward_passes_per_step` has no effect: gradients are local until `step`.
    """

    _deltas: DeltaSum | None = None

    def synchronize(self) -> None:
        """Does nothing, because `step` reduces steps and not gradients."""

    def skip_synchronize(self) -> NoReturn:
        """Raises AssertionError, because a step needs the other ranks."""
        raise AssertionError(
            "skip_synchronize() makes no sense with op=Adasum, where step() reduces steps, not gradients"
        )

    @without_hooks
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps locally, then applies the Adasum of all ranks' steps. Returns the loss of this rank's closure."""
        if self._wrapped is not None and "step" in vars(self._wrapped):  # by a schedule of the wrapped optimizer
            mark_stepped(self._wrapped)
        plain_step = super(_DistributedOptimizer, self).step

        def local_step() -> Any:
            return plain_step() if closure is None else plain_step(closure)

        if self._deltas is None:
            return local_step()
        trained = [(name, parameter) for name, parameter in self._all_parameters() if parameter.requires_grad]
        return self._deltas.step(trained, local_step)

    def _before_scaler_step(self) -> None:
        if self._deltas is not None:
            raise ValueError(
                "GradScaler and op=Adasum do not work together: each rank would skip steps of its own; train in "
                "bfloat16, which needs no scaling, or use op=Average"
            )


@overload
def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[Named] | None = None,
    compression: Any = NoneCompressor,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    shard: Literal[False] = False,
) -> _DistributedOptimizer: ...
@overload
def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[Named] | None = None,
    *,
    backward_passes_per_step: int = 1,
    op: int = Average,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    shard: Literal[True],
) -> ZeroRedundancyOptimizer: ...
@overload
def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[Named] | None = None,
    *,
    backward_passes_per_step: int = 1,
    op: int = Average,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    shard: bool,
) -> _DistributedOptimizer | ZeroRedundancyOptimizer: ...
def DistributedOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[Named] | None = None,
    compression: Any = NoneCompressor,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    shard: bool = False,
) -> _DistributedOptimizer | ZeroRedundancyOptimizer:
    """Returns an optimizer of the same class, with the same state, whose `step` uses the gradients of all ranks.

    Gradients are reduced while backward goes on. Those that a rank has not computed count as zeros. The result also has
    `synchronize()`, which waits for the gradients, and `skip_synchronize()`, for a `step` after it. Gradients are views
    of buckets, which the next backward pass overwrites: clone those that you keep.

    Args:
        optimizer: the optimizer to wrap. It shares state and parameter groups with the result.
        named_parameters: `model.named_parameters()`, for error texts.
        compression: `Compression.none`, `fp16`, `bf16`, `top_k`, `one_bit`, or a `Compressor`.
        backward_passes_per_step: the number of backward passes that are summed before gradients are reduced.
        op: Average, Sum or Adasum. With Adasum, ranks step by themselves, and their steps are added where they are
            orthogonal and averaged where they are parallel, so that the learning rate need not grow with the ranks.
        gradient_predivide_factor: f: gradients are divided by f before and by size/f after they are summed. Needs
            Average.
        groups: parameters whose gradients are reduced together: lists of them, or the number of groups to make.
        num_groups: the older name for a number of groups.
        sparse_as_dense: if true, sparse gradients are made dense, and are reduced with the others.
        process_set: the ranks that train together. On other ranks the optimizer does not communicate.
        shard: if true, the ranks share parameters and states; see `ZeroRedundancyOptimizer`.

    Returns:
        The distributed optimizer, which is an instance of the wrapped optimizer's class. With `shard=True`, a
        ZeroRedundancyOptimizer. After `assert isinstance(optimizer, MyOptimizer)`, type checkers know the methods of a
        class of your own, too.

    Raises:
        ValueError: an argument is not supported, two parameters have one name, a parameter has none, or the optimizer
            is a DistributedOptimizer already. Errors of collectives are raised by `step` and `synchronize`.

    Examples:
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
        >>> optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        >>> model(torch.ones(1, 4)).sum().backward()
        >>> optimizer.step()
    """
    if isinstance(optimizer, _DistributedOptimizer):
        raise ValueError("this optimizer is a DistributedOptimizer already")
    rules = gradient_rules(
        (Average, Sum, Adasum),
        op,
        gradient_predivide_factor,
        number_of_groups(num_groups, groups),
        process_set=process_set,
        compression=checked_compression(compression, resolve_op(op)),
        sparse_as_dense=sparse_as_dense,
    )
    names = _checked_names(optimizer, named_parameters)
    if shard:
        _require_plain(rules)
        by_id = {id(parameter): name for name, parameter in names if not name.startswith("allreduce.noname.")}
        return sharded(optimizer, process_set, op, backward_passes_per_step, by_id)
    distributed = _extend(optimizer, _DistributedAdasumOptimizer if rules.op is Adasum else _DistributedOptimizer)
    distributed._names = {id(parameter): name for name, parameter in names}
    distributed._passes = checked_passes(backward_passes_per_step)
    distributed._rules = rules
    if not rules.communicates:
        return distributed
    member_id(process_set)
    around_scalers()
    if isinstance(distributed, _DistributedAdasumOptimizer):
        distributed._deltas = DeltaSum(rules.compression, process_set)
        return distributed
    trained = [(name, parameter) for name, parameter in names if parameter.requires_grad]
    buckets = distributed._buckets = GradientBuckets(trained, rules, backward_passes_per_step)
    weakref.finalize(distributed, buckets.close)
    return distributed


def _require_plain(rules: GradientRules) -> None:
    """Raises UnavailableError for options that a sharded optimizer does not have."""
    strange = {
        "op=Adasum": rules.op is Adasum,
        "compression": rules.compression is not NoneCompressor,
        "gradient_predivide_factor": rules.prescale != 1.0,
        "groups": bool(rules.groups),
    }
    found = [option for option, is_given in strange.items() if is_given]
    if found:
        raise UnavailableError(
            f"DistributedOptimizer(shard=True) does not support {', '.join(found)}: gradients are added by the update "
            "itself; omit this, or omit shard=True"
        )


def _extend(optimizer: torch.optim.Optimizer, added: type[_DistributedOptimizer]) -> _DistributedOptimizer:
    """Changes the class of the optimizer to one derived from its own. Its constructor is not called again."""
    base = type(optimizer)
    cls = type(base.__name__, (added, base), {"__module__": base.__module__, "__doc__": base.__doc__})
    distributed: _DistributedOptimizer = object.__new__(cls)
    # A learning-rate schedule stores its own `step` in the instance, which would bypass the method here.
    distributed.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    distributed._wrapped = optimizer
    return distributed


def _restore(cls: type[torch.optim.Optimizer], state: dict[str, Any]) -> torch.optim.Optimizer:
    plain = cls.__new__(cls)
    plain.__setstate__(state)
    return plain


def _checked_names(optimizer: torch.optim.Optimizer, named_parameters: Iterable[Named] | None) -> list[Named]:
    """Returns every parameter of the optimizer with its name, in the order of `named_parameters`."""
    owned = {
        id(parameter): (f"allreduce.noname.{number}.{place}", parameter)
        for number, group in enumerate(optimizer.param_groups)
        for place, parameter in enumerate(group["params"])
    }
    if named_parameters is None:
        return list(owned.values())
    named = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in named):
        raise ValueError(
            "named_parameters must be a sequence of pairs (name, parameter), as of model.named_parameters()"
        )
    duplicates = _DistributedOptimizer.find_duplicates(name for name, _ in named)
    if duplicates:
        raise ValueError(f"named_parameters has names that occur twice: {', '.join(sorted(duplicates))}")
    missing = owned.keys() - {id(parameter) for _, parameter in named}
    if missing:
        places = ", ".join(owned[key][0].removeprefix("allreduce.noname.") for key in owned if key in missing)
        raise ValueError(f"named_parameters lacks parameters of the optimizer, at (group.place) {places}")
    unique = {id(parameter): (name, parameter) for name, parameter in named if id(parameter) in owned}
    return list(unique.values())
