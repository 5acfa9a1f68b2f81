"""Runs unchanged programs of accelerate on a machine without a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.job import Job, Start, python_of


@pytest.fixture
def run(run_job: Start, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Returns a function that runs `perseusrun -np 2 [options] python program.py` where accelerate is installed."""
    python = python_of("torch-clients")
    for name in os.environ:
        if name.startswith(("PERSEUS", "PYTHONPATH", "ACCELERATE")):
            monkeypatch.delenv(name)

    def start(text: str, *options: str) -> Job:
        return run_job(2, text, python=python, options=options, joined=True, CUDA_VISIBLE_DEVICES="")

    return start


@pytest.mark.slow
def test_an_accelerator_trains_on_all_ranks(run: Start, tmp_path: Path) -> None:
    run(
        """
        import torch
        from accelerate import Accelerator

        accelerator = Accelerator()
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        inputs = torch.arange(8.0).reshape(4, 2)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs), batch_size=2)
        model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)
        seen = []
        for (batch,) in loader:
            seen += batch[:, 0].tolist()
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
        weights = accelerator.gather(accelerator.unwrap_model(model).weight.detach())
        assert torch.equal(weights[0], weights[1])
        with open(f"rank{accelerator.process_index}.txt", "w") as file:
            print(accelerator.distributed_type, accelerator.num_processes, seen, file=file)
        """
    ).succeeded()
    reports = [(tmp_path / f"rank{rank}.txt").read_text() for rank in (0, 1)]
    assert reports == [f"DistributedType.MULTI_CPU 2 {seen}\n" for seen in ([0.0, 2.0], [4.0, 6.0])]


@pytest.mark.slow
def test_a_state_of_one_process_is_an_error(run: Start) -> None:
    """It is an error if accelerate would train in one process. PartialState() does not read ACCELERATE_USE_CPU."""
    done = run(
        """
        from accelerate import PartialState

        state = PartialState()
        print("trains as one of", state.num_processes)
        """
    )
    assert done.code != 0
    assert "trains as one of" not in done.stdout
    assert "accelerate sees 1 process (DistributedType.NO) in a world of 2" in done.stdout, done.stdout


TRAINS = """
import torch
import torch.distributed as dist
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
inputs = torch.randn(64, 8)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01), loader)
losses = []
for (batch,) in loader:
    optimizer.zero_grad()
    loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    losses += accelerator.gather(loss.detach().reshape(1)).tolist()
from perseus_like.torch.distributed.process_group import PerseusGroup
with open(f"rank{accelerator.process_index}.txt", "w") as file:
    print(dist.get_backend(), isinstance(dist.group.WORLD, PerseusGroup), accelerator.num_processes, losses, file=file)
"""


@pytest.mark.slow
def test_losses_as_gloo_are_those_of_gloo(run: Start, tmp_path: Path) -> None:
    said = []
    for options in (["--no-torch"], ["--no-torch", "--as-gloo"], ["--as-gloo"]):
        run(TRAINS, *options).succeeded()
        said.append([(tmp_path / f"rank{rank}.txt").read_text() for rank in (0, 1)])
    over_gloo, *ours = said
    assert over_gloo[0].startswith("gloo False 2 [")
    for each in ours:
        assert each == [text.replace("gloo False", "gloo True") for text in over_gloo]
