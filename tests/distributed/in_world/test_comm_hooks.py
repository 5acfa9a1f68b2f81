"""Tests communication hooks of both classes DistributedDataParallel: torch's over perseus, and this library's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd

import perseus_like.torch.nn.parallel as ours
from perseus_like.torch.distributed import hooks

from .training import adam, assert_as_alone, make_model, mine, train

CLASSES = [torch.nn.parallel.DistributedDataParallel, ours.DistributedDataParallel]
both = pytest.mark.parametrize("wrapper", CLASSES, ids=["torch", "ours"])


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


def assert_nearly_as_alone(model: Any) -> None:
    expected = make_model()
    train(expected, sgd(expected.parameters()), lambda rows: rows)
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(model.module.state_dict()[name], tensor, atol=1e-3, rtol=1e-2)


@both
@pytest.mark.parametrize("hook", [default_hooks.fp16_compress_hook, hooks.fp16_wire, hooks.bf16_wire])
def test_gradients_are_reduced_in_16_bits(hook: Any, wrapper: Any) -> None:
    model = wrapper(make_model())
    model.register_comm_hook(None, hook)
    train(model, sgd(model.parameters()), mine)
    assert_nearly_as_alone(model)


def test_torchs_bf16_hook_on_our_class() -> None:
    """This library's class accepts the hook, which torch's own class refuses for every backend but NCCL."""
    model = ours.DistributedDataParallel(make_model())
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    train(model, sgd(model.parameters()), mine)
    assert_nearly_as_alone(model)


@both
def test_averages_of_a_hook_are_exact(wrapper: Any) -> None:
    model = wrapper(make_model(), bucket_cap_mb=0.0001)
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    train(model, adam(model.parameters()), mine)
    assert_as_alone(model.module.state_dict())
    model = wrapper(make_model())
    model._register_builtin_comm_hook(vars(dist)["BuiltinCommHookType"].ALLREDUCE)
    train(model, adam(model.parameters()), mine)
    assert_as_alone(model.module.state_dict())


@both
def test_power_sgd_on_many_buckets(wrapper: Any, size: int) -> None:
    """PowerSGD works with many buckets. Its callbacks start collectives and wait for them."""
    model = wrapper(make_model(), bucket_cap_mb=0.0001)
    state = power_sgd.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5)
    model.register_comm_hook(state, power_sgd.powerSGD_hook)
    train(model, adam(model.parameters()), mine)
    weights = [torch.empty(16, 8) for _ in range(size)]
    dist.all_gather(weights, model.module[0].weight.detach())
    assert all(torch.equal(weights[0], other) for other in weights)


@both
def test_arguments_and_result_of_a_hook(wrapper: Any) -> None:
    """In each pass, a hook sees the buckets in order, and each gradient once, as a view of its bucket.

    The tensor that the hook returns becomes the gradient.
    """
    model = wrapper(make_model(), bucket_cap_mb=0.0001, gradient_as_bucket_view=True)
    seen: list[Any] = []

    def twice(state: Any, bucket: Any) -> Any:
        state.append((bucket.index(), bucket.is_last(), [parameter.shape for parameter in bucket.parameters()]))
        assert [each.shape for each in bucket.gradients()] == state[-1][2]
        done: Any = torch.futures.Future()
        bucket.set_buffer(bucket.buffer() * 2)
        done.set_result(bucket.buffer())
        return done

    # torch compares annotations with the types, not with their names.
    twice.__annotations__.clear()
    model.register_comm_hook(seen, twice)
    for _ in range(2):
        seen.clear()
        model.zero_grad()
        model(torch.ones(1, 8)).sum().backward()
    assert [index for index, *_ in seen] == list(range(len(seen)))
    assert [is_last for _, is_last, _ in seen] == [False] * (len(seen) - 1) + [True]
    assert sorted(shape for *_, shapes in seen for shape in shapes) == sorted(each.shape for each in model.parameters())
    expected = make_model()
    expected(torch.ones(1, 8)).sum().backward()
    single: Any = expected[0].weight.grad
    torch.testing.assert_close(model.module[0].weight.grad, 2 * single)


@both
def test_mistakes(wrapper: Any) -> None:
    model = wrapper(make_model())
    with pytest.raises(TypeError):
        model.register_comm_hook(None, None)
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    with pytest.raises(RuntimeError):
        model.register_comm_hook(None, default_hooks.allreduce_hook)


def test_mistakes_with_our_class() -> None:
    model = ours.DistributedDataParallel(make_model())
    with pytest.raises(TypeError, match=r"called as hook\(state, bucket\)"):
        model.register_comm_hook(None, lambda bucket: None)
    model.register_comm_hook(None, lambda state, bucket: 5)
    with pytest.raises(ValueError, match="does not go with a communication hook"), model.join():
        pass
    with pytest.raises(TypeError, match="the communication hook gave int"):
        model(torch.ones(1, 8)).sum().backward()
