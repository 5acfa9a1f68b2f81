"""Starts one process for each device, unless a launcher already did.

`CUDA_VISIBLE_DEVICES` gives the devices of this host, `NNODES` the number of hosts, `NODE_RANK` the number of this
host, and `MASTER_ADDR` and `MASTER_PORT` the address of the first host. On one host without GPUs `perseusrun` starts
the processes. Otherwise `torchrun` does; on several hosts, each runs this command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from .options import InputError

# This file exists if the driver of NVIDIA's GPUs is loaded. NCCL's jobs are started by torchrun.
NVIDIA = Path("/proc/driver/nvidia/version")


def launched() -> int | None:
    """Returns the number of processes if a launcher started this one, else None."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    from perseus_like import launchers

    launcher = launchers.own()
    if launcher is not None and launcher.size > 0:
        return launcher.size
    return _size_by_starting() if launchers.is_launched() else None


def _size_by_starting() -> int:
    from perseus_like import world

    world.init()
    return int(world.size())


def number_of(variables: Mapping[str, str], name: str, default: int) -> int:
    text = variables.get(name, "")
    if not text:
        return default
    if not text.isdigit():
        raise InputError(f"the variable {name} is {text!r}, not a number")
    return int(text)


def local_processes(variables: Mapping[str, str]) -> int:
    """Returns the number of visible devices. On a host without GPUs the entries count too, because scripts set them."""
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return max(1, len([entry for entry in visible.split(",") if entry.strip()]))
    import torch

    return max(1, torch.cuda.device_count())


def job_size(variables: Mapping[str, str]) -> int:
    """Returns the number of processes that `start` starts on all hosts."""
    return local_processes(variables) * max(1, number_of(variables, "NNODES", 1))


def command(arguments: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Returns the command that starts this host's processes."""
    from perseus_like.launch.program import module_command

    count, hosts = local_processes(variables), number_of(variables, "NNODES", 1)
    program = [*module_command("rapidformer.__main__")[1:], *arguments]
    if hosts <= 1 and not NVIDIA.exists():
        return [*module_command("perseus_like.launch"), *("--no-torch", "--no-prefix", "-np", str(count)),
                sys.executable, *program]  # fmt: skip
    if hosts <= 1:
        start_here = ["--standalone", "--nproc-per-node", str(count)]
        return [*module_command("torch.distributed.run"), *start_here, *program]
    if "MASTER_ADDR" not in variables:
        raise InputError(f"NNODES is {hosts}, so MASTER_ADDR must name the first host")
    return [
        *module_command("torch.distributed.run"),
        *("--nnodes", str(hosts), "--nproc-per-node", str(count)),
        *("--node-rank", str(number_of(variables, "NODE_RANK", 0)), "--master-addr", variables["MASTER_ADDR"]),
        *("--master-port", variables.get("MASTER_PORT") or "29500", *program),
    ]


def start(arguments: Sequence[str]) -> NoReturn:
    """Becomes the launcher of this host's processes, so that it gets the signals meant for this process."""
    words = command(arguments, os.environ)
    sys.stdout.flush()
    os.execv(words[0], words)
