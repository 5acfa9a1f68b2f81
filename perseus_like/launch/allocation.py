"""The hosts that a batch system has given to this job: Slurm, LSF, PBS, SGE, Cobalt, or Kubernetes' MPI Operator."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .host_list import Host, merge, parse_hostfile
from .start_errors import LaunchError


@dataclass(frozen=True)
class Allocation:
    """The hosts of a batch job with their slots, and the source of this list."""

    hosts: list[Host]
    source: str
    has_own_shell: bool  # mpirun starts its daemons through the batch system, not through ssh


# The variables in which the MPI Operator passes the path of its host file. They depend on the MPI of the job.
_OPERATOR_FILES = ("OMPI_MCA_orte_default_hostfile", "HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE")


def find_allocation(environment: Mapping[str, str]) -> Allocation | None:
    """Returns the allocation in the environment of a batch job, if any. Raises LaunchError if it cannot be read."""
    for find in (_slurm, _lsf, _node_file, _sge, _operator):
        if found := find(environment):
            return found
    return None


def _slurm(environment: Mapping[str, str]) -> Allocation | None:
    # A shell on a login node has none of these.
    nodes = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST")
    if not nodes or "SLURM_JOB_ID" not in environment:
        return None
    names = list(expand_nodes(nodes))
    # As srun does: one rank for each task if tasks were requested (-n, --ntasks-per-node), else for each processor.
    has_tasks = "SLURM_NTASKS" in environment or "SLURM_NPROCS" in environment
    names_of_counts = ("SLURM_TASKS_PER_NODE",) if has_tasks else ("SLURM_JOB_CPUS_PER_NODE", "SLURM_TASKS_PER_NODE")
    counts = next((environment[name] for name in names_of_counts if environment.get(name)), "1")
    slots = _expand_counts(counts)
    if len(slots) == 1:
        slots *= len(names)
    if len(slots) != len(names):
        raise LaunchError(
            f"Slurm's allocation has {len(names)} hosts ({nodes}), but counts for {len(slots)} ({counts}); give -H"
        )
    return Allocation([Host(name, count) for name, count in zip(names, slots, strict=True)], "Slurm", True)


def expand_nodes(text: str) -> Iterator[str]:
    """Yields the hosts of Slurm's short form in order: `n[01-03,7],m[1-2]x[3-4],login` are nine hosts."""
    parts = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    if ",".join(parts) != text:  # for example a bracket that is not closed
        raise LaunchError(f"cannot read Slurm's host list {text!r}; give -H")
    for part in parts:
        yield from _expand_ranges(part)


def _expand_ranges(text: str) -> Iterator[str]:
    head, bracket, rest = text.partition("[")
    if not bracket:
        yield head
        return
    ranges, closing, tail = rest.partition("]")
    if not closing:
        raise LaunchError(f"cannot read Slurm's host list {text!r}; give -H")
    for piece in ranges.split(","):
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", piece)
        if not match:
            raise LaunchError(f"cannot read {piece!r} in Slurm's host list {text!r}; give -H")
        first, last = match[1], match[2] or match[1]
        for number in range(int(first), int(last) + 1):
            for end in _expand_ranges(tail):
                yield f"{head}{number:0{len(first)}}{end}"


def _expand_counts(text: str) -> list[int]:
    """Expands Slurm's short form of counts: `4(x2),3` is 4, 4, 3."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part)
        if not match:
            raise LaunchError(f"cannot read {part!r} in Slurm's counts {text!r}; give -H")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _lsf(environment: Mapping[str, str]) -> Allocation | None:
    if "LSB_JOBID" not in environment:
        return None
    if words := environment.get("LSB_MCPU_HOSTS", "").split():  # "a 4 b 4"
        try:
            hosts = [Host(name, int(count)) for name, count in zip(words[::2], words[1::2], strict=True)]
        except ValueError:
            raise LaunchError(f"cannot read LSF's LSB_MCPU_HOSTS={' '.join(words)!r}; give -H") from None
    elif names := environment.get("LSB_HOSTS", "").split():  # one name per slot
        hosts = [Host(name, 1) for name in names]
    elif path := environment.get("LSB_DJOB_HOSTFILE"):  # one line per slot
        hosts = parse_hostfile(path)
    else:
        return None
    return Allocation(merge(hosts), "LSF", True)


# The variable in which a batch system passes the path of a file with a line for each slot, and that of its job.
_NODE_FILES = {"PBS": ("PBS_NODEFILE", "PBS_JOBID"), "Cobalt": ("COBALT_NODEFILE", "COBALT_JOBID")}


def _node_file(environment: Mapping[str, str]) -> Allocation | None:
    for system, (path, job) in _NODE_FILES.items():
        if environment.get(path) and job in environment:
            return Allocation(parse_hostfile(environment[path]), f"{system}'s {path}", False)
    return None


def _sge(environment: Mapping[str, str]) -> Allocation | None:
    """Reads the host file of SGE's parallel environments: host, slots, queue and processors in each line."""
    path = environment.get("PE_HOSTFILE")
    if not path or "JOB_ID" not in environment:
        return None
    try:
        lines = [line.split() for line in Path(path).read_text().splitlines() if line.strip()]
        hosts = [Host(words[0], int(words[1])) for words in lines]
    except (OSError, ValueError, IndexError) as error:
        raise LaunchError(f"cannot read SGE's PE_HOSTFILE={path!r} ({error}); give -H") from None
    return Allocation(merge(hosts), "SGE's PE_HOSTFILE", False)


def _operator(environment: Mapping[str, str]) -> Allocation | None:
    path = next((environment[name] for name in _OPERATOR_FILES if environment.get(name)), None)
    return Allocation(parse_hostfile(path), f"the host file {path}", False) if path else None
