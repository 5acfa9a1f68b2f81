"""Tests of DistributedOptimizer's steps in unusual cases: passes, closures, scaling, copies, hooks, joins, mistakes."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import perseus_like.torch as hvd  # noqa: E402

from .training import assert_same_on_all_ranks, batch, build, loss_of, part, sgd, step  # noqa: E402


def test_too_many_passes(rank: int, size: int, two_ranks: None) -> None:
    model = build("mlp")
    optimizer = sgd(model)
    step(model, optimizer, 0, rank, size)
    inputs, targets = batch(1, size)
    loss_of(model, part(inputs, rank), part(targets, rank)).backward()
    with pytest.raises(AssertionError, match="zero_grad"):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        loss_of(model, part(inputs, rank), part(targets, rank)).backward()
    optimizer.zero_grad()
    step(model, optimizer, 2, rank, size)
    assert_same_on_all_ranks(model)


def test_passes_that_change_before_a_step_count_from_the_next_one(rank: int, size: int, two_ranks: None) -> None:
    """Gradients of this step may be in flight. Nothing clears them, or reduces them twice."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = sgd(model, lr=1.0, op=hvd.Sum)
    total = sum(range(1, size + 1))
    expected = 0.0
    for passes in (1, 1, 2):
        optimizer.zero_grad()
        for _ in range(passes):
            model(torch.full((1, 1), rank + 1.0)).backward()
        if passes == 1:
            optimizer.set_backward_passes_per_step(1 if expected == 0 else 2)
            with pytest.raises(AssertionError, match="zero_grad"):
                optimizer.zero_grad()
        optimizer.step()
        expected -= passes * total
        assert model.weight.item() == expected
    with pytest.raises(ValueError, match="at least one"):
        optimizer.set_backward_passes_per_step(0)


@pytest.mark.parametrize(
    "options", [{}, {"compression": hvd.Compression.bf16}, {"backward_passes_per_step": 2}], ids=str
)
@pytest.mark.parametrize("early", [False, True], ids=["at the end", "during backward"])
def test_large_gradients(
    options: dict[str, Any], early: bool, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large gradients with strides, unused on a rank or replaced before the step are reduced like small ones."""
    if early:
        monkeypatch.setattr("perseus_like.torch.gradients._all_cores_compute", lambda _: False)
    passes = options.get("backward_passes_per_step", 1)
    weights = [torch.nn.Parameter(torch.zeros(1 << 10, 1 << 9).t()) for _ in range(2)]
    small = torch.nn.Parameter(torch.zeros(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([*weights, small], lr=1.0), **options)
    expected = [0.0, 0.0, 0.0]
    for number in range(3):
        optimizer.zero_grad(set_to_none=number != 1)
        for _ in range(passes):
            loss = weights[0].sum() * (rank + 1) + small.sum()
            if rank == 0:
                loss = loss + weights[1].sum() * size
            loss.backward()
        optimizer.synchronize()
        means = [passes * (size + 1) / 2, float(passes), float(passes)]
        for each, (parameter, mean) in enumerate(zip([*weights, small], means, strict=True)):
            torch.testing.assert_close(parameter.grad, torch.full_like(parameter, mean), rtol=1e-2, atol=0)
            expected[each] -= mean
        with optimizer.skip_synchronize():
            optimizer.step()
    for parameter, value in zip([*weights, small], expected, strict=True):
        torch.testing.assert_close(parameter.detach(), torch.full_like(parameter, value), rtol=1e-2, atol=0)


def test_a_gradient_that_the_program_shares_is_reduced(rank: int, size: int, two_ranks: None) -> None:
    """torch moves the memory of the whole bucket then, so requests of earlier steps have an address of freed memory."""
    layer = torch.nn.Linear(2, 1, bias=False)
    optimizer = sgd(layer, op=hvd.Sum, lr=0.0)
    for number in range(4):
        optimizer.zero_grad(set_to_none=False)
        (layer.weight.sum() * (rank + 1)).backward()
        optimizer.step()
        assert layer.weight.grad.tolist() == [[size * (size + 1) / 2] * 2]
        if number == 1:
            address = layer.weight.grad.data_ptr()
            layer.weight.grad.share_memory_()
            assert layer.weight.grad.data_ptr() != address


def test_step_after_synchronize_warns_and_does_not_reduce_again(rank: int, size: int, two_ranks: None) -> None:
    layer = torch.nn.Linear(2, 1, bias=False)
    optimizer = sgd(layer, op=hvd.Sum, lr=0.0)
    for _ in range(2):
        optimizer.zero_grad()
        layer.weight.sum().backward()
        optimizer.synchronize()
        with pytest.warns(UserWarning, match=r"optimizer\.step\(\) called without optimizer\.skip_synchronize\(\)"):
            optimizer.step()
        assert layer.weight.grad.tolist() == [[size, size]]
        optimizer.zero_grad()
        layer.weight.sum().backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            optimizer.step()
        assert layer.weight.grad.tolist() == [[size, size]]


@pytest.mark.parametrize("fused", [False, True])
def test_autocast_and_fused_optimizers(fused: bool, rank: int, size: int) -> None:
    model = build("mlp", torch.float32)
    try:
        plain = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    except RuntimeError as refused:
        pytest.skip(f"torch {torch.__version__}: {refused}")
    optimizer = hvd.DistributedOptimizer(plain)
    for number in range(3):
        optimizer.zero_grad()
        inputs, targets = batch(number, size, torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, part(inputs, rank), part(targets, rank))
        loss.backward()
        optimizer.step()
        assert_same_on_all_ranks(model)


def test_copies_are_plain_optimizers(rank: int, size: int) -> None:
    model = build("mlp")
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.1))
    step(model, optimizer, 0, rank, size)
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    optimizer.load_state_dict(torch.load(buffer))
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(model, optimizer, 1, rank, size)
    assert_same_on_all_ranks(model)
    for duplicate in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(duplicate) is torch.optim.Adam
        assert duplicate.param_groups[0]["lr"] == 0.1
        assert len(duplicate.state) == len(optimizer.state)
        duplicate.step()
    copied = copy.deepcopy(model)
    assert all(
        a.grad is None or a.grad.data_ptr() != b.grad.data_ptr()
        for a, b in zip(copied.parameters(), model.parameters(), strict=True)
    )


def test_step_hooks_run_once_and_see_reduced_gradients(rank: int, size: int) -> None:
    layer = torch.nn.Linear(2, 1, bias=False)
    seen: list[Any] = []
    alone = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
    alone.register_step_pre_hook(lambda *_: seen.append("torch"))
    alone.step()
    if not seen:
        pytest.skip(f"torch {torch.__version__} calls no step hooks once its compiler was imported")
    seen.clear()
    optimizer = sgd(layer, op=hvd.Sum)
    optimizer.register_step_pre_hook(lambda *_: seen.append(layer.weight.grad.tolist()))
    optimizer.load_state_dict(optimizer.state_dict())
    for _ in range(2):
        optimizer.zero_grad()
        layer.weight.sum().backward()
        optimizer.step()
    assert seen == [[[size, size]]] * 2


def test_a_deleted_optimizer_does_not_reduce_gradients(rank: int, size: int) -> None:
    model = build("mlp")
    for number in range(3):
        optimizer = sgd(model)
        step(model, optimizer, number, rank, size)
        step(model, optimizer, number, rank, size)
        del optimizer
        gc.collect()
    loss_of(model, *batch(0, 1)).backward()
    loss_of(model, *batch(0, 1)).backward()
    assert_same_on_all_ranks(model)


def test_a_replaced_optimizer_may_be_in_a_reference_cycle(rank: int, size: int) -> None:
    model = build("mlp")
    for _ in range(3):
        optimizer = sgd(model)
        optimizer.keeps = [optimizer]
        for number in range(3):
            step(model, optimizer, number, rank, size)
    assert_same_on_all_ranks(model)


def test_higher_order_gradients(rank: int, size: int) -> None:
    model = build("mlp")
    optimizer = sgd(model)
    for number in range(3):
        optimizer.zero_grad()
        inputs = part(batch(number, size)[0], rank).requires_grad_()
        (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
        slope.square().sum().backward()
        optimizer.step()
        assert_same_on_all_ranks(model)


def test_a_rank_may_continue_training_after_join(rank: int, size: int) -> None:
    """Rank 0 has no batch in the first epochs, so it has no bucket layout yet."""
    model = build("mlp")
    optimizer = sgd(model)
    for _ in range(2):
        for number in range(2 * rank):
            step(model, optimizer, number, rank, size)
        hvd.join()
        hvd.broadcast_parameters(model.state_dict(), size - 1)
    step(model, optimizer, 7, rank, size)
    step(model, optimizer, 8, rank, size)
    assert_same_on_all_ranks(model)


def test_bucket_layouts_change_at_every_step_while_a_rank_has_joined(rank: int, size: int, two_ranks: None) -> None:
    """Gradients that are kept (not set to None) get another place in the same memory at each step."""
    layers = torch.nn.ModuleList([torch.nn.Linear(5, 5) for _ in range(4)])
    optimizer = sgd(layers, lr=0.0)
    if rank < size - 1:
        for number in range(6):
            optimizer.zero_grad(set_to_none=False)
            order = list(enumerate(layers))
            hidden = torch.ones(())
            for place, layer in order if number % 2 else reversed(order):
                hidden = hidden + (place + 1) * layer.weight.sum() + hidden * 0
            hidden.backward()
            optimizer.step()
            for place, layer in order:
                expected = (place + 1) * (size - 1) / size
                torch.testing.assert_close(layer.weight.grad, torch.full((5, 5), expected))
    hvd.join()


def test_a_process_set_trains_without_the_other_ranks(rank: int, size: int, two_ranks: None) -> None:
    process_set = hvd.add_process_set([0])
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = sgd(model, process_set=process_set, lr=0.0)
    model.weight.sum().backward()
    optimizer.step()
    (model.weight.sum() * (rank + 1)).backward()
    optimizer.step()
    assert model.weight.grad.tolist() == [[rank + 2.0] * 2]
    hvd.remove_process_set(process_set)
    if size > 2:
        process_set = hvd.add_process_set([0, size - 1])
        optimizer = sgd(model, process_set=process_set, lr=0.0)
        for _ in range(3):
            optimizer.zero_grad()
            (model.weight.sum() * (rank + 1)).backward()
            optimizer.step()
            expected = (1 + size) / 2 if process_set.included() else rank + 1
            assert model.weight.grad.tolist() == [[expected] * 2]
        hvd.remove_process_set(process_set)


def test_different_models_are_an_error(rank: int, size: int, two_ranks: None) -> None:
    model = torch.nn.Linear(3, 4 + (rank == 0))
    optimizer = sgd(model)
    model(torch.ones(1, 3)).sum().backward()
    with pytest.raises(hvd.HorovodInternalError, match=r"'weight' float32\[5, 3\].*'weight' float32\[4, 3\]") as caught:
        optimizer.step()
    assert len(set(hvd.allgather_object(str(caught.value)))) == 1


def test_names_of_parameters(rank: int, size: int) -> None:
    model = build("mlp")
    assert sgd(model)._parameter_names == {parameter: name for name, parameter in model.named_parameters()}
    groups = [{"params": model[0].parameters()}, {"params": model[3].parameters()}]
    names = hvd.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1))._parameter_names
    assert len(names) == len(set(names.values())) == 4
    assert hvd.allgather_object(sorted(names.values())) == [sorted(names.values())] * size


def test_mistakes(rank: int, size: int) -> None:
    model = build("mlp")
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    named = list(model.named_parameters())
    with pytest.raises(ValueError, match="twice"):
        hvd.DistributedOptimizer(plain, [("same", parameter) for _, parameter in named])
    with pytest.raises(ValueError, match="lacks"):
        hvd.DistributedOptimizer(plain, named[1:])
    with pytest.raises(ValueError, match="pairs"):
        hvd.DistributedOptimizer(plain, model.parameters())
    with pytest.raises(ValueError, match="op=Average"):
        hvd.DistributedOptimizer(plain, op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="Average, Sum or Adasum"):
        hvd.DistributedOptimizer(plain, op=hvd.Max)
    with pytest.raises(ValueError, match="at least one"):
        hvd.DistributedOptimizer(plain, backward_passes_per_step=0)
    with pytest.raises(ValueError, match="negative"):
        hvd.DistributedOptimizer(plain, groups=-1)
    with pytest.raises(ValueError, match="lists"):
        hvd.DistributedOptimizer(plain, groups=[model[0].weight])
    with pytest.raises(ValueError, match="twice"):
        hvd.DistributedOptimizer(plain, groups=[[model[0].weight], [model[0].weight]])
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(plain))
    with pytest.warns(DeprecationWarning, match="groups"):
        hvd.DistributedOptimizer(plain, num_groups=2)


@pytest.mark.slow
def test_compiled_autograd(rank: int, size: int) -> None:
    """The hooks of a small and of a large gradient are traced."""
    import torch._dynamo

    def plain(model: Any, inputs: Any) -> None:
        model(inputs).square().mean().backward()

    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(6, 70_000, bias=False), torch.nn.Linear(70_000, 3)).double()
    alone = copy.deepcopy(model)
    optimizer = sgd(model)
    if not hasattr(torch._dynamo.config, "compiled_autograd"):
        pytest.skip(f"torch {torch.__version__} has no setting for compiled autograd")
    compiling = torch._dynamo.config.patch(compiled_autograd=True)
    for number in range(3):
        inputs, _ = batch(number, size)
        optimizer.zero_grad()
        alone.zero_grad()
        with compiling:
            torch.compile(plain, backend="aot_eager")(model, part(inputs, rank))
        alone(inputs).square().mean().backward()
        optimizer.synchronize()
        for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad)


def test_the_private_method_that_reduces_one_gradient(rank: int, size: int) -> None:
    """Tests of ignite check that the method exists, and gradient schedulers call it."""
    weight = torch.nn.Parameter(torch.ones(3))
    frozen = torch.nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight, frozen], lr=0.1), [("w", weight), ("f", frozen)])
    assert optimizer.backward_passes_per_step == 1
    weight.grad = torch.full((3,), float(rank))
    for parameter in (weight, frozen):
        handle, _ = optimizer._allreduce_grad_async(parameter)
        hvd.synchronize(handle)
    assert weight.grad.tolist() == [sum(range(size)) / size] * 3
    assert frozen.grad.tolist() == [0.0, 0.0]
