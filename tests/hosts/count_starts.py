"""Counts in how many starts the lines of the README are right, by the launcher.

For example, `.venv/bin/python -m tests.hosts.count_starts torchrun-2 srun-1 --starts 20`. This file has no test. The
kinds ray and spark need a Python that has Ray or PySpark beside torch and this library, which --python names.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.job import outputs_of, start_process

from .conftest import UCX_LIBRARY
from .network_test_bed import NetworkTestBed
from .slurm_cluster import slurm_cluster

ROOT = Path(__file__).parents[2]
(README,) = re.findall(r"```python\n(import torch\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
NUMPY = """
import sys
sys.modules["torch"] = None
import numpy as np
import perseus_like.numpy as hvd

hvd.init()
total = hvd.allreduce(np.full(3, hvd.rank() + 1.0), op=hvd.Sum)
assert total.tolist() == [3.0, 3.0, 3.0], total
print(f"rank {hvd.rank()} of {hvd.size()}: loss {0:.1e}", flush=True)
"""
TENSORFLOW = """
import sys
sys.modules["torch"] = None
import tensorflow as tf
import perseus_like.tensorflow as hvd

hvd.init()
assert hvd.allreduce(tf.constant(float(hvd.rank() + 1)), op=hvd.Sum).numpy() == 3.0
print(f"rank {hvd.rank()} of {hvd.size()}: loss {0:.1e}", flush=True)
"""
PROGRAMS = {"readme": README, "numpy": NUMPY, "tensorflow": TENSORFLOW}

# Each start is a new pair of worker processes. These programs print the end of each start.
RAY = """
import contextlib, sys
from pathlib import Path
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def train(config):
    import os
    with Path(config["folder"], os.environ["RANK"]).open("w") as file, contextlib.redirect_stdout(file):
        exec(compile(Path(config["program"]).read_text(), "train.py", "exec"), {"__name__": "__main__"})

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
for start in range(int(sys.argv[2])):
    folder = Path.cwd() / f"start{start}"
    folder.mkdir()
    TorchTrainer(
        train,
        train_loop_config={"folder": str(folder), "program": sys.argv[1]},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(storage_path=str(folder)),
    ).fit()
    print("".join(file.read_text() for file in folder.iterdir() if file.is_file()), "end of the start", flush=True)
"""
# The worker processes of Spark print to its driver.
SPARK = """
import sys
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession

SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
for start in range(int(sys.argv[2])):
    TorchDistributor(num_processes=2, local_mode=sys.argv[3] == "local", use_gpu=False).run(sys.argv[1])
    print("end of the start", flush=True)
"""


def is_right(output: str) -> bool:
    """Returns whether each of two ranks has printed its line, with a loss that is small.

    Spark shows each line twice.
    """
    lines = set(re.findall(r"rank (\d+) of (\d+): loss (\d\.\de[+-]\d+)", output))
    ranks = sorted(line[:2] for line in lines)
    return ranks == [("0", "2"), ("1", "2")] and all(float(line[2]) < 0.1 for line in lines)


def torchrun(hosts: int, python: str, folder: Path, starts: int) -> Iterator[str]:
    with NetworkTestBed(hosts) as test_bed:
        for _ in range(starts):
            agents = []
            for node, host in enumerate(test_bed.hosts):
                line = [python, "-m", "torch.distributed.run", "--nnodes", str(hosts), "--node-rank", str(node)]
                line += ["--nproc-per-node", str(2 // hosts), "--master-addr", test_bed.address("h1")]
                line += ["--master-port", "29500", "train.py"]
                agents.append(start_process(test_bed.command(host, line, folder)))
            yield "\n".join(outputs_of(agents))


def srun(hosts: int, python: str, folder: Path, starts: int) -> Iterator[str]:
    with slurm_cluster(folder) as run:
        for _ in range(starts):
            yield run("srun", "--mpi=none", "-N", str(hosts), "-n", "2", python, "train.py").stdout


def of_one_driver(text: str, *words: str) -> Callable[[str, Path, int], Iterator[str]]:
    def run(python: str, folder: Path, starts: int) -> Iterator[str]:
        (folder / "driver.py").write_text(text)
        variables = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}  # workers are not slower than others
        variables |= {"PYSPARK_PYTHON": python, "CUDA_VISIBLE_DEVICES": ""}
        variables |= {"PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"}
        command = [python, "driver.py", folder / "train.py", starts, *words]
        driver = start_process(command, folder, **variables)
        assert driver.stdout is not None
        output = ""
        for line in driver.stdout:
            output += line
            if "end of the start" in line:
                yield output
                output = ""
        if driver.wait() != 0:
            yield output

    return run


KINDS: dict[str, Callable[[str, Path, int], Iterator[str]]] = {
    "torchrun-1": partial(torchrun, 1),
    "torchrun-2": partial(torchrun, 2),
    "srun-1": partial(srun, 1),
    "srun-2": partial(srun, 2),
    "ray": of_one_driver(RAY),
    "spark": of_one_driver(SPARK, "cluster"),
    "spark-local": of_one_driver(SPARK, "local"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="+", choices=KINDS)
    parser.add_argument("--program", default="readme", choices=PROGRAMS)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    os.environ.setdefault("PERSEUS_UCX_LIBRARY", str(UCX_LIBRARY))
    for kind in options.kinds:
        right = 0
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as name:
            (Path(name) / "train.py").write_text(PROGRAMS[options.program])
            for output in KINDS[kind](options.python, Path(name), options.starts):
                right += is_right(output)
                print("right" if is_right(output) else output[-6000:], flush=True)
        seconds = time.monotonic() - begin
        print(f"{kind}, {options.program}: {right} of {options.starts} starts right, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
