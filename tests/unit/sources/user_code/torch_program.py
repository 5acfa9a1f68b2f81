"""A program of a user. test_user_types.py checks its types with mypy and pyright in strict mode. It is not run."""

import torch
from typing_extensions import assert_type

import perseus_like.torch as hvd

hvd.init()
model = torch.nn.Linear(4, 2)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters(), op=hvd.Average
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

batch = torch.ones(8, 4)
assert_type(hvd.allreduce(batch, name="batch", compression=hvd.Compression.fp16), torch.Tensor)
assert_type(hvd.grouped_allreduce([batch, batch]), list[torch.Tensor])

# An alltoall with splits returns a pair.
assert_type(hvd.alltoall(batch), torch.Tensor)
received, counts = hvd.alltoall(batch, splits=[4, 4])
assert_type(counts, torch.Tensor)

# A handle knows its result, and is an int.
handle = hvd.allreduce_async_(batch, name="batch")
assert_type(hvd.synchronize(handle), torch.Tensor)
assert_type(hvd.synchronize(hvd.alltoall_async(batch)), tuple[torch.Tensor, torch.Tensor])
number: int = handle

# Objects keep their type.
assert_type(hvd.broadcast_object(3, root_rank=0), int)
assert_type(hvd.allgather_object("host"), list[str])

# The distributed optimizer is an optimizer with two more methods. A misspelt one is an error.
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3)
optimizer.zero_grad()
model(batch).sum().backward()
optimizer.synchronize()
with optimizer.skip_synchronize():
    optimizer.step()
optimizer.param_groups[0]["lr"] = 0.02
optimizer.synchronise()  # type: ignore[attr-defined]  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]

# It may take the place of the wrapped optimizer, as in README.
adam = torch.optim.Adam(model.parameters())
adam = hvd.DistributedOptimizer(adam, model.named_parameters())


class OwnOptimizer(torch.optim.SGD):
    def anneal(self) -> float:
        return 0.5


own = hvd.DistributedOptimizer(OwnOptimizer(model.parameters(), lr=0.01))
assert isinstance(own, OwnOptimizer)
assert_type(own.anneal(), float)
own.synchronize()

sharded = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), shard=True)
assert_type(sharded, hvd.ZeroRedundancyOptimizer)
assert_type(sharded.clip_grad_norm_(1.0), torch.Tensor)


def step(optimizer: torch.optim.Optimizer, shard: bool) -> None:
    try:
        hvd.DistributedOptimizer(optimizer, shard=shard).step()
    except hvd.PeerLostError as error:
        print(error)


@hvd.elastic.run
def train(state: hvd.elastic.TorchState, epochs: int) -> float:
    for epoch in range(state.epoch, epochs):
        state.epoch = epoch
        state.commit()
    return 0.5


assert_type(train(hvd.elastic.TorchState(model, optimizer, epoch=0), 3), float)
