"""The sharded optimizer: it trains as one process does, and a host has one copy of parameters and states."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import perseus_like.torch as hvd

from ..training import grad_scaler

STEPS = 40


class Lion(torch.optim.Optimizer):
    """An optimizer of a user, with an integer in its state."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                momentum = state.setdefault("momentum", torch.zeros_like(parameter))
                state["steps"] = state.get("steps", 0) + 1
                update = torch.sign(momentum * first + parameter.grad * (1 - first))
                parameter.add_(update, alpha=-group["lr"] / state["steps"] ** 0.5)
                momentum.mul_(second).add_(parameter.grad, alpha=1 - second)


OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.05}),
    "momentum": (torch.optim.SGD, {"lr": 0.005, "momentum": 0.9, "weight_decay": 0.01}),
    "nesterov": (torch.optim.SGD, {"lr": 0.005, "momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {"lr": 0.003, "weight_decay": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.003}),
    "maximize": (torch.optim.SGD, {"lr": 1e-4, "maximize": True}),
    "amsgrad": (torch.optim.Adam, {"lr": 0.003, "amsgrad": True}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.001, "momentum": 0.5, "centered": True}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.01, "initial_accumulator_value": 0.1}),
    "adadelta": (torch.optim.Adadelta, {"lr": 1.0}),
    "adamax": (torch.optim.Adamax, {"lr": 0.003}),
    "nadam": (torch.optim.NAdam, {"lr": 0.003}),
    "radam": (torch.optim.RAdam, {"lr": 0.003}),
    "asgd": (torch.optim.ASGD, {"lr": 0.01}),
    "rprop": (torch.optim.Rprop, {"lr": 0.001}),
    "user's": (Lion, {"lr": 0.001}),
}


class Tied(torch.nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embedding = torch.nn.Linear(7, 33, bias=False, dtype=dtype)
        self.middle = torch.nn.Linear(33, 33, dtype=dtype)
        self.norm = torch.nn.LayerNorm(33, dtype=dtype)
        self.head = torch.nn.Linear(33, 7, bias=False, dtype=dtype)
        self.head.weight = torch.nn.Parameter(torch.empty(33, 7, dtype=dtype).normal_().t())
        self.again = self.middle  # tied
        self.register_buffer("count", torch.zeros(1))

    count: torch.Tensor

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.middle(self.embedding(batch)))
        result: torch.Tensor = self.head(self.norm(self.again(hidden)))
        return result


def model_of(seed: int = 0, dtype: torch.dtype = torch.float32) -> Tied:
    torch.manual_seed(seed)
    return Tied(dtype)


def batch_of(step: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns the batch of all ranks together."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8 * hvd.size(), 7, generator=generator).to(dtype)


def loss_of(model: torch.nn.Module, batch: torch.Tensor) -> Any:
    return ((model(batch) - batch.roll(1, 1)) ** 2).mean()


def own_part(batch: torch.Tensor) -> torch.Tensor:
    return batch[hvd.rank() * 8 : (hvd.rank() + 1) * 8]


def backward(optimizer: Any, model: torch.nn.Module, step: int, scale: float = 1.0) -> None:
    optimizer.zero_grad()
    (loss_of(model, own_part(batch_of(step))) * scale).backward()


def step_both(model: torch.nn.Module, optimizer: Any, alone: torch.nn.Module, plain: Any, step: int) -> None:
    """Makes a step of all ranks, and the same step of one process."""
    backward(optimizer, model, step)
    optimizer.step()
    plain.zero_grad()
    loss_of(alone, batch_of(step)).backward()
    plain.step()


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def groups_of(model: Tied) -> list[dict[str, Any]]:
    no_decay = [each for each in model.parameters() if each.ndim == 1]
    return [
        {"params": [each for each in model.parameters() if each.ndim > 1]},
        {"params": no_decay, "weight_decay": 0.0},
    ]


def trained_alone(name: str, steps: int) -> torch.Tensor:
    model = model_of()
    cls, options = OPTIMIZERS[name]
    optimizer = cls(groups_of(model), **options)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, batch_of(step)).backward()
        optimizer.step()
    return flat(model)


def trained_together(name: str, steps: int) -> torch.Tensor:
    model = model_of(seed=hvd.rank())  # the values of rank 0 count
    cls, options = OPTIMIZERS[name]
    optimizer = hvd.ZeroRedundancyOptimizer(groups_of(model), cls, **options)
    for step in range(steps):
        backward(optimizer, model, step)
        optimizer.step()
    return flat(model)


def assert_same_on_all_ranks(values: torch.Tensor) -> None:
    everybody = hvd.allgather_object(values.double().tolist())
    assert all(each == everybody[0] for each in everybody)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_are_those_of_one_process(name: str) -> None:
    together = trained_together(name, STEPS)
    torch.testing.assert_close(together, trained_alone(name, STEPS), rtol=1e-5, atol=1e-5)
    assert_same_on_all_ranks(together)
    assert torch.equal(together, trained_together(name, STEPS)), "the bits differ between runs"


def test_the_host_has_one_copy_of_a_parameter() -> None:
    model = model_of()
    layout = [(each.shape, each.stride()) for each in model.parameters()]
    parameters = list(model.parameters())
    hvd.share_parameters(model)
    assert [(each.shape, each.stride()) for each in model.parameters()] == layout
    assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))
    assert model.again.weight is model.middle.weight
    hvd.barrier()
    if hvd.rank() == 0:
        with torch.no_grad():
            model.middle.bias.fill_(5.0)
            model.count.fill_(1)
    hvd.barrier()
    assert model.middle.bias.tolist() == [5.0] * 33
    assert model.count.item() == (1 if hvd.rank() == 0 else 0), "buffers are private"
    hvd.barrier()
    hvd.unshare_parameters(model)
    with torch.no_grad():
        model.middle.bias.fill_(hvd.rank())
    hvd.barrier()
    assert model.middle.bias.tolist() == [float(hvd.rank())] * 33


def test_views_of_one_storage_stay_views() -> None:
    whole = torch.arange(64.0)
    first, second = torch.nn.Parameter(whole[:32]), torch.nn.Parameter(whole[16:])
    hvd.share_parameters([first, second])
    hvd.barrier()
    if hvd.rank() == 0:
        with torch.no_grad():
            first[20] = -1
    hvd.barrier()
    assert second[4].item() == -1
    hvd.barrier()
    hvd.unshare_parameters([first, second])
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


@pytest.mark.parametrize("cls", [torch.optim.AdamW, pytest.param(torch.optim.Adamax, marks=pytest.mark.slow)])
def test_bfloat16_has_a_float32_master(cls: Any) -> None:
    model = model_of(dtype=torch.bfloat16)
    optimizer = hvd.ZeroRedundancyOptimizer(model.parameters(), cls, lr=1e-4)
    master = [parameter.detach().float() for parameter in model_of(dtype=torch.bfloat16).parameters()]
    for each in master:
        each.requires_grad_()
    expected = cls(master, lr=1e-4)
    for step in range(20):
        optimizer.zero_grad()
        loss_of(model, own_part(batch_of(step, torch.bfloat16))).backward()
        for each, parameter in zip(master, model.parameters(), strict=True):
            assert parameter.grad is not None
            each.grad = hvd.allreduce(parameter.grad.float())
        optimizer.step()
        expected.step()
    for each, parameter in zip(master, model.parameters(), strict=True):
        torch.testing.assert_close(optimizer.state[parameter]["master"], each.detach(), rtol=1e-4, atol=1e-5)
        assert torch.equal(optimizer.state[parameter]["master"].bfloat16(), parameter.detach())
    assert_same_on_all_ranks(flat(model))
    # Values that the program loads are not overwritten by the master copy.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    optimizer.zero_grad()
    optimizer.step()
    assert float((flat(model).float() - 1).abs().max()) < 0.01


@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.ASGD])
def test_the_norm_is_clipped(cls: Any) -> None:
    model, alone = model_of(), model_of()
    optimizer = hvd.ZeroRedundancyOptimizer(model.parameters(), cls, lr=0.5)
    plain = cls(alone.parameters(), lr=0.5)
    for step in range(5):
        backward(optimizer, model, step)
        norm = optimizer.clip_grad_norm_(0.1)
        assert torch.equal(optimizer.clip_grad_norm_(0.1), norm)
        optimizer.step()
        plain.zero_grad()
        loss_of(alone, batch_of(step)).backward()
        torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1), rtol=1e-5, atol=1e-6)
        plain.step()
    torch.testing.assert_close(flat(model), flat(alone), rtol=1e-5, atol=1e-5)
    with pytest.raises(RuntimeError, match="has only 2"):
        optimizer.clip_grad_norm_(0.1, norm_type=1)
    backward(optimizer, model, 0)
    optimizer.clip_grad_norm_(0.1)
    with pytest.raises(RuntimeError, match="between clip_grad_norm_"):
        loss_of(model, own_part(batch_of(0))).backward()


@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.ASGD])
@pytest.mark.parametrize("unscales", [False, True])
def test_a_scaler_skips_the_step_on_all_ranks(unscales: bool, cls: Any) -> None:
    model, alone = model_of(), model_of()
    optimizer = hvd.ZeroRedundancyOptimizer(model.parameters(), cls, lr=0.1)
    plain = cls(alone.parameters(), lr=0.1)
    scaler = grad_scaler(init_scale=2.0**10)
    for step in range(4):
        optimizer.zero_grad()
        loss = loss_of(model, own_part(batch_of(step)))
        scaler.scale(loss * (float("inf") if step == 1 and hvd.rank() == 0 else 1.0)).backward()
        if unscales:
            scaler.unscale_(optimizer)
            optimizer.clip_grad_norm_(0.1)
        scaler.step(optimizer)
        scaler.update()
        if step != 1:
            plain.zero_grad()
            loss_of(alone, batch_of(step)).backward()
            if unscales:
                torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
            plain.step()
        assert_same_on_all_ranks(flat(model))
        torch.testing.assert_close(flat(model), flat(alone), rtol=1e-5, atol=1e-5)
    assert hvd.allgather_object(scaler.get_scale()) == [2.0**9] * hvd.size()
    hvd.barrier()


@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.NAdam])
def test_states_are_complete_on_each_rank_and_fit_torchs_optimizer(cls: Any) -> None:
    model, alone = model_of(), model_of()
    optimizer = hvd.ZeroRedundancyOptimizer(model.parameters(), cls, lr=0.01)
    plain = cls(alone.parameters(), lr=0.01)

    for step in range(3):
        step_both(model, optimizer, alone, plain, step)
    optimizer.consolidate_state_dict(to=0)
    state, expected = optimizer.state_dict(), plain.state_dict()
    assert state["state"].keys() == expected["state"].keys()
    for number, values in expected["state"].items():
        assert state["state"][number].keys() == values.keys()
        for key, value in values.items():
            torch.testing.assert_close(state["state"][number][key], value, rtol=1e-4, atol=1e-6)
    # The state of one process fits any number of ranks.
    hvd.barrier()
    with torch.no_grad():
        for values in optimizer.state.values():
            values["exp_avg"].zero_()
    hvd.barrier()
    optimizer.load_state_dict(expected)
    step_both(model, optimizer, alone, plain, 3)
    torch.testing.assert_close(flat(model), flat(alone), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="other parameter groups"):
        optimizer.load_state_dict(cls([torch.nn.Parameter(torch.ones(1))]).state_dict())
    # torch's optimizer continues with the state of the sharded one.
    successor = cls(alone.parameters(), lr=0.01)
    successor.load_state_dict(optimizer.state_dict())
    assert int(successor.state_dict()["state"][0]["step"]) == 4


def test_broadcast_of_the_state() -> None:
    model = model_of()
    optimizer = hvd.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    backward(optimizer, model, 0)
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.1 * (1 + hvd.rank())
    before = [values["momentum_buffer"].clone() for values in optimizer.state.values()]
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    after = [values["momentum_buffer"] for values in optimizer.state.values()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    backward(optimizer, model, 1)
    optimizer.step()
    assert_same_on_all_ranks(flat(model))


def test_distributed_optimizer_with_shard() -> None:
    model, alone = model_of(seed=hvd.rank()), model_of()
    torch_optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(torch_optimizer, 1, gamma=0.5)
    optimizer = hvd.DistributedOptimizer(torch_optimizer, model.named_parameters(), shard=True)
    plain = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    expected = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(4):
            optimizer.zero_grad()
            for part in own_part(batch_of(step)).chunk(2):
                (loss_of(model, part) / 2).backward()
            optimizer.step()
            schedule.step()
            plain.zero_grad()
            loss_of(alone, batch_of(step)).backward()
            plain.step()
            expected.step()
    torch.testing.assert_close(flat(model), flat(alone), rtol=1e-5, atol=1e-5)
    with pytest.raises(RuntimeError, match="has no synchronize"):
        optimizer.synchronize()


@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.Adamax])
def test_parameters_may_be_frozen_and_added_later(cls: Any) -> None:
    model, alone = model_of(), model_of()
    for each in (model, alone):
        each.middle.requires_grad_(False)
    optimizer = hvd.ZeroRedundancyOptimizer(model.embedding.parameters(), cls, lr=0.01)
    plain = cls(alone.embedding.parameters(), lr=0.01)
    for step in range(6):
        if step == 2:
            optimizer.add_param_group({"params": model.head.parameters()})
            plain.add_param_group({"params": alone.head.parameters()})
        if step == 4:
            optimizer.add_param_group({"params": model.middle.parameters()})
            plain.add_param_group({"params": alone.middle.parameters()})
            for each in (model, alone):
                each.middle.requires_grad_(True)
        step_both(model, optimizer, alone, plain, step)
    torch.testing.assert_close(flat(model), flat(alone), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_compiled_model() -> None:
    model, alone = model_of(), model_of()
    optimizer = hvd.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    compiled: Any = torch.compile(model, backend="aot_eager")
    for step in range(3):
        step_both(compiled, optimizer, alone, plain, step)
    torch.testing.assert_close(flat(model), flat(alone), rtol=1e-5, atol=1e-5)


def test_each_rank_by_itself_in_a_process_set() -> None:
    sets = [hvd.add_process_set([rank]) for rank in range(hvd.size())] if hvd.size() > 1 else [hvd.global_process_set]
    own = sets[hvd.rank()]
    model, alone = model_of(), model_of()
    optimizer = hvd.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, process_set=own, lr=0.1)
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    for some in ((model, optimizer), (alone, plain)):
        loss_of(some[0], own_part(batch_of(0))).backward()
        some[1].step()
    torch.testing.assert_close(flat(model), flat(alone), rtol=1e-5, atol=1e-6)
    if hvd.size() > 1:
        with pytest.raises(ValueError, match="not in"):
            hvd.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, process_set=sets[hvd.rank() - 1], lr=0.1)
        hvd.barrier()
        for each in sets:
            hvd.remove_process_set(each)
