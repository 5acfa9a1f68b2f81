"""Programs of other projects over gloo and over this library, in turns.

    python -m benchmarks.clients                      # in an environment of `make test-clients`: .venv-clients
    python -m benchmarks.clients --only trainer,lightning

Each program names gloo, and runs as it is and with `PERSEUS_AS_GLOO=1`. It trains the same model on two ranks, and must
have the same weights either way. A time is the median of the steps of rank 0, and the median of the rounds. Programs
whose packages are not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import ROOT

WIDTH, LAYERS, ROWS, STEPS, WARMUP = 768, 12, 32, 40, 10
RANKS = 2
marks: list[float] = []  # the time after each step of this process's optimizer


class Model(torch.nn.Module):
    """A perceptron of 28 MB. It returns its loss, which is what transformers' Trainer asks of a model."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [each for _ in range(LAYERS) for each in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.layers(values) - values).square().mean()}


def rows() -> list[dict[str, torch.Tensor]]:
    data = torch.randn(RANKS * ROWS * STEPS, WIDTH, generator=torch.Generator().manual_seed(1))
    return [{"values": row} for row in data]


def loader() -> Any:
    return torch.utils.data.DataLoader(rows(), batch_size=ROWS)  # type: ignore[arg-type]


def batches() -> Iterator[torch.Tensor]:
    """Yields the batches of this rank."""
    listed, rank = [row["values"] for row in rows()], torch.distributed.get_rank()
    for step in range(STEPS):
        begin = (step * RANKS + rank) * ROWS
        yield torch.stack(listed[begin : begin + ROWS])


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def note_steps() -> None:
    register_optimizer_step_post_hook(lambda *_: marks.append(time.perf_counter()))


def report(model: torch.nn.Module) -> None:
    """Prints the result, on rank 0."""
    if torch.distributed.get_rank() != 0:
        return
    times = [after - before for before, after in itertools.pairwise(marks)][WARMUP:]
    total = sum(float(each.detach().double().abs().sum()) for each in model.parameters())
    group = torch.distributed.distributed_c10d._get_default_group()
    kind = type(group._get_backend(torch.device("cpu"))).__name__
    print("RESULT " + json.dumps({"seconds": statistics.median(times), "weights": total, "group": kind}), flush=True)


# --- the programs ----------------------------------------------------------------------------------------------------


def train(model: Any) -> None:
    """Trains a model that torch's DDP has wrapped."""
    optimizer = sgd(model)
    for values in batches():
        optimizer.zero_grad()
        model(values)["loss"].backward()
        optimizer.step()
    report(model.module)


def plain_ddp() -> None:
    torch.distributed.init_process_group("gloo")
    train(torch.nn.parallel.DistributedDataParallel(Model()))
    torch.distributed.destroy_process_group()


def trainer() -> None:
    from transformers import Trainer, TrainingArguments

    options: dict[str, Any] = {"use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
    options |= {"per_device_train_batch_size": ROWS, "max_steps": STEPS, "optim": "sgd"}
    training = Trainer(Model(), TrainingArguments(tempfile.gettempdir(), **options), train_dataset=rows())
    training.train()
    report(training.accelerator.unwrap_model(training.model))


def accelerate() -> None:
    from accelerate import Accelerator

    accelerator: Any = Accelerator(cpu=True)
    plain = Model()
    model, optimizer, prepared = accelerator.prepare(plain, sgd(plain), loader())
    for batch in prepared:
        optimizer.zero_grad()
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
    report(accelerator.unwrap_model(model))


def deepspeed() -> None:
    import deepspeed as package

    package.init_distributed(dist_backend="gloo")
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": ROWS,
        "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = package.initialize(model=model, model_parameters=model.parameters(), config=config)
    for values in batches():
        engine.backward(engine(values)["loss"])
        engine.step()
    report(engine.module)


def lightning() -> None:
    import lightning as package
    from lightning.pytorch.strategies import DDPStrategy

    class Module(package.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any, _: int) -> Any:
            return self.model(**batch)["loss"]

        def on_train_end(self) -> None:
            report(self.model)

        def configure_optimizers(self) -> Any:
            return sgd(self)

    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options: dict[str, Any] = {**dict.fromkeys(quiet, False), "accelerator": "cpu", "devices": RANKS, "max_epochs": 1}
    package.Trainer(strategy=DDPStrategy(process_group_backend="gloo"), **options).fit(Module(), loader())


def ray() -> None:
    import ray as package
    from ray.train import ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer, prepare_model

    def worker() -> None:
        torch.set_num_threads(1)
        note_steps()
        train(prepare_model(Model()))

    environment = {"PERSEUS_AS_GLOO": os.environ.get("PERSEUS_AS_GLOO", ""), "PYTHONPATH": str(ROOT)}
    package.init(num_cpus=RANKS, include_dashboard=False, runtime_env={"env_vars": environment})
    scaling = ScalingConfig(num_workers=RANKS, use_gpu=False)
    TorchTrainer(worker, torch_config=TorchConfig(backend="gloo"), scaling_config=scaling).fit()
    package.shutdown()


# The program, its package, and whether it starts its ranks itself.
PROGRAMS: dict[str, tuple[Callable[[], None], str, bool]] = {
    "torch's DDP": (plain_ddp, "torch", False),
    "trainer": (trainer, "transformers", False),
    "accelerate": (accelerate, "accelerate", False),
    "deepspeed": (deepspeed, "deepspeed", False),
    "lightning": (lightning, "lightning", True),
    "ray": (ray, "ray", True),
}


def run_program(name: str, ours: bool) -> dict[str, Any]:
    """Runs a program in processes of its own, and returns its result."""
    program = [sys.executable, "-m", "benchmarks.clients", "--program", name]
    launcher = [str(Path(sys.executable).with_name("perseusrun")), "--no-prefix", "--no-torch", "-np", str(RANKS)]
    variables = {"PERSEUS_AS_GLOO": "1"} if ours else {}
    variables |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "RAY_USAGE_STATS_ENABLED": "0"}
    environment = {key: value for key, value in os.environ.items() if key != "PERSEUS_AS_GLOO"} | variables
    command = program if PROGRAMS[name][2] else launcher + program
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    lines = [line for line in done.stdout.splitlines() if "RESULT {" in line]
    if done.returncode != 0 or not lines:
        raise SystemExit(f"{name} ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(lines[0][lines[0].index("{") :])
    return result


def compare(name: str, rounds: int) -> str:
    """Returns the row of a program."""
    results = [[run_program(name, ours) for ours in (False, True)] for _ in range(rounds)]
    gloo, perseus = (statistics.median(each[way]["seconds"] for each in results) * 1e3 for way in (0, 1))
    theirs, ours = results[0]
    if "Perseus" in theirs["group"] or "Perseus" not in ours["group"]:
        raise SystemExit(f"{name}: groups are {theirs['group']} and {ours['group']}")
    difference = abs(ours["weights"] / theirs["weights"] - 1)
    if difference > 1e-6:
        raise SystemExit(f"{name}: the weights differ by {difference:.1e}")
    return f"| {name} | {gloo:.1f} ms | {perseus:.1f} ms | {gloo / perseus:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PROGRAMS), help="programs, separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--program", choices=PROGRAMS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.program:
        torch.set_num_threads(1)
        note_steps()
        PROGRAMS[chosen.program][0]()
    else:
        print("| a step of | gloo | `--as-gloo` | times as fast |\n|---|---|---|---|", flush=True)
        for name in chosen.only.split(","):
            installed = importlib.util.find_spec(PROGRAMS[name][1]) is not None
            print(compare(name, chosen.rounds) if installed else f"| {name} | not installed | | |", flush=True)


if __name__ == "__main__":
    main()
