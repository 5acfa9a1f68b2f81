"""DistributedDataParallel: a module whose gradients are those of all ranks when `backward` returns."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from perseus_like.gradients.buckets import BUCKET_BYTES

from ...compat.dynamo import not_compiled
from ...gradients import Communicate
from ...group_process_set import process_set_of
from .comm_hook import built_in, checked, communicating
from .join import Uneven
from .joinable import JoinParticipant, group_for_join
from .reducer import Named, Reducer
from .replication import Replication

MEBIBYTE = 1 << 20


class DistributedDataParallel(torch.nn.Module, Joinable):
    """Does the same as torch's class of this name, with the same arguments, by buckets and collectives of this library.

    All ranks begin with the parameters and buffers of the first rank. When `backward` returns, `grad` of each parameter
    is the average over all ranks. It may be a view of a bucket, which the next backward pass overwrites. Clone
    gradients that you keep.

    After `backward(create_graph=True)`, a loss made of `grad` is a loss of the averages, the same on all ranks. If its
    backward pass need not reach all parameters, pass `find_unused_parameters=True`.

    Args:
        module: the model; a `state_dict()` has its names behind "module.", as torch's has.
        device_ids, output_device, dim: the devices of the module. They have no effect on the CPU.
        broadcast_buffers, forward_sync_buffers: if true, the first rank's buffers are broadcast before a training step.
        init_sync: if false, parameters and buffers are neither broadcast nor compared.
        process_group: the ranks that train together: a ProcessSet, or a group of torch.distributed whose backend is
            perseus; all ranks without one.
        bucket_cap_mb: the size of a bucket in MiB. The default is 25.
        gradient_as_bucket_view: has no effect, because gradients are views of buckets in any case.
        find_unused_parameters: a pass need not use all parameters. If other ranks have used a parameter that this rank
            has not, this rank contributes zeros. If no rank has used it, its gradient does not change.
        static_graph: every pass uses the same parameters as the first one.
        device_mesh: a mesh of one dimension, in place of `process_group`.

    Raises:
        RuntimeError: no parameter requires a gradient, or there is no running job.
        ValueError: an argument is not supported.
        DisagreementError: the models of the ranks differ. All ranks raise it.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: Any = None,
        param_to_hook_all_reduce: Any = None,
        mixed_precision: Any = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
        bucket_cap_mb_list: Sequence[int] | None = None,
        batched_grad_copy: bool = False,
        forward_sync_buffers: bool | None = None,
    ) -> None:
        super().__init__()
        Joinable.__init__(self)
        _refuse(
            delay_all_reduce_named_params=delay_all_reduce_named_params,
            param_to_hook_all_reduce=param_to_hook_all_reduce,
            mixed_precision=mixed_precision,
            bucket_cap_mb_list=bucket_cap_mb_list,
        )
        if process_group is not None and device_mesh is not None:
            raise ValueError("DistributedDataParallel: process_group and device_mesh were both given; one is enough")
        if bucket_cap_mb is not None and not bucket_cap_mb > 0:
            raise ValueError(f"DistributedDataParallel: bucket_cap_mb is {bucket_cap_mb}, but must be positive")
        self.process_group = process_group if device_mesh is None else device_mesh.get_group(mesh_dim=0)
        self.process_set = process_set_of(self.process_group)
        self.device = _device_of(module, device_ids)
        self.device_ids = None if self.device is None or self.device.type == "cpu" else device_ids
        self.output_device = output_device
        self.dim = dim
        # torch has two names for this option; the newer one counts.
        given = [choice for choice in (forward_sync_buffers, broadcast_buffers) if choice is not None]
        self.broadcast_buffers = given[0] if given else True
        self.find_unused_parameters = find_unused_parameters or skip_all_reduce_unused_params
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.static_graph = static_graph
        self.bucket_bytes_cap = BUCKET_BYTES if bucket_cap_mb is None else int(bucket_cap_mb * MEBIBYTE)
        self.require_backward_grad_sync = True
        self.require_forward_param_sync = True
        self.module = module
        self._comm_hook: Communicate | None = None
        self.parameters_to_ignore = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        self._start(init_sync)

    def _start(self, init_sync: bool = False) -> None:
        self._started = True
        trained = [pair for pair in self._named_parameters() if pair[1].requires_grad]
        frozen = [pair for pair in self._named_parameters() if not pair[1].requires_grad]
        if not trained:
            raise RuntimeError("DistributedDataParallel is not needed: no parameter of the module wants a gradient")
        self._reducer: Reducer | None = None
        self._replication: Replication | None = None
        self._uneven: Uneven | None = None
        self._join_participant: JoinParticipant | None = None
        if (self.process_set.size() or 1) == 1:
            return
        options = (self.process_set, self.find_unused_parameters, self.static_graph, self.bucket_bytes_cap)
        self._reducer = Reducer(trained, frozen, *options)
        if self._comm_hook is not None:
            self._reducer.communicate_by(self._comm_hook)
        self._replication = Replication(self._reducer, self.process_set)
        if init_sync:
            named = [*self._named_parameters(), *self._named_buffers()]
            self._replication.verify(named)
            self._replication.copy_from_first([tensor for _, tensor in named])

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Calls the module, and hooks its outputs, so that the end of a backward pass through them is seen."""
        self._before_forward()
        output = self.module(*inputs, **kwargs)
        self._after_forward(output)
        return output

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Returns a context in which backward passes add to this rank's own gradients.

        The first pass after it reduces the sum.
        """
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @contextlib.contextmanager
    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Iterator[None]:
        """Returns a context in which ranks may have different numbers of batches. All ranks must train the model.

        A rank without batches takes part in the collectives of the others until all ranks are done. Then all ranks get
        the parameters of the last rank that trained.

        `divide_by_initial_world_size`: divide sums of gradients by the number of all ranks, and not by the number of
        ranks that have batches. `throw_on_early_termination`: raise RuntimeError on all ranks once one rank has no
        batches.
        """
        if not enable or self._reducer is None:
            yield
            return
        if self._comm_hook is not None:
            raise ValueError(
                "join() does not go with a communication hook here, as ranks without batches take no part in it; "
                "torch.nn.parallel.DistributedDataParallel over init_process_group('perseus') has both"
            )
        uneven = Uneven(self.process_set, self._reducer.name, divide_by_initial_world_size, throw_on_early_termination)
        self._uneven = uneven
        self._reducer.factor = None if divide_by_initial_world_size else uneven.factor
        try:
            yield
            last = uneven.wait()
            if last is not None:
                assert self._replication is not None
                named = [*self._named_parameters(), *self._named_buffers()]
                self._replication.copy_from(last, [tensor for _, tensor in named])
        finally:
            self._uneven = self._reducer.factor = None
            self._reducer.forget_step()

    def join_hook(self, divide_by_initial_world_size: bool = True, **_: Any) -> JoinHook:
        """Returns the hook that torch's `Join([model, …])` needs. `Join` passes the argument, which is that of `join`.

        The hook works with communication hooks and for models that some ranks train. The ranks agree before each
        forward pass which of them have a batch, so `join` of one model is faster. In each iteration, the members of the
        list follow one another: the forward and backward pass of a model, then those of the next one, or a step.
        """
        if self._reducer is None or self._replication is None:
            return JoinHook()

        def buffers() -> list[torch.Tensor]:
            return [tensor for _, tensor in self._named_buffers()] if self.broadcast_buffers else []

        def state() -> list[torch.Tensor]:
            return [tensor for _, tensor in [*self._named_parameters(), *self._named_buffers()]]

        options = (self.process_set, divide_by_initial_world_size, state, buffers, self.require_forward_param_sync)
        self._join_participant = JoinParticipant(self._reducer, self._replication, *options)
        return self._join_participant

    @property
    def join_device(self) -> torch.device:
        """Returns the device on which torch's `Join` has its counters."""
        return self.device or next(self.module.parameters()).device

    @property
    def join_process_group(self) -> Any:
        """Returns the group of torch.distributed over which torch's `Join` communicates."""
        return group_for_join(self.process_group)

    def will_sync_module_buffers(self) -> bool:
        """Returns whether the next forward pass sends buffers of the first rank to all."""
        return self.require_forward_param_sync and self.broadcast_buffers and any(True for _ in self._named_buffers())

    def register_comm_hook(self, state: object, hook: Any) -> None:
        """Makes `hook(state, bucket)` communicate each bucket. It returns a future of the bucket's new contents.

        torch's own hooks work, such as PowerSGD. They communicate by torch.distributed, which must have the same ranks.
        TypeError if `hook` is not a hook, RuntimeError if there is one already.
        """
        if self._comm_hook is not None:
            raise RuntimeError("register_comm_hook: this model has a communication hook already")
        self._comm_hook = communicating(state, checked(hook))
        if self._reducer is not None:
            self._reducer.communicate_by(self._comm_hook)

    def _register_builtin_comm_hook(self, comm_hook_type: Any) -> None:
        self.register_comm_hook(None, built_in(comm_hook_type))

    def _set_static_graph(self) -> None:
        """torch's older way to say static_graph=True, right after construction."""
        self.static_graph = True
        self._start()

    @not_compiled
    def _before_forward(self) -> None:
        if not self._started and torch.is_grad_enabled():
            self._start()
        reducer, replication, uneven = self._reducer, self._replication, self._uneven
        if reducer is not None:
            reducer.recover()
        counted = Join.notify_join_context(self) if self._join_config.enable else None
        if reducer is None or replication is None:
            return
        participant = self._join_participant if self._join_config.enable else None
        if uneven is not None and torch.is_grad_enabled() and self.require_backward_grad_sync:
            uneven.notify()
        if self.will_sync_module_buffers():
            tensors = [tensor for _, tensor in self._named_buffers()]
            if participant is not None:
                participant.copy_buffers(present=True)
            elif uneven is not None:
                replication.copy_from_present(tensors)
            else:
                replication.copy_from_first(tensors)
        if participant is not None:
            participant.announce(torch.is_grad_enabled() and self.require_backward_grad_sync)
        if counted is not None:
            counted.wait()

    @not_compiled
    def _after_forward(self, output: Any) -> None:
        reducer = self._reducer
        syncs = torch.is_grad_enabled() and self.require_backward_grad_sync
        self.require_forward_param_sync = syncs
        if reducer is None or not torch.is_grad_enabled():
            return
        reducer.reducing, reducer.is_called = syncs, True
        if not syncs:
            return

        def expect_end(_: torch.Tensor) -> None:
            reducer.expect_end()

        for tensor in _tensors_in(output):
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(expect_end)  # type: ignore[no-untyped-call]

    def _named_parameters(self) -> list[Named]:
        ignored = self.parameters_to_ignore
        return [pair for pair in self.module.named_parameters() if pair[0] not in ignored]

    def _named_buffers(self) -> Iterator[Named]:
        ignored = self.parameters_to_ignore
        return (pair for pair in self.module.named_buffers() if pair[0] not in ignored)

    def __getstate__(self) -> dict[str, Any]:
        left_here = (
            "_reducer",
            "_replication",
            "_uneven",
            "process_group",
            "_comm_hook",
            "_join_participant",
            "_join_config",
        )
        return {name: value for name, value in self.__dict__.items() if name not in left_here}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy takes part when it is trained, and not before: one rank alone may make it, to keep or to look at."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.process_group = None
        self._reducer = self._replication = self._uneven = self._comm_hook = self._join_participant = None
        Joinable.__init__(self)
        self._started = False


def _refuse(**unsupported: Any) -> None:
    given = [name for name, value in unsupported.items() if value is not None]
    if given:
        raise ValueError(
            f"DistributedDataParallel: {', '.join(given)} is not supported here; "
            f"torch.nn.parallel.DistributedDataParallel over init_process_group('perseus') may have it"
        )


def _device_of(module: torch.nn.Module, device_ids: Sequence[int | torch.device] | None) -> torch.device | None:
    """Returns the module's device; None if it has several."""
    if device_ids is not None and len(device_ids) > 1:
        raise ValueError(
            f"DistributedDataParallel: device_ids is {list(device_ids)}, but each process has one device: start as "
            f"many processes, and pass [local_rank]"
        )
    devices = {tensor.device for tensor in itertools.chain(module.parameters(), module.buffers())}
    return devices.pop() if len(devices) == 1 else None


def _tensors_in(output: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors that can be found in the outputs of a module."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for item in output.values():
            yield from _tensors_in(item)
    elif isinstance(output, list | tuple | set):
        for item in output:
            yield from _tensors_in(item)
    elif dataclasses.is_dataclass(output):
        for each in dataclasses.fields(output):
            yield from _tensors_in(getattr(output, each.name, None))
