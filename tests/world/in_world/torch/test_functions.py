"""Tests of functions that send parameters, optimizer state and objects from one rank to all."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import perseus_like.torch as hvd  # noqa: E402

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "Adam": {"lr": 0.1, "amsgrad": True},
    "AdamW": {"lr": torch.tensor(0.05)},
    "NAdam": {},
    "RAdam": {},
    "Adamax": {},
    "Adagrad": {},
    "Adadelta": {},
    "Adafactor": {},
    "ASGD": {},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Rprop": {},
    "LBFGS": {"max_iter": 4},
    "SparseAdam": {},
    "Muon": {},
}


def model(seed: int = 0, sparse: bool = False, matrices_only: bool = False) -> Any:
    torch.manual_seed(seed)
    if sparse:
        return torch.nn.Embedding(10, 4, sparse=True)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 5, bias=not matrices_only), torch.nn.Tanh(), torch.nn.Linear(5, 3, bias=not matrices_only)
    )


def train(net: Any, optimizer: Any, steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        if isinstance(net, torch.nn.Embedding):
            batch: Any = torch.randint(0, 10, (8,), generator=generator)
        else:
            batch = torch.randn(4, 6, generator=generator)

        def closure(batch: Any = batch) -> Any:
            optimizer.zero_grad()
            loss = net(batch).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)


def flat(value: Any) -> list[Any]:
    """Returns the values of nested state in an order that does not depend on the rank."""
    if isinstance(value, dict):
        return [item for key in sorted(value, key=str) for item in flat(value[key])]
    if isinstance(value, list | tuple):
        return [item for each in value for item in flat(each)]
    return [value.tolist()] if isinstance(value, torch.Tensor) else [value]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("steps", ["everywhere", "only on root", "not on root"])
def test_optimizer_state(name: str, steps: str, rank: int, size: int) -> None:
    cls = getattr(torch.optim, name, None)
    if cls is None:
        pytest.skip(f"this torch has no {name}")
    root = size - 1
    net = model(rank, name == "SparseAdam", name == "Muon")
    optimizer = cls(net.parameters(), **OPTIMIZERS[name])
    count = {"everywhere": rank + 1, "only on root": 3 * (rank == root), "not on root": 2 * (rank != root)}[steps]
    train(net, optimizer, count, seed=rank)
    for group in optimizer.param_groups:
        group["weight_decay"] = rank / 100
        group["marker"] = (rank, "from", rank)
    hvd.broadcast_parameters(net.state_dict(), root)
    hvd.broadcast_optimizer_state(optimizer, root)
    states = hvd.allgather_object(flat(optimizer.state_dict()))
    assert all(state == states[root] for state in states)
    assert optimizer.param_groups[0]["marker"] == (root, "from", root)
    if name != "SparseAdam":
        train(net, optimizer, 2, seed=1)
    assert len({str(each) for each in hvd.allgather_object([p.tolist() for p in net.parameters()])}) == 1


def test_state_keeps_types_that_differ_from_the_parameters(rank: int) -> None:
    net = model().to(torch.bfloat16)
    optimizer = torch.optim.Adam(net.parameters())
    for parameter in net.parameters():
        optimizer.state[parameter] = {"step": torch.tensor(float(rank)), "master": parameter.double() + rank}
    hvd.broadcast_optimizer_state(optimizer, 0)
    for parameter in net.parameters():
        assert optimizer.state[parameter]["master"].dtype == torch.float64
        assert torch.equal(optimizer.state[parameter]["master"], parameter.double())


def test_state_keeps_its_classes_of_dictionaries(rank: int) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    if rank == 0:
        kept: Any = {
            "ordered": collections.OrderedDict(b=torch.ones(2), a=1),
            "by default": collections.defaultdict(list, {1: [torch.ones(3)]}),
        }
        optimizer.state[net[0].weight] = kept
        optimizer.param_groups[0]["counts"] = collections.Counter("aab")
    hvd.broadcast_optimizer_state(optimizer, 0)
    found = optimizer.state[net[0].weight]
    assert type(found["ordered"]) is collections.OrderedDict
    assert list(found["ordered"]) == ["b", "a"]
    assert found["ordered"]["b"].tolist() == [1, 1]
    assert found["by default"][1][0].tolist() == [1, 1, 1]
    assert found["by default"]["missing"] == []
    assert optimizer.param_groups[0]["counts"] == collections.Counter("aab")
    assert type(optimizer.param_groups[0]["counts"]) is collections.Counter


def test_state_is_written_into_the_existing_tensors(rank: int) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    train(net, optimizer, 1, seed=rank)
    mine = optimizer.state[net[0].weight]["momentum_buffer"]
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert optimizer.state[net[0].weight]["momentum_buffer"] is mine


def test_an_optimizer_without_state_has_gradients_afterwards(rank: int) -> None:
    """Programs may read gradients before the first backward pass, as with Horovod."""
    net = model()
    net[0].weight.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert net[0].weight.grad is None
    assert all((each.grad == 0).all() for each in net.parameters() if each.requires_grad)
    train(net, optimizer, 2, seed=rank)
    net[2].weight.grad = None
    optimizer = torch.optim.Adam(net.parameters())
    optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert net[2].weight.grad is None


def test_different_groups_are_an_error(rank: int, size: int) -> None:
    net = model()
    parameters = list(net.parameters())
    groups = [{"params": parameters}] if rank == 0 else [{"params": parameters[:2]}, {"params": parameters[2:]}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    if rank == 0:
        hvd.broadcast_optimizer_state(optimizer, 0)
    else:
        with pytest.raises(ValueError, match="parameter groups"):
            hvd.broadcast_optimizer_state(optimizer, 0)


@pytest.mark.parametrize("form", ["state_dict", "pairs", "tensors", "ordered", "channels_last", "half"])
def test_parameters_in_every_form(form: str, rank: int, size: int) -> None:
    net: Any = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    for value in net.state_dict().values():
        value.copy_(torch.full(value.shape, float(rank)))
    if form == "channels_last":
        net = net.to(memory_format=torch.channels_last)
    if form == "half":
        net = net.to(torch.bfloat16)
    parameters = {
        "pairs": list(net.named_parameters()),
        "tensors": list(net.parameters()),
        "ordered": collections.OrderedDict(net.state_dict()),
    }.get(form, net.state_dict())
    hvd.broadcast_parameters(parameters, size - 1)
    assert all((parameter == size - 1).all() for parameter in net.parameters())
    if form not in ("pairs", "tensors"):
        assert net[1].num_batches_tracked == size - 1
    if form == "channels_last":
        assert net[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_wrong_and_empty_parameters() -> None:
    with pytest.raises(ValueError, match="state_dict"):
        hvd.broadcast_parameters(model().named_parameters(), 0)
    hvd.broadcast_parameters({}, 0)
    hvd.broadcast_parameters({"_extra_state": None, "weight": torch.ones(1)}, 0)


def test_tied_and_odd_tensors(rank: int, size: int) -> None:
    """Some tensors share memory, or have no elements, no dimensions, another dtype, or gaps between rows."""
    wide = torch.full((4, 6), float(rank))
    tied = torch.full((3,), float(rank), requires_grad=True)
    state = {
        "tied": tied,
        "also tied": tied,
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(rank),
        "flags": torch.tensor([rank == size - 1] * 3),
        "bytes": torch.full((5,), rank, dtype=torch.uint8),
        "gaps": wide[:, ::2],
        "transposed": torch.full((2, 3), rank, dtype=torch.bfloat16).t(),
        "text": "not a tensor",
    }
    hvd.broadcast_parameters(state, size - 1)
    last = size - 1
    assert tied.tolist() == [last] * 3
    assert tied.is_leaf
    assert tied.requires_grad
    assert state["scalar"].item() == last
    assert state["flags"].all()
    assert (state["bytes"] == last).all()
    assert (state["transposed"] == last).all()
    assert wide.tolist() == [[last, rank] * 3] * 4
    hvd.broadcast_parameters([("a", state["scalar"].fill_(rank)), ("b", None)], 0)
    hvd.broadcast_parameters((torch.ones(1), wide), 0)
    assert state["scalar"].item() == wide[0, 1].item() == 0


class Point:
    """A class that pickle finds by its name."""

    def __init__(self, place: int) -> None:
        self.place = place


def objects(rank: int) -> dict[str, Any]:
    class Local(Point):
        """A class that only this function knows."""

    return {
        "none": None,
        "nested": {"rank": rank, (1, rank): [{"x" * rank}, b"y" * 100_000 * rank]},
        "instance": Point(rank),
        "lambda": lambda: rank,
        "class": Local,
        "local instance": Local(rank),
        "array": np.arange(rank),
        "tensor": torch.full((rank, 2), float(rank), requires_grad=True),
        "model": torch.nn.Linear(rank + 1, 1).state_dict(),
        "error": RuntimeError("of", rank),
    }


@pytest.mark.parametrize("kind", objects(0))
def test_objects(kind: str, rank: int, size: int) -> None:
    def description_of(obj: Any) -> str:
        if callable(obj):
            obj = obj() if kind == "lambda" else obj(rank)
        if isinstance(obj, torch.nn.Module | dict):
            obj = {key: value.shape if isinstance(value, torch.Tensor) else value for key, value in obj.items()}
        return str(vars(obj)) if isinstance(obj, Point) else f"{type(obj).__name__} {obj!r}"

    everybody = hvd.allgather_object(objects(rank)[kind])
    assert [description_of(obj) for obj in everybody] == [description_of(objects(r)[kind]) for r in range(size)]
    root = size - 1
    assert description_of(hvd.broadcast_object(objects(rank)[kind], root, name=kind)) == description_of(
        objects(root)[kind]
    )
    own = objects(rank)[kind]
    assert rank != root or hvd.broadcast_object(own, root) is own
    if rank != root:
        hvd.broadcast_object(None, root)


def test_an_object_that_cannot_be_sent_is_an_error_on_all_ranks(rank: int, size: int) -> None:
    """No rank waits for the object. The rank that cannot send it gets the original error."""
    last = size - 1
    obj = (entry for entry in "generators cannot be pickled") if rank == last else "fine"
    expected: Any = (
        (TypeError, "generator") if rank == last else (ValueError, f"rank {last} could not pickle.*generator")
    )
    for call in (lambda: hvd.allgather_object(obj), lambda: hvd.broadcast_object(obj, last)):
        with pytest.raises(expected[0], match=expected[1]):
            call()
    assert hvd.allgather_object(rank) == list(range(size))
