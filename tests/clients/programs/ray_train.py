"""Trains with two workers of Ray Train and TorchConfig(backend="perseus")."""

import tempfile
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model


def train(config: dict[str, Any]) -> None:
    torch.manual_seed(dist.get_rank())
    model = prepare_model(torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    total = float(sum(parameter.detach().double().abs().sum() for parameter in model.parameters()))
    totals: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(totals, total)
    assert len(set(totals)) == 1, totals
    if dist.get_rank() == 0:
        Path(config["result"]).write_text(f"RESULT {dist.get_backend()} of {dist.get_world_size()} sum {total:.9f}")


def main() -> None:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=True)
    with tempfile.TemporaryDirectory() as folder:
        trainer = TorchTrainer(
            train,
            train_loop_config={"result": f"{folder}/result"},
            torch_config=TorchConfig(backend="perseus"),
            scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
            run_config=RunConfig(storage_path=folder),
        )
        trainer.fit()
        print(Path(f"{folder}/result").read_text(), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
