"""Checks the hosts that perseusrun reads from a batch system: from the variables and files of each such system."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from perseus_like.launch.allocation import expand_nodes, find_allocation
from perseus_like.launch.host_list import Host
from perseus_like.launch.start_errors import LaunchError

from ..conftest import Perseusrun

EXAMPLES = Path(__file__).parents[3] / "examples"
# The test removes these variables, which exist if it runs in a batch job itself.
BATCH = ("SLURM_", "LSB_", "OMPI_MCA_", "HYDRA_", "I_MPI_")


def outside() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(BATCH)}


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", ["a"]),
        ("a,b-1.example.org", ["a", "b-1.example.org"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,7],login", ["n08", "n09", "n10", "n7", "login"]),
        ("r[1-2]n[01-02].local", ["r1n01.local", "r1n02.local", "r2n01.local", "r2n02.local"]),
    ],
)
def test_slurm_node_lists(text: str, hosts: list[str]) -> None:
    assert list(expand_nodes(text)) == hosts


@given(st.lists(st.integers(0, 999), min_size=1, max_size=20))
def test_a_list_of_numbers_is_that_list(numbers: list[int]) -> None:
    assert list(expand_nodes(f"n[{','.join(map(str, numbers))}]")) == [f"n{number}" for number in numbers]


SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_CPUS_PER_NODE": "16(x3)"}


@pytest.mark.parametrize(
    ("more", "slots"),
    [
        ({"SLURM_NTASKS": "7", "SLURM_TASKS_PER_NODE": "2(x2),3"}, [2, 2, 3]),
        ({"SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "1(x3)"}, [1, 1, 1]),
        ({"SLURM_TASKS_PER_NODE": "1(x3)"}, [16, 16, 16]),  # the user requested no number of tasks
    ],
)
def test_hosts_of_slurm(more: dict[str, str], slots: list[int]) -> None:
    found = find_allocation({**SLURM, **more})
    assert found is not None
    assert found.hosts == [Host(f"n{index + 1}", count) for index, count in enumerate(slots)]
    assert (found.source, found.has_own_shell) == ("Slurm", True)


@pytest.mark.parametrize(
    "lsf",
    [
        {"LSB_MCPU_HOSTS": "a 2 b 1"},
        {"LSB_HOSTS": "a a b"},
        {"LSB_DJOB_HOSTFILE": "a\na\nb\n"},
    ],
)
def test_hosts_of_lsf(lsf: dict[str, str], tmp_path: Path) -> None:
    if "LSB_DJOB_HOSTFILE" in lsf:
        path = tmp_path / "hosts"
        path.write_text(lsf["LSB_DJOB_HOSTFILE"])
        lsf = {"LSB_DJOB_HOSTFILE": str(path)}
    found = find_allocation({"LSB_JOBID": "9", **lsf})
    assert found is not None
    assert found.hosts == [Host("a", 2), Host("b", 1)]


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"PBS_JOBID": "1.server", "PBS_NODEFILE": "nodes"}, "a\na\nb\nb\n"),
        ({"COBALT_JOBID": "1", "COBALT_NODEFILE": "nodes"}, "a\na\nb\nb\n"),
        ({"JOB_ID": "1", "PE_HOSTFILE": "nodes"}, "a 2 all.q@a UNDEFINED\nb 2 all.q@b UNDEFINED\n"),
    ],
)
def test_files_of_batch_systems(
    variables: dict[str, str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nodes").write_text(text)
    found = find_allocation(variables)
    assert found is not None
    assert [(host.name, host.slots) for host in found.hosts] == [("a", 2), ("b", 2)]


@pytest.mark.parametrize(
    "environment",
    [
        {**SLURM, "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "1,1"},
        {**SLURM, "SLURM_JOB_NODELIST": "n[1-x]"},
        {**SLURM, "SLURM_JOB_NODELIST": "n[1"},
        {**SLURM, "SLURM_JOB_CPUS_PER_NODE": "many"},
        {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "a 2 b"},
    ],
)
def test_an_unreadable_allocation_is_an_error(environment: dict[str, str]) -> None:
    with pytest.raises(LaunchError, match="give -H"):
        find_allocation(environment)


@pytest.mark.parametrize("text", ["n[1-", "n[1", "n[1-2],m[3", "n1]", "a,,b"])
def test_a_list_of_nodes_that_is_cut_is_an_error(text: str) -> None:
    with pytest.raises(LaunchError, match="cannot read Slurm's host list"):
        list(expand_nodes(text))


def test_too_few_tasks_of_slurm(perseusrun: Perseusrun) -> None:
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_NTASKS": "1", "SLURM_TASKS_PER_NODE": "1"}
    result = perseusrun("-np", "2", "true", env={**os.environ, **variables})
    assert result.returncode == 2
    assert "-np 2, but the hosts (n1:1) have 1 slots; they are those of the batch job" in result.stderr
    assert "ask Slurm for more tasks (--ntasks=2)" in result.stderr


def test_no_allocation_outside_a_batch_system() -> None:
    assert find_allocation({"SLURM_JOB_NODELIST": "left over", "PATH": "/bin"}) is None


def hosts_of_operator(job: dict[str, Any], namespace: str) -> tuple[str, str]:
    """Returns the variable that the MPI operator (v0.4 or later) sets for this job's MPI, and the host file's text."""
    name, spec = job["metadata"]["name"], job["spec"]
    variable, form = {
        "OpenMPI": ("OMPI_MCA_orte_default_hostfile", "{} slots={}\n"),
        "MPICH": ("HYDRA_HOST_FILE", "{}:{}\n"),
        "Intel": ("I_MPI_HYDRA_HOST_FILE", "{}:{}\n"),
    }[spec["mpiImplementation"]]
    workers = range(spec["mpiReplicaSpecs"]["Worker"]["replicas"])
    lines = [form.format(f"{name}-worker-{index}.{name}.{namespace}.svc", spec["slotsPerWorker"]) for index in workers]
    return variable, "".join(lines)


@pytest.mark.parametrize("implementation", ["MPICH", "OpenMPI", "Intel"])
def test_the_manifest_for_the_mpi_operator(perseusrun: Perseusrun, tmp_path: Path, implementation: str) -> None:
    job = yaml.safe_load((EXAMPLES / "kubernetes/mpijob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    # These are the fields of the operator's MPIJobSpec. The operator refuses any other field.
    known = {"mpiImplementation", "slotsPerWorker", "sshAuthMountPath", "runPolicy", "mpiReplicaSpecs"}
    assert set(job["spec"]) <= known
    assert set(job["spec"]["mpiReplicaSpecs"]) == {"Launcher", "Worker"}
    for replicas in job["spec"]["mpiReplicaSpecs"].values():
        assert all({"name", "image", "command"} <= set(each) for each in replicas["template"]["spec"]["containers"])

    job["spec"]["mpiImplementation"] = implementation
    variable, text = hosts_of_operator(job, "team")
    path = tmp_path / "hostfile"
    path.write_text(text)
    (launcher,) = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    program, *arguments = launcher["command"]
    assert program == "perseusrun"
    mpirun = tmp_path / "mpirun"
    mpirun.write_text('#!/bin/sh\necho "HYDRA build details:"\necho "Version: 5.0.2"\n')
    mpirun.chmod(0o755)
    result = perseusrun("--dry-run", "--mpirun", str(mpirun), *arguments, env={**outside(), variable: str(path)})
    assert result.returncode == 0, result.stderr
    words = shlex.split(result.stdout)
    hosts = "digits-worker-0.digits.team.svc:2,digits-worker-1.digits.team.svc:2"
    assert words[words.index("-hosts") + 1] == hosts
    assert words[words.index("-n") + 1] == "4"


def test_a_batch_job_of_one_host_needs_no_mpi(perseusrun: Perseusrun) -> None:
    alone = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": os.uname().nodename, "SLURM_JOB_CPUS_PER_NODE": "2"}
    result = perseusrun("--dry-run", "python", "x.py", env={**outside(), **alone})
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 2
    assert "mpirun" not in result.stdout
