"""Programs of other projects over gloo and over this library, in turns.

    python -m benchmarks.clients                      # in an environment of `make test-clients`: .venv-clients
    python -m benchmarks.clients --only trainer,lightning
    .venv-torch-clients/bin/python -m benchmarks.clients --lost-replica

Each program names gloo, and runs as it is and with `PERSEUS_AS_GLOO=1`. It trains the same model on two ranks, and must
have the same weights either way. A time is the median of the steps of rank 0, and the median of the rounds. Programs
whose packages are not installed are left out.

With `--lost-replica`, two replicas of torchft train. One is killed, and the time until the next step of the other one
counts. The lighthouse of torchft notices a loss by missing heartbeats, so its time limit is part of the result.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

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


# --- a lost replica of torchft ---------------------------------------------------------------------------------------

KINDS = ("perseus", "gloo")
LIMIT_SECONDS = 60.0
REPLICA_LIMIT = timedelta(seconds=30)
Process = subprocess.Popen[str]


def train_replica(kind: str, lighthouse: str, number: str) -> None:
    """Trains until the process is killed. A line has the step, the number of replicas and the monotonic clock."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo  # type: ignore[import-not-found]
    from torchft.checkpointing.http_transport import HTTPTransport  # type: ignore[import-not-found]

    from perseus_like.torch.distributed.reconfigurable import ReconfigurableGroup

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.manual_seed(int(number))
    network = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
    sgd = torch.optim.SGD(network.parameters(), lr=1e-3)

    def load_state_dict(state: Any) -> None:
        network.load_state_dict(state["model"])
        sgd.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=(ProcessGroupGloo if kind == "gloo" else ReconfigurableGroup)(timeout=REPLICA_LIMIT),
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=lambda: {"model": network.state_dict(), "optimizer": sgd.state_dict()},
        replica_id=f"replica_{number}",
        lighthouse_addr=lighthouse,
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        timeout=REPLICA_LIMIT,
        checkpoint_transport=HTTPTransport(timeout=REPLICA_LIMIT, num_chunks=0),
    )
    model = DistributedDataParallel(manager, network)
    optimizer = Optimizer(manager, sgd)
    while True:
        before = manager.current_step()
        inputs = torch.randn(16, 256)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if manager.current_step() > before:
            print(manager.current_step(), manager.num_participants(), time.monotonic(), flush=True)


@contextmanager
def started_replica(kind: str, lighthouse: str, number: str, log: IO[str]) -> Iterator[Process]:
    """Runs a replica, and kills it at the end, or after LIMIT_SECONDS."""
    command = [sys.executable, "-m", "benchmarks.clients", "--replica", kind, lighthouse, number]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": log, "text": True}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)
    timer = threading.Timer(LIMIT_SECONDS, process.kill)
    timer.start()
    try:
        yield process
    finally:
        timer.cancel()
        process.kill()
        process.wait()


def time_of_step(process: Process, replicas: int, count: int = 1) -> float:
    """Returns the clock at the `count`-th next step in which `replicas` take part."""
    assert process.stdout is not None
    for line in process.stdout:
        _, number, clock = line.split()
        count -= int(number) == replicas
        if count == 0:
            return float(clock)
    raise RuntimeError(f"the replica ended, or was killed after {LIMIT_SECONDS:.0f} s, before a step with {replicas}")


def seconds_without_step(kind: str, heartbeat_ms: int, log: IO[str]) -> float:
    """Returns the seconds from the kill of one replica to the next step of the other one."""
    os.environ.setdefault("RUST_LOG", "warn")  # the lighthouse would print a line for each quorum
    from torchft.coordination import LighthouseServer  # type: ignore[import-not-found]

    limits = {"join_timeout_ms": 1000, "heartbeat_timeout_ms": heartbeat_ms}
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1, **limits)
    try:
        with (
            started_replica(kind, lighthouse.address(), "0", log) as survivor,
            started_replica(kind, lighthouse.address(), "1", log) as lost,
        ):
            time_of_step(survivor, 2, count=20)
            killed = time.monotonic()
            lost.send_signal(signal.SIGKILL)
            return time_of_step(survivor, 1) - killed
    finally:
        lighthouse.shutdown()


def lose_replicas(rounds: int, heartbeat_ms: int, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with file.open("w") as log:
        for kind in KINDS * rounds:
            seconds[kind].append(seconds_without_step(kind, heartbeat_ms, log))
            print(f"{kind:8} {seconds[kind][-1]:7.3f} s", flush=True)
    for kind, found in seconds.items():
        print(f"{kind:8} median {statistics.median(found):.3f} s, {min(found):.3f} to {max(found):.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PROGRAMS), help="programs, separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lost-replica", action="store_true", help="the time until torchft goes on after a kill")
    parser.add_argument("--heartbeat-ms", type=int, default=2000, help="the lighthouse's limit for a heartbeat")
    parser.add_argument("--log", type=Path, default=ROOT / "build/lost_replica.log", help="the replicas' messages")
    parser.add_argument("--program", choices=PROGRAMS, help=argparse.SUPPRESS)
    parser.add_argument("--replica", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.program:
        torch.set_num_threads(1)
        note_steps()
        PROGRAMS[chosen.program][0]()
    elif chosen.replica:
        train_replica(*chosen.replica)
    elif chosen.lost_replica:
        lose_replicas(chosen.rounds, chosen.heartbeat_ms, chosen.log)
    else:
        print("| a step of | gloo | `--as-gloo` | times as fast |\n|---|---|---|---|", flush=True)
        for name in chosen.only.split(","):
            installed = importlib.util.find_spec(PROGRAMS[name][1]) is not None
            print(compare(name, chosen.rounds) if installed else f"| {name} | not installed | | |", flush=True)


if __name__ == "__main__":
    main()
