"""Trains with DeepSpeed's ZeRO over dist_backend="perseus". The argument is ZeRO's stage."""

import sys

import deepspeed
import torch
import torch.distributed as dist


def main(stage: int) -> None:
    deepspeed.init_distributed(dist_backend="perseus")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    rank, losses = dist.get_rank(), []
    data = torch.randn(8 * dist.get_world_size(), 16, generator=torch.Generator().manual_seed(1))
    mine = data[8 * rank : 8 * rank + 8]
    for _ in range(5):
        loss = (engine(mine) - mine[:, :4]).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(float(loss))
    whole = torch.tensor(losses[-1])
    dist.all_reduce(whole)
    assert losses[-1] < losses[0], losses
    print(f"RESULT {dist.get_backend()} of {dist.get_world_size()} sum {float(whole):.9f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
