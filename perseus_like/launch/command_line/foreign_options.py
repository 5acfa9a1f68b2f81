"""Options of torchrun and of `accelerate launch`, for users who type them out of habit."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any

from ...host_facts import usable_cores
from ..start_errors import LaunchError

_ONE_START = "perseusrun starts the ranks of all hosts itself: name the hosts with -H a:4,b:4, and run it once"
_RENDEZVOUS = "each job has a rendezvous of its own"
_CHOICE_OF_DEVICE = "the program chooses its device"
_FILES = "all ranks print to the terminal; --log-dir DIR also writes a file per rank"

# Flag -> (the number of its values, why it has no effect). Without a reason, its effect is the default.
ACCEPTED: dict[str, tuple[int, str]] = {
    "--standalone": (0, ""),
    "--no-python": (0, ""),
    "--run-path": (0, ""),
    "--multi-gpu": (0, ""),
    "--same-network": (0, ""),
    "--rdzv-backend": (1, _RENDEZVOUS),
    "--rdzv-endpoint": (1, _RENDEZVOUS),
    "--rdzv-id": (1, _RENDEZVOUS),
    "--rdzv-conf": (1, _RENDEZVOUS),
    "--local-addr": (1, _RENDEZVOUS),
    "--monitor-interval": (1, "the launcher hears of the end of a rank at once"),
    "--start-method": (1, "each rank is a new process"),
    "--role": (1, "all ranks have the same role"),
    "--redirects": (1, _FILES),
    "-r": (1, _FILES),
    "--tee": (1, _FILES),
    "-t": (1, _FILES),
    "--num-gpus": (1, _CHOICE_OF_DEVICE),
}
_PLUGIN = "`accelerate launch` alone sets up this plug-in; start the job with it, and see docs/clients.md"
REFUSED: dict[str, tuple[int, str]] = {
    "--use-deepspeed": (0, _PLUGIN),
    "--use-fsdp": (0, _PLUGIN),
    "--use-megatron-lm": (0, _PLUGIN),
    "--tpu": (0, "there is no transport for TPUs"),
}
# Options that set a variable of all ranks. Flag -> (variable, value of a switch or None, what to write for a value).
_VARIABLES: dict[str, tuple[str, str | None, str]] = {
    "--master-addr": ("MASTER_ADDR", None, "ADDRESS"),
    "--master-port": ("MASTER_PORT", None, "PORT"),
    "--main-process-ip": ("MASTER_ADDR", None, "ADDRESS"),
    "--main-process-port": ("MASTER_PORT", None, "PORT"),
    "--num-cpu-threads-per-process": ("OMP_NUM_THREADS", None, "N"),
    "--gpu-ids": ("CUDA_VISIBLE_DEVICES", None, "0,1"),
    "--mixed-precision": ("ACCELERATE_MIXED_PRECISION", None, "bf16"),
    "--gradient-accumulation-steps": ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", None, "N"),
    "--dynamo-backend": ("ACCELERATE_DYNAMO_BACKEND", None, "NAME"),
    "--cpu": ("ACCELERATE_USE_CPU", "true", ""),
    "--use-cpu": ("ACCELERATE_USE_CPU", "true", ""),
}
_ANYWHERE = {("--gpu-ids", "all")}  # values that change nothing


class _Variable(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        flag = self.option_strings[0]
        variable, fixed, _ = _VARIABLES[flag]
        if (flag, values) not in _ANYWHERE:
            namespace.forward.append((variable, values if fixed is None else fixed))


class _Nodes(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if ":" in values and len(set(values.split(":"))) > 1:
            raise LaunchError(
                f"{option_string} {values}: for a number of hosts that changes, give --min-np, --max-np and "
                "--host-discovery-script"
            )
        namespace.nodes = (f"{option_string} {values}", _number(option_string, values.split(":")[0], 1))


class _NodeRank(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if _number(option_string, values, 0) != 0:
            raise LaunchError(f"{option_string} {values}: {_ONE_START}")


class _PerHost(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace.per_host = ranks_per_host(option_string, values)


class _Restarts(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace.max_restarts = _number(option_string, values, 0)


def _number(option: str | None, text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise LaunchError(f"{option} {text!r}: not a number of at least {least}")
    return int(text)


def ranks_per_host(option: str | None, text: str) -> int:
    """Returns the value of `--nproc-per-node`: a number, or `gpu`, `cpu` or `auto` for the devices of this host."""
    if text not in ("gpu", "cpu", "auto"):
        if not text.isdecimal():
            raise LaunchError(f"{option} {text!r}: not a number, and none of gpu, cpu and auto")
        return _number(option, text, 1)
    gpus = 0 if text == "cpu" else _gpus()
    if text == "gpu" and not gpus:
        raise LaunchError(f"{option} gpu: no NVIDIA GPU is here, or CUDA_VISIBLE_DEVICES hides all; give a number")
    return gpus or usable_cores()


def _gpus() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([each for each in visible.split(",") if each.strip() and not each.strip().startswith("-")])
    return sum(bool(re.fullmatch(r"nvidia[0-9]+", file.name)) for file in Path("/dev").glob("nvidia*"))


def check_nodes(nodes: tuple[str, int] | None, hosts: int) -> None:
    """Raises LaunchError if `--nnodes` names another number of hosts than the job has (0: none was named)."""
    if nodes is not None and nodes[1] != max(hosts, 1):
        found = f"{hosts} hosts are given" if hosts else "no hosts are given"
        raise LaunchError(f"{nodes[0]}: {found}; {_ONE_START}")


def add_starters_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that have an effect; see ACCEPTED and REFUSED for the others."""
    add = parser.add_argument_group("options of torchrun and accelerate").add_argument
    add(
        "--nproc-per-node",
        dest="per_host",
        action=_PerHost,
        default=argparse.SUPPRESS,
        metavar="N",
        help="ranks of each host: a number, gpu, cpu or auto; on one host also in place of -np",
    )
    add(
        *("--nnodes", "--num-machines"),
        dest="nodes",
        action=_Nodes,
        default=None,
        metavar="N",
        help="number of hosts, which -H or --hostfile names",
    )
    add(
        "--max-restarts",
        dest="max_restarts",
        action=_Restarts,
        default=0,
        metavar="N",
        help="start all ranks again after one has failed, at most N times (default: 0)",
    )
    add("--node-rank", "--machine-rank", dest="_", action=_NodeRank, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    for flag, (variable, fixed, metavar) in _VARIABLES.items():
        nargs = None if fixed is None else 0
        text = f"set {variable}={fixed}" if fixed else f"set {variable} of all ranks"
        add(flag, dest="_", action=_Variable, nargs=nargs, default=argparse.SUPPRESS, metavar=metavar, help=text)
