"""Checks that ranks of a launcher below another one meet: in a real Slurm, and below the mpirun of each MPI."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.job import needs, python_of, run_to_end, succeeded

from ..conftest import TestBeds, with_pmi
from ..slurm_cluster import Run

needs("torch")
# The tests start the daemons of a cluster. Most of their jobs have no mpirun.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ucx")]

TRAIN = """
import torch
import perseus_like.torch as hvd

hvd.init()
total = hvd.allreduce(torch.full((3,), hvd.rank() + 1.0), op=hvd.Sum)
print(f"rank {hvd.rank()} of {hvd.size()}: {total.tolist()}\\n", end="", flush=True)
"""
PROGRAMS = Path(__file__).parents[2] / "clients" / "programs"
ON_EACH_HOST = ["-N", "2", "-n", "2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
TORCHRUN += ["--rdzv-id", "job", "--rdzv-backend", "c10d", "--rdzv-endpoint", "h1:29500"]


@pytest.fixture
def train(tmp_path: Path) -> str:
    """Returns the file of a Horovod script."""
    (tmp_path / "train.py").write_text(TRAIN)
    return "train.py"


def check(output: str) -> None:
    lines = sorted(re.findall(r"rank \d of \d: \[.*?\]", output))
    assert lines == [f"rank {rank} of 2: [3.0, 3.0, 3.0]" for rank in range(2)], output


@pytest.mark.parametrize("pmi", ["none", "pmi2"])
def test_srun_of_one_torchrun_on_each_host(pmi: str, slurm: Run, train: str) -> None:
    done = succeeded(slurm("srun", with_pmi(slurm, pmi), *ON_EACH_HOST, *TORCHRUN, train))
    check(done.stdout)


# The options of an mpirun for one process on each host. SHELL stands for the remote shell.
OF_HYDRA = "-launcher ssh -launcher-exec SHELL -iface eth0 -hosts h1,h2 -ppn 1"
MPIRUNS = {
    "mpich": OF_HYDRA,
    "openmpi": "--allow-run-as-root --prtemca plm_ssh_agent SHELL --prtemca prte_if_include eth0 --host h1:1,h2:1",
    "impi": OF_HYDRA,
}


@pytest.mark.packaging  # environments with other MPIs
@pytest.mark.parametrize("mpi", MPIRUNS)
def test_mpirun_of_one_torchrun_on_each_host(
    mpi: str,
    test_beds: TestBeds,
    environment_with: Callable[[str], Path],
    train: str,
    tmp_path: Path,
) -> None:
    test_bed = test_beds(2)
    folder = environment_with(mpi) / "bin"
    options = MPIRUNS[mpi].replace("SHELL", test_bed.remote_shell).split()
    line = test_bed.command("h1", [str(folder / "mpirun"), *options, "-np", "2", *TORCHRUN, train], tmp_path)
    path = f"{folder}:{os.environ['PATH']}"  # Intel's mpirun looks for its other programs there
    done = succeeded(run_to_end(line, joined=True, I_MPI_PIN="0", PATH=path))
    check(done.stdout)


# accelerate starts several processes on the CPU by an mpirun only; with this option it starts them as torchrun does.
ACCELERATE = "launch --multi_gpu --mixed_precision no --dynamo_backend no --num_processes 2"
OF_TWO_HOSTS = "--num_machines 2 --machine_rank $SLURM_NODEID --main_process_ip h1 --main_process_port 29500"


@pytest.mark.parametrize("shell", ["salloc", "srun"])
def test_accelerate_launch_in_an_allocation(shell: str, slurm: Run, train: str) -> None:
    accelerate = f"exec {python_of('clients')} -m accelerate.commands.accelerate_cli"
    if shell == "salloc":
        done = slurm("salloc", "-N", "1", "-n", "2", "sh", "-c", f"{accelerate} {ACCELERATE} --num_machines 1 {train}")
    else:
        line = f"{accelerate} {ACCELERATE} {OF_TWO_HOSTS} {train}"
        done = slurm("srun", "--mpi=none", *ON_EACH_HOST, "sh", "-c", line)
    assert done.returncode == 0, done.stdout
    check(done.stdout)


# The start of DeepSpeed's launcher, and its options. With `--launcher slurm`, it starts the ranks by srun.
DEEPSPEED = {
    "salloc": ("salloc -N 1 -n 2", "--num_gpus 2"),
    "srun": ("srun --mpi=none -N 2 -n 2", "--hostfile hosts --no_ssh --node_rank $SLURM_NODEID --master_addr h1"),
    "salloc, --launcher slurm": (
        "salloc -N 2 -n 2",
        "--hostfile hosts --no_ssh_check --launcher slurm --launcher_args=--mpi=none --master_addr h1",
    ),
}


@pytest.mark.parametrize("start", DEEPSPEED)
def test_deepspeed_in_an_allocation(start: str, slurm: Run, train: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("h1 slots=1\nh2 slots=1\n")
    shell, options = DEEPSPEED[start]
    line = f"exec {python_of('clients')} -m deepspeed.launcher.runner {options} {train}"
    done = succeeded(slurm(*shell.split(), "sh", "-c", line, DS_ACCELERATOR="cpu"))
    check(done.stdout)


def test_lightning_under_srun(slurm: Run) -> None:
    """Lightning's SLURMEnvironment takes ranks and address from Slurm's variables."""
    program = [str(python_of("clients")), str(PROGRAMS / "lightning_ddp.py")]
    done = succeeded(slurm("srun", "--mpi=none", "-N", "1", "--ntasks-per-node", "2", *program))
    results = re.findall(r"RESULT (perseus of 2 sum [\d.]+)", done.stdout)
    assert len(results) == 2, done.stdout
    assert len(set(results)) == 1, done.stdout
