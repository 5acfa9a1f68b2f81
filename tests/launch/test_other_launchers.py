"""Checks that ranks of launchers which the core does not know meet, or get an error: never a job of one rank."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.job import Start, needs, run_to_end

PRINT_SIZE = "import perseus_like.numpy as hvd; hvd.init(); print('size', hvd.size())"
# Ranks of these launchers have these variables by their sources: horovod/runner/gloo_run.py; src/shell/task.c of
# flux-core; Lightning's LSFEnvironment for jsrun; Slurm's plugin mpi/cray_shasta for PALS; pkg/constants/constants.go
# of kubeflow/trainer; the guide "Multi-worker training with Keras" of TensorFlow.
SEVERAL = {
    "horovod": {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_CONTROLLER": "gloo"},
    "flux": {"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "2", "FLUX_TASK_LOCAL_ID": "0", "FLUX_JOB_NNODES": "2"},
    "jsrun": {"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "2", "JSM_NAMESPACE_LOCAL_RANK": "1"},
    "pals": {"PALS_RANKID": "0", "PALS_LOCAL_RANKID": "0", "PALS_NODEID": "0", "PALS_APID": "1"},
    "kubeflow without torchrun": {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": "0"},
    "torch variables without an address": {"RANK": "0", "WORLD_SIZE": "2"},
    # MPI_Init would abort, because only the rank itself has the connection.
    "a process that a rank of an mpirun has started": {"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_FD": "99"},
    "tensorflow": {"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'},
}
TORCHRUN_OF_ONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
ONE = {
    "torchrun of one": TORCHRUN_OF_ONE,
    "flux of one": {"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "1"},
    "a pod of kubeflow alone": {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": "0"},
    # tests/hosts/start/test_slurm.py has these shells of a real Slurm.
    "a shell of salloc": {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_JOB_NUM_NODES": "2"},
    "a shell of sbatch": {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
    "a shell of srun --pty": {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
    "torchrun of one below srun": {
        **TORCHRUN_OF_ONE,
        "TORCHELASTIC_RUN_ID": "r",
        "SLURM_PROCID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
    },
    "torchrun of one below an mpirun": {
        **TORCHRUN_OF_ONE,
        "TORCHELASTIC_RUN_ID": "r",
        "PMI_RANK": "0",
        "PMI_SIZE": "2",
        "PMI_FD": "99",
    },
    "tensorflow of one": {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'},
    "a broken TF_CONFIG": {"TF_CONFIG": "{"},
}


def python(program: str, folder: Path, variables: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    return run_to_end([sys.executable, "-c", program], folder, **variables)


def two_ranks(program: str, folder: Path, variables: dict[str, str]) -> list[subprocess.CompletedProcess[str]]:
    """Runs a program as two ranks. In the variables, "port" and "rank" stand for a free port and the rank."""
    port = os.environ["PET_MASTER_PORT"]  # which tests/conftest.py holds for this process
    each = [
        {name: value.replace("port", port).replace("rank", str(rank)) for name, value in variables.items()}
        for rank in range(2)
    ]
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(lambda own: python(program, folder, own), each))


@pytest.mark.parametrize("launcher", SEVERAL)
def test_ranks_that_cannot_meet_get_an_error(launcher: str, tmp_path: Path) -> None:
    variables = SEVERAL[launcher]
    done = python(PRINT_SIZE, tmp_path, variables)
    assert done.returncode != 0, done.stdout
    last = done.stderr.splitlines()[-1]
    assert any(f"{name}={value}" in last for name, value in variables.items()), done.stderr
    assert "perseusrun" in last
    assert "PERSEUS_ALONE=1" in last
    alone = python(PRINT_SIZE, tmp_path, {**variables, "PERSEUS_ALONE": "1"})
    assert alone.stdout == "size 1\n", alone.stderr


# The PMI of these launchers belongs to an MPI that is not here. The sources are Slurm's plugin mpi/cray_shasta, which
# sets the variables of PALS; flux-shell-cray-pals(1) of flux-coral2; for Spectrum MPI, which is an Open MPI, the page
# "Environment variables set for MPI applications" of Open MPI.
PALS = {"PALS_RANKID": "0", "PALS_LOCAL_RANKID": "0", "PALS_NODEID": "0", "PALS_APID": "1"}
PALS |= {"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_LOCAL_RANK": "0", "PMI_LOCAL_SIZE": "2", "PMI_CONTROL_PORT": "11001"}
OTHER_PMIS = {
    "pals": PALS,
    "srun --mpi=cray_shasta": {**PALS, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"},
    "flux run -o pmi=cray-pals": {**PALS, "FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "2"},
    "jsrun": {
        "JSM_NAMESPACE_RANK": "0",
        "JSM_NAMESPACE_SIZE": "2",
        "PMIX_RANK": "0",
        "PMIX_NAMESPACE": "1",
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "2",
    },
}


@pytest.mark.parametrize("launcher", OTHER_PMIS)
def test_ranks_of_a_pmi_whose_mpi_is_missing_get_an_error(launcher: str, tmp_path: Path) -> None:
    done = python(PRINT_SIZE, tmp_path, OTHER_PMIS[launcher])
    assert done.returncode != 0, done.stdout
    assert "as rank 0 of 2 (" in done.stderr.splitlines()[-1], done.stderr


@pytest.mark.parametrize("launcher", ONE)
def test_one_rank_is_alone(launcher: str, tmp_path: Path) -> None:
    done = python(PRINT_SIZE, tmp_path, ONE[launcher])
    assert done.stdout == "size 1\n", done.stderr


# The variables of a rank, by the launcher. Ray Train
# (ray/train/torch/config.py) and Azure ML (its page "Distributed GPU training guide") set the same as torchrun, and
# LOCAL_RANK and NODE_RANK. TorchDistributor, Kubeflow's runtime torch-distributed and SageMaker run torchrun itself.
# Those of srun are from runs of Slurm 22.05, those of flux and jsrun from the sources above.
MEET = {
    "torchrun": {"RANK": "rank", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "port"},
    "srun on one host": {
        "SLURM_PROCID": "rank",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "elsewhere",
        "SLURM_JOB_ID": "port",
    },
    "srun on several hosts": {
        "SLURM_PROCID": "rank",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "localhost,n[01-03]",
        "SLURM_JOB_ID": "port",
    },
    "srun whose batch script sets the address": {
        "SLURM_PROCID": "rank",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "n[01-02]",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "port",
    },
    "flux on one host": {
        "FLUX_TASK_RANK": "rank",
        "FLUX_JOB_SIZE": "2",
        "FLUX_JOB_NNODES": "1",
        "FLUX_JOB_ID": "ƒport",
    },
    "jsrun with an address": {
        "JSM_NAMESPACE_RANK": "rank",
        "JSM_NAMESPACE_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "port",
    },
}
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import numpy as np
import perseus_like.numpy as hvd

for session in range(3):
    hvd.init()
    total = hvd.allreduce(np.full(3, hvd.rank() + 1.0), op=hvd.Sum)
    print(f"rank {hvd.rank()} of {hvd.size()}: {total.tolist()}", flush=True)
    hvd.shutdown()
"""


@pytest.mark.parametrize("launcher", MEET)
def test_ranks_without_torch_meet(launcher: str, tmp_path: Path) -> None:
    """Three sessions one after the other."""
    ranks = two_ranks(WITHOUT_TORCH, tmp_path, MEET[launcher])
    for number, rank in enumerate(ranks):
        assert rank.stdout == f"rank {number} of 2: [3.0, 3.0, 3.0]\n" * 3, rank.stderr
    assert ranks[0].stderr.count("without a secret") == 1
    assert ranks[1].stderr == ""


@pytest.mark.slow  # two imports of TensorFlow
def test_ranks_of_tensorflow_without_torch_meet(tmp_path: Path) -> None:
    needs("tensorflow")
    program = """
import sys
sys.modules["torch"] = None
import tensorflow as tf
import perseus_like.tensorflow as hvd

hvd.init()
print(hvd.size(), hvd.allreduce(tf.constant(float(hvd.rank() + 1)), op=hvd.Sum).numpy())
"""
    ranks = two_ranks(program, tmp_path, MEET["torchrun"])
    assert [rank.stdout for rank in ranks] == ["2 3.0\n"] * 2, ranks


def test_a_rank_without_torch_names_the_missing_ones(tmp_path: Path) -> None:
    variables = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_ID": "1"}
    done = python(PRINT_SIZE, tmp_path, {**variables, "PERSEUS_START_TIMEOUT": "1"})
    assert "TimedOutError: timed out: init(): after 1 s (PERSEUS_START_TIMEOUT), ranks of 3 are" in done.stderr, done
    assert "missing: 1, 2." in done.stderr


def test_an_unknown_address_is_an_error_at_once(tmp_path: Path) -> None:
    variables = {**MEET["srun whose batch script sets the address"], "SLURM_PROCID": "1", "MASTER_PORT": "29500"}
    done = python(PRINT_SIZE, tmp_path, {**variables, "MASTER_ADDR": "x" * 70, "PERSEUS_START_TIMEOUT": "9999"})
    assert f"does not know the name '{'x' * 70}', which MASTER_ADDR has" in done.stderr, done.stderr


@pytest.mark.parametrize("wrong", [{"SLURM_PROCID": "2"}, {"SLURM_PROCID": "one"}, {"SLURM_STEP_NUM_TASKS": "two"}])
def test_variables_that_contradict_one_another_are_an_error(wrong: dict[str, str], tmp_path: Path) -> None:
    variables = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", **wrong}
    done = python(PRINT_SIZE, tmp_path, variables)
    assert f"ValueError: init(): {next(iter(wrong))}=" in done.stderr, done.stderr


def test_a_rank_of_perseusrun_may_be_alone(run_job: Start) -> None:
    done = run_job(2, PRINT_SIZE.replace("; ", "\n"), joined=True, PERSEUS_ALONE="1")
    assert done.stdout.count("size 1") == 2, done.output


@pytest.mark.slow
def test_a_rank_of_mpirun_may_be_alone_in_torch() -> None:
    needs("torch")
    program = (
        "import torch.distributed as dist; dist.init_process_group('perseus'); print('size', dist.get_world_size())"
    )
    mpirun = Path(sys.executable).with_name("mpirun")
    done = run_to_end([mpirun, "-n", "2", sys.executable, "-c", program], PERSEUS_ALONE="1")
    assert done.stdout == "size 1\n" * 2, done.stderr


def test_ranks_of_torchrun_meet(run_job: Start) -> None:
    """Three sessions one after the other, by the same store."""
    needs("torch")
    done = run_job(2, WITHOUT_TORCH.replace('sys.modules["torch"] = None', ""), "torchrun")
    for rank in range(2):
        assert done.stdout.count(f"rank {rank} of 2: [3.0, 3.0, 3.0]") == 3, done.output


def test_ranks_of_srun_meet_by_the_store_that_their_program_names(tmp_path: Path) -> None:
    needs("torch")
    variables = {**MEET["torchrun"], "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "rank"}
    ranks = two_ranks(PRINT_SIZE, tmp_path, variables)
    assert [rank.stdout for rank in ranks] == ["size 2\n"] * 2, ranks


@pytest.mark.slow
def test_ranks_of_a_launcher_below_one_process_of_an_mpirun_meet_by_the_store(tmp_path: Path) -> None:
    """DeepSpeed's launcher sets torchrun's variables without TORCHELASTIC_RUN_ID, and inherits those of an mpirun."""
    needs("torch")
    variables = {**MEET["torchrun"], "PMI_RANK": "0", "PMI_SIZE": "1", "PMI_FD": "99"}
    ranks = two_ranks(PRINT_SIZE, tmp_path, variables)
    assert [rank.stdout for rank in ranks] == ["size 2\n"] * 2, ranks


GROUP = """
import os
import torch
import torch.distributed as dist
if not hasattr(dist.Backend, "PERSEUS"):  # torch before 2.5 does not load the backend by itself
    import perseus_like.torch.distributed
{init}
total = torch.ones(2)
dist.all_reduce(total)
print(total.tolist())
"""


@pytest.mark.slow
def test_a_process_group_of_ranks_of_srun(tmp_path: Path) -> None:
    """The program names the store and the rank, as Lightning's SLURMEnvironment does."""
    needs("torch")
    init = """
os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", os.environ["PET_MASTER_PORT"]
dist.init_process_group("perseus", rank=int(os.environ["SLURM_PROCID"]), world_size=int(os.environ["SLURM_NTASKS"]))
"""
    variables = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_ID": "1"}
    ranks = two_ranks(GROUP.format(init=init), tmp_path, {**variables, "SLURM_PROCID": "rank"})
    assert [rank.stdout for rank in ranks] == ["[2.0, 2.0]\n"] * 2, ranks


@pytest.mark.slow  # another two imports of torch
def test_a_process_group_of_plain_srun(tmp_path: Path) -> None:
    """The program names neither a store nor a rank, as under `srun --mpi=pmi2`."""
    needs("torch")
    init = 'dist.init_process_group("perseus")'
    ranks = two_ranks(GROUP.format(init=init), tmp_path, MEET["srun on one host"])
    assert [rank.stdout for rank in ranks] == ["[2.0, 2.0]\n"] * 2, ranks


def test_a_rank_without_the_others_says_so(tmp_path: Path) -> None:
    needs("torch")
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "PERSEUS_START_TIMEOUT": "1"}
    done = python(PRINT_SIZE, tmp_path, {**variables, "MASTER_PORT": os.environ["PET_MASTER_PORT"]})
    assert "TimedOutError: timed out: init(): rank 0 of 2 does not meet the others" in done.stderr, done.stderr


@pytest.mark.slow  # another two imports of torch
def test_ranks_of_a_torchrun_below_an_mpirun_meet(run_job: Start) -> None:
    needs("torch")
    done = run_job(
        2,
        PRINT_SIZE.replace("; ", "\n"),
        "torchrun",
        wrapper=[str(Path(sys.executable).with_name("mpirun")), "-np", "1"],
    )
    assert done.stdout.count("size 2") == 2, done.output


def test_a_process_that_a_rank_starts_gets_an_error(run_job: Start) -> None:
    run_job(
        2,
        f"""
        import subprocess, sys
        import perseus_like.numpy as hvd

        hvd.init()
        child = subprocess.run([sys.executable, "-c", {PRINT_SIZE!r}], capture_output=True, text=True)
        assert f"started by rank {{hvd.rank()}} (pid " in child.stderr, child.stderr
        nested = [sys.executable, "-m", "perseus_like.launch", "-np", "2", sys.executable, "-c", {PRINT_SIZE!r}]
        child = subprocess.run(nested, capture_output=True, text=True)
        assert child.stdout.count("size 2") == 2, child.stderr
        hvd.barrier()
        """,
    ).succeeded()


def test_processes_that_ranks_start_meet_at_a_store_of_their_own(run_job: Start) -> None:
    """tests/launch/test_nesting.py has the same below each mpirun."""
    run_job(
        2,
        f"""
        import os, subprocess, sys
        import perseus_like.numpy as hvd

        hvd.init()
        store = {{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ["PET_MASTER_PORT"]}}
        variables = {{**os.environ, **store, "RANK": str(1 - hvd.rank()), "WORLD_SIZE": "2"}}
        child = subprocess.run([sys.executable, "-c", {WITHOUT_TORCH!r}], env=variables, capture_output=True, text=True)
        assert child.stdout == f"rank {{1 - hvd.rank()}} of 2: [3.0, 3.0, 3.0]\\n" * 3, child.stderr
        hvd.barrier()
        """,
    ).succeeded()


def test_processes_that_meet_at_a_store_which_ranks_may_have_set_for_themselves_warn(run_job: Start) -> None:
    run_job(
        2,
        f"""
        import os, subprocess, sys
        import perseus_like.numpy as hvd

        hvd.init()
        os.environ["MASTER_PORT"] = os.environ["PET_MASTER_PORT"]
        child = subprocess.run([sys.executable, "-c", {WITHOUT_TORCH!r}], capture_output=True, text=True)
        assert child.stdout == f"rank {{hvd.rank()}} of 2: [3.0, 3.0, 3.0]\\n" * 3, child.stderr
        text = f"started by rank {{hvd.rank()}} (pid {{os.getpid()}}) of a job of 2"
        assert child.stderr.count(text) == 1, child.stderr
        hvd.barrier()
        """,
    ).succeeded()


def test_a_process_that_a_rank_of_srun_starts_gets_an_error(tmp_path: Path) -> None:
    program = f"""
import os, subprocess, sys
import perseus_like.numpy as hvd

hvd.init()
os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", os.environ["PET_MASTER_PORT"]  # without RANK
child = subprocess.run([sys.executable, "-c", {PRINT_SIZE!r}], capture_output=True, text=True)
assert f"started by rank {{hvd.rank()}} (pid " in child.stderr, child.stderr
hvd.barrier()
"""
    ranks = two_ranks(program, tmp_path, MEET["srun on one host"])
    assert [rank.returncode for rank in ranks] == [0, 0], ranks
