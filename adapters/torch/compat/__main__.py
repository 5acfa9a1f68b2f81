"""`python -m perseus_like.torch.compat`: checks the private parts of torch that the functions rely on."""

from __future__ import annotations

import gc
import inspect
import re
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from perseus_like_autoload import compat as autoload
from torch.distributed import distributed_c10d

from perseus_like.compat_probes import expect, main

from . import construction, core, dynamo, grad_scaler, process_groups, stores, tensor_parts, training, works


def _parameters(function: Any) -> list[str]:
    return list(inspect.signature(inspect.unwrap(function)).parameters)


def _flight_recorder() -> None:
    attach = getattr(distributed_c10d, "_maybe_attach_flight_recorder", None)
    attaches = hasattr(distributed_c10d, "HealthCheckHook")
    expect(not attaches or attach is not None, "distributed_c10d._maybe_attach_flight_recorder is missing")
    expect(
        attach is None or _parameters(attach)[0] == "pg",
        "distributed_c10d._maybe_attach_flight_recorder does not begin with the group",
    )


def _awaited_works() -> None:
    has = hasattr(dist.Reducer, "_set_forward_pass_work_handle")  # type: ignore[attr-defined]
    expect(has, "Reducer._set_forward_pass_work_handle is missing")


def _monitored_barrier() -> None:
    expected = ["group", "timeout", "wait_all_ranks"]
    expect(_parameters(distributed_c10d.monitored_barrier) == expected, "monitored_barrier has other parameters")
    expect(hasattr(distributed_c10d, "_get_default_group"), "distributed_c10d._get_default_group is missing")


def _group_names() -> None:
    names = getattr(distributed_c10d._world, "pg_names", None)
    expect(isinstance(names, dict), "distributed_c10d._world.pg_names is no dictionary")


def _methods_of_groups() -> None:
    for name in ("_get_backend", "_get_sequence_number_for_group"):
        expect(hasattr(dist.ProcessGroup, name), f"ProcessGroup.{name} is missing")


def _timeout_of_backends() -> None:
    gloo = getattr(dist, "ProcessGroupGloo", None)
    changes = hasattr(distributed_c10d, "_set_pg_timeout") and gloo is not None
    expect(not changes or hasattr(gloo, "_set_default_timeout"), "ProcessGroupGloo._set_default_timeout is missing")


def _backends() -> None:
    expect(isinstance(getattr(dist.Backend, "_plugins", None), dict), "Backend._plugins is no dictionary")


def _env_handler() -> None:
    replaced: list[Any] = []

    def keep(handler: Any) -> Any:
        replaced.append(handler)
        return handler

    autoload.replace_env_handler(dist, keep)
    expect(len(replaced) == 1 and callable(replaced[0]), "rendezvous._rendezvous_handlers has no entry 'env'")


def _destroyed_groups() -> None:
    groups = getattr(distributed_c10d, "_world", None)
    expect(process_groups._shuts_down_groups() or hasattr(groups, "pg_map"), "_world.pg_map is missing")


def _factor() -> None:
    factor = process_groups.premultiplied_factor(vars(dist)["_make_nccl_premul_sum"](3.0))
    expect(float(factor) == 3.0, "the factor of a PREMUL_SUM is not found")


def _construction() -> None:
    helper = getattr(distributed_c10d, construction._HELPER, None)
    expect(helper is not None, f"distributed_c10d.{construction._HELPER} is missing")
    variables = inspect.unwrap(helper).__code__.co_varnames  # type: ignore[arg-type]
    for name in ("backend_config", "pg", "prefix_store"):
        expect(name in variables, f"{construction._HELPER} has no variable {name}")
    has_options = "backend_options" in variables or "pg_options" in variables
    expect(has_options, f"{construction._HELPER} has no variable backend_options")
    backends = distributed_c10d.BackendConfig(dist.Backend("cpu:gloo,cuda:nccl")).get_device_backend_map()
    expect(dict(backends) == {"cpu": "gloo", "cuda": "nccl"}, "BackendConfig.get_device_backend_map gives other names")


def _mapped_backends() -> None:
    _construction()
    cpu = dist.Backend("cpu:gloo")
    with autoload.unmapped(dist):
        autoload.map_backends(dist, lambda asked: {**asked, "cpu": "other"})
        config = distributed_c10d.BackendConfig(cpu)
        expect(config.get_device_backend_map() == {"cpu": "other"}, "BackendConfig's backends cannot be replaced")
        expect(str(config) == "cpu:gloo", "BackendConfig does not keep the requested name")
        with autoload.unmapped(dist):
            expect(dict(config.get_device_backend_map()) == {"cpu": "gloo"}, "BackendConfig gives other backends")


def _others() -> None:
    _construction()
    parameters = _parameters(getattr(distributed_c10d, construction._HELPER))
    expected = ["group_size", "group_rank", "global_ranks_in_group", "backend", "store"]
    expect(parameters[:5] == expected, f"{construction._HELPER} begins with other parameters")
    for name in ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "tags_to_pg"):
        has = isinstance(getattr(distributed_c10d._world, name, None), dict)
        expect(has, f"distributed_c10d._world.{name} is no dictionary")


def _set_name() -> None:
    has = hasattr(dist.ProcessGroup, "_set_group_name")
    expect(has or not hasattr(dist.ProcessGroup, "group_name"), "ProcessGroup._set_group_name is missing")


def _futures() -> None:
    for name in ("then", "add_done_callback", "wait"):
        method = getattr(torch._C.Future, name, None)
        expect(method is not None, f"torch._C.Future.{name} is missing")
        setattr(torch._C.Future, name, method)  # TypeError if methods cannot be replaced


def _not_compiled() -> None:
    expect(dynamo.not_compiled(lambda: 3)() == 3, "torch._compile._disable_dynamo changes what a function returns")


def _is_compiling() -> None:
    if not hasattr(torch.compiler, "is_compiling"):
        from torch._dynamo import external_utils

        has = hasattr(external_utils, "is_compiling")
        expect(has, "neither torch.compiler nor torch._dynamo.external_utils has is_compiling")
    expect(not dynamo.is_compiling(), "is_compiling() is true outside of torch.compile")


def _untraced() -> None:
    expect(dynamo._CAN_SKIP, "torch._C._dynamo.eval_frame has no function to leave out code")
    expect(dynamo.untraced(lambda: 3)() == 3, "a function that Dynamo leaves out returns something else")


def _without_dynamo() -> None:
    expect(dynamo.without_dynamo(lambda: 3)() == 3, "a function without Dynamo returns something else")


def _in_backward(look: Callable[[], Any]) -> Any:
    """Returns what `look` returns in a hook."""
    seen: list[Any] = []
    tensor: Any = torch.ones(1, requires_grad=True)
    tensor.register_hook(lambda _: seen.append(look()))
    tensor.sum().backward()
    return seen[0]


def _current_backward() -> None:
    is_none = core.current_backward() == core.NO_BACKWARD
    expect(is_none, "torch._C._current_graph_task_id() is not -1 outside of a backward pass")
    inside = _in_backward(core.current_backward)
    expect(inside >= 0, "torch._C._current_graph_task_id() is not set in a backward pass")


def _end_of_backward() -> None:
    called: list[int] = []
    _in_backward(lambda: core.at_end_of_backward(lambda: called.append(1)))
    expect(called == [1], "queue_callback does not call at the end of a backward pass")


def _group_of_reducers() -> None:
    text = str(dist.Reducer.__init__.__doc__)  # type: ignore[attr-defined]
    arguments = re.findall(r"(\w+): ", text.split("->")[0])[1:]
    expect(arguments[3:4] == ["process_group"], f"Reducer's fourth argument is not the group: {arguments}")


def _stream_source() -> None:
    is_for_cuda = torch.version.cuda is not None
    has = hasattr(torch._C, "_cuda_getCurrentRawStream")
    expect(has or not is_for_cuda, "torch._C._cuda_getCurrentRawStream is missing")


def _copy_all() -> None:
    targets, sources = [torch.zeros(2), torch.zeros(3)], [torch.ones(2), torch.ones(3)]
    core.copy_all(targets, sources)
    expect(all(bool(target.all()) for target in targets), "torch._foreach_copy_ does not copy")
    release = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    expect(hasattr(torch, "_foreach_copy_") or release < (2, 2), "torch._foreach_copy_ is missing")


def _storage_identity() -> None:
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    holds = core.keeps_identity() or release < (2, 13)
    expect(holds, "Tensor.untyped_storage() returns a new object each time")


def _stores() -> None:
    with tempfile.TemporaryDirectory() as folder:
        # The kinds that ranks use for the rendezvous, and torch's own for one process.
        kinds = {
            "HashStore": dist.HashStore(),  # type: ignore[attr-defined]
            "FileStore": dist.FileStore(f"{folder}/store", 1),  # type: ignore[attr-defined]
            "TCPStore": dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False),  # type: ignore[attr-defined]
        }
        for kind, plain in kinds.items():
            store = distributed_c10d.PrefixStore("probe", plain)
            stores.set_key(store, "known", "")
            expect(stores.has_keys(store, ["known"]), f"{kind} does not find a key")
            expect(not stores.has_keys(store, ["known", "unknown"]), f"{kind} finds a key that was not set")


def _restarts() -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    without = distributed_c10d.PrefixStore("group", store)
    with_count = distributed_c10d.PrefixStore("group", distributed_c10d.PrefixStore("/worker/attempt_1", store))
    expect(stores.below_restarts(without, "1") is without, "a store without a restart count is taken for one with it")
    stores.below_restarts(with_count, "1").add("known", 1)
    expect(store.add("/worker/all_attempts/known", 0) == 1, "PrefixStore.underlying_store is another store")


def _works() -> None:
    works._loses_works()  # fails if groups and works in Python are made otherwise


def _optimizer() -> torch.optim.SGD:
    parameter = torch.zeros(1, requires_grad=True)
    parameter.grad = torch.ones(1)
    return torch.optim.SGD([parameter], lr=1.0)


def _marked_steps() -> None:
    optimizer = _optimizer()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    training.mark_stepped(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule.step()


def _hooks_of_steps() -> None:
    class Outer(torch.optim.SGD):
        @training.without_hooks
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    calls: list[object] = []
    optimizer = Outer(_optimizer().param_groups[0]["params"], lr=1.0)
    optimizer.register_step_post_hook(lambda *arguments: calls.append(arguments))
    optimizer.step()
    expect(len(calls) == 1, f"a hook runs {len(calls)} times in a step")


def _scalers() -> None:
    class Notified(torch.optim.SGD):
        looked = begun = ended = False
        factor = 1.0

        def _before_unscaling(self) -> None:
            self.looked = True

        def _before_scaler_step(self) -> None:
            self.begun = True

        def _after_scaler_step(self) -> None:
            self.ended = True

        def _after_scale_change(self, factor: float) -> None:
            self.factor = factor

    if not hasattr(torch.amp, "GradScaler"):
        return  # GradScaler of this release is for GPUs alone
    grad_scaler.around_scalers()
    optimizer = Notified(_optimizer().param_groups[0]["params"], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    scaler.scale(optimizer.param_groups[0]["params"][0].sum()).backward()
    scaler.unscale_(optimizer)
    expect(optimizer.looked, "GradScaler.unscale_ cannot be replaced")
    scaler.step(optimizer)
    expect(optimizer.begun and optimizer.ended, "GradScaler.step cannot be replaced")
    scaler.update()
    expect(optimizer.factor == 2.0, "GradScaler.update cannot be replaced")


def _tracked_modules() -> None:
    module = torch.nn.Linear(1, 1)
    expect(any(each is module for each in gc.get_objects()), "the garbage collector does not track modules")


def _batch_norm() -> None:
    for module in (torch.nn.BatchNorm1d(1), torch.nn.BatchNorm2d(1), torch.nn.BatchNorm3d(1)):
        expect(training.is_batch_norm(module), f"{type(module).__name__} is not derived from _BatchNorm")


def _awaited_tensors() -> None:
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    plain = torch.ones(2)
    wrapped = AsyncCollectiveTensor(plain)
    expect(wrapped.data_ptr() == 0, "an AsyncCollectiveTensor has memory of its own")
    expect(tensor_parts.awaited(wrapped).data_ptr() == plain.data_ptr(), "AsyncCollectiveTensor.elem is another tensor")
    expect(tensor_parts.awaited(plain) is plain, "a plain tensor is taken for an AsyncCollectiveTensor")


def _complex_views() -> None:
    plain = torch.ones(2, dtype=torch.complex64)
    found = tensor_parts.viewed_complex(torch.view_as_real(plain))
    expect(found is torch.complex64, "Tensor._base of view_as_real(tensor) is another tensor")
    expect(tensor_parts.viewed_complex(torch.ones(2, 2)) is None, "Tensor._base of a new tensor is complex")


def _fake_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    plain = torch.ones(2)
    expect(tensor_parts.is_fake(FakeTensorMode().from_tensor(plain)), "FakeTensorMode makes tensors of another class")
    expect(not tensor_parts.is_fake(plain), "a plain tensor is taken for a FakeTensor")


# The probe of each function that relies on a private part.
PROBES: dict[str, Callable[[], None]] = {
    "process_groups.skip_flight_recorder": _flight_recorder,
    "process_groups.keep_awaited_works": _awaited_works,
    "process_groups.replace_groups_of_reducers": _group_of_reducers,
    "process_groups.shut_down_destroyed_groups": _destroyed_groups,
    "process_groups.accept_monitored_barrier": _monitored_barrier,
    "process_groups.find_group": _group_names,
    "process_groups.backend_of": _methods_of_groups,
    "process_groups.sequence_number": _methods_of_groups,
    "process_groups.set_timeout": _timeout_of_backends,
    "process_groups.premultiplied_factor": _factor,
    "autoload.is_registered": _backends,
    "autoload.replace_env_handler": _env_handler,
    "autoload.map_backends": _mapped_backends,
    "autoload.unmapped": _mapped_backends,
    "construction.under_construction": _construction,
    "construction.make_others": _others,
    "construction.set_name": _set_name,
    "futures.watch_futures": _futures,
    "dynamo.not_compiled": _not_compiled,
    "dynamo.compiling_check": _is_compiling,
    "dynamo.untraced": _untraced,
    "dynamo.without_dynamo": _without_dynamo,
    "core.current_backward": _current_backward,
    "core.at_end_of_backward": _end_of_backward,
    "works.keep_alive": _works,
    "works.let_go": _works,
    "stores.below_restarts": _restarts,
    "stores.has_keys": _stores,
    "stores.set_key": _stores,
    "training.mark_stepped": _marked_steps,
    "training.without_hooks": _hooks_of_steps,
    "training.existing_wrappers": _tracked_modules,
    "training.is_batch_norm": _batch_norm,
    "core.stream_source": _stream_source,
    "core.copy_all": _copy_all,
    "core.keeps_identity": _storage_identity,
    "grad_scaler.around_scalers": _scalers,
    "tensor_parts.awaited": _awaited_tensors,
    "tensor_parts.is_fake": _fake_tensors,
    "tensor_parts.viewed_complex": _complex_views,
}

if __name__ == "__main__":
    main(f"torch {torch.__version__}", PROBES)
