"""Tensors without memory of their own in every verb: a result that is still coming, wrappers, and a freed storage."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._subclasses.fake_tensor import FakeTensorMode

import perseus_like.torch as hvd
from perseus_like.torch.native_group import native

from .values import all_gather_single, reduce_scatter_single

if not hasattr(torch.ops._c10d_functional, "wait_tensor"):
    pytest.skip("torch before 2.3 lacks some verbs, and prints a freed tensor's memory", allow_module_level=True)

Make = Callable[[torch.Tensor], torch.Tensor]
Verb = Callable[[Make, int, int], Any]
COUNT = 4
# Its new name since torch 2.13.
_reduce_scatter: Any = getattr(functional, "reduce_scatter_single", None) or functional.reduce_scatter_tensor


def values(rank: int, rows: int = 1) -> torch.Tensor:
    return torch.arange(rows * COUNT, dtype=torch.float32) + 100.0 * rank


def in_place(call: Callable[[torch.Tensor], Any]) -> Verb:
    """Returns a verb that changes its tensor."""

    def verb(make: Make, rank: int, size: int) -> Any:
        tensor = make(values(rank))
        call(tensor)
        return tensor

    return verb


def coming(plain: torch.Tensor) -> torch.Tensor:
    """Returns an AsyncCollectiveTensor whose collective gives every rank its own values."""
    size = dist.get_world_size()
    whole = torch.zeros(size, plain.numel())
    whole[dist.get_rank()] = plain
    return _reduce_scatter(whole.view(-1), "sum", 0, dist.group.WORLD)  # type: ignore[no-any-return]


def all_gathered(make: Make, rank: int, size: int) -> Any:
    outputs = [make(torch.zeros(COUNT)) for _ in range(size)]
    dist.all_gather(outputs, make(values(rank)))
    return outputs


def gathered(make: Make, rank: int, size: int) -> Any:
    outputs = [make(torch.zeros(COUNT)) for _ in range(size)]
    dist.gather(make(values(rank)), outputs if rank == 0 else None, 0)
    return outputs


def scattered(make: Make, rank: int, size: int) -> Any:
    output, inputs = make(torch.zeros(COUNT)), [make(values(part)) for part in range(size)]
    dist.scatter(output, inputs if rank == 0 else None, 0)
    return output


def all_gathered_into(make: Make, rank: int, size: int) -> Any:
    output = make(torch.zeros(COUNT * size))
    all_gather_single(output, make(values(rank)))
    return output


def reduce_scattered(make: Make, rank: int, size: int) -> Any:
    output = make(torch.zeros(COUNT))
    dist.reduce_scatter(output, [make(values(rank + part)) for part in range(size)])
    return output


def reduce_scattered_from(make: Make, rank: int, size: int) -> Any:
    output = make(torch.zeros(COUNT))
    reduce_scatter_single(output, make(values(rank, size)))
    return output


def all_to_all(make: Make, rank: int, size: int) -> Any:
    outputs = [make(torch.zeros(COUNT)) for _ in range(size)]
    dist.all_to_all(outputs, [make(values(rank + part)) for part in range(size)])
    return outputs


def all_to_all_single(make: Make, rank: int, size: int) -> Any:
    output = make(torch.zeros(COUNT * size))
    dist.all_to_all_single(output, make(values(rank, size)))
    return output


def sent(make: Make, rank: int, size: int) -> Any:
    dist.send(make(values(rank)), (rank + 1) % size)
    output = torch.zeros(COUNT)
    if make is plain or make is coming:  # otherwise nothing was sent
        dist.recv(output, (rank - 1) % size)
    return output


def received(make: Make, rank: int, size: int) -> Any:
    output = make(torch.zeros(COUNT))
    if make is plain or make is coming:
        dist.send(values(rank), (rank + 1) % size)
    dist.recv(output, (rank - 1) % size)
    return output


def received_from_any(make: Make, rank: int, size: int) -> Any:
    output = make(torch.zeros(COUNT))
    if make is plain or make is coming:
        dist.send(values(rank), (rank + 1) % size)
    dist.recv(output)
    return output


def coalesced(tensor: torch.Tensor) -> None:
    with dist.distributed_c10d._coalescing_manager():
        dist.all_reduce(tensor)


VERBS: dict[str, Verb] = {
    "all_reduce": in_place(dist.all_reduce),
    "all_reduce AVG": in_place(lambda tensor: dist.all_reduce(tensor, dist.ReduceOp.AVG)),
    "all_reduce in a coalescing manager": in_place(coalesced),
    "all_reduce of compiled code": in_place(
        lambda tensor: torch.ops._c10d_functional.wait_tensor(
            torch.ops._c10d_functional.all_reduce_(tensor, "sum", dist.group.WORLD.group_name)  # type: ignore[union-attr]
        )
    ),
    "all_reduce_coalesced": in_place(lambda tensor: dist.all_reduce_coalesced([tensor])),
    "broadcast": in_place(lambda tensor: dist.broadcast(tensor, 0)),
    "reduce": in_place(lambda tensor: dist.reduce(tensor, 0)),
    "all_gather": all_gathered,
    "all_gather_into_tensor": all_gathered_into,
    "gather": gathered,
    "scatter": scattered,
    "reduce_scatter": reduce_scattered,
    "reduce_scatter_tensor": reduce_scattered_from,
    "all_to_all": all_to_all,
    "all_to_all_single": all_to_all_single,
    "send": sent,
    "recv": received,
    "recv from any rank": received_from_any,
    "Horovod's allreduce_": in_place(lambda tensor: hvd.allreduce_(tensor, op=hvd.Sum)),
    "Horovod's allreduce": lambda make, rank, size: hvd.allreduce(make(values(rank)), op=hvd.Sum),
    "Horovod's broadcast_": in_place(lambda tensor: hvd.broadcast_(tensor, 0)),
    "Horovod's allgather": lambda make, rank, size: hvd.allgather(make(values(rank))),
}


# torch's dispatcher gives the group tensors with memory, or raises an error of its own.
DIRECT = [name for name in VERBS if "compiled code" not in name]


def plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def freed(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


def freed_part(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor whose address is its distance to the begin of a freed storage."""
    return freed(torch.cat([torch.zeros(2), tensor])[2:])


def distributed(tensor: torch.Tensor) -> torch.Tensor:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return DTensor.from_local(tensor, mesh, [Replicate()])


def clones(found: Any) -> list[torch.Tensor]:
    return [each + 0 for each in (found if isinstance(found, list) else [found])]


@pytest.fixture(scope="module", autouse=True)
def _session() -> None:
    """Horovod's verbs use the session of the process group, which the world ends."""
    hvd.init()


@pytest.fixture(scope="module")
def gloo() -> Any:
    return dist.new_group(backend="gloo")


def test_the_group_is_the_expected_one() -> None:
    assert (native is not None) == (os.environ.get("EXPECTED_GROUP") == "C++")


@pytest.mark.parametrize("name", VERBS)
def test_an_async_collective_tensor_is_waited_for(name: str, rank: int, size: int) -> None:
    expected = clones(VERBS[name](plain, rank, size))
    kept: list[torch.Tensor] = []

    def make(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(coming(tensor))
        assert type(kept[-1]) is functional.AsyncCollectiveTensor
        return kept[-1]

    found = clones(VERBS[name](make if "send" not in name and "recv" not in name else coming, rank, size))
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)
    if name in ("Horovod's allreduce", "all_gather"):
        assert torch.equal(kept[-1] + 0, values(rank)), "an input has changed"


@pytest.mark.parametrize("name", DIRECT)
def test_a_distributed_tensor_is_refused(name: str, rank: int, size: int) -> None:
    pytest.importorskip("torch.distributed.tensor")
    with pytest.raises(ValueError, match="class DTensor has no memory of its own"):
        VERBS[name](distributed, rank, size)


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("make", [freed, freed_part])
def test_a_tensor_whose_storage_was_freed_is_refused(make: Make, name: str, rank: int, size: int) -> None:
    with pytest.raises(ValueError, match=r"storage of a Tensor of .* elements was freed"):
        VERBS[name](make, rank, size)


TRANSFORMS: dict[str, Callable[[Callable[[torch.Tensor], Any], torch.Tensor], Any]] = {
    "GradTrackingTensor": lambda call, tensor: torch.func.grad(call)(tensor),
    "BatchedTensor": lambda call, tensor: torch.func.vmap(call)(tensor.expand(2, -1)),
}


@pytest.mark.parametrize("name", DIRECT)
@pytest.mark.parametrize("kind", TRANSFORMS)
def test_a_tensor_inside_a_transform_is_refused(kind: str, name: str, rank: int, size: int) -> None:
    def function(tensor: torch.Tensor) -> torch.Tensor:
        def make(given: torch.Tensor) -> torch.Tensor:
            return tensor.sum() * 0 + given

        VERBS[name](make, rank, size)
        return tensor.sum()

    # torch itself refuses differentiable verbs of Horovod inside of grad.
    with pytest.raises((ValueError, RuntimeError), match=rf"a {kind} of torch\.func|autograd\.Function with functorch"):
        TRANSFORMS[kind](function, torch.ones(3))


def outcome_of_fake(name: str, rank: int, size: int) -> str:
    try:
        found = VERBS[name](FakeTensorMode().from_tensor, rank, size)
    except Exception as error:
        return type(error).__name__
    return str([(type(each).__name__, each.shape) for each in (found if isinstance(found, list) else [found])])


@pytest.mark.parametrize("name", [name for name in VERBS if "Horovod" not in name])
def test_a_fake_tensor_does_what_it_does_with_gloo(
    name: str, rank: int, size: int, gloo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch computes shapes, and nothing is communicated."""
    found = outcome_of_fake(name, rank, size)
    monkeypatch.setattr(dist.distributed_c10d._world, "default_pg", gloo)
    assert outcome_of_fake(name, rank, size) == found
    assert "FakeTensor" in found or name != "all_reduce"


def test_a_fake_tensor_that_only_the_root_refuses(rank: int, size: int) -> None:
    fake = FakeTensorMode().from_tensor(values(rank))
    if rank == 0:
        with pytest.raises(Exception, match="convert all Tensors to FakeTensors"):
            dist.gather(fake, [torch.zeros(COUNT) for _ in range(size)])
    else:
        dist.gather(fake)
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size, size], "the error of a call in which no other rank takes part"


@pytest.mark.parametrize("name", [name for name in VERBS if "Horovod" in name])
def test_a_fake_tensor_is_refused_by_horovods_verbs(name: str, rank: int, size: int) -> None:
    with pytest.raises(ValueError, match="class FakeTensor has no memory of its own"):
        VERBS[name](FakeTensorMode().from_tensor, rank, size)
