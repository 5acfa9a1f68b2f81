"""Tests of DistributedOptimizer's gradients in unusual cases: missing, sparse, frozen, compressed, in buckets."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import perseus_like.torch as hvd  # noqa: E402

from .training import (  # noqa: E402
    assert_equal_parameters,
    assert_same_on_all_ranks,
    batch,
    branching,
    build,
    loss_of,
    part,
    sgd,
    step,
)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_ranks_that_use_different_layers(set_to_none: bool, rank: int, size: int) -> None:
    """The gradient of a layer is the average over all ranks, with zeros from ranks that did not use the layer."""
    alone, together = branching(), branching()
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    optimizer = sgd(together)
    for number in range(6):
        inputs, targets = batch(number, size)
        choices = [(number + r) % 3 == 0 for r in range(size)]
        plain.zero_grad()
        for r in range(size):
            output = alone(part(inputs, r), choices[r])
            ((output - part(targets, r)).square().mean() / size).backward()
        for parameter in alone.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        plain.step()
        optimizer.zero_grad(set_to_none)
        output = together(part(inputs, rank), choices[rank])
        (output - part(targets, rank)).square().mean().backward()
        optimizer.step()
        assert_equal_parameters(together, alone)


def test_a_rank_without_a_batch(rank: int, size: int) -> None:
    model = branching()
    optimizer = sgd(model)
    for number in range(4):
        optimizer.zero_grad()
        inputs, targets = batch(number, size)
        if rank != number % size:
            (model(part(inputs, rank)) - part(targets, rank)).square().mean().backward()
        optimizer.step()
        assert_same_on_all_ranks(model)


def test_frozen_parameters(rank: int, size: int) -> None:
    model = build("mlp")
    model[0].weight.requires_grad_(False)
    before = model[0].weight.clone()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1), model.named_parameters()
    )
    step(model, optimizer, 0, rank, size)
    step(model, optimizer, 1, rank, size)
    assert torch.equal(model[0].weight, before)
    model[3].weight.requires_grad_(False)  # frozen after some steps
    optimizer.zero_grad()
    kept = model[3].weight.clone()
    step(model, optimizer, 2, rank, size)
    assert torch.equal(model[3].weight, kept)
    assert model[3].weight.grad is None
    model[0].weight.requires_grad_(True)  # unfrozen after some steps
    for number in range(3, 6):
        step(model, optimizer, number, rank, size)
        assert_same_on_all_ranks(model)
    assert not torch.equal(model[0].weight, before)


def test_parameter_groups_added_later(rank: int, size: int) -> None:
    alone, together = build("mlp"), build("mlp")
    plain = torch.optim.SGD(alone[:4].parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(together[:4].parameters(), lr=0.1))
    for number in range(6):
        if number == 3:
            plain.add_param_group({"params": list(alone[5].parameters()), "lr": 0.01})
            optimizer.add_param_group({"params": list(together[5].parameters()), "lr": 0.01})
        inputs, targets = batch(number, size)
        for model, each in ((alone, plain), (together, optimizer)):
            model.zero_grad()
            loss_of(
                model, *((inputs, targets) if model is alone else (part(inputs, rank), part(targets, rank)))
            ).backward()
            each.step()
    assert_equal_parameters(together, alone)


def embedding() -> Any:
    torch.manual_seed(2)
    return torch.nn.Sequential(
        torch.nn.Embedding(20, 4, sparse=True), torch.nn.Flatten(), torch.nn.Linear(12, 2)
    ).double()


@pytest.mark.parametrize("sparse_as_dense", [False, True])
@pytest.mark.parametrize("passes", [1, 2])
def test_sparse_gradients(sparse_as_dense: bool, passes: int, rank: int, size: int) -> None:
    alone, together = embedding(), embedding()
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    optimizer = sgd(together, sparse_as_dense=sparse_as_dense, backward_passes_per_step=passes)
    for number in range(4):
        plain.zero_grad()
        optimizer.zero_grad()
        for turn in range(passes):
            generator = torch.Generator().manual_seed(number * 10 + turn)
            words = torch.randint(0, 20, (2 * size, 3), generator=generator)
            alone(words).square().mean().backward()
            together(words[2 * rank : 2 * rank + 2]).square().mean().backward()
        plain.step()
        optimizer.step()
        assert together[0].weight.grad.is_sparse is (not sparse_as_dense) or size == 1
    assert_equal_parameters(together, alone)


@pytest.mark.parametrize("sparse_as_dense", [False, True])
@pytest.mark.parametrize("set_to_none", [False, True])
def test_sparse_adam(sparse_as_dense: bool, set_to_none: bool, rank: int, size: int) -> None:
    """SparseAdam gets sparse gradients even if they were reduced as dense ones."""
    torch.manual_seed(3)
    alone = torch.nn.Embedding(20, 4, sparse=True).double()
    together = copy.deepcopy(alone)
    plain = torch.optim.SparseAdam(list(alone.parameters()), lr=0.1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SparseAdam(list(together.parameters()), lr=0.1), sparse_as_dense=sparse_as_dense
    )
    for number in range(4):
        words = torch.randint(0, 20, (2 * size, 3), generator=torch.Generator().manual_seed(number))
        for model, each, some in ((alone, plain, words), (together, optimizer, words[2 * rank : 2 * rank + 2])):
            each.zero_grad(set_to_none)
            (model(some) - 1).square().mean().backward()
            each.step()
    if set_to_none:  # otherwise only one of the two gradients keeps the rows of earlier steps, as zeros
        assert_equal_parameters(together, alone)
    assert_same_on_all_ranks(together)


def test_sparse_gradients_on_some_ranks_only(rank: int, size: int) -> None:
    """A rank that does not use the embedding contributes nothing to it."""
    model = embedding()
    optimizer = sgd(model)
    for number in range(4):
        optimizer.zero_grad()
        if rank == number % size or size == 1:
            model(torch.tensor([[number, 1, 2]])).square().mean().backward()
        else:
            model[2](torch.ones(1, 12, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
        assert_same_on_all_ranks(model)
    assert model[0].weight.grad.is_sparse


@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compression(compression: str, rank: int, size: int) -> None:
    alone, together = build("mlp", torch.float32), build("mlp", torch.float32)
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    optimizer = sgd(together, compression=getattr(hvd.Compression, compression))
    for number in range(3):
        inputs, targets = batch(number, size, torch.float32)
        for model, each in ((alone, plain), (together, optimizer)):
            each.zero_grad()
            loss_of(
                model, *((inputs, targets) if model is alone else (part(inputs, rank), part(targets, rank)))
            ).backward()
            each.step()
    assert_equal_parameters(together, alone, {"fp16": 1e-3, "bf16": 1e-2}[compression])
    assert_same_on_all_ranks(together)
    assert all(parameter.grad.dtype == torch.float32 for parameter in together.parameters())


def test_a_custom_compressor(rank: int, size: int) -> None:
    class Scaled(hvd.Compression.none):
        @staticmethod
        def compress(tensor: Any) -> tuple[Any, Any]:
            return tensor * 2, tensor.shape

        @staticmethod
        def decompress(tensor: Any, ctx: Any) -> Any:
            assert tensor.shape == ctx
            return tensor / 2

    alone, together = build("mlp"), build("mlp")
    plain, optimizer = torch.optim.SGD(alone.parameters(), lr=0.1), sgd(together, compression=Scaled)
    for number in range(3):
        step(together, optimizer, number, rank, size)
        plain.zero_grad()
        loss_of(alone, *batch(number, size)).backward()
        plain.step()
    assert_equal_parameters(together, alone)


def test_mixed_types(rank: int, size: int) -> None:
    model = torch.nn.ModuleList(
        [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4).double(), torch.nn.Linear(4, 4).bfloat16()]
    )
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = sgd(model, groups=[[model[0].weight, model[1].weight], [model[2].bias]])
    for _ in range(3):
        optimizer.zero_grad()
        sum(layer(torch.full((2, 4), rank + 1.0, dtype=layer.weight.dtype)).sum().float() for layer in model).backward()
        optimizer.step()
        for layer in model:
            expected = torch.full((4, 4), 2 * (size + 1) / 2, dtype=layer.weight.dtype)
            torch.testing.assert_close(layer.weight.grad, expected)


def test_gradients_live_in_few_buckets(rank: int, size: int, two_ranks: None) -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(10)])
    optimizer = sgd(model)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 32)).sum().backward()
        optimizer.step()
    storages = {parameter.grad.untyped_storage().data_ptr() for parameter in model.parameters()}
    assert len(storages) == 1
    places = [parameter.grad.data_ptr() for parameter in reversed(list(model.parameters()))]
    assert len(set(places)) == 20
    assert all(place % 64 == 0 for place in places)
    # Gradients are laid out in the order of their arrival, so the last layer is first.
    assert max(places[:2]) < min(places[2:])


def test_all_ranks_use_rank_0s_order_of_gradients(rank: int, size: int, two_ranks: None) -> None:
    torch.manual_seed(0)
    layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(4)])
    optimizer = sgd(layers)
    order = list(layers) if rank == 0 else list(reversed(layers))
    for _ in range(3):
        optimizer.zero_grad()
        hidden = torch.ones(1, 4)
        for layer in order:
            hidden = layer(hidden)
        hidden.sum().backward()
        optimizer.step()
        assert_same_on_all_ranks(layers)
    places = [layer.weight.grad.data_ptr() for layer in layers]
    assert places == sorted(places, reverse=True)


def test_many_buckets_and_several_optimizers_in_turn(rank: int, size: int, caplog: Any) -> None:
    """The model needs several buckets. An optimizer reuses the arena memory of optimizers that were deleted."""
    for _ in range(3):
        model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(9)])
        optimizer = sgd(model, lr=0.0)
        for step_number in range(3):
            optimizer.zero_grad()
            layers = list(model) if step_number else reversed(model)
            sum((place + 1) * (layer.weight.sum() + layer.bias.sum()) for place, layer in enumerate(layers)).mul(
                rank + 1
            ).backward()
            optimizer.step()
            for place, layer in enumerate(model):
                factor = place + 1 if step_number else 9 - place
                assert (layer.weight.grad == factor * (size + 1) / 2).all()
                assert (layer.bias.grad == factor * (size + 1) / 2).all()
        del optimizer, model
        gc.collect()
    assert "private memory" not in caplog.text
