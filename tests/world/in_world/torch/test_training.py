"""Compares programs with several models, optimizers or passes on all ranks with one process on global batches."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import perseus_like.torch as hvd  # noqa: E402

from .training import assert_equal_parameters, batch, build, grad_scaler, loss_of, part  # noqa: E402

functional = torch.nn.functional


class Run:
    """A training in one process, or this rank's part of the same training on all ranks."""

    def __init__(self, rank: int | None, size: int) -> None:
        self._rank = rank
        self._size = size

    def optimizer(self, plain: Any, *args: Any, **options: Any) -> Any:
        return plain if self._rank is None else hvd.DistributedOptimizer(plain, *args, **options)

    def batch(self, number: int, dtype: Any = torch.float64) -> tuple[Any, Any]:
        inputs, targets = batch(number, self._size, dtype)
        return (inputs, targets) if self._rank is None else (part(inputs, self._rank), part(targets, self._rank))

    def only_if_distributed(self) -> bool:
        return self._rank is not None


@pytest.fixture
def runs(rank: int, size: int) -> Iterator[tuple[Run, Run]]:
    """Yields the training in one process, and the training on all ranks."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield Run(None, size), Run(rank, size)


def sgd(parameters: Any, lr: float = 0.05) -> Any:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


@pytest.mark.parametrize("batches", [5, 7])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_passes_with_a_remainder(batches: int, set_to_none: bool, runs: tuple[Run, Run]) -> None:
    """Each step has three passes, and the last step of an epoch has the remaining passes."""
    models = []
    for run in runs:
        model = build("mlp")
        optimizer = run.optimizer(sgd(model.parameters()), model.named_parameters(), backward_passes_per_step=3)
        for epoch in range(3):
            for number in range(batches):
                loss_of(model, *run.batch(epoch * batches + number)).backward()
                if (number + 1) % 3 == 0 or number + 1 == batches:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none)
        models.append(model)
    assert_equal_parameters(*models)


def grouped(model: Any) -> list[list[Any]]:
    """Returns a group of tensors of different layers, and a group of one tensor. The other tensors are in no group."""
    return [[model[0].weight, model[5].bias], [model[3].weight]]


@pytest.mark.parametrize("form", ["num_groups", "number", "lists"])
@pytest.mark.parametrize("more", [{}, {"gradient_predivide_factor": 4.0}, {"backward_passes_per_step": 2}], ids=str)
def test_groups(form: str, more: dict[str, Any], runs: tuple[Run, Run]) -> None:
    models = []
    for run in runs:
        model = build("mlp")
        forms: Any = {"num_groups": {"num_groups": 3}, "number": {"groups": 3}, "lists": {"groups": grouped(model)}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # num_groups is deprecated
            optimizer = run.optimizer(sgd(model.parameters()), model.named_parameters(), **forms[form], **more)
        for number in range(4):
            optimizer.zero_grad()
            for turn in range(more.get("backward_passes_per_step", 1)):
                loss_of(model, *run.batch(10 * number + turn)).backward()
            optimizer.step()
        models.append(model)
    assert_equal_parameters(*models)


def test_two_optimizers_of_the_same_parameters(runs: tuple[Run, Run], size: int) -> None:
    """Only one of them may reduce the gradients."""
    models = []
    for run in runs:
        model = build("mlp")
        first, second = run.optimizer(sgd(model.parameters())), torch.optim.Adam(model.parameters(), lr=0.01)
        for number in range(4):
            first.zero_grad()
            loss_of(model, *run.batch(number)).backward()
            if number % 2 and run.only_if_distributed():
                first.synchronize()
            (second if number % 2 else first).step()
        models.append(model)
    assert_equal_parameters(*models)
    model = build("mlp")
    both = [hvd.DistributedOptimizer(sgd(model.parameters())) for _ in range(2)]
    loss_of(model, *runs[1].batch(0)).backward()
    if size > 1:
        with pytest.raises(ValueError, match="two DistributedOptimizers"):
            both[0].step()
    del both[1]
    both[0].step()


def test_several_models_whose_backward_passes_interleave(runs: tuple[Run, Run]) -> None:
    trained = []
    for run in runs:
        models = [build(name) for name in ("mlp", "recurrent", "attention")]
        optimizers = [run.optimizer(sgd(model.parameters()), model.named_parameters()) for model in models]
        for number in range(4):
            order = [(number + place) % 3 for place in range(3)]
            for place in order:
                optimizers[place].zero_grad()
                loss_of(models[place], *run.batch(10 * place + number)).backward()
            for place in reversed(order):
                optimizers[place].step()
        # Each model's output is the next model's input, so one backward pass reaches all models.
        for number in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            inputs, targets = run.batch(100 + number)
            first = models[0](inputs)
            second = models[1](torch.cat([first, first], 1))
            loss_of(models[2], torch.cat([second, first], 1), targets).backward()
            for optimizer in optimizers:
                optimizer.step()
        trained.append(models)
    for alone, together in zip(*trained, strict=True):
        assert_equal_parameters(alone, together)


@pytest.mark.parametrize("how", ["frozen", "synchronized"])
def test_adversarial_training(how: str, runs: tuple[Run, Run]) -> None:
    """The generator's pass also computes gradients of the discriminator. They are disabled, or discarded."""
    trained = []
    for run in runs:
        generator, discriminator = build("mlp"), build("mlp")
        judge = torch.nn.Sequential(torch.nn.Linear(3, 6).double(), discriminator, torch.nn.Linear(3, 1).double())
        for number, parameter in enumerate(judge.parameters()):
            parameter.data.normal_(std=0.3, generator=torch.Generator().manual_seed(number))
        optimizer_g = run.optimizer(torch.optim.Adam(generator.parameters(), lr=0.01), generator.named_parameters())
        optimizer_d = run.optimizer(torch.optim.Adam(judge.parameters(), lr=0.01), judge.named_parameters())
        for number in range(4):
            inputs, real = run.batch(number)
            optimizer_d.zero_grad()
            forged = generator(inputs)
            verdicts = judge(torch.cat([real, forged.detach()]))
            truth = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)]).double()
            functional.binary_cross_entropy_with_logits(verdicts, truth).backward()
            optimizer_d.step()
            optimizer_g.zero_grad()
            judge.requires_grad_(how != "frozen")
            loss = functional.binary_cross_entropy_with_logits(judge(forged), torch.ones(len(real), 1).double())
            loss.backward()
            optimizer_g.step()
            judge.requires_grad_(True)
            if how == "synchronized" and run.only_if_distributed():
                optimizer_d.synchronize()
        trained.append((generator, judge))
    for alone, together in zip(*trained, strict=True):
        assert_equal_parameters(alone, together)


def test_parameters_of_a_plain_optimizer_are_not_reduced(rank: int, size: int) -> None:
    """Only the parameters of the DistributedOptimizer are reduced. The others keep this rank's gradients."""
    together, alone = build("mlp"), build("mlp")
    shared = hvd.DistributedOptimizer(sgd(together[:4].parameters()), together[:4].named_parameters())
    local = sgd(together[4:].parameters())
    for number in range(3):
        inputs, targets = batch(number, size)
        for optimizer in (shared, local):
            optimizer.zero_grad()
        alone.load_state_dict(together.state_dict())
        alone.zero_grad()
        loss_of(alone, part(inputs, rank), part(targets, rank)).backward()
        own = [parameter.grad for parameter in alone[4:].parameters()]
        loss_of(together, part(inputs, rank), part(targets, rank)).backward()
        shared.synchronize()
        for gradient, parameter in zip(own, together[4:].parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
        with shared.skip_synchronize():
            shared.step()
        local.step()
    bodies = hvd.allgather_object([p.tolist() for p in together[:4].parameters()])
    assert all(body == bodies[0] for body in bodies)
    heads = hvd.allgather_object([p.tolist() for p in together[4:].parameters()])
    assert all(one != other for one, other in itertools.combinations(heads, 2))


@pytest.mark.parametrize("explicit", [False, True])
def test_gradient_scaling(explicit: bool, runs: tuple[Run, Run], rank: int, size: int) -> None:
    """Only one rank has an overflow, which the one process has in this rank's part of the batch."""
    models, scales = [], []
    for run in runs:
        model = build("mlp", torch.float32)
        optimizer = run.optimizer(sgd(model.parameters()), model.named_parameters())
        scaler = grad_scaler(init_scale=1024.0, growth_interval=2)
        for number in range(6):
            optimizer.zero_grad()
            inputs, targets = run.batch(number, torch.float32)
            if number in (1, 4) and (not run.only_if_distributed() or rank == size - 1):
                targets[-1] = float("inf")
            scaler.scale(loss_of(model, inputs, targets)).backward()
            if explicit:
                if run.only_if_distributed():
                    optimizer.synchronize()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            if explicit and run.only_if_distributed():
                with optimizer.skip_synchronize():
                    scaler.step(optimizer)
            else:
                scaler.step(optimizer)
            scaler.update()
        models.append(model)
        scales.append(scaler.get_scale())
    assert_equal_parameters(models[0], models[1], 1e-5)
    assert scales[0] == scales[1] == 1024.0 / 4 * 2


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "passes"), [("eager", 2), ("aot_eager", 1)])
def test_compiled(backend: str, passes: int, runs: tuple[Run, Run]) -> None:
    models = []
    for run in runs:
        model = build("mlp")
        optimizer = run.optimizer(
            torch.optim.AdamW(model.parameters(), lr=0.01), model.named_parameters(), backward_passes_per_step=passes
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler warns about its own code

            def loss_and_gradients(inputs: Any, targets: Any, model: Any = model) -> Any:
                loss = loss_of(model, inputs, targets)
                loss.backward()
                return loss

            compiled = torch.compile(loss_and_gradients, backend=backend) if run.only_if_distributed() else None
            for number in range(4):
                optimizer.zero_grad()
                for turn in range(passes):
                    (compiled or loss_and_gradients)(*run.batch(10 * number + turn))
                optimizer.step()
        models.append(model)
    torch._dynamo.reset()
    assert_equal_parameters(*models)


@pytest.mark.parametrize("fused", [None, "search"])
def test_closures_that_are_called_several_times(fused: str | None, runs: tuple[Run, Run]) -> None:
    """LBFGS evaluates a batch several times. Its decisions depend on the loss of all ranks, which `step` returns."""
    models, losses = [], []
    for run in runs:
        model = build("attention")
        settings: dict[str, Any] = {"line_search_fn": "strong_wolfe"} if fused else {"lr": 0.1}
        optimizer = run.optimizer(torch.optim.LBFGS(model.parameters(), max_iter=6, history_size=4, **settings))
        for number in range(3):
            inputs, targets = run.batch(number)

            def closure(model: Any = model, optimizer: Any = optimizer, data: Any = (inputs, targets)) -> Any:
                optimizer.zero_grad()
                loss = loss_of(model, *data)
                loss.backward()
                return loss

            losses.append(optimizer.step(closure).item())
        models.append(model)
    assert losses[:3] == pytest.approx(losses[3:])
    assert_equal_parameters(models[0], models[1], 1e-6)
